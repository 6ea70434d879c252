"""The feed as a stream of messages, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest

from common import limits
from common.entries import Entry
from common.errors import RevisionUnavailable, SourceReadError
from common.serving.feed import FeedMessage, follow
from common.serving.source import Held
from common.wire.message_codec import encode
from common.wire.messages import Changes, Heartbeat, SnapshotPage, Subscribe
from tests.fakes.memory_source import MemorySource

NOTHING_KNOWN = Subscribe(b"", 0)


def apply(tree: dict[bytes, Entry], message: FeedMessage) -> None:
    """What a replica does, in its plainest form."""
    if isinstance(message, SnapshotPage):
        tree.update(message.entries)
    elif isinstance(message, Changes):
        for change in message.changes:
            old = tree.get(change.path)
            if change.entry is None or (old is not None and old.kind is not change.entry.kind):
                for path in [path for path in tree if path == change.path or path.startswith(change.path + b"/")]:
                    del tree[path]
            if change.entry is not None:
                tree[change.path] = change.entry


async def following(feed: AsyncGenerator[FeedMessage, None]) -> FeedMessage:
    async with asyncio.timeout(5):
        return await anext(feed)


async def test_nothing_known_gets_a_snapshot_in_pages_then_changes() -> None:
    source = MemorySource({b"d%d/f%d" % (i % 7, i): b"%d" % i for i in range(2500)}, page_entries=900)
    async with aclosing(follow(source, NOTHING_KNOWN, 60)) as feed:
        tree: dict[bytes, Entry] = {}
        pages = []
        while True:
            page = await following(feed)
            assert isinstance(page, SnapshotPage)
            pages.append(page)
            apply(tree, page)
            if page.last:
                break
        assert tree == source.entries()
        assert {page.entry_count for page in pages} == {len(tree)}
        assert {(page.catalog_id, page.revision) for page in pages} == {(source.catalog_id, source.head_revision)}
        assert max(len(page.entries) for page in pages) <= limits.FEED_FRAME_MAX_ENTRIES
        assert await following(feed) == Heartbeat(source.catalog_id, source.head_revision)
        before = source.head_revision
        source.put(b"new", b"x")
        source.remove(b"d3")
        changes = await following(feed)
        assert isinstance(changes, Changes)
        assert (changes.after_revision, changes.to_revision) == (before, before + 2)
        apply(tree, changes)
        assert tree == source.entries()


async def test_an_empty_tree_is_one_empty_last_page() -> None:
    async with aclosing(follow(MemorySource(), NOTHING_KNOWN, 60)) as feed:
        assert await following(feed) == SnapshotPage(b"memory-catalog-1", 0, 0, last=True, entries=())


async def test_who_knows_a_revision_gets_only_what_came_after_it() -> None:
    source = MemorySource({b"a": b"1"})
    known = source.head_revision
    source.put(b"b", b"2")
    async with aclosing(follow(source, Subscribe(source.catalog_id, known), 60)) as feed:
        changes = await following(feed)
        assert isinstance(changes, Changes)
        assert [change.path for change in changes.changes] == [b"b"]


async def test_who_is_at_the_head_hears_so_at_once_then_after_every_silence() -> None:
    source = MemorySource({b"a": b"1"})
    async with aclosing(follow(source, Subscribe(source.catalog_id, 1), 0.01)) as feed:
        for _ in range(3):
            assert await following(feed) == Heartbeat(source.catalog_id, 1)


async def test_heartbeats_say_why_and_for_how_long_names_are_held() -> None:
    source = MemorySource({b"a": b"1"})
    for subscribe in (Subscribe(source.catalog_id, 1), Subscribe(source.catalog_id, 1, 1)):
        async with aclosing(follow(source, subscribe, 0.01)) as feed:
            source.held = Held("\udcff is away" + "!" * 2000, 61.5)
            said = await following(feed)
            assert isinstance(said, Heartbeat)
            assert (said.held[:13], len(said.held.encode()), said.held_ms) == ("\\udcff is awa", 1024, 61_500)
            encode(said, 1)
            source.held = None
            assert await following(feed) == Heartbeat(source.catalog_id, 1)


@pytest.mark.parametrize("subscribe", [Subscribe(b"another-catalog-", 1), Subscribe(b"memory-catalog-1", 99)])
async def test_another_catalog_or_a_revision_to_come_means_a_snapshot(subscribe: Subscribe) -> None:
    source = MemorySource({b"a": b"1"})
    async with aclosing(follow(source, subscribe, 60)) as feed:
        assert isinstance(await following(feed), SnapshotPage)


async def test_a_trimmed_log_means_a_snapshot_also_in_the_middle() -> None:
    source = MemorySource({b"a": b"1", b"b": b"2"})
    source.trim_log()
    async with aclosing(follow(source, Subscribe(source.catalog_id, 1), 60)) as feed:
        assert isinstance(await following(feed), SnapshotPage)
        assert isinstance(await following(feed), Heartbeat)
        source.put(b"c", b"3")
        source.trim_log()
        page = await following(feed)
        assert isinstance(page, SnapshotPage)
        assert dict(page.entries) == source.entries()
        source.put(b"d", b"4")
        assert isinstance(await following(feed), (Heartbeat, Changes))


async def test_a_rebuilt_catalog_means_a_snapshot_of_it() -> None:
    source = MemorySource({b"a": b"1"})
    async with aclosing(follow(source, Subscribe(source.catalog_id, 1), 0.01)) as feed:
        await following(feed)
        source.rebuild(b"memory-catalog-2")
        while not isinstance(message := await following(feed), SnapshotPage):
            pass
        assert message.catalog_id == b"memory-catalog-2"


async def test_long_paths_are_split_by_bytes() -> None:
    deep = b"/".join([b"x" * 250] * 15)
    source = MemorySource()
    for i in range(600):
        source.symlink(deep + b"/%d" % i, b"t" * 4000)
    async with aclosing(follow(source, NOTHING_KNOWN, 60)) as feed:
        tree: dict[bytes, Entry] = {}
        count = 0
        while True:
            page = await following(feed)
            assert isinstance(page, SnapshotPage)
            apply(tree, page)
            count += 1
            if page.last:
                break
        assert tree == source.entries()
        assert count > 2


async def test_what_the_source_raises_comes_out() -> None:
    class Broken(MemorySource):
        async def changes_since(self, revision: int, limit: int) -> list[object]:  # type: ignore[override]
            raise SourceReadError("the catalog's disk is gone")

    async with aclosing(follow(Broken({b"a": b"1"}), Subscribe(b"memory-catalog-1", 0), 60)) as feed:
        with pytest.raises(SourceReadError):
            await following(feed)


async def test_pages_are_pulled_one_by_one_and_closed_with_the_feed() -> None:
    pulled: list[int] = []
    closed = asyncio.Event()
    source = MemorySource({b"%d" % i: b"" for i in range(100)}, page_entries=10)
    inner = source.snapshot

    async def snapshot() -> object:
        found = await inner()

        async def pages() -> AsyncGenerator[object, None]:
            try:
                async for page in found.pages:
                    pulled.append(len(page))
                    yield page
            finally:
                closed.set()

        return found._replace(pages=pages())

    source.snapshot = snapshot  # type: ignore[method-assign,assignment]
    async with aclosing(follow(source, NOTHING_KNOWN, 60)) as feed:
        await following(feed)
        assert len(pulled) == 2  # the one given, and the one held back
        assert not closed.is_set()
    assert closed.is_set()


# --- pinned ------------------------------------------------------------------------------------------------


def changed_source() -> MemorySource:
    """Revision 2 has a name, ``two``; the head is 4."""
    source = MemorySource({b"a": b"1", b"b": b"2"})
    source.name_snapshot("two")
    source.put(b"c", b"3")
    source.remove(b"a")
    return source


@pytest.mark.parametrize("pin", [(2, ""), (None, "two")])
@pytest.mark.parametrize("known", [NOTHING_KNOWN, Subscribe(b"memory-catalog-1", 3), Subscribe(b"another-catalog-", 2)])
async def test_a_pinned_tree_comes_whole_and_then_only_heartbeats(
    known: Subscribe, pin: tuple[int | None, str]
) -> None:
    source = changed_source()
    expected = source.snapshots["two"][1]
    async with aclosing(follow(source, replace(known, pin_revision=pin[0], pin_snapshot=pin[1]), 0.01)) as feed:
        page = await following(feed)
        assert isinstance(page, SnapshotPage)
        assert (dict(page.entries), page.revision, page.last) == (expected, 2, True)
        source.put(b"d", b"4")
        for _ in range(3):
            assert await following(feed) == Heartbeat(source.catalog_id, 2)


async def test_who_is_before_a_pinned_revision_gets_the_changes_up_to_it() -> None:
    source = changed_source()
    async with aclosing(follow(source, Subscribe(source.catalog_id, 1, 3), 0.01)) as feed:
        changes = await following(feed)
        assert isinstance(changes, Changes)
        assert (changes.after_revision, changes.to_revision) == (1, 3)
        assert [change.path for change in changes.changes] == [b"b", b"c"]
        assert await following(feed) == Heartbeat(source.catalog_id, 3)


async def test_who_is_at_a_pinned_revision_hears_so() -> None:
    source = changed_source()
    async with aclosing(follow(source, Subscribe(source.catalog_id, 2, 2), 0.01)) as feed:
        assert await following(feed) == Heartbeat(source.catalog_id, 2)


async def test_a_log_that_does_not_reach_back_means_a_snapshot_of_the_pinned_revision() -> None:
    source = changed_source()
    source.trim_log()
    async with aclosing(follow(source, Subscribe(source.catalog_id, 1, None, "two"), 0.01)) as feed:
        page = await following(feed)
        assert isinstance(page, SnapshotPage)
        assert page.revision == 2


@pytest.mark.parametrize("pin", [(3, ""), (99, ""), (None, "three")])
async def test_a_pinned_tree_that_is_not_kept_is_an_error(pin: tuple[int | None, str]) -> None:
    source = changed_source()
    source.trim_log()
    async with aclosing(follow(source, Subscribe(b"", 0, *pin), 60)) as feed:
        with pytest.raises(RevisionUnavailable):
            await following(feed)


# --- the same catalog under another id -----------------------------------------------------------------------


async def test_who_comes_from_a_former_id_goes_on_under_the_new_one() -> None:
    source = MemorySource({b"a": b"1", b"b": b"2"})
    source.reopen(b"memory-catalog-2")
    async with aclosing(follow(source, Subscribe(b"memory-catalog-1", 1), 60)) as feed:
        assert await following(feed) == Changes(b"memory-catalog-2", 1, 1, (), b"memory-catalog-1")
        changes = await following(feed)
        assert isinstance(changes, Changes)
        assert (changes.catalog_id, changes.after_revision, changes.former_id) == (b"memory-catalog-2", 1, b"")
    source.put(b"c", b"3")
    async with aclosing(follow(source, Subscribe(b"memory-catalog-1", 3), 60)) as feed:  # given after that id ended
        assert isinstance(await following(feed), SnapshotPage)
    source.name_snapshot("three")
    async with aclosing(follow(source, Subscribe(b"memory-catalog-1", 2, None, "three"), 0.01)) as feed:
        assert await following(feed) == Changes(b"memory-catalog-2", 2, 2, (), b"memory-catalog-1")
        assert isinstance(await following(feed), Changes)
        assert await following(feed) == Heartbeat(b"memory-catalog-2", 3)
