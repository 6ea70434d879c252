"""What a sample is and in which order samples come: packed windows of token files, swept, shuffled or as Megatron does.

The tokens of all files, in the order of their names, are cut into windows of W + 1 that overlap by one token (input and
target are its two shifted views). Files hold raw little-endian token ids, as nanoGPT's and Megatron's ``.bin`` do.
"""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from common.errors import UsageError

Order = Literal["sweep", "shuffle", "megatron"]
ORDERS: tuple[Order, ...] = ("sweep", "shuffle", "megatron")
DTYPES = ("uint16", "uint32", "int32")
DOCUMENT_WINDOWS = 1.5
"""Mean length of what the Megatron order takes as a document, in windows: most samples then join parts of two."""

Numbers = npt.NDArray[np.int64]


def token_files(directory: Path) -> list[Path]:
    """All ``*.bin`` below it, in the order of their names. Raises UsageError when there is none."""
    found = sorted(path for path in directory.rglob("*.bin") if path.is_file())
    if not found:
        raise UsageError(f"{directory} holds no *.bin file of token ids")
    return found


def document_bounds(tokens: int, window: int, seed: int) -> Numbers:
    """Where documents begin and end within ``tokens``: n + 1 rising numbers from 0 to ``tokens``, lengths drawn by ``seed``."""
    dice = np.random.default_rng(seed)
    mean = window * DOCUMENT_WINDOWS
    lengths = dice.integers(max(1, int(mean / 4)), int(mean * 7 / 4) + 1, int(tokens / mean * 2) + 16)
    ends = np.cumsum(lengths)
    return np.concatenate(([0], ends[ends < tokens], [tokens])).astype(np.int64)


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


class Windows(Dataset[tuple[torch.Tensor, float, float]]):
    """Sample ``i``: (window + 1 token ids as int32, when its read began on the monotonic clock, how long it took), seconds.

    ``order`` "megatron" follows its index; the others are the plain windows in order (a sampler may shuffle them). Each process maps a
    file when it first needs it.
    """

    def __init__(self, files: Sequence[Path], dtype: str, window: int, order: Order, seed: int) -> None:
        self._files = list(files)
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._window = window
        sizes = [path.stat().st_size // self._dtype.itemsize for path in files]
        self._ends = list(itertools.accumulate(sizes))
        self._maps: dict[int, np.memmap[Any, Any]] = {}
        self._index: tuple[Numbers, Numbers, Numbers] | None = None
        if self._ends[-1] <= window:
            raise UsageError(
                f"the files hold {self._ends[-1]} tokens; a window of {window} needs {window + 1} at least"
            )
        if order == "megatron":
            self._bounds = document_bounds(self._ends[-1], window, seed)
            self._index = megatron_index(self._bounds, window, seed)

    def __len__(self) -> int:
        if self._index is not None:
            return len(self._index[2])
        return (self._ends[-1] - 1) // self._window

    def __getitem__(self, number: int) -> tuple[torch.Tensor, float, float]:
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

    def _map(self, number: int) -> np.memmap[Any, Any]:
        if number not in self._maps:
            self._maps[number] = np.memmap(self._files[number], dtype=self._dtype, mode="r")
        return self._maps[number]
