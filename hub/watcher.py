"""Keeps the catalog true to the directory: inotify for what happens, scans for what inotify cannot tell.

One thread: it reads events, waits until they settle, looks at exactly the names concerned and hands the catalog one
batch. Whatever events cannot tell (start, a queue overflow, no watches left, a file system that reports nothing) is
found by a scan and diff, never guessed. A root that is gone, replaced or unreadable is never "everything was deleted":
the catalog is held as it is until the same directory is back.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from common.errors import DiskError, HeadraceError, SourceReadError
from common.log import get_logger
from hub.burst import Burst
from hub.catalog import Catalog
from hub.export import Export, join_path
from hub.notifier import Notifier
from hub.scan import Listing, Scanner
from hub.versions import DIRECTORY, FILE, Evidence, InodeKey, inode_key, signed_inode

log = get_logger(__name__)

_HOLD_RETRY_S = 1.0
_FAILED_RETRY_S = 5.0
_UNWATCHED_RESCAN_S = 30.0
"""Between rescans while directories are unwatched; stretched so that scanning takes a tenth of the time at most."""
_SCAN_SHARE = 10.0
_HALF_MOVED_WAIT_S = 0.005


@dataclass(frozen=True, slots=True)
class WatcherSettings:
    """``settle_s``: quiet after which a burst of events is acted on; ``max_delay_s``: after its first event at latest.

    ``rescan_interval_s``: between scans of everything, for file systems where inotify does not see all (0: none).
    """

    settle_s: float = 0.02
    max_delay_s: float = 0.2
    rescan_interval_s: float = 300.0


@dataclass(frozen=True, slots=True)
class WatcherStatus:
    """``held``: why the catalog is held as it is, or None; ``held_since_s``: since when. ``unwritten``: why it could not be written when
    that was tried last, or None; ``unwritten_since_s``: since when.
    ``unwatched``: directories without a watch for want of them.

    Of the last scan of everything: ``skipped``, names not served by kind; ``unreadable``, paths that could not be looked at.
    """

    held: str | None = None
    held_since_s: float = 0.0
    unwritten: str | None = None
    unwritten_since_s: float = 0.0
    entries: int = 0
    watches: int = 0
    unwatched: int = 0
    events_total: int = 0
    overflows_total: int = 0
    bursts_total: int = 0
    scans_total: int = 0
    last_scan_s: float = 0.0
    skipped: tuple[tuple[str, int], ...] = ()
    unreadable: int = 0


class _Stopped(Exception):
    """close() was called in the midst of a scan."""


_Request = tuple[Literal["recheck", "settled", "rescan"], bytes, "concurrent.futures.Future[None]"]


class Watcher:
    """``await start()``, ``await close()``; ``on_dead`` is told once, from the watcher's thread, if that thread dies of a bug.

    ``clock``: a monotonic clock in seconds.
    """

    def __init__(
        self,
        export: Export,
        catalog: Catalog,
        settings: WatcherSettings,
        clock: Callable[[], float],
        on_dead: Callable[[HeadraceError], None],
    ) -> None:
        self._export = export
        self._catalog = catalog
        self._settings = settings
        self._clock = clock
        self._on_dead = on_dead
        self._events = Notifier(clock)
        self._scanner = Scanner(export, self._before_listing, self._events.drain)
        self._requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._rechecked: list[concurrent.futures.Future[None]] = []
        self._stopping = False
        self._dead: HeadraceError | None = None
        self._scanned_once = False
        self._scan_due_s: float | None = None
        self._wake_fd = -1
        self._first_look: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name=f"watch-{catalog.dataset}", daemon=True)
        self.status = WatcherStatus()

    async def start(self) -> None:
        """Returns once the first scan is in the catalog, or the root was found unfit and the catalog is held."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread.start()
        await asyncio.wrap_future(self._first_look)

    async def close(self) -> None:
        self._stopping = True
        if self._thread.ident is not None:
            self._wake()
            await asyncio.to_thread(self._thread.join)
            os.close(self._wake_fd)
        self._events.close()

    async def recheck(self, path: bytes) -> None:
        """Look at this name soon; returns once the catalog has it. Raises DiskError or SourceReadError when that failed."""
        await self._ask("recheck", path)

    async def settled(self) -> None:
        """Returns once every change made before the call is in the catalog."""
        await self._ask("settled")

    async def rescan(self) -> None:
        """Scan everything now; returns once the catalog has it."""
        await self._ask("rescan")

    async def _ask(self, kind: Literal["recheck", "settled", "rescan"], path: bytes = b"") -> None:
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._requests.put((kind, path, future))
        self._wake()
        if self._dead is not None or self._stopping:
            self._fail_requests(self._dead or DiskError("the watcher was closed"))
        await asyncio.wrap_future(future)

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    # --- everything below runs in the watcher's thread, or in the catalog's while this one waits for it -----------

    def _run(self) -> None:
        ended: HeadraceError
        try:
            self._events.open()
            self._scan_everything()
            while not self._stopping:
                self._turn()
            ended = DiskError("the watcher was closed")
        except _Stopped:
            ended = DiskError("the watcher was closed")
        except BaseException as error:  # a dead thread must fail those who wait for it
            log.exception("the watcher died", dataset=self._catalog.dataset)
            ended = HeadraceError(f"the watcher of dataset {self._catalog.dataset!r} died: {error!r}")
            self._dead = ended
            self._on_dead(ended)
        self._stopping = True
        if not self._first_look.done():
            self._first_look.set_exception(ended)
        self._fail_requests(ended)

    def _turn(self) -> None:
        """Wait for an event, a request or a time that is due, and act on it."""
        self._wait()
        self._look()

    def _look(self) -> None:
        """Act on what has come and on what is due."""
        self._events.drain()
        self._take_requests()
        now_s = self._clock()
        due_s = self._events.burst.due_s(self._settings.settle_s, self._settings.max_delay_s)
        if (
            self._events.burst.overfull
            or self._events.root_suspect
            or (self._scan_due_s is not None and now_s >= self._scan_due_s)
        ):
            self._scan_everything()
        elif due_s is not None and now_s >= due_s:
            self._act()

    def _wait(self) -> None:
        times_s = (self._events.burst.due_s(self._settings.settle_s, self._settings.max_delay_s), self._scan_due_s)
        due_s = min((time_s for time_s in times_s if time_s is not None), default=None)
        self._events.wait(self._wake_fd, None if due_s is None else due_s - self._clock())
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)

    # --- requests ---------------------------------------------------------------------------------------------

    def _take_requests(self) -> None:
        while True:
            try:
                kind, path, future = self._requests.get_nowait()
            except queue.Empty:
                return
            if kind == "recheck":
                self._events.burst.look_at(path, self._clock())
                self._rechecked.append(future)
                continue
            try:
                error = self._scan_everything() if kind == "rescan" else self._settle_all()
            except BaseException:
                self._rechecked.append(future)  # failed with the others who wait
                raise
            _answer(future, error)

    def _settle_all(self) -> HeadraceError | None:
        error: HeadraceError | None = None
        if self.status.held is not None:
            error = self._scan_everything()
        self._events.drain()
        while error is None and not self._events.burst.empty:
            error = self._scan_everything() if self._events.burst.overfull else self._act()
            self._events.drain()
        return error

    def _fail_requests(self, error: HeadraceError) -> None:
        self._answer_rechecked(error)
        while True:
            try:
                _answer(self._requests.get_nowait()[2], error)
            except queue.Empty:
                return

    # --- acting on a burst ------------------------------------------------------------------------------------

    def _act(self) -> HeadraceError | None:
        """Look at the burst's names and hand the catalog what was seen. Returns what went wrong, after noting it."""
        if self._events.burst.half_moved:
            self._events.wait_for_events(_HALF_MOVED_WAIT_S)
        burst = self._events.take_burst()
        held = self.status.held  # then the scan that comes when the directory is back finds it all
        error = SourceReadError(held) if held is not None else self._guarded(lambda: self._apply_burst(burst))
        self._answer_rechecked(error)
        return error

    def _answer_rechecked(self, error: HeadraceError | None) -> None:
        rechecked, self._rechecked = self._rechecked, []
        for future in rechecked:
            _answer(future, error)

    def _apply_burst(self, burst: Burst) -> None:
        self._require_root()
        observed = self._scanner.observe_paths(burst.dirty)
        seen = {join_path(listing.path, name) for listing in observed for name in listing.entries}
        links = self._catalog.linked_names(seen | burst.dirty, _several_names(observed), self._events.drain) - seen
        if links:
            observed.extend(self._scanner.observe_paths(links))
            observed.sort(key=lambda listing: listing.path)
        scans = self._to_scan(observed, burst.scan)
        self._events.drain()  # an edit that the looks above may have seen already must be known before they are judged
        evidence = burst.evidence(later=self._events.burst)
        if self._events.blind:
            evidence.trusted = False
        self._require_root()
        walks = (listing for top in scans for listing in self._scanner.walk(top))
        applied = self._catalog.apply(observed, walks, evidence, self._events.drain)
        for name in self._catalog.linked_names((), applied.shared):
            self._events.burst.look_at(name, self._clock())
        self._events.forget_detached()
        self._rescan_unwatched(self.status.last_scan_s)
        self.status = replace(
            self.status,
            entries=applied.entry_count,
            watches=self._events.watch_count,
            unwatched=self._events.unwatched,
            overflows_total=self._events.overflows_total,
            bursts_total=self.status.bursts_total + 1,
            events_total=self.status.events_total + burst.events,
        )

    def _to_scan(self, observed: list[Listing], flagged: set[bytes]) -> list[bytes]:
        """Directories seen that are new or not watched, without those below another of them."""
        found = [
            path
            for listing in observed
            for name, facts in listing.entries.items()
            if facts is not None and facts.kind == DIRECTORY
            for path in (join_path(listing.path, name),)
            if path in flagged or not self._events.is_watched(path)
        ]
        tops: list[bytes] = []
        for path in sorted(found, key=lambda path: path.split(b"/")):
            if not tops or not path.startswith(tops[-1] + b"/"):
                tops.append(path)
        return tops

    # --- scanning everything ----------------------------------------------------------------------------------

    def _scan_everything(self) -> HeadraceError | None:
        """Scan, diff, apply. Returns what went wrong, after noting it."""
        self._events.drain()
        sound = self._scanned_once and self.status.held is None and not self._events.root_suspect
        if sound and not self._events.burst.overfull and not self._events.burst.empty:
            # Events are the better witness of what they tell; the scan finds the rest.
            error = self._act()
            if error is not None:
                return error
        self._events.take_burst()
        error = self._guarded(self._apply_scan)
        self._answer_rechecked(error)
        if not self._first_look.done():
            _answer(self._first_look, None if self.status.held is not None else error)
        return error

    def _apply_scan(self) -> None:
        self._events.root_suspect = False
        self._require_root()
        started_s = self._clock()
        self._events.begin_scan()
        applied = self._catalog.apply((), self._walk_all(), Evidence(trusted=False), self._events.drain)
        if not self._scanned_once:
            self._catalog.remember_root(signed_inode(self._export.inode))
            self._scanned_once = True
        self._events.forget_detached()
        took_s = self._clock() - started_s
        interval_s = self._settings.rescan_interval_s
        self._scan_due_s = self._clock() + max(interval_s, took_s) if interval_s else None
        self._rescan_unwatched(took_s)
        self.status = replace(
            self.status,
            entries=applied.entry_count,
            watches=self._events.watch_count,
            unwatched=self._events.unwatched,
            overflows_total=self._events.overflows_total,
            scans_total=self.status.scans_total + 1,
            last_scan_s=took_s,
            skipped=tuple(sorted(self._scanner.skipped.items())),
            unreadable=self._scanner.unreadable,
        )
        log.info(
            "scanned",
            dataset=self._catalog.dataset,
            entries=self.status.entries,
            changes=applied.changes,
            head_revision=applied.head_revision,
            took_s=round(took_s, 3),
        )

    def _rescan_unwatched(self, took_s: float) -> None:
        if self._events.unwatched:
            due_s = self._clock() + max(_UNWATCHED_RESCAN_S, took_s * _SCAN_SHARE)
            self._scan_due_s = due_s if self._scan_due_s is None else min(due_s, self._scan_due_s)

    def _walk_all(self) -> Iterator[Listing]:
        yield from self._scanner.walk()
        # It may have gone away in the midst, and then what is missing was not deleted.
        problem = self._export.root_problem()
        if problem is not None:
            raise _RootLost(problem)

    def _before_listing(self, path: bytes, fd: int) -> None:
        if self._stopping:
            raise _Stopped
        self._events.watch(path, fd)

    # --- what can go wrong ------------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> HeadraceError | None:
        """Run it; on a failure of the disk keep the catalog as it is and come again with a scan."""
        try:
            work()
        except _RootLost as lost:
            return self._hold(str(lost))
        except OSError as error:
            return self._hold(f"{os.fsdecode(self._export.root)} cannot be listed: {error.strerror}")
        except HeadraceError as error:
            log.error(
                "the catalog could not be updated: scanning again soon", error=str(error), retry_s=_FAILED_RETRY_S
            )
            now_s = self._clock()
            since_s = now_s if self.status.unwritten is None else self.status.unwritten_since_s
            self.status = replace(self.status, unwritten=str(error), unwritten_since_s=since_s)
            self._scan_due_s = now_s + _FAILED_RETRY_S
            return error
        if self.status.unwritten is not None:
            self.status = replace(self.status, unwritten=None)
        if self.status.held is not None:
            log.info("the directory is back", dataset=self._catalog.dataset)
            self.status = replace(self.status, held=None)
        return None

    def _hold(self, reason: str) -> HeadraceError:
        if self.status.held != reason:
            log.error("the catalog is held as it is until the directory is back", reason=reason)
        since_s = self._clock() if self.status.held is None else self.status.held_since_s
        self.status = replace(self.status, held=reason, held_since_s=since_s)
        self._scan_due_s = self._clock() + _HOLD_RETRY_S
        return SourceReadError(reason)

    def _require_root(self) -> None:
        problem = self._export.root_problem()
        if problem is None and not self._scanned_once:
            problem = self._root_looks_unmounted()
        if problem is not None:
            raise _RootLost(problem)

    def _root_looks_unmounted(self) -> str | None:
        remembered = self._catalog.root_inode()
        if (
            remembered in {None, signed_inode(self._export.inode)}
            or self._export.scandir(b"")
            or not self._catalog.entry_count()
        ):
            return None
        return (
            f"{os.fsdecode(self._export.root)} is empty and is not the directory served before, as an unmounted one would"
            " be; mount it, or remove the catalog from the state directory if the dataset is really empty"
        )


class _RootLost(Exception):
    """What stands at the root's path is not the dataset now."""


def _several_names(observed: list[Listing]) -> set[InodeKey]:
    return {
        inode_key(facts)
        for listing in observed
        for facts in listing.entries.values()
        if facts is not None and facts.kind == FILE and facts.link_count > 1
    }


def _answer(future: concurrent.futures.Future[None], error: HeadraceError | None) -> None:
    if future.set_running_or_notify_cancel():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
