"""Holds the inotify descriptor: watches directories as they are scanned, and gathers their events into a burst.

What it cannot watch it counts and says, so that rescans make up for it. Used by one thread at a time, but for
:meth:`Notifier.drain` and :meth:`Notifier.watch`: while one thread looks at names or walks the disk, another may go on
emptying the kernel's queue, which holds some 16,000 events and forgets the rest.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import struct
import threading
from collections.abc import Callable

from inotify_simple import INotify

from common.log import get_logger
from hub.burst import IGNORED, IS_DIR, NAME_EVENTS, OVERFLOW, ROOT_GONE, WATCH_MASK, Burst, WatchMap
from hub.export import join_path

log = get_logger(__name__)

_EVENT = struct.Struct("iIII")
"""struct inotify_event, before its name: watch, mask, cookie, length of the name."""
_READ_BYTES = 64 * 1024
_MANY_EVENTS = 64
_GATHER_S = 0.002
"""A burst of many events is read this often, not at each event: waking up costs more than reading one."""
_READS_PER_DRAIN = 64


class Notifier:
    """``burst``: the events not yet taken. ``unwatched``: directories without a watch since :meth:`begin_scan`.

    ``root_suspect``: the root itself was moved, deleted or unmounted; the owner clears it. ``clock``: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._inotify: INotify | None = None
        self._watches = WatchMap()
        self._out_of_watches = False
        self._guard = threading.Lock()
        self.burst = Burst()
        self.unwatched = 0
        self.root_suspect = False
        self.overflows_total = 0

    @property
    def watch_count(self) -> int:
        return len(self._watches)

    @property
    def blind(self) -> bool:
        """Some directory is not watched: the absence of an event proves nothing."""
        return self._inotify is None or self._out_of_watches

    def open(self) -> None:
        try:
            self._inotify = INotify(nonblocking=True)
        except OSError as error:
            log.error(
                "no inotify: changes are only found by rescans; raise it with: sysctl fs.inotify.max_user_instances=1024",
                error=error.strerror,
            )

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def is_watched(self, path: bytes) -> bool:
        return path in self._watches

    def begin_scan(self) -> None:
        """Every directory will be offered to :meth:`watch` again."""
        self._out_of_watches = False
        self.unwatched = 0

    def watch(self, path: bytes, fd: int) -> None:
        """Watch a directory that is about to be listed through ``fd``."""
        if self._inotify is None:
            self.unwatched += 1
            return
        with self._guard:
            try:
                # By descriptor: the directory that will be listed, whatever its name points to by now.
                watch = self._inotify.add_watch(f"/proc/self/fd/{fd}", WATCH_MASK)
            except OSError as error:
                self._watch_failed(path, error)
            else:
                self._watches.add(watch, path)
        self.drain()  # a long scan must not let the kernel's queue overflow

    def wait(self, wake_fd: int, timeout_s: float | None) -> None:
        """Until there are events, ``wake_fd`` is readable, or the time has passed."""
        poller = select.poll()
        poller.register(wake_fd, select.POLLIN)
        if timeout_s is not None and self.burst.events > _MANY_EVENTS:
            timeout_s = min(timeout_s, _GATHER_S)
        elif self._inotify is not None:
            poller.register(self._inotify.fileno(), select.POLLIN)
        poller.poll(None if timeout_s is None else max(0, int(timeout_s * 1000) + 1))

    def wait_for_events(self, timeout_s: float) -> None:
        if self._inotify is not None:
            poller = select.poll()  # select() knows no descriptor from 1,024 on
            poller.register(self._inotify.fileno(), select.POLLIN)
            poller.poll(max(0, int(timeout_s * 1000) + 1))
            self.drain()

    def drain(self) -> None:
        """Take what events there are into :attr:`burst`, without waiting."""
        if self._inotify is None:
            return
        with self._guard:
            for _ in range(_READS_PER_DRAIN):
                try:
                    data = os.read(self._inotify.fileno(), _READ_BYTES)
                except BlockingIOError:
                    return
                self._note_all(data, self._clock())

    def take_burst(self) -> Burst:
        burst, self.burst = self.burst, Burst()
        return burst

    def forget_detached(self) -> None:
        """Stop watching directories that moved out of the export."""
        if self._inotify is None or not self.burst.empty:
            return  # one that is just moving may be found again by what comes next
        detached, self._watches.detached = self._watches.detached, set()
        for watch in detached:
            with contextlib.suppress(OSError):  # gone with its directory
                self._inotify.rm_watch(watch)

    def _note_all(self, data: bytes, now_s: float) -> None:
        at, end = 0, len(data)
        while at < end:
            watch, mask, cookie, length_bytes = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length_bytes
            self._note(watch, mask, cookie, data[at - length_bytes : at].rstrip(b"\0"), now_s)

    def _note(self, watch: int, mask: int, cookie: int, name: bytes, now_s: float) -> None:
        if mask & OVERFLOW:
            log.warning("the kernel's event queue overflowed: rescan")
            self.overflows_total += 1
            self.burst.overflow()
            return
        if mask & IGNORED:
            self._watches.ignored(watch)
            return
        directory = self._watches.path(watch)
        if directory is None:
            return  # left its place; a scan finds it again if it is still ours
        if not name:
            if not directory and mask & ROOT_GONE:
                self.root_suspect = True
            return
        path = join_path(directory, name)
        if mask & IS_DIR and mask & NAME_EVENTS:
            self._watches.detach(path)
        self.burst.note(mask, path, cookie, now_s)

    def _watch_failed(self, path: bytes, error: OSError) -> None:
        self.unwatched += 1
        if error.errno != errno.ENOSPC:
            log.error("cannot watch this directory", path=path or b".", error=error.strerror)
        elif not self._out_of_watches:
            log.error(
                "out of inotify watches: changes in further directories are only found by rescans; raise the limit"
                " with: sysctl fs.inotify.max_user_watches=1048576",
                watches=len(self._watches),
            )
        # Without a watch for whatever reason, silence proves nothing.
        self._out_of_watches = True
