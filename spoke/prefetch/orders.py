"""What an order is: reads known ahead, as steps in lanes. Plain data and one interface; how orders are kept is not here.

A declared plan, a recipe's result and a sequence learned from earlier reads are all orders. A lane is what one rank (or one
job) reads in this sequence; its workers share it out, so that reads arrive displaced by some workers x batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from spoke.prefetch.chains import FileFacts
from spoke.prefetch.scorecard import Reason

__all__ = ["SEEN_ONCE", "FileFacts", "Order", "Reader", "Reason", "Step"]


SEEN_ONCE = frozenset({Reason.LEARNED, Reason.REPORTED})
"""Orders that nobody promised: they were read so before, here or at another spoke."""


class Step(NamedTuple):
    """One read: ``length_bytes`` (at least 1) of the file ``Order.files[file]``, from ``offset_bytes`` on."""

    file: int
    offset_bytes: int
    length_bytes: int


class Reader(Enum):
    """How whoever made an order expects its files to be read: by ``read`` or ``pread``, or mapped, by page faults that move more."""

    EXACT = "exact"
    MAPPED = "mapped"


class Order(Protocol):
    """``name`` is unique among the active orders. Positions are counted from 0 in each lane and never change their meaning."""

    @property
    def name(self) -> str: ...
    @property
    def reason(self) -> Reason: ...
    @property
    def reader(self) -> Reader | None:
        """None: its maker does not say."""

    @property
    def origin(self) -> str:
        """Where it came from, for people; empty: it was made here."""

    @property
    def files(self) -> Sequence[FileFacts]: ...
    @property
    def lane_count(self) -> int: ...

    def length(self, lane: int) -> int:
        """Steps known now: the position after the last. A growing order gets longer."""

    def first(self, lane: int) -> int:
        """The first position still held: a growing order forgets what was consumed."""

    def step(self, lane: int, position: int) -> Step:
        """The step at a position from ``first`` up to ``length``. Raises IndexError elsewhere."""

    def find(self, file: int, start_bytes: int, end_bytes: int, limit: int) -> list[tuple[int, int]]:
        """(lane, position) of steps that overlap these bytes of a file; any ``limit`` of them, each once."""

    def file_of(self, version: bytes) -> int | None:
        """The index in ``files`` of the file of this version, or None: look-ups and steps use this one index for a version."""

    def next_position(self, lane: int, file: int, start_bytes: int, end_bytes: int, from_position: int) -> int | None:
        """The first step of the lane, at ``from_position`` or later, that overlaps these bytes; None if none is known."""

    def forget(self, lane: int, before_position: int) -> None:
        """Steps of the lane before this position are not needed any more. An order on disk keeps them."""
