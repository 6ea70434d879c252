"""What a subscriber gets: changes from where it stands, or the whole tree in pages, then changes for ever, heartbeats in silence.

A generator of messages that is asked for the next one only when the connection can take it: that is all the flow
control there is, and a slow subscriber costs one page of memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

from common import limits
from common.entries import Change, Entry
from common.errors import RevisionGone
from common.log import get_logger
from common.serving.source import Snapshot, TreeSource
from common.wire.entry_codec import EntryPage, split_changes, split_entries
from common.wire.message_codec import cut_text
from common.wire.messages import Changes, Heartbeat, SnapshotPage, Subscribe

log = get_logger(__name__)

FeedMessage = SnapshotPage | Changes | Heartbeat


async def follow(
    source: TreeSource, subscribe: Subscribe, heartbeat_interval_s: float = limits.HEARTBEAT_INTERVAL_S
) -> AsyncGenerator[FeedMessage, None]:
    """The answer to SUBSCRIBE, without end. Whatever the source raises, RevisionGone excepted, comes out here.

    A subscriber that is already at the head hears so at once, by a heartbeat. When the log was trimmed under a
    slow subscriber, or the catalog is another one, a snapshot follows in the middle of the stream. A pinned
    subscription ends in heartbeats of its revision; RevisionUnavailable when its tree cannot be given.
    """
    if subscribe.is_pinned:
        async with aclosing(_follow_pinned(source, subscribe, heartbeat_interval_s)) as pinned:
            async for message in pinned:
                yield message
    catalog_id, revision = subscribe.catalog_id, subscribe.from_revision
    quiet = False  # the subscriber has been told that it is at the head
    while True:
        changes: Sequence[Change] | None = None
        if source.leads_from(catalog_id, revision) and revision <= source.head_revision:
            try:
                changes = await source.changes_since(revision, limits.FEED_FRAME_MAX_ENTRIES)
            except RevisionGone as gone:
                log.info("the change log does not reach back, sending a snapshot", revision=revision, reason=str(gone))
        if changes is None:
            catalog_id = source.catalog_id
            snapshot = await source.snapshot()
            async with aclosing(_snapshot_pages(catalog_id, snapshot)) as pages:
                async for page in pages:
                    yield page
            revision = snapshot.revision
            quiet = False
        elif catalog_id != source.catalog_id:
            yield Changes(source.catalog_id, revision, revision, (), former_id=catalog_id)
            catalog_id = source.catalog_id
        elif changes:
            for run in split_changes(changes):
                to_revision = run[-1].revision
                yield Changes(catalog_id, revision, to_revision, tuple(run))
                revision = to_revision
            quiet = True  # a CHANGES frame says as much as a heartbeat would
        else:
            if not quiet:
                yield _heartbeat(source, catalog_id, revision)
                quiet = True
            try:
                async with asyncio.timeout(heartbeat_interval_s):
                    await source.wait_beyond(revision)
            except TimeoutError:
                quiet = False


async def _follow_pinned(
    source: TreeSource, subscribe: Subscribe, heartbeat_interval_s: float
) -> AsyncGenerator[FeedMessage, None]:
    """The tree of one revision, then its heartbeats for ever."""
    catalog_id, revision = source.catalog_id, subscribe.from_revision
    goal = subscribe.pin_revision
    if goal is None:
        goal = await source.named_revision(subscribe.pin_snapshot)
    known = source.leads_from(subscribe.catalog_id, revision) and revision <= goal <= source.head_revision
    if known and subscribe.catalog_id != catalog_id:
        yield Changes(catalog_id, revision, revision, (), former_id=subscribe.catalog_id)
    reached = known and revision == goal
    if known and not reached:
        try:
            while revision < goal:
                changes = await source.changes_since(revision, limits.FEED_FRAME_MAX_ENTRIES)
                wanted = [change for change in changes if change.revision <= goal]
                for run in split_changes(wanted):
                    yield Changes(catalog_id, revision, run[-1].revision, tuple(run))
                    revision = run[-1].revision
                if len(wanted) < len(changes) and revision < goal:  # no change has just this revision
                    yield Changes(catalog_id, revision, goal, ())
                    revision = goal
            reached = True
        except RevisionGone as gone:
            log.info("the change log does not reach back, sending a snapshot", revision=revision, reason=str(gone))
    if not reached:
        snapshot = await source.snapshot(goal)
        async with aclosing(_snapshot_pages(catalog_id, snapshot)) as pages:
            async for page in pages:
                yield page
    while True:
        yield _heartbeat(source, catalog_id, goal)
        await asyncio.sleep(heartbeat_interval_s)


def _heartbeat(source: TreeSource, catalog_id: bytes, revision: int) -> Heartbeat:
    held = source.held
    if held is None:
        return Heartbeat(catalog_id, revision, source.root_mtime_ns)
    held_ms = max(0, min(round(held.for_s * 1000), limits.DURATION_MAX_MS))
    return Heartbeat(catalog_id, revision, source.root_mtime_ns, cut_text(held.reason), held_ms)


async def _snapshot_pages(catalog_id: bytes, snapshot: Snapshot) -> AsyncGenerator[SnapshotPage, None]:
    """Pages cut to the wire's size. One is held back, since only the last may say that it is the last."""
    revision, entry_count, pages = snapshot
    held: Sequence[tuple[bytes, Entry]] = ()
    try:
        async for entries in pages:
            for run in _cut(entries):
                if held:
                    yield SnapshotPage(catalog_id, revision, entry_count, last=False, entries=held)
                held = run
        yield SnapshotPage(catalog_id, revision, entry_count, last=True, entries=held)
    finally:
        close = getattr(pages, "aclose", None)  # an iterator that is no generator may have one as well
        if close is not None:
            await close()  # the subscriber may be gone half-way: the source's cursor goes too


def _cut(entries: Sequence[tuple[bytes, Entry]]) -> Iterator[Sequence[tuple[bytes, Entry]]]:
    if isinstance(entries, EntryPage):
        yield entries
        return
    for start in range(0, len(entries), limits.FEED_FRAME_MAX_ENTRIES):
        for run in split_entries(entries[start : start + limits.FEED_FRAME_MAX_ENTRIES]):
            yield tuple(run)
