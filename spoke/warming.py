"""The warms of one spoke: what a request names, those under way, those that ended lately. Answers the control socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from common import limits
from common.errors import DiskError, HeadraceError, UsageError
from common.log import get_logger
from common.runtime import cancel_and_wait
from spoke.cache.store import Store
from spoke.fetcher import Fetcher
from spoke.last_job import LastJob
from spoke.left_warms import LeftWarms
from spoke.namespace.tree import Tree
from spoke.orders.mapped import open_order
from spoke.pins import Pins
from spoke.prefetch.orders import Order
from spoke.selection import Selection, read_plan
from spoke.warm import Warmer, shown

log = get_logger(__name__)
Facts = Mapping[str, Any]


class _Job:
    """``state``: running, done, failed or broken off."""

    def __init__(self, what: str, warmer: Warmer) -> None:
        self.what = what
        self.warmer = warmer
        self.state = "running"
        self.error: str | None = None

    async def run(self) -> AsyncGenerator[Facts, None]:
        """The warmer's progress; the end is kept here as well."""
        try:
            async with contextlib.aclosing(self.warmer.run()) as progress:
                async for facts in progress:
                    yield facts
            self.state = "done"
        except HeadraceError as error:
            self.state, self.error = "failed", str(error)
            raise
        finally:
            if self.state == "running":
                self.state = "broken off"

    def facts(self) -> Facts:
        return {"what": self.what, "state": self.state, "error": self.error, **self.warmer.progress()}


class _Named(NamedTuple):
    """What a request named when it was looked at. ``seen``: the names then; ``note``: for whoever asked."""

    what: str
    note: str
    selection: Selection
    warmer: Warmer
    seen: object


