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
    """The tree at ``revision``: ``pages`` yields lists of (path, entry), a parent before its children, root left out."""

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


class TreeSource(Protocol):
    @property
    def catalog_id(self) -> bytes:
        """16 bytes that name this change log; revisions of different logs do not compare."""
        ...

    @property
    def head_revision(self) -> int: ...

    async def snapshot(self) -> Snapshot: ...

    async def changes_since(self, revision: int, limit: int) -> Sequence[Change]:
        """Up to ``limit`` changes after ``revision``, in order; raises RevisionGone when the log no longer reaches back."""
        ...

    async def wait_beyond(self, revision: int) -> None:
        """Return once ``head_revision > revision``."""
        ...


class Source(BlockSource, TreeSource, Protocol):
    @property
    def dataset(self) -> str: ...
