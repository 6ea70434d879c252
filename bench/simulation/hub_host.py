"""The hub as a simulated process: its real source, catalog, reader and server, started and killed over one state directory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from bench.simulation.disks import HubOs
from bench.simulation.loop import Process, SimLoop
from bench.simulation.network import Network
from common.errors import HeadraceError
from common.serving.packing import Compression, Packer
from common.serving.server import Server
from hub.source import HubSource
from hub.watcher import Watcher, WatcherSettings

HUB_PORT = 7420
DATASET = "data"


class SimWatcher(Watcher):
    """Without a thread: the same turns, taken by a task when the kernel has events, somebody asks, or a time has come."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._stirred = asyncio.Event()
        self._turning: asyncio.Task[None] | None = None
        self._events.wait_for_events = lambda timeout_s: self._events.drain()  # type: ignore[method-assign]

    async def start(self) -> None:
        self._turning = asyncio.create_task(self._turns(), name="watcher")
        await asyncio.wrap_future(self._first_look)

    async def close(self) -> None:
        self._stopping = True
        self._stirred.set()
        if self._turning is not None:
            await self._turning
        self._events.close()

    def _wake(self) -> None:
        self._stirred.set()

    stir = _wake
    """The dataset was edited."""

    async def _turns(self) -> None:
        ended: HeadraceError
        try:
            self._events.open()
            await asyncio.sleep(0)
            self._scan_everything()
            while not self._stopping:
                await self._until_due()
                if not self._stopping:
                    self._look()
        finally:
            self._stopping = True
            ended = HeadraceError("the watcher was closed")
            if not self._first_look.done():
                self._first_look.set_exception(ended)
            self._fail_requests(ended)

    async def _until_due(self) -> None:
        times_s = (self._events.burst.due_s(self._settings.settle_s, self._settings.max_delay_s), self._scan_due_s)
        due_s = min((time_s for time_s in times_s if time_s is not None), default=None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if due_s is None else max(0.001, due_s - self._clock())):
                await self._stirred.wait()
        self._stirred.clear()

    def let_go(self) -> None:
        """Its process was killed."""
        self._events.close()


class HubHost:
    """``start``, ``stop`` in order, ``kill``; over again. ``process`` is the one that runs, or ran last."""

    def __init__(
        self,
        loop: SimLoop,
        network: Network,
        root: str,
        state_dir: str,
        hub_os: HubOs,
        job_s: Callable[[], float],
        compression: Compression,
        rescan_interval_s: float,
    ) -> None:
        self._loop, self._network = loop, network
        self._root, self._state_dir = root, state_dir
        self._os, self._job_s = hub_os, job_s
        self._compression, self._rescan_interval_s = compression, rescan_interval_s
        self.process = Process("hub", loop, job_s)
        self.buried: list[Process] = []
        self.source: HubSource | None = None
        self.server: Server | None = None
        self._packer: Packer | None = None
        self.up = False

    async def start(self) -> None:
        """Returns once spokes can connect."""
        self.process = Process("hub", self._loop, self._job_s)
        await self.process.start(self._start(), "hub start")
        self.up = True

    async def _start(self) -> None:
        clock = self._loop.time
        settings = WatcherSettings(rescan_interval_s=self._rescan_interval_s)
        source = self.source = HubSource(
            DATASET, self._root, self._state_dir, settings=settings, clock=clock, wall_clock_ns=self._loop.wall_time_ns
        )
        await source.start()
        packer = self._packer = Packer(
            self._compression, cpu_s=lambda: 0.0
        )  # a real clock would choose otherwise each time
        self.server = Server(
            {DATASET: source},
            listen=("10.0.0.254", HUB_PORT),
            clock=clock,
            codecs=packer.codecs,
            pack=packer.pack,
            wall_time_s=self._loop.wall_time_s,
        )
        await self.server.start()

    async def stop(self) -> None:
        """As for SIGTERM."""
        self.up = False
        await self.process.start(self._stop(), "hub stop")

    async def _stop(self) -> None:
        assert self.server is not None
        assert self._packer is not None
        assert self.source is not None
        await self.server.close()
        await self._packer.close()
        await self.source.close()

    def kill(self, *, silently: bool) -> None:
        """As by kill -9; ``silently``: its host with it. What SQLite has committed is in its files."""
        self.up = False
        self.process.kill(self._network.dice)
        self._network.process_died(self.process, silently)
        self.buried.append(self.process)
        if self.source is not None:
            watcher, catalog = self.source._watcher_started, self.source._catalog_opened
            if isinstance(watcher, SimWatcher):
                watcher.let_go()
            if catalog is not None:
                _let_go(catalog)
        self._os.die()

    def edited(self) -> None:
        """The dataset was."""
        watcher = self.source._watcher_started if self.source is not None and self.up else None
        if isinstance(watcher, SimWatcher):
            watcher.stir()


def _let_go(catalog: Any) -> None:
    """What the kernel closes of a killed process, so that another can open it."""
    import os

    for pages in list(catalog._snapshots):
        if pages._database is not None:
            pages._database.close()
            pages._database = None
    catalog._reader.close()
    catalog._database.close()  # rolls back what was not committed
    if catalog._lock_fd >= 0:
        os.close(catalog._lock_fd)
        catalog._lock_fd = -1


__all__ = ["DATASET", "HUB_PORT", "HubHost", "SimWatcher"]
