"""What a subscriber gets: changes from where it stands, or the whole tree in pages, then changes for ever, heartbeats in silence.

A generator of messages that is asked for the next one only when the connection can take it: that is all the flow
control there is, and a slow subscriber costs one page of memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from common import limits
from common.entries import Change, Entry
from common.errors import RevisionGone
from common.log import get_logger
from common.serving.source import TreeSource
from common.wire.entry_codec import split_changes, split_entries
from common.wire.messages import Changes, Heartbeat, SnapshotPage, Subscribe

log = get_logger(__name__)

FeedMessage = SnapshotPage | Changes | Heartbeat


async def follow(
    source: TreeSource, subscribe: Subscribe, heartbeat_interval_s: float = limits.HEARTBEAT_INTERVAL_S
) -> AsyncGenerator[FeedMessage, None]:
    """The answer to SUBSCRIBE, without end. Whatever the source raises, RevisionGone excepted, comes out here.

    A subscriber that is already at the head hears so at once, by a heartbeat. When the log was trimmed under a
    slow subscriber, or the catalog is another one, a snapshot follows in the middle of the stream.
    """
    catalog_id, revision = subscribe.catalog_id, subscribe.from_revision
    quiet = False  # the subscriber has been told that it is at the head
    while True:
        changes: Sequence[Change] | None = None
        if catalog_id == source.catalog_id and revision <= source.head_revision:
            try:
                changes = await source.changes_since(revision, limits.FEED_FRAME_MAX_ENTRIES)
            except RevisionGone as gone:
                log.info("the change log does not reach back, sending a snapshot", revision=revision, reason=str(gone))
        if changes is None:
            catalog_id = source.catalog_id
            snapshot = await source.snapshot()
            async with aclosing(
                _snapshot_pages(catalog_id, snapshot.revision, snapshot.entry_count, snapshot.pages)
            ) as pages:
                async for page in pages:
                    yield page
            revision = snapshot.revision
            quiet = False
        elif changes:
            for run in split_changes(changes):
                to_revision = run[-1].revision
                yield Changes(catalog_id, revision, to_revision, tuple(run))
                revision = to_revision
            quiet = True  # a CHANGES frame says as much as a heartbeat would
        else:
            if not quiet:
                yield Heartbeat(catalog_id, revision)
                quiet = True
            try:
                async with asyncio.timeout(heartbeat_interval_s):
                    await source.wait_beyond(revision)
            except TimeoutError:
                quiet = False


async def _snapshot_pages(
    catalog_id: bytes, revision: int, entry_count: int, pages: AsyncIterator[Sequence[tuple[bytes, Entry]]]
) -> AsyncGenerator[SnapshotPage, None]:
    """Pages cut to the wire's size. One is held back, since only the last may say that it is the last."""
    held: tuple[tuple[bytes, Entry], ...] = ()
    try:
        async for entries in pages:
            for start in range(0, len(entries), limits.FEED_FRAME_MAX_ENTRIES):
                for run in split_entries(entries[start : start + limits.FEED_FRAME_MAX_ENTRIES]):
                    if held:
                        yield SnapshotPage(catalog_id, revision, entry_count, last=False, entries=held)
                    held = tuple(run)
        yield SnapshotPage(catalog_id, revision, entry_count, last=True, entries=held)
    finally:
        if isinstance(pages, AsyncGenerator):
            await pages.aclose()  # the subscriber may be gone half-way: the source's cursor goes too
