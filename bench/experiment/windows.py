"""What a sample is and in which order samples come: packed windows of token files, swept, shuffled or as Megatron does.

The tokens of all files, in the order of their names, are cut into windows of W + 1 that overlap by one token (input and
target are its two shifted views). How files hold tokens is ``tokens``' part.
"""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, DistributedSampler, Sampler

from bench.experiment.tokens import Numbers, TokenFile
from common.errors import UsageError

Order = Literal["sweep", "shuffle", "megatron"]
ORDERS: tuple[Order, ...] = ("sweep", "shuffle", "megatron")
DOCUMENT_WINDOWS = 1.5
"""Mean length of what the Megatron order takes as a document, in windows: most samples then join parts of two."""

Sample = tuple[torch.Tensor, float, float]


def document_bounds(tokens: int, window: int, seed: int) -> Numbers:
    """Where documents begin and end within ``tokens``: n + 1 rising numbers from 0 to ``tokens``, lengths drawn by ``seed``."""
    dice = np.random.default_rng(seed)
    mean = window * DOCUMENT_WINDOWS
    lengths = dice.integers(max(1, int(mean / 4)), int(mean * 7 / 4) + 1, int(tokens / mean * 2) + 16)
    ends = np.cumsum(lengths)
    return np.concatenate(([0], ends[ends < tokens], [tokens])).astype(np.int64)


def documents_of(files: Sequence[TokenFile], window: int, seed: int) -> Numbers:
    """Bounds of the files' own sequences where each file has them, else drawn ones. None is empty."""
    lengths = [file.lengths for file in files if file.lengths is not None]
    if len(lengths) < len(files):
        return document_bounds(sum(file.tokens for file in files), window, seed)
    return np.unique(np.concatenate(([0], np.cumsum(np.concatenate(lengths)))))


def megatron_index(bounds: Numbers, window: int, seed: int) -> tuple[Numbers, Numbers, Numbers]:
    """Megatron's three indices for one epoch: (documents shuffled, sample starts, samples shuffled).

    The documents are joined in shuffled order and cut into windows of ``window`` + 1 that overlap by one token; a start
    is (place in the shuffled documents, token within that document), shape samples x 2. Source: GPTDataset of Megatron-LM.
    """
    dice = np.random.RandomState(seed)
    documents = np.arange(len(bounds) - 1)
    dice.shuffle(documents)
    ends = np.cumsum(np.diff(bounds)[documents])
    samples = int((ends[-1] - 1) // window)
    starts = np.arange(samples, dtype=np.int64) * window
    places = np.searchsorted(ends, starts, side="right")
    before = np.concatenate(([0], ends))[places]
    shuffled = np.arange(samples)
    dice.shuffle(shuffled)
    return documents, np.stack((places, starts - before), axis=1), shuffled


class GpuBatches(Sampler[list[int]]):
    """Batches as ``gpus`` data-parallel processes would read them: ``batch`` samples for each of ``own``, GPU after GPU.

    Each GPU has the share that DistributedSampler gives it, so that in a sweep neighbours go to different GPUs. Every pass
    is the same.
    """

    def __init__(self, windows: Windows, gpus: int, own: range, batch: int, order: Order, seed: int) -> None:
        self._batch = batch
        self._shares: list[DistributedSampler[Any]] = [
            DistributedSampler(windows, gpus, gpu, shuffle=order == "shuffle", seed=seed, drop_last=True) for gpu in own
        ]

    def __iter__(self) -> Iterator[list[int]]:
        orders = [iter(share) for share in self._shares]
        for _ in range(len(self)):
            yield [next(order) for order in orders for _ in range(self._batch)]

    def __len__(self) -> int:
        return len(self._shares[0]) // self._batch


class Windows(Dataset[Sample]):
    """Sample ``i``: (window + 1 token ids as int32, when its read began on the monotonic clock, how long it took), seconds.

    ``order`` "megatron" follows its index; the others are the plain windows in order (a sampler may shuffle them). Each process maps a
    file when it first needs it. ``readers``: GPUs that a batch is for; each one's part is read by a thread of its own.
    """

    def __init__(self, files: Sequence[TokenFile], window: int, order: Order, seed: int, readers: int = 1) -> None:
        self._files = list(files)
        self._window = window
        self._ends = list(itertools.accumulate(file.tokens for file in files))
        self._maps: dict[int, npt.NDArray[Any]] = {}
        self._readers = readers
        self._threads: ThreadPoolExecutor | None = None
        self._index: tuple[Numbers, Numbers, Numbers] | None = None
        if self._ends[-1] <= window:
            raise UsageError(
                f"the files hold {self._ends[-1]} tokens; a window of {window} needs {window + 1} at least"
            )
        if order == "megatron":
            self._bounds = documents_of(files, window, seed)
            self._index = megatron_index(self._bounds, window, seed)

    def __len__(self) -> int:
        if self._index is not None:
            return len(self._index[2])
        return (self._ends[-1] - 1) // self._window

    def __getitems__(self, numbers: list[int]) -> list[Sample]:
        """A whole batch, each reader's part side by side with the others'."""
        if self._readers == 1:
            return [self[number] for number in numbers]
        if self._threads is None:  # in the worker: threads do not outlive a fork
            self._threads = ThreadPoolExecutor(self._readers)
        share = len(numbers) // self._readers
        parts = [numbers[start : start + share] for start in range(0, len(numbers), share)]
        return [
            sample
            for part in self._threads.map(lambda part: [self[number] for number in part], parts)
            for sample in part
        ]

    def __getitem__(self, number: int) -> Sample:
        began_s = time.monotonic()
        tokens = np.concatenate([self._part(start, length) for start, length in self.parts(number)]).astype(np.int32)
        return torch.from_numpy(tokens), began_s, time.monotonic() - began_s

    def parts(self, number: int) -> list[tuple[int, int]]:
        """(first token, tokens) of each piece of sample ``number``, in order; together ``window`` + 1."""
        wanted = self._window + 1
        if self._index is None:
            return [(number * self._window, wanted)]
        documents, starts, shuffled = self._index
        place, within = (int(value) for value in starts[shuffled[number]])
        found: list[tuple[int, int]] = []
        while wanted:
            document = documents[place]
            begin, end = int(self._bounds[document]) + within, int(self._bounds[document + 1])
            length = min(wanted, end - begin)
            found.append((begin, length))
            wanted -= length
            place, within = place + 1, 0
        return found

    def _part(self, start: int, length: int) -> npt.NDArray[Any]:
        """Tokens across the ends of files."""
        pieces = []
        while length:
            number = bisect.bisect_right(self._ends, start)
            first = self._ends[number - 1] if number else 0
            piece = self._map(number)[start - first : start - first + length]
            pieces.append(np.array(piece))
            start, length = start + len(piece), length - len(piece)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _map(self, number: int) -> npt.NDArray[Any]:
        if number not in self._maps:  # two threads may both map it: one of the maps is dropped again
            self._maps[number] = self._files[number].map()
        return self._maps[number]
