"""What a recipe is: lanes, epochs, and the reads of each sample as columns of numbers. Plain data; no file is opened here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


class Steps(NamedTuple):
    """Reads in order, a row each. ``files`` index ``Recipe.paths``; offsets and lengths in bytes, no length is 0."""

    files: Int64s
    offsets: Int64s
    lengths: Int64s

    def __len__(self) -> int:
        """Rows, not columns."""
        return len(self.files)


def no_steps() -> Steps:
    empty = np.empty(0, np.int64)
    return Steps(empty, empty, empty)


def joined(parts: Sequence[Steps]) -> Steps:
    """One after the other."""
    if not parts:
        return no_steps()
    return Steps(*(np.concatenate([part[column] for part in parts]) for column in range(3)))


def spread(counts: Int64s) -> tuple[Int64s, Int64s]:
    """For groups of these sizes: the group of each row, and its place within the group, both from 0."""
    groups = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    begins = np.cumsum(counts, dtype=np.int64) - counts
    return groups, np.arange(len(groups), dtype=np.int64) - begins[groups]


class Epoch(Protocol):
    """One pass of all lanes, in samples: what the loader asks for at once."""

    def samples(self, lane: int) -> int:
        """How many samples this lane reads in this epoch."""

    def steps(self, lane: int, begin: int, end: int) -> Steps:
        """The reads of the lane's samples ``begin`` to ``end`` (exclusive). Callers ask for pieces, so memory is theirs to bound."""


class Recipe(Protocol):
    """``epochs``: how many there are, None: as many as somebody wants. ``notes``: each parameter as used, and whence it came."""

    @property
    def name(self) -> str: ...
    @property
    def paths(self) -> Sequence[bytes]: ...
    @property
    def lanes(self) -> Sequence[str]: ...
    @property
    def epochs(self) -> int | None: ...
    @property
    def is_mapped(self) -> bool:
        """Its loader maps the files, unless told otherwise: most reads are page faults."""

    def epoch(self, number: int) -> Epoch:
        """Counted from 0, which is the run's first one whatever the loader calls it."""


Notes = Mapping[str, str]
