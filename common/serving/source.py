"""What a server serves, whoever keeps it: blocks of a version, the tree at a revision, changes since.

The hub's dataset directory is one source; a spoke that serves its region will be another. ``serving`` knows
nothing beyond these protocols.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from common.blocks import BlockRange
from common.entries import Change, Entry


class Extent(NamedTuple):
    """Blocks as read and digested at the source. ``data``: raw bytes; ``digests``: packed, see common.digest."""

    blocks: BlockRange
    data: bytes | bytearray | memoryview
    digests: bytes


class Snapshot(NamedTuple):
    """The tree at ``revision``: ``pages`` yields lists of (path, entry), a parent before its children, root left out.

    An ``EntryPage`` (common.wire.entry_codec) goes to the wire as it is: a source that can make some spares the rest.
    """

    revision: int
    entry_count: int
    pages: AsyncIterator[Sequence[tuple[bytes, Entry]]]


class BlockSource(Protocol):
    async def read_extent(self, version: bytes, blocks: BlockRange) -> Extent:
        """Read blocks of one extent of one version.

        Raises StaleVersion when the file is no longer that version (before, during or after the read; also for a
        version never known), SourceReadError when the disk fails, ProtocolError when ``blocks`` passes the end of the file.
        """
        ...


class Held(NamedTuple):
    reason: str
    for_s: float


class TreeSource(Protocol):
    @property
    def catalog_id(self) -> bytes:
        """16 bytes that name this change log; revisions of different logs do not compare."""
        ...

    @property
    def head_revision(self) -> int: ...

    @property
    def root_mtime_ns(self) -> int | None:
        """Of the dataset's own directory, which no entry stands for; None where there is none."""
        ...

    @property
    def held(self) -> Held | None:
        """Why, and since when, the names are those of before: the directory cannot be looked at. None while they are as it is now."""
        ...

    def leads_from(self, catalog_id: bytes, revision: int) -> bool:
        """Whether this log goes on from that revision of that catalog: its own, or what it was called before."""
        ...

    async def snapshot(self, revision: int | None = None) -> Snapshot:
        """The tree as it is, or as it was at ``revision``; raises RevisionUnavailable when that is not kept, or not yet."""
        ...

    async def named_revision(self, name: str) -> int:
        """What a snapshot's name stands for; raises RevisionUnavailable when there is none of this name."""
        ...

    async def changes_since(self, revision: int, limit: int) -> Sequence[Change]:
        """Up to ``limit`` changes after ``revision``, in order; raises RevisionGone when the log no longer reaches back."""
        ...

    async def wait_beyond(self, revision: int) -> None:
        """Return once ``head_revision > revision``."""
        ...

    async def check(self, path: bytes) -> int:
        """Look at this path at its origin; return the revision from which on the tree has it as it was at the call, or later.

        Raises HeadraceError when the origin cannot be looked at now.
        """
        ...


class Source(BlockSource, TreeSource, Protocol):
    @property
    def dataset(self) -> str: ...
