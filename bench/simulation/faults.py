"""Breaks what a plan says when it says, and mends it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bench.simulation.model import Broken
from bench.simulation.plan import Fault
from bench.simulation.spoke_host import SpokeHost
from common.errors import HeadraceError

if TYPE_CHECKING:
    from bench.simulation.run import Run


STOP_BROKEN_S = 60.0
"""How long what is told to stop may take while disks are slow."""

STANDS_STILL_MAX_S = 8.0
"""Of a spoke: its readers cannot be answered meanwhile."""


class Breaker:
    """``play`` begins each fault at its time; those that last end by themselves, or in ``mend_all``."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._mending: dict[str, Callable[[], None]] = {}
        self._changing: dict[str, asyncio.Lock] = {}

    async def play(self, faults: Sequence[Fault], lasts_s: float) -> None:
        loop = self._run.loop
        began_s = loop.time()
        for fault in faults:
            await asyncio.sleep(max(0.0, began_s + fault.at_s - loop.time()))
            task = asyncio.ensure_future(self._one(fault))
            self._under_way[task] = None
            task.add_done_callback(lambda done: self._under_way.pop(done, None))
        await asyncio.sleep(max(0.0, began_s + lasts_s - loop.time()))

    async def _one(self, fault: Fault) -> None:
        run = self._run
        run.trace.event(fault.kind, f"spoke{fault.spoke}", round(fault.lasts_s, 3))
        run.troubles.begin()
        try:
            await self._break(fault)
        except Broken as broken:
            run.fail(broken)
        finally:
            run.troubles.end(run.loop.time())
            run.trace.say(f"over: {fault.kind}")

    async def mend_all(self) -> None:
        """Returns once nothing is broken and everything is up."""
        run = self._run
        for task in list(self._under_way):
            await task
        if not run.hub.up:
            await run.hub.start()
        for host in run.spokes:
            if not host.up:
                await self._start(host)
            run.network.paths[host.name].speak()

    # --- each kind ------------------------------------------------------------------------------------------

    async def _break(self, fault: Fault) -> None:
        run = self._run
        host = run.spokes[fault.spoke]
        place, _, what = fault.kind.partition(" ")
        if place == "link":
            await self._break_link(host, what, fault.lasts_s)
        elif place == "hub":
            await self._break_hub(what, fault.lasts_s)
        elif fault.kind.startswith("cache damaged"):
            touched = host.damage(fault.kind.rpartition(" ")[2])
            run.trace.say(f"damaged: {touched}")
        elif place == "cache":
            await self._break_cache(host, what, fault.lasts_s)
        else:
            await self._break_spoke(host, what, fault.lasts_s)

    async def _break_link(self, host: SpokeHost, what: str, lasts_s: float) -> None:
        path, dice = self._run.network.paths[host.name], self._run.network.dice
        if what in ("reset", "half closed"):
            ends = [end for end in path.ends if dice.random() < 0.5]
            for end in ends:
                end.cut() if what == "reset" else end.half_close()
            return
        if what == "silent":
            path.silent = True
        elif what == "unreachable":
            path.unreachable = True
            for end in list(path.ends):
                end.cut()
        elif what == "corrupts":
            path.corrupt_share = dice.choice([0.02, 0.2])
        elif what == "slow":
            path.rate_bytes_per_s = dice.choice([2e3, 1e5, 1e6])
        elif what == "jitters":
            path.jitter_s = dice.choice([0.05, 1.0, 3.0])
        elif what == "in crumbs":
            path.segment_bytes = dice.choice([700, 1448, 9000])
        await asyncio.sleep(lasts_s)
        plan = self._run.plan
        if what == "silent":
            path.speak()
        elif what == "unreachable":
            path.unreachable = False
        elif what == "corrupts":
            path.corrupt_share = 0.0
        elif what == "slow":
            path.rate_bytes_per_s = plan.rate_bytes_per_s
            path.free_at_s = self._run.loop.time()
            for end in path.ends:
                end.hurry()
        elif what == "jitters":
            path.jitter_s = plan.delay_s / 10
        elif what == "in crumbs":
            path.segment_bytes = 256 * 1024

    async def _break_hub(self, what: str, lasts_s: float) -> None:
        run = self._run
        faults, dice = run.hub_faults, run.network.dice
        if what.startswith("disk"):
            if what == "disk fails":
                faults.read_error_share = dice.choice([0.05, 1.0])
            elif what == "disk short":
                faults.short_share = 0.5
            else:
                faults.slow_s = dice.choice([0.05, 1.0])
            await asyncio.sleep(lasts_s)
            faults.heal()
            return
        async with self._changing.setdefault("hub", asyncio.Lock()):
            if what == "stands still":
                run.hub.process.stand_still()
                await asyncio.sleep(lasts_s)
                run.hub.process.go_on()
                return
            if what == "restarted":
                await run.ends(run.hub.stop(), "the hub", STOP_BROKEN_S)
            else:
                run.hub.kill(silently=what == "lost power")
            await asyncio.sleep(lasts_s)
            await run.hub.start()

    async def _break_cache(self, host: SpokeHost, what: str, lasts_s: float) -> None:
        faults, dice = host.faults, self._run.network.dice
        share = dice.choice([0.05, 0.5, 1.0])
        if what == "disk fails to read":
            faults.read_error_share = share
        elif what == "disk fails to write":
            faults.write_error_share = share
        elif what == "disk full":
            faults.full = True
        elif what == "disk short":
            faults.short_share = 0.5
        else:
            faults.slow_s = dice.choice([0.05, 1.0])
        await asyncio.sleep(lasts_s)
        faults.heal()

    async def _break_spoke(self, host: SpokeHost, what: str, lasts_s: float) -> None:
        async with self._changing.setdefault(host.name, asyncio.Lock()):
            if not host.up:
                return
            if what == "stands still":
                host.process.stand_still()
                await asyncio.sleep(min(lasts_s, STANDS_STILL_MAX_S))
                host.process.go_on()
                return
            if what == "restarted":
                await self._run.ends(host.stop(), host.name, STOP_BROKEN_S)
            else:
                host.kill(silently=what == "lost power")
            await asyncio.sleep(lasts_s)
            await self._start(host)

    async def _start(self, host: SpokeHost) -> None:
        """As systemd would, again and again until it takes."""
        while True:
            try:
                await host.start()
            except HeadraceError as error:
                self._run.trace.event("spoke did not start", host.name, type(error).__name__)
                await asyncio.sleep(2.0)
            else:
                break
        self._run.begin_readers(host)