class Warming:
    """``order(name)``: the order followed under a name. ``link_rate``: the best rate measured, bytes/s, 0 while unknown.
    ``last_job``: None where nothing is learned. ``left``: what goes on after this worker; ``resume`` once names and orders are there.
    """

    def __init__(
        self,
        mountpoint: str,
        tree: Tree,
        store: Store,
        fetcher: Fetcher,
        pins: Pins,
        clock: Callable[[], float],
        *,
        order: Callable[[str], Order | None],
        link_rate: Callable[[], float],
        is_linked: Callable[[], bool] = lambda: True,
        last_job: LastJob | None = None,
        left: LeftWarms,
    ) -> None:
        self._left = left
        self._mountpoint = mountpoint
        self._tree = tree
        self._store = store
        self._fetcher = fetcher
        self._pins = pins
        self._clock = clock
        self._order = order
        self._link_rate = link_rate
        self._is_linked = is_linked
        self._last_job = last_job
        self._running: list[_Job] = []
        self._ended: deque[_Job] = deque(maxlen=limits.WARM_JOBS_SHOWN)
        self._tasks: set[asyncio.Task[None]] = set()

    def facts(self) -> list[Facts]:
        """For ``status``: under way, then those that ended, the latest first."""
        return [job.facts() for job in (*self._running, *reversed(self._ended))]

    async def resume(self) -> None:
        """Go on with what was left to workers before this one."""
        for number, request in await self._left.load():
            self._leave(request, None, number)

    async def close(self, *, forget: bool) -> None:
        """``forget``: no worker is to go on with what is under way."""
        await cancel_and_wait(*self._tasks)
        if forget:
            await self._left.forget()

    async def answer(self, request: Mapping[str, Any]) -> AsyncGenerator[Facts, None]:
        """First ``{"estimate": …}``, then progress, and at last the outcome. Raises UsageError or HeadraceError with the reason.

        In the request: ``paths`` (hex), ``plan`` (a file), ``order`` (the name of one that is followed, or a file), ``last``,
        ``around_bytes``, ``rate_bytes_per_s``, ``pin``, ``wait``, ``dry_run``.
        """
        if len(self._running) >= limits.WARM_JOBS_MAX:
            raise UsageError(f"{len(self._running)} warms are under way, which is the limit: wait for one of them")
        named = await self._name(request)
        estimate = await named.warmer.estimate(self._pins.pinned_beside(named.selection.files))
        yield {"estimate": shown(estimate), "note": named.note}
        estimate.check()
        if request.get("dry_run"):
            yield {"estimate": shown(estimate), "dry_run": True}
            return
        if request.get("pin"):
            await self._pins.pin(named.selection.pin_paths)
        if request.get("wait", True):
            async with contextlib.aclosing(self._warm(request, named)) as progress:
                async for facts in progress:
                    yield facts
            return
        self._leave(request, named, await self._left.add(request))
        yield {"background": True, **named.warmer.progress()}

    def _leave(self, request: Mapping[str, Any], named: _Named | None, number: int) -> None:
        task = asyncio.create_task(self._in_background(request, named, number), name="warm in background")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _name(self, request: Mapping[str, Any]) -> _Named:
        """What is named now, and the names it was found in."""
        seen = self._now_seen()
        selection, what, note = await self._select(request)
        warmer = Warmer(
            selection,
            self._store,
            self._fetcher,
            self._clock,
            rate_bytes_per_s=request.get("rate_bytes_per_s"),
            link_rate=self._link_rate,
            is_linked=self._is_linked,
        )
        return _Named(what, note, selection, warmer, seen)

    def _now_seen(self) -> object:
        return self._tree.catalog_id, self._tree.revision

    async def _warm(self, request: Mapping[str, Any], named: _Named) -> AsyncGenerator[Facts, None]:
        """What is named, and again what is named by then if names changed meanwhile: else it ends well with files of yesterday."""
        for tries_left in range(limits.WARM_TRIES - 1, -1, -1):
            job = _Job(named.what, named.warmer)
            failure: HeadraceError | None = None
            with self._listed(job):
                try:
                    async with contextlib.aclosing(job.run()) as progress:
                        async for facts in progress:
                            yield facts
                except HeadraceError as error:
                    failure = error
            if named.seen == self._now_seen():
                fresh = None
            else:
                fresh = await self._name(request)
                if fresh.selection.files.keys() <= named.selection.files.keys() and (
                    failure is None or fresh.selection.files.keys() == named.selection.files.keys()
                ):
                    fresh = None
            if fresh is None:
                if failure is not None:
                    raise failure
                return
            if not tries_left:
                break
            named = fresh
            estimate = await named.warmer.estimate(self._pins.pinned_beside(named.selection.files))
            yield {"estimate": shown(estimate), "note": "files changed at the hub meanwhile", **named.warmer.progress()}
            estimate.check()
        raise HeadraceError(
            "files changed at the hub again and again while they were fetched: ask again when they rest"
        )

    async def _in_background(self, request: Mapping[str, Any], named: _Named | None, number: int) -> None:
        what = named.what if named is not None else "what another worker was told"
        try:
            named = named or await self._name(request)
            what = named.what
            async for _ in self._warm(request, named):
                pass
        except HeadraceError as error:
            log.error("warm failed", what=what, error=str(error))
        else:
            log.info("warm is done", what=what)
        await self._left.done(number)

    @contextlib.contextmanager
    def _listed(self, job: _Job) -> Any:
        self._running.append(job)
        try:
            yield
        finally:
            self._running.remove(job)
            self._ended.append(job)

    async def _select(self, request: Mapping[str, Any]) -> tuple[Selection, str, str]:
        """What is named, how to call it, and what is to be said of it."""
        selection = Selection()
        note = ""
        plan, order_name, last = request.get("plan"), request.get("order"), bool(request.get("last"))
        around_bytes = int(request.get("around_bytes") or 0)
        paths = [
            bytes.fromhex(path)
            for path in request.get("paths", [""] if plan is None and order_name is None and not last else [])
        ]
        words = [os.fsdecode(path) or "all" for path in paths]
        selection.add_paths(self._tree, paths)
        if plan is not None:
            words.append(f"plan {plan}")
            ranges = await asyncio.to_thread(read_plan, Path(plan), self._mountpoint, around_bytes)
            await selection.add_ranges(self._tree, ranges, str(plan))
        if order_name is not None:
            words.append(f"order {order_name}")
            await selection.add_order(self._tree, await self._find_order(str(order_name)), around_bytes)
        if last:
            words.append("the last job")
            note = await self._add_last_job(selection, around_bytes)
        what = ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")
        return selection, what, note

    async def _add_last_job(self, selection: Selection, around_bytes: int) -> str:
        if self._last_job is None:
            raise UsageError("this spoke does not note what jobs read (--no-learn): name paths, a plan or an order")
        files = self._last_job.files()
        gone = await selection.add_last_job(self._tree, files, around_bytes)
        notes = [f"{gone} of its {len(files)} files are gone"] if gone else []
        if not self._last_job.is_complete:
            notes.append("it read more than is noted (--learn-memory)")
        return "; ".join(notes)

    async def _find_order(self, name: str) -> Order:
        found = self._order(name) or self._order(f"plan:{name}")  # a declared plan is shown without that
        if found is not None:
            return found
        if "/" not in name:
            raise UsageError(
                f"no order {name!r} is followed (headrace-spoke plan {self._mountpoint} list shows them); an order file is named "
                "by a path with a /"
            )
        try:
            return await asyncio.to_thread(open_order, Path(name))
        except DiskError as error:
            raise UsageError(str(error)) from None  # as of a plan that is not there
