"""The record of who opened what: lines of JSON in a file of their own, apart from the log. It never holds up serving.

What repeats is said once an hour; what the disk does not take in time is dropped, and counted in the next line that it takes.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from common import limits
from common.errors import HeadraceError, UsageError
from common.log import get_logger
from common.wire.messages import Hello

log = get_logger(__name__)

STDERR = "-"
"""As ``--audit-log``: lines go where the log goes, for a service manager to keep."""

Emit = Callable[[Mapping[str, Any]], None]


class Places(Protocol):
    """Where a version's bytes are: the catalog of one dataset."""

    async def resolve(self, version: bytes) -> Any: ...


class AuditTrail:
    """A common.serving.observer.Auditor. ``emit`` takes each line's facts; ``places``: by dataset."""

    def __init__(
        self, emit: Emit, places: Mapping[str, Places], clock: Callable[[], float], wall_time_s: Callable[[], float]
    ) -> None:
        self._emit = emit
        self._places = places
        self._clock = clock
        self._wall_time_s = wall_time_s
        self._said: OrderedDict[tuple[object, ...], float] = OrderedDict()
        self._resolving: set[asyncio.Task[None]] = set()
        self._kept_back = 0

    def connected(self, address: str, hello: Hello, names: Sequence[str]) -> None:
        if self._is_new(("subscribed", hello.spoke_id, hello.dataset)):
            self._line("subscribed", address, hello, names=list(names[:8]))

    def opened(self, address: str, hello: Hello, version: bytes) -> None:
        if not self._is_new((hello.identity, hello.dataset, version)):
            return
        places = self._places.get(hello.dataset)
        if places is None or len(self._resolving) >= limits.AUDIT_RESOLVING_MAX:
            self._line("read", address, hello, version=version.hex())
            return
        task = asyncio.create_task(self._opened(address, hello, version, places), name="audit")
        self._resolving.add(task)
        task.add_done_callback(self._resolving.discard)

    def refused(self, address: str, hello: Hello | None, error: HeadraceError) -> None:
        host = address.rpartition(":")[0]
        if not self._is_new(("refused", host, error.wire_code), limits.AUDIT_REFUSED_AGAIN_S):
            self._kept_back += 1
            return
        kept_back, self._kept_back = self._kept_back, 0
        self._line("refused", address, hello, code=error.wire_code, reason=str(error), alike_not_shown=kept_back)

    async def close(self) -> None:
        await asyncio.gather(*self._resolving, return_exceptions=True)

    async def _opened(self, address: str, hello: Hello, version: bytes, places: Places) -> None:
        try:
            place = await places.resolve(version)
        except Exception as error:  # noqa: BLE001 a record without a path is better than none
            log.warning("the audit log names a version without its path", version=version.hex(), error=repr(error))
            place = None
        path = place.path.decode("utf-8", "backslashreplace") if place is not None else None
        self._line("read", address, hello, version=version.hex(), path=path)

    def _is_new(self, key: tuple[object, ...], again_s: float = limits.AUDIT_AGAIN_S) -> bool:
        now_s = self._clock()
        said_s = self._said.get(key)
        if said_s is not None and now_s - said_s < again_s:
            return False
        self._said[key] = now_s
        self._said.move_to_end(key)
        if len(self._said) > limits.AUDIT_REMEMBERED_MAX:
            self._said.popitem(last=False)
        return True

    def _line(self, event: str, address: str, hello: Hello | None, **facts: object) -> None:
        who = {"identity": hello.identity, "dataset": hello.dataset, "spoke": hello.spoke_id.hex()} if hello else {}
        self._emit({"time": _iso(self._wall_time_s()), "event": event, "address": address, **who, **facts})


class AuditFile:
    """``emit`` from any thread. The file is made with mode 0600, begun anew at AUDIT_FILE_MAX_BYTES (the former become ``.1``, ``.2``, …),
    and opened again when somebody else moved it away. Raises UsageError when it cannot be written at first."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path != STDERR else None
        self._lines: queue.Queue[bytes | None] = queue.Queue(limits.AUDIT_QUEUE_MAX)
        self.dropped_total = 0
        self._dropped_said = 0
        self._failing = False
        self._fd = -1
        if self._path is not None:
            try:
                self._reopen()
            except OSError as error:
                raise UsageError(f"audit log {path}: {error.strerror}; give a file that can be written") from None
        self._thread = threading.Thread(target=self._run, name="audit log", daemon=True)
        self._thread.start()

    def emit(self, facts: Mapping[str, Any]) -> None:
        try:
            self._lines.put_nowait(json.dumps(facts).encode() + b"\n")
        except queue.Full:
            self.dropped_total += 1

    def close(self) -> None:
        """Write what is queued, within a bounded time."""
        try:
            self._lines.put(None, timeout=limits.CLOSE_GRACE_S)
        except queue.Full:
            return
        self._thread.join(limits.CLOSE_GRACE_S)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            lost = self.dropped_total - self._dropped_said
            if lost:
                notice = {"time": _iso(datetime.now(UTC).timestamp()), "event": "lost", "lines": lost}
                if self._write(json.dumps(notice).encode() + b"\n"):
                    self._dropped_said += lost
            if not self._write(line):
                self.dropped_total += 1
        if self._fd >= 0:
            os.close(self._fd)

    def _write(self, line: bytes) -> bool:
        if self._path is None:
            sys.stderr.write(line.decode())
            sys.stderr.flush()
            return True
        try:
            self._turn(self._path)
            os.write(self._fd, line)
        except OSError as error:
            if not self._failing:
                log.error("the audit log cannot be written", path=str(self._path), error=error.strerror)
            self._failing = True
            return False
        self._failing = False
        return True

    def _turn(self, path: Path) -> None:
        ours = os.fstat(self._fd) if self._fd >= 0 else None
        if ours is not None and ours.st_size >= limits.AUDIT_FILE_MAX_BYTES:
            for number in range(limits.AUDIT_FILES_KEPT - 1, 0, -1):
                older = path.with_name(f"{path.name}.{number}")
                if older.exists():
                    os.replace(older, path.with_name(f"{path.name}.{number + 1}"))
            os.replace(path, path.with_name(f"{path.name}.1"))
            ours = None
        try:
            there = os.stat(path)
        except FileNotFoundError:
            ours = None
        else:
            if ours is not None and (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
                ours = None
        if ours is None:
            self._reopen()

    def _reopen(self) -> None:
        assert self._path is not None
        fresh = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fresh


def _iso(wall_time_s: float) -> str:
    return datetime.fromtimestamp(wall_time_s, UTC).isoformat(timespec="milliseconds")
