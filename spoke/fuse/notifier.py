"""Notifications to the kernel, from a thread of their own.

Telling the kernel to forget a name takes the directory's lock, which a lookup or a listing holds while it waits for our
answer; a notification written by the thread that answers would wait for itself. So the event loop only queues, and
one thread writes. The queue is bounded: when it is full it is emptied and the kernel is told to forget every name,
by one INC_EPOCH (Linux 6.16) or name by name.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from common.limits import FUSE_NOTIFICATIONS_MAX_QUEUED
from common.log import get_logger
from spoke.fuse import kernel

log = get_logger(__name__)

_NOT_CACHED = frozenset({errno.ENOENT, errno.ENOTDIR})
_GONE = frozenset({errno.ENODEV, errno.ECONNABORTED, errno.ENOTCONN, errno.EPERM, errno.EBADF})


class _Entry(NamedTuple):
    parent_id: int
    name: bytes


class _Deleted(NamedTuple):
    parent_id: int
    child_id: int
    name: bytes


class _Attributes(NamedTuple):
    node_id: int


class _Everything(NamedTuple):
    names: list[tuple[int, bytes]]


_Item = _Entry | _Deleted | _Attributes | _Everything


class Notifier:
    """Queued from the event loop, written by a daemon thread until :meth:`close`.

    ``write``: writes one notification to the device, raising OSError. ``known_names``: (parent's node id, name) of every
    name the kernel may hold; called in the event loop, when the queue overflows and there is no INC_EPOCH.
    """

    def __init__(self, write: Callable[[bytes], object], max_queued: int = FUSE_NOTIFICATIONS_MAX_QUEUED) -> None:
        self._write = write
        self._max_queued = max_queued
        self._known_names: Callable[[], Iterable[tuple[int, bytes]]] = tuple
        self._inc_epoch = False
        self._queue: deque[_Item] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._busy = False
        self._thread: threading.Thread | None = None
        self.overflows_total = 0
        self.sent_total = 0

    @classmethod
    def for_fd(cls, fd: int) -> Notifier:
        return cls(lambda data: os.write(fd, data))

    def start(self, inc_epoch: bool, known_names: Callable[[], Iterable[tuple[int, bytes]]]) -> None:
        self._inc_epoch = inc_epoch
        self._known_names = known_names
        self._thread = threading.Thread(target=self._run, name="fuse-notifier", daemon=True)
        self._thread.start()

    def limit(self, max_queued: int) -> None:
        """Let no more than so many wait."""
        self._max_queued = max_queued

    def forbid_epoch(self) -> None:
        """Do as on a kernel without INC_EPOCH."""
        self._inc_epoch = False

    def entry(self, parent_id: int, name: bytes) -> None:
        """What stands at this name, or does not, has changed."""
        self._put(_Entry(parent_id, name))

    def deleted(self, parent_id: int, child_id: int, name: bytes) -> None:
        self._put(_Deleted(parent_id, child_id, name))

    def everything(self) -> None:
        """What was queued before may be lost: have every name looked up again."""
        self._put(_Everything([] if self._inc_epoch else list(self._known_names())))

    def attributes(self, node_id: int) -> None:
        self._put(_Attributes(node_id))

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was queued has been written; False when it took longer. Blocking: not for the event loop."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._busy, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Drop what is queued and end the thread; False when it is still inside the kernel after ``timeout_s``."""
        with self._changed:
            self._closing = True
            self._queue.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def _put(self, item: _Item) -> None:
        with self._changed:
            if self._closing:
                return
            if len(self._queue) >= self._max_queued:
                self.overflows_total += 1
                self._queue.clear()
                self._queue.append(_Everything([] if self._inc_epoch else list(self._known_names())))
            self._queue.append(item)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._closing)
                if self._closing:
                    return
                item = self._queue.popleft()
                self._busy = True
            try:
                self._send(item)
            except OSError as error:
                if error.errno in _GONE:
                    with self._changed:
                        self._closing, self._busy = True, False
                        self._queue.clear()
                        self._changed.notify_all()
                    return
                log.warning("the kernel refused a notification", kind=type(item).__name__, error=str(error))

    def _send(self, item: _Item) -> None:
        match item:
            case _Entry(parent_id, name):
                self._tell(kernel.notify_entry(parent_id, name))
            case _Deleted(parent_id, child_id, name):
                try:
                    self._tell(kernel.notify_delete(parent_id, child_id, name))
                except OSError as error:
                    # A directory with names in use, or a mountpoint: then only the name is forgotten.
                    if error.errno not in (errno.ENOTEMPTY, errno.EBUSY):
                        raise
                    self._tell(kernel.notify_entry(parent_id, name))
            case _Attributes(node_id):
                self._tell(kernel.notify_attributes(node_id))
            case _Everything(names):
                if self._inc_epoch:
                    self._tell(kernel.notify_epoch())
                for parent_id, name in names:
                    if self._closing:
                        return
                    self._tell(kernel.notify_entry(parent_id, name))

    def _tell(self, data: bytes) -> None:
        try:
            self._write(data)
        except OSError as error:
            if error.errno not in _NOT_CACHED:
                raise
        self.sent_total += 1
