"""How Megatron mixes datasets: the sizes asked of each, and which dataset the i-th sample comes from. Pure but for scratch.

The i-th sample comes from the dataset that lags most behind its weight: argmax of weight x max(i, 1) - taken, the first of equals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from common.errors import UsageError
from spoke.recipes.model import Int64s
from spoke.recipes.scratch import Scratch

SURPLUS = 0.005
"""More than its share is prepared of each dataset, lest rounding run out of one (``mid_level_dataset_surplus``)."""


class Blend(NamedTuple):
    """``weights`` None: as large as the datasets are."""

    prefixes: list[str]
    weights: list[float] | None


def parse_blend(words: Sequence[str]) -> Blend:
    """``0.3 A 0.7 B`` or ``A B C``, as ``--data-path`` takes it: an even number of words is weights and prefixes in turn if it can be."""
    if len(words) % 2 == 0:
        try:
            return Blend(list(words[1::2]), [float(word) for word in words[0::2]])
        except ValueError:
            pass
    return Blend(list(words), None)


def normalized(weights: Sequence[float]) -> list[float]:
    """Divided by their sum, summed up as NumPy does: other rounding gives another order."""
    numbers = np.array(weights, dtype=np.float64)
    return [float(number) for number in numbers / np.sum(numbers)]


def sizes(weights: Sequence[float], size: int, surplus: float) -> list[int]:
    return [math.ceil(math.ceil(size * weight) * (1 + surplus)) for weight in weights]


def split_bounds(split: str, part: int, elements: int) -> tuple[int, int]:
    """First and last (exclusive) sequence of the part (0 train, 1 valid, 2 test) of a split such as ``99,1,0``."""
    shares = [float(share) for share in re.findall(r"[.0-9]+", split)]
    if not 1 <= len(shares) <= 3 or sum(shares) <= 0:
        raise UsageError(f"--split {split}: one to three shares were expected, like 99,1,0")
    shares = normalized([*shares, *[0.0] * (3 - len(shares))])
    edges = [0.0]
    for share in shares:
        edges.append(edges[-1] + share)
    if edges[part + 1] <= edges[part]:
        raise UsageError(f"--split {split} leaves nothing for the part asked for")
    return round(edges[part] * float(elements)), round(edges[part + 1] * float(elements))


class Mixture:
    """Which dataset and which of its samples the i-th sample is; worked out as far as somebody asks."""

    def __init__(self, weights: Sequence[float], count: int, scratch: Scratch) -> None:
        self._weights = np.array(weights, dtype=np.float64)
        self.count = count
        self._taken = np.zeros(len(weights), dtype=np.int64)
        self._done = 0
        self._datasets = scratch.empty(count, np.int16)
        self._samples = scratch.empty(count, np.int64)

    def at(self, index: Int64s) -> tuple[Int64s, Int64s]:
        """(dataset, sample in it) for each of ``index``."""
        if len(index):
            self._extend(int(index.max()) + 1)
        return self._datasets[index].astype(np.int64), self._samples[index]

    def _extend(self, end: int) -> None:
        weights, taken = self._weights.tolist(), self._taken.tolist()
        places = range(len(weights))
        for index in range(self._done, end):
            at = max(index, 1)
            errors = [weight * at - count for weight, count in zip(weights, taken, strict=True)]
            chosen = max(places, key=errors.__getitem__)
            self._datasets[index] = chosen
            self._samples[index] = taken[chosen]
            taken[chosen] += 1
        self._taken[:] = taken
        self._done = max(self._done, end)


class Exhaustive(Mixture):
    """Every sample of every dataset once: those that are used up take no part any more."""

    def __init__(self, counts: Sequence[int], scratch: Scratch) -> None:
        total = sum(counts)
        super().__init__([count / total for count in counts], total, scratch)
        self._counts = list(counts)

    def _extend(self, end: int) -> None:
        weights, taken, counts = self._weights.tolist(), self._taken.tolist(), self._counts
        for index in range(self._done, end):
            at = max(index, 1)
            chosen = max(
                (place for place in range(len(counts)) if taken[place] < counts[place]),
                key=lambda place: weights[place] * at - taken[place],
            )
            self._datasets[index] = chosen
            self._samples[index] = taken[chosen]
            taken[chosen] += 1
        self._taken[:] = taken
        self._done = max(self._done, end)


class Given(Mixture):
    """As a job has saved it."""

    def __init__(self, datasets: Int64s, samples: Int64s) -> None:
        self._datasets, self._samples = datasets, samples
        self.count = len(datasets)

    def _extend(self, end: int) -> None:
        del end
