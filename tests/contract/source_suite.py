"""What any Source must do, as one suite: subclass it and give it a ``harness`` fixture.

A harness changes the files behind the source the way their owner would; how soon the source notices is its own affair,
so the suite waits for its revision to move.
"""

from __future__ import annotations

import asyncio
import random
from typing import Protocol

import pytest

from common.blocks import BLOCK_BYTES, BlockRange, count_blocks, split_at_extents, whole_file
from common.digest import block_digests
from common.entries import VERSION_BYTES, Entry, Kind
from common.errors import ProtocolError, RevisionGone, StaleVersion
from common.serving.source import Source

NOTICE_TIMEOUT_S = 10.0
NEVER_KNOWN = b"\xee" * VERSION_BYTES


class Harness(Protocol):
    """Paths are relative to the dataset's root; parents are made as needed."""

    @property
    def source(self) -> Source: ...
    async def write(self, path: bytes, data: bytes) -> None: ...
    async def mkdir(self, path: bytes) -> None: ...
    async def symlink(self, path: bytes, target: bytes) -> None: ...
    async def remove(self, path: bytes) -> None: ...
    async def rename(self, old: bytes, new: bytes) -> None: ...


class SourceSuite:
    @staticmethod
    async def tree(source: Source) -> dict[bytes, Entry]:
        """A snapshot as a dict; checks what a snapshot promises on the way."""
        snapshot = await source.snapshot()
        found: dict[bytes, Entry] = {}
        async for page in snapshot.pages:
            for path, entry in page:
                assert path, "the root is left out"
                assert path not in found
                parent = path.rpartition(b"/")[0]
                assert not parent or found[parent].kind is Kind.DIRECTORY, "a parent comes before its children"
                assert len(entry.version) == (VERSION_BYTES if entry.kind is Kind.FILE else 0)
                found[path] = entry
        assert len(found) == snapshot.entry_count
        return found

    @classmethod
    async def settled(cls, source: Source, path: bytes, size_bytes: int | None) -> Entry | None:
        """Wait until the source shows ``path`` with this size (None: until it is gone)."""
        async with asyncio.timeout(NOTICE_TIMEOUT_S):
            while True:
                revision = source.head_revision
                entry = (await cls.tree(source)).get(path)
                if (entry is None) == (size_bytes is None) and (entry is None or entry.size_bytes == size_bytes):
                    return entry
                await source.wait_beyond(revision)

    @classmethod
    async def written(cls, harness: Harness, path: bytes, data: bytes) -> Entry:
        await harness.write(path, data)
        entry = await cls.settled(harness.source, path, len(data))
        assert entry is not None
        return entry

    @staticmethod
    async def content(source: Source, entry: Entry) -> bytes:
        pieces = []
        for blocks in split_at_extents(whole_file(entry.size_bytes)):
            extent = await source.read_extent(entry.version, blocks)
            assert extent.blocks == blocks
            assert bytes(extent.digests) == block_digests(entry.version, blocks.first_block, extent.data)
            pieces.append(bytes(extent.data))
        return b"".join(pieces)

    @pytest.mark.parametrize("size_bytes", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * 1024 * 1024 + 77])
    async def test_bytes_and_digests(self, harness: Harness, size_bytes: int) -> None:
        data = random.Random(size_bytes).randbytes(size_bytes)
        entry = await self.written(harness, b"d/f", data)
        assert await self.content(harness.source, entry) == data

    async def test_kinds_and_odd_names(self, harness: Harness) -> None:
        odd = b"sp ace/quo'te\"/new\nline/\xff\xfe"
        await harness.mkdir(b"empty")
        await harness.symlink(b"link", b"../outside")
        await self.written(harness, odd, b"x")
        tree = await self.tree(harness.source)
        assert tree[b"empty"].kind is Kind.DIRECTORY
        assert (tree[b"link"].kind, tree[b"link"].target) == (Kind.SYMLINK, b"../outside")
        assert tree[odd].kind is Kind.FILE

    async def test_blocks_past_the_end_are_refused(self, harness: Harness) -> None:
        entry = await self.written(harness, b"f", b"x" * (BLOCK_BYTES + 1))
        for blocks in (BlockRange(0, 3), BlockRange(2, 1), BlockRange(1 << 30, 1)):
            with pytest.raises(ProtocolError):
                await harness.source.read_extent(entry.version, blocks)

    async def test_a_version_never_known_is_stale(self, harness: Harness) -> None:
        with pytest.raises(StaleVersion):
            await harness.source.read_extent(NEVER_KNOWN, BlockRange(0, 1))

    async def test_a_rewritten_or_removed_file_is_stale_and_the_new_one_readable(self, harness: Harness) -> None:
        old = await self.written(harness, b"f", b"a" * BLOCK_BYTES)
        new = await self.written(harness, b"f", b"b" * (BLOCK_BYTES + 5))
        assert new.version != old.version
        with pytest.raises(StaleVersion):
            await harness.source.read_extent(old.version, BlockRange(0, 1))
        assert await self.content(harness.source, new) == b"b" * (BLOCK_BYTES + 5)
        await harness.remove(b"f")
        await self.settled(harness.source, b"f", None)
        with pytest.raises(StaleVersion):
            await harness.source.read_extent(new.version, BlockRange(0, count_blocks(new.size_bytes)))

    async def test_a_renamed_directory_keeps_versions(self, harness: Harness) -> None:
        before = await self.written(harness, b"old/deep/f", b"data")
        await harness.rename(b"old", b"new")
        after = await self.settled(harness.source, b"new/deep/f", 4)
        assert after is not None
        assert after.version == before.version
        assert await self.settled(harness.source, b"old", None) is None
        assert await self.content(harness.source, after) == b"data"

    async def test_changes_lead_from_any_revision_to_the_same_tree(self, harness: Harness) -> None:
        source = harness.source
        await self.written(harness, b"a/1", b"1")
        await self.written(harness, b"b", b"22")
        start_revision, start = source.head_revision, await self.tree(source)
        await self.written(harness, b"a/2", b"333")
        await harness.rename(b"a", b"c")
        await self.settled(source, b"c/2", 3)
        await harness.remove(b"b")
        await self.settled(source, b"b", None)
        goal_revision, goal = source.head_revision, await self.tree(source)
        revision, tree = start_revision, dict(start)
        while revision < goal_revision:
            changes = await source.changes_since(revision, 2)
            assert 0 < len(changes) <= 2
            for change in changes:
                assert change.revision > revision
                revision = change.revision
                old = tree.get(change.path)
                if change.entry is None or (old is not None and old.kind is not change.entry.kind):
                    for path in [p for p in tree if p == change.path or p.startswith(change.path + b"/")]:
                        del tree[path]
                if change.entry is not None:
                    tree[change.path] = change.entry
        assert tree == goal
        assert list(await source.changes_since(source.head_revision, 10)) == []

    async def test_a_revision_to_come_is_gone_too(self, harness: Harness) -> None:
        with pytest.raises(RevisionGone):
            await harness.source.changes_since(harness.source.head_revision + 1000, 10)

    async def test_wait_beyond_returns_at_once_for_the_past_and_later_for_the_head(self, harness: Harness) -> None:
        source = harness.source
        await self.written(harness, b"f", b"1")
        async with asyncio.timeout(NOTICE_TIMEOUT_S):
            await source.wait_beyond(source.head_revision - 1)
            waiting = asyncio.create_task(source.wait_beyond(source.head_revision))
            await asyncio.sleep(0)
            assert not waiting.done()
            await harness.write(b"g", b"2")
            await waiting
        cancelled = asyncio.create_task(source.wait_beyond(source.head_revision + 1000))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert cancelled.cancelled()

    async def test_identity_is_of_the_right_form(self, harness: Harness) -> None:
        assert len(harness.source.catalog_id) == 16
        assert harness.source.head_revision >= 0
        assert harness.source.dataset
