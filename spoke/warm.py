"""``warm``: fetch and verify files ahead of a job, inside the spoke, and show it at the terminal."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange, byte_length, whole_file
from common.entries import Kind
from common.errors import HeadraceError, UsageError
from common.runtime import cancel_and_wait, settle
from common.wire.messages import Priority
from spoke import control
from spoke.cache.store import Store
from spoke.fetcher import Fetcher
from spoke.hub_client.single_flight import Want
from spoke.namespace.tree import Tree

Facts = Mapping[str, Any]


class Warmer:
    """One ``warm``: brings the versions below some paths whole and verified into the cache."""

    def __init__(self, tree: Tree, store: Store, fetcher: Fetcher) -> None:
        self._tree = tree
        self._store = store
        self._fetcher = fetcher
        self._versions: dict[bytes, int] = {}
        self._verified_bytes = 0
        self._done_bytes = 0
        self._files_done = 0
        self._under_way_bytes = 0
        self._room = asyncio.Condition()
        self._failure: HeadraceError | None = None

    async def run(self, paths: Sequence[bytes]) -> AsyncGenerator[Facts, None]:
        """Yields progress; the last is the outcome. Raises UsageError for what cannot fit, HeadraceError for what stayed out."""
        self._versions = self._versions_below(paths)
        total_bytes = sum(self._versions.values())
        capacity_bytes = self._store.usage().capacity_bytes
        if total_bytes > capacity_bytes:
            raise UsageError(
                f"{total_bytes} bytes would have to be cached, and the cache holds {capacity_bytes}; "
                "name fewer paths, or give --cache-size more"
            )
        work = asyncio.create_task(self._warm_all(), name="warm")
        try:
            while not work.done():
                yield self._progress()
                await asyncio.wait({work}, timeout=limits.PROGRESS_INTERVAL_S)
            outside = work.result()
        finally:
            await cancel_and_wait(work)
        if outside:
            why = self._failure or "evicted again while others came in: is something else using the cache?"
            raise HeadraceError(f"{outside} of {len(self._versions)} files are not whole in the cache: {why}")
        yield self._progress()

    def _progress(self) -> Facts:
        return {
            "verified_bytes": self._verified_bytes,
            "total_bytes": sum(self._versions.values()),
            "files_done": self._files_done,
            "files": len(self._versions),
        }

    def _versions_below(self, paths: Sequence[bytes]) -> dict[bytes, int]:
        versions: dict[bytes, int] = {}
        for path in paths:
            top = self._tree.resolve(path.strip(b"/"))
            if top is None:
                raise UsageError(f"{os.fsdecode(path)!r} is not in the dataset")
            for node in self._tree.walk(top):
                if node.kind is Kind.FILE:
                    versions[node.entry.version] = node.entry.size_bytes
        return versions

    async def _warm_all(self) -> int:
        """Rounds until every file is verified; returns how many are not, after the last."""
        outside = self._versions
        for _ in range(limits.WARM_TRIES):
            self._verified_bytes = self._done_bytes = self._files_done = 0
            async with asyncio.TaskGroup() as fetches:
                for version, size_bytes in self._versions.items():
                    for window in _windows(whole_file(size_bytes)):
                        if self._store.missing(version, size_bytes, window):
                            await self._make_room(byte_length(window, size_bytes))
                            fetches.create_task(self._fetch(version, size_bytes, window), name="warm window")
            await self._fetcher.written()
            outside = {
                version: size for version, size in self._versions.items() if not await self._verify(version, size)
            }
            if not outside:
                break
        return len(outside)

    async def _verify(self, version: bytes, size_bytes: int) -> bool:
        fetched_bytes = self._verified_bytes
        verified = await self._store.verify(version, size_bytes)
        if verified:
            self._files_done += 1
            # From here on the count is by whole files: each byte once, those fetched and those that were here.
            self._done_bytes += size_bytes
            self._verified_bytes = max(fetched_bytes, self._done_bytes)
        return verified

    async def _make_room(self, size_bytes: int) -> None:
        if self._fetcher.write_backlog_bytes > limits.WARM_OUTSTANDING_BYTES:
            # A disk slower than the link: what it cannot take in time would not be cached.
            await self._fetcher.written()
        async with self._room:
            while self._under_way_bytes and self._under_way_bytes + size_bytes > limits.WARM_OUTSTANDING_BYTES:
                await self._room.wait()
            self._under_way_bytes += size_bytes

    async def _fetch(self, version: bytes, size_bytes: int, window: BlockRange) -> None:
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        want = Want(window, 0, 0, lambda error: settle(arrival, error))
        missing = self._store.missing(version, size_bytes, window)  # now: readers may have fetched some meanwhile
        try:
            self._fetcher.demand(version, size_bytes, want, missing, priority=Priority.PREFETCH)
            want.release_hold()
            await arrival
            self._verified_bytes += sum(byte_length(blocks, size_bytes) for blocks in missing)
        except HeadraceError as error:
            self._failure = error
        finally:
            self._fetcher.give_up(want)
            async with self._room:
                self._under_way_bytes -= byte_length(window, size_bytes)
                self._room.notify_all()


def _windows(blocks: BlockRange) -> list[BlockRange]:
    """Runs of extents that are asked for at once."""
    size = limits.WARM_WINDOW_BYTES // BLOCK_BYTES
    return [
        BlockRange(first, min(size, blocks.end_block - first))
        for first in range(blocks.first_block, blocks.end_block, size)
    ]


def show_warming(socket: Path, mountpoint: str, paths: Sequence[str], *, quiet: bool) -> None:
    """Ask the running spoke and draw a progress bar on stderr; raises what it answered."""
    request = {"command": "warm", "paths": [os.fsencode(_below(mountpoint, path)).hex() for path in paths]}
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=quiet,
    )
    with bar:
        task = bar.add_task("warming", total=None)
        for kind, facts in control.ask(socket, request, timeout_s=limits.WARM_SILENCE_TIMEOUT_S):
            bar.update(
                task,
                total=facts["total_bytes"],
                completed=facts["verified_bytes"],
                description=f"{facts['files_done']}/{facts['files']} files",
            )
            if kind == "result":
                print(f"{facts['files']} files, {facts['total_bytes']} bytes cached and verified")  # noqa: T201


def _below(mountpoint: str, path: str) -> str:
    """A path as given (absolute, or relative to the dataset's root) as relative to the root; by its text alone."""
    if not os.path.isabs(path):
        return path
    inside = os.path.relpath(os.path.normpath(path), mountpoint)
    if inside == os.pardir or inside.startswith(os.pardir + os.sep):
        raise UsageError(f"{path} is not below the mountpoint {mountpoint}")
    return "" if inside == os.curdir else inside
