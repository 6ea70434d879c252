"""Writes down what a mount saw (``--record FILE``), in the format of TRACE.md: an observer of reads, in front of the real one.

A spoke that does not record has no trace of this in its read path. Records are gathered and written 64 KiB at a time; a disk that refuses
ends the recording with one line in the log, and the mount goes on.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

from common import limits
from common.errors import UsageError
from common.log import get_logger
from spoke.reads import Handle, ReadObserver, ReadResult

log = get_logger(__name__)

MAGIC = b"HRTRACE\0"
FORMAT = 1
HEADER = struct.Struct("<8sHHI")
RECORD = struct.Struct("<BBHIIIIQ")
FILE, OPEN, READ, CLOSE, LENT, STALL, END = range(1, 8)
RESULTS: dict[ReadResult, int] = {"hit": 0, "late": 1, "miss": 2}
LONGEST_GAP_US = (1 << 32) - 1
_MASK_32 = (1 << 32) - 1


class Recorder:
    """The file. ``clock`` gives seconds."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._fd = -1
        self.path = path
        self._clock = clock
        self._last_us = int(clock() * 1e6)
        self._pending = bytearray(HEADER.pack(MAGIC, FORMAT, RECORD.size, 0))
        self._left_bytes = limits.RECORD_MAX_BYTES - len(self._pending)
        self._files: dict[bytes, int] = {}

    def open(self) -> None:
        """Make the file and begin. Raises UsageError: it exists, or cannot be made."""
        try:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise UsageError(
                f"--record {self.path}: it exists already, and a trace is never overwritten; name another file"
            ) from None
        except OSError as error:
            raise UsageError(f"--record {self.path}: it cannot be made: {error.strerror}") from error

    @property
    def recording(self) -> bool:
        return self._fd >= 0

    def file_number(self, path: bytes, version: bytes, size_bytes: int) -> int:
        number = self._files.get(version)
        if number is None:
            number = self._files[version] = len(self._files)
            self.add(FILE, handle=number, offset=size_bytes, text=path + b"\0" + version)
        return number

    def add(
        self,
        kind: int,
        *,
        result: int = 0,
        handle: int = 0,
        task: int = 0,
        length: int = 0,
        offset: int = 0,
        text: bytes = b"",
    ) -> None:
        if self._fd < 0:
            return
        size_bytes = RECORD.size + len(text)
        self._left_bytes -= size_bytes
        if self._left_bytes < RECORD.size and kind != END:  # room for the END that says so
            self._left_bytes += size_bytes
            self.add(END)
            log.warning(
                "the recording has reached its limit and stops", path=str(self.path), bytes=limits.RECORD_MAX_BYTES
            )
            self.close()
            return
        now_us = int(self._clock() * 1e6)
        gap_us = min(max(0, now_us - self._last_us), LONGEST_GAP_US)
        self._last_us = now_us
        self._pending += RECORD.pack(
            kind, result, len(text), gap_us, handle & _MASK_32, task & _MASK_32, length, offset
        )
        self._pending += text
        if len(self._pending) >= limits.RECORD_PIECE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered."""
        if self._fd < 0 or not self._pending:
            return
        try:
            written = os.write(self._fd, self._pending)
            del self._pending[:written]
        except OSError as error:
            log.error("the recording cannot be written and ends", path=str(self.path), error=error.strerror)
            self._pending.clear()
            self.close()

    def close(self) -> None:
        if self._fd >= 0:
            self.flush()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._pending.clear()


class Recording:
    """Records, and passes everything on to ``inner``."""

    def __init__(self, recorder: Recorder, inner: ReadObserver) -> None:
        self._recorder = recorder
        self._inner = inner

    def opened(self, handle: Handle, task_id: int) -> None:
        number = self._recorder.file_number(handle.path, handle.version, handle.size_bytes)
        self._recorder.add(OPEN, handle=handle.handle_id, task=task_id, length=number)
        self._inner.opened(handle, task_id)

    def closed(self, handle: Handle) -> None:
        self._recorder.add(CLOSE, handle=handle.handle_id)
        self._inner.closed(handle)

    def lent(self, handle: Handle) -> None:
        self._recorder.add(LENT, handle=handle.handle_id)
        self._inner.lent(handle)

    def read(self, handle: Handle, task_id: int, offset_bytes: int, length_bytes: int, result: ReadResult) -> None:
        self._recorder.add(
            READ,
            result=RESULTS[result],
            handle=handle.handle_id,
            task=task_id,
            length=length_bytes,
            offset=offset_bytes,
        )
        self._inner.read(handle, task_id, offset_bytes, length_bytes, result)

    def stalled(self, handle: Handle, task_id: int, stall_s: float) -> None:
        self._recorder.add(STALL, handle=handle.handle_id, task=task_id, offset=int(stall_s * 1e6))
        self._inner.stalled(handle, task_id, stall_s)

    def gone(self, handle: Handle) -> None:
        self._inner.gone(handle)
