"""A real directory served by a real source, with inotify; what tests await is the catalog, never a time."""

from __future__ import annotations

from pathlib import Path

from common.entries import Change, Entry
from hub.source import HubSource
from hub.watcher import WatcherSettings


class Served:
    """A source over ``root``, to be started and stopped at will."""

    def __init__(self, root: Path, state_dir: Path) -> None:
        self.root = root
        self.state_dir = state_dir
        self.source: HubSource | None = None

    async def start(self, **settings: float) -> HubSource:
        self.source = HubSource("ds", self.root, self.state_dir, settings=WatcherSettings(**settings))
        await self.source.start()
        return self.source

    async def stop(self) -> None:
        if self.source is not None:
            await self.source.close()
            self.source = None

    async def restart(self) -> HubSource:
        await self.stop()
        return await self.start()


async def tree(source: HubSource) -> dict[bytes, Entry]:
    found: dict[bytes, Entry] = {}
    snapshot = await source.snapshot()
    async for page in snapshot.pages:
        found.update(page)
    assert len(found) == snapshot.entry_count
    return found


async def version(source: HubSource, path: bytes) -> bytes:
    return (await tree(source))[path].version


async def changes_to(source: HubSource, after: int, path: bytes) -> list[Change]:
    """All changes once there is one of ``path`` after ``after``; awaits it."""
    while True:
        changes = await source.changes_since(after, 1_000_000)
        if any(change.path == path for change in changes):
            return changes
        await source.wait_beyond(changes[-1].revision if changes else after)
