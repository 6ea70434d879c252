"""What goes into the planner and comes out of it, and the interface its sources of foresight share."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from common.blocks import BlockRange
from spoke.prefetch.scorecard import Reason

FAULT_BYTES = 128 * 1024
"""What a random page fault moves, the page wanted in its middle, with the readahead a mount begins with."""

NO_STREAM = 0
"""Of a fetch for none. Streams count up from it, orders down."""


class ReadSeen(NamedTuple):
    """A READ at the mount. ``result``: ``hit`` (nobody waited for the hub), ``late`` (its data were on the way), ``miss``.

    ``fault_bytes``: what a page fault moves on this handle (the kernel's readahead at its open).
    """

    handle_id: int
    task_id: int
    version: bytes
    offset_bytes: int
    length_bytes: int
    result: Literal["hit", "late", "miss"]
    fault_bytes: int = FAULT_BYTES


class Fetch(NamedTuple):
    """Blocks to ask for; those present or in flight are the runner's to leave out. ``size_bytes``: of the file."""

    version: bytes
    blocks: BlockRange
    stream_id: int
    reason: Reason
    size_bytes: int


class Source(Protocol):
    """Something that foresees reads. How it learns of them is its own affair; what it wants is asked for here."""

    @property
    def has_plans(self) -> bool:
        """:meth:`plan` may give something."""

    @property
    def active_count(self) -> int:
        """Places it runs ahead of now: all of them share the windows."""

    def plan(self, now_s: float, budget_bytes: int) -> list[Fetch]:
        """What to fetch now, at most ``budget_bytes`` in all."""

    def failed(self, now_s: float, version: bytes) -> None:
        """A fetch of this version failed: leave it alone for a moment."""
