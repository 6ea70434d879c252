"""Recipes into order files, a segment at a time: memory and disk do not grow with the length of the run.

A segment takes all lanes forward together, in rounds of some samples each, until it holds enough steps. It ends at a place
(epoch, sample of each lane), and the next one begins somewhat before it, so that the follower has found its place there before
the former one is through.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common import limits
from common.errors import UsageError
from spoke.orders.writer import OrderWriter
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.scorecard import Reason
from spoke.recipes.model import Epoch, Recipe, Steps

_ROUND_SAMPLES = 1024
_ROUND_STEPS = 65_536
_ROUNDS_AT_LEAST = 32


class Place(NamedTuple):
    """Before sample ``sample`` of every lane in epoch ``epoch`` (counted from 0)."""

    epoch: int
    sample: int


START = Place(0, 0)


@dataclass(frozen=True, slots=True)
class SegmentMade:
    """``begin`` to ``end``; ``resume``: where the next one begins; None after the last."""

    path: Path
    name: str
    begin: Place
    end: Place
    resume: Place | None
    steps: int
    step_bytes: int


class Expansion:
    """Keeps the epoch that is worked on, which is costly to make."""

    def __init__(self, recipe: Recipe, *, last_epoch: int | None = None) -> None:
        """``last_epoch``: how many epochs at most."""
        self._recipe = recipe
        known = [count for count in (recipe.epochs, last_epoch) if count is not None]
        self._epochs = min(known) if known else None
        self._epoch: tuple[int, Epoch] | None = None

    def write(
        self,
        path: Path,
        name: str,
        begin: Place,
        files: Sequence[FileFacts],
        meta: Mapping[str, str],
        *,
        max_steps: int = limits.RECIPE_SEGMENT_STEPS,
        max_epochs: int = limits.RECIPE_SEGMENT_EPOCHS,
    ) -> SegmentMade:
        """Write one segment, which ends within a round of ``max_steps`` and with ``max_epochs``. Raises UsageError when the recipe
        has nothing there, OSError as the disk does."""
        lanes = range(len(self._recipe.lanes))
        rounds: deque[tuple[Place, int]] = deque()
        place, steps, step_bytes = begin, 0, 0
        with OrderWriter(
            path, name=name, reason=Reason.RECIPE, files=files, lane_count=len(lanes), meta=meta
        ) as writer:
            while (
                steps < max_steps
                and place.epoch - begin.epoch < max_epochs
                and (epoch := self._at(place.epoch)) is not None
            ):
                longest = max(epoch.samples(lane) for lane in lanes)
                if place.sample >= longest:
                    if longest == 0 and place.epoch > begin.epoch:
                        break
                    place = Place(place.epoch + 1, 0)
                    continue
                rounds.append((place, steps))
                end = min(longest, place.sample + self._round_samples(steps, rounds, max_steps // _ROUNDS_AT_LEAST))
                for lane in lanes:
                    made = epoch.steps(lane, place.sample, min(end, max(place.sample, epoch.samples(lane))))
                    steps += len(made)
                    step_bytes += int(made.lengths.sum())
                    writer.extend(lane, *_columns(made))
                place = Place(place.epoch, end)
            if steps == 0:
                raise UsageError(
                    f"{self._recipe.name}: there is nothing to read from epoch {begin.epoch}, sample {begin.sample}"
                )
            writer.finish()
        return SegmentMade(path, name, begin, place, self._resume(rounds, place, steps), steps, step_bytes)

    def _at(self, number: int) -> Epoch | None:
        if self._epochs is not None and number >= self._epochs:
            return None
        if self._epoch is None or self._epoch[0] != number:
            self._epoch = None  # let go of one before the next is made
            self._epoch = number, self._recipe.epoch(number)
        return self._epoch[1]

    def _round_samples(self, steps: int, rounds: deque[tuple[Place, int]], most_steps: int) -> int:
        """So many that a round makes some ten thousand steps, as far as the round before tells."""
        most_steps = min(_ROUND_STEPS, most_steps)
        if len(rounds) < 2:
            return max(1, min(_ROUND_SAMPLES, most_steps // len(self._recipe.lanes) // 4))
        (before, before_steps), (now, _) = rounds[-2], rounds[-1]
        samples = now.sample - before.sample if now.epoch == before.epoch else 1
        made = steps - before_steps
        return max(1, min(4 * samples, samples * most_steps // max(1, made)))

    def _resume(self, rounds: deque[tuple[Place, int]], end: Place, steps: int) -> Place | None:
        epoch = self._at(end.epoch)
        if epoch is None:
            return None
        is_last = self._epochs is not None and end.epoch == self._epochs - 1
        if is_last and end.sample >= max(epoch.samples(lane) for lane in range(len(self._recipe.lanes))):
            return None
        wanted = steps - steps * limits.RECIPE_OVERLAP_SHARE
        later = [place for place, before in rounds if before >= wanted]
        # At least one round of progress, or the segments would not get on.
        return later[0] if later and later[0] != rounds[0][0] else end


def _columns(steps: Steps) -> tuple[array[int], array[int], array[int]]:
    """As an OrderWriter takes them."""
    columns = array("I"), array("Q"), array("I")
    if len(steps) and int(steps.lengths.max()) >= 1 << 32:
        raise UsageError("a single read of 4 GiB or more is not followed; is the sequence length right?")
    for column, numbers, kind in zip(columns, steps, (np.uint32, np.uint64, np.uint32), strict=True):
        column.frombytes(numbers.astype(kind).tobytes())
    return columns
