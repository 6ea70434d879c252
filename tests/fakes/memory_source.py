"""A whole Source in memory: a dict of files that tests change, with a change log; for whoever serves, follows or fetches.

The version of a file is a hash of its bytes, so a renamed or rebuilt file keeps its version, and two equal files share one.
Reads can be held (``gate``), made to fail (``failure``), and are recorded (``reads``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from xxhash import xxh3_128_digest

from common.blocks import BLOCK_BYTES, BlockRange, count_blocks
from common.digest import block_digests
from common.entries import Change, Entry, Kind, is_safe_path
from common.errors import ProtocolError, RevisionGone, RevisionUnavailable, StaleVersion
from common.serving.source import Extent, Held, Snapshot

_MTIME_NS = 1_700_000_000_000_000_000


class MemorySource:
    """Satisfies ``common.serving.source.Source``. ``page_entries``: the length of snapshot pages."""

    def __init__(
        self,
        files: Mapping[bytes, bytes] | None = None,
        *,
        dataset: str = "memory",
        catalog_id: bytes = b"memory-catalog-1",
        page_entries: int = 1000,
    ) -> None:
        self._dataset = dataset
        self.catalog_id = catalog_id
        self.page_entries = page_entries
        self._entries: dict[bytes, Entry] = {}
        self._contents: dict[bytes, bytes] = {}
        self._log: list[Change] = []
        self._floor_revision = 0
        self._head_revision = 0
        self._waiters: set[asyncio.Future[None]] = set()
        self.gate: asyncio.Event | None = None
        """While set to an Event that is clear, reads wait for it."""
        self.failure: BaseException | None = None
        """Raised by every read while set."""
        self.reads: list[tuple[bytes, BlockRange]] = []
        self.checks: list[bytes] = []
        self.former_ids: dict[bytes, int] = {}
        self.snapshots: dict[str, tuple[int, dict[bytes, Entry]]] = {}
        self.reads_open = 0
        self._digests: dict[tuple[bytes, BlockRange], bytes] = {}
        for path, data in (files or {}).items():
            self.put(path, data)

    # --- the test's hand ----------------------------------------------------------------------------------

    def put(self, path: bytes, data: bytes, *, mode: int = 0o644, mtime_ns: int | None = None) -> bytes:
        """Create or replace a file, with its parents; returns its version."""
        self._make_parents(path)
        version = xxh3_128_digest(data)
        self._contents[version] = data
        stamp_ns = mtime_ns if mtime_ns is not None else _MTIME_NS + self._head_revision
        self._record(path, Entry(Kind.FILE, mode, len(data), stamp_ns, version=version))
        return version

    def mkdir(self, path: bytes) -> None:
        self._make_parents(path)
        if path not in self._entries:
            self._record(path, Entry(Kind.DIRECTORY, 0o755, 0, _MTIME_NS + self._head_revision))

    def symlink(self, path: bytes, target: bytes) -> None:
        self._make_parents(path)
        self._record(path, Entry(Kind.SYMLINK, 0o777, len(target), _MTIME_NS + self._head_revision, target=target))

    def remove(self, path: bytes) -> None:
        """Remove a name with all below it."""
        if path not in self._entries:
            raise KeyError(path)
        self._record(path, None)

    def rename(self, old: bytes, new: bytes) -> None:
        """Move a name with all below it; versions stay."""
        moved = [(path, entry) for path, entry in self._entries.items() if path == old or path.startswith(old + b"/")]
        if not moved:
            raise KeyError(old)
        self._make_parents(new)
        self._record(old, None)
        for path, entry in sorted(moved):
            self._record(new + path[len(old) :], entry)

    def trim_log(self) -> None:
        """Forget all changes so far: older revisions need a snapshot."""
        self._log.clear()
        self._floor_revision = self._head_revision

    def name_snapshot(self, name: str) -> None:
        """Keep the tree as it is now under a name."""
        self.snapshots[name] = (self._head_revision, dict(self._entries))

    def reopen(self, catalog_id: bytes) -> None:
        """As a hub that starts again: the same catalog under a new id."""
        self.former_ids[self.catalog_id] = self._head_revision
        self.catalog_id = catalog_id

    def rebuild(self, catalog_id: bytes) -> None:
        """As if the catalog had been made anew over the same files."""
        self.catalog_id = catalog_id
        entries = list(self._entries.items())
        self._entries.clear()
        self._log.clear()
        self._floor_revision = self._head_revision = 0
        for path, entry in entries:
            self._record(path, entry)

    def entries(self) -> dict[bytes, Entry]:
        """The tree now: path to entry, the root left out."""
        return dict(self._entries)

    def content(self, path: bytes) -> bytes:
        return self._contents[self._entries[path].version]

    def version(self, path: bytes) -> bytes:
        return self._entries[path].version

    def _make_parents(self, path: bytes) -> None:
        if not is_safe_path(path) or not path:
            raise ValueError(f"not a path in a tree: {path!r}")
        parent = path.rpartition(b"/")[0]
        if parent:
            self.mkdir(parent)

    def _record(self, path: bytes, entry: Entry | None) -> None:
        old = self._entries.get(path)
        if entry is None or (old is not None and old.kind is not entry.kind):
            for below in [name for name in self._entries if name == path or name.startswith(path + b"/")]:
                del self._entries[below]
        if entry is not None:
            self._entries[path] = entry
        self._head_revision += 1
        self._log.append(Change(self._head_revision, path, entry))
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- Source ---------------------------------------------------------------------------------------------

    @property
    def dataset(self) -> str:
        return self._dataset

    @property
    def root_mtime_ns(self) -> int | None:
        return None

    held: Held | None = None

    @property
    def head_revision(self) -> int:
        return self._head_revision

    async def read_extent(self, version: bytes, blocks: BlockRange) -> Extent:
        self.reads.append((version, blocks))
        self.reads_open += 1
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.failure is not None:
                raise self.failure
        finally:
            self.reads_open -= 1
        if not any(entry.version == version for entry in self._entries.values()):
            raise StaleVersion(f"no file has version {version.hex()} now")
        data = self._contents[version]
        if blocks.block_count <= 0 or blocks.end_block > count_blocks(len(data)):
            raise ProtocolError(f"blocks {blocks} pass the end of a file of {len(data)} bytes")
        piece = memoryview(data)[blocks.first_block * BLOCK_BYTES : blocks.end_block * BLOCK_BYTES]
        digests = self._digests.get((version, blocks))
        if digests is None:
            digests = self._digests[version, blocks] = block_digests(version, blocks.first_block, piece)
        return Extent(blocks, piece, digests)

    def leads_from(self, catalog_id: bytes, revision: int) -> bool:
        return catalog_id == self.catalog_id or revision <= self.former_ids.get(catalog_id, -1)

    async def named_revision(self, name: str) -> int:
        if name not in self.snapshots:
            raise RevisionUnavailable(f"no snapshot {name!r}; there are {', '.join(self.snapshots)}")
        return self.snapshots[name][0]

    async def check(self, path: bytes) -> int:
        self.checks.append(path)
        if self.failure is not None:
            raise self.failure
        return self._head_revision

    async def snapshot(self, revision: int | None = None) -> Snapshot:
        kept = {self._head_revision: self._entries} | dict(self.snapshots.values())
        revision = self._head_revision if revision is None else revision
        if revision not in kept:
            raise RevisionUnavailable(f"revision {revision} is not kept; there are {sorted(kept)}")
        entries = sorted(kept[revision].items())
        page_entries = self.page_entries

        async def pages() -> AsyncIterator[Sequence[tuple[bytes, Entry]]]:
            for start in range(0, len(entries), page_entries):
                yield entries[start : start + page_entries]

        return Snapshot(revision, len(entries), pages())

    async def changes_since(self, revision: int, limit: int) -> Sequence[Change]:
        if not self._floor_revision <= revision <= self._head_revision:
            raise RevisionGone(f"the log reaches from {self._floor_revision} to {self._head_revision}, not {revision}")
        start = revision - self._floor_revision
        return self._log[start : start + limit]

    async def wait_beyond(self, revision: int) -> None:
        while self._head_revision <= revision:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
