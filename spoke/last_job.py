"""What the last job read, for ``warm --last``: which parts of which files, noted as they are read and kept beside the cache.

A job is over when all files are closed and nothing was read for a while. One that read far less than the last (a look at a few
files) does not take its place. Reads are noted in parts of 64 KiB; a file that the kernel reads by itself counts whole.
The file is JSON: ``format``, ``complete``, and of each file path, version, size and a bitmap of its parts (zlib, base64).
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange
from common.durable import replace_file
from common.errors import UsageError
from common.log import get_logger
from spoke.prefetch.chains import FileFacts

log = get_logger(__name__)

_FORMAT = 1
_SHIFT = 16
PART_BYTES = 1 << _SHIFT
_PART_BLOCKS = PART_BYTES // BLOCK_BYTES
_FILE_BYTES = 500  # in memory, beside its parts: path, version, the objects around them
_MEMORY_SHARE = 4  # 1/4 of what recordings may have
_SMALL_BYTES = 64 * 1024 * 1024
_SMALL_SHARE = 8


def _parts_bytes(size_bytes: int) -> int:
    """What a file of this size takes: 2 GiB for one of 1 PiB."""
    return (size_bytes + PART_BYTES - 1 >> _SHIFT) + 7 >> 3


class TouchedFile:
    """``parts``: a bit for each 64 KiB of the file, set once some of it was read."""

    __slots__ = ("parts", "size_bytes", "version")

    def __init__(self, version: bytes, size_bytes: int, parts: bytearray | None = None) -> None:
        self.version = version
        self.size_bytes = size_bytes
        self.parts = bytearray(_parts_bytes(size_bytes)) if parts is None else parts

    @property
    def touched_bytes(self) -> int:
        return min(self.size_bytes, int.from_bytes(self.parts, "little").bit_count() * PART_BYTES)

    def touch_all(self) -> None:
        """The whole file was read, as far as is known."""
        self.parts[:] = b"\xff" * len(self.parts)
        if left := self.size_bytes + PART_BYTES - 1 >> _SHIFT & 7:
            self.parts[-1] = (1 << left) - 1

    def with_also(self, other: TouchedFile) -> TouchedFile:
        """What was read of either, of one version."""
        either = int.from_bytes(self.parts, "little") | int.from_bytes(other.parts, "little")
        return TouchedFile(self.version, self.size_bytes, bytearray(either.to_bytes(len(self.parts), "little")))

    def runs(self) -> Iterator[BlockRange]:
        """What was read, as block ranges of the file; the last may reach past its end."""
        count = len(self.parts) * 8
        first = -1
        for part in range(count + 1):
            if part < count and self.parts[part >> 3] >> (part & 7) & 1:
                first = part if first < 0 else first
            elif first >= 0:
                yield BlockRange(first * _PART_BLOCKS, (part - first) * _PART_BLOCKS)
                first = -1


class _Job:
    def __init__(self) -> None:
        self.files: dict[bytes, TouchedFile] = {}
        self.held_bytes = 0
        self.complete = True

    @property
    def touched_bytes(self) -> int:
        return sum(file.touched_bytes for file in self.files.values())


class LastJob:
    """``memory_bytes``: of the setting ``learn_memory``; a quarter of it may be used here, what goes beyond is not noted.

    ``on_look`` is called before anything else than a READ is noted or looked at: READs may be told of by several.
    """

    def __init__(self, path: Path, memory_bytes: int, clock: Callable[[], float]) -> None:
        self._path = path
        self._most_bytes = memory_bytes // _MEMORY_SHARE // 2  # the last one, and the one that goes on
        self._clock = clock
        self._last = _Job()
        self._now = _Job()
        self._last_read_s = 0.0
        self._dirty = False
        self._saved_s = clock()
        self.on_look: Callable[[], None] = lambda: None

    # --- events ------------------------------------------------------------------------------------------

    def read(self, path: bytes, version: bytes, size_bytes: int, offset_bytes: int, length_bytes: int) -> None:
        """A READ at the mount."""
        self.note(FileFacts(path, version, size_bytes), offset_bytes, length_bytes)

    def note(self, facts: FileFacts, offset_bytes: int, length_bytes: int) -> None:
        """READs of a file that go on in one piece."""
        path, version, size_bytes = facts
        file = self._now.files.get(path)
        if file is None or file.version != version:
            file = self._file(path, version, size_bytes)
            if file is None:
                return
        self._last_read_s = self._clock()
        self._dirty = True
        end_bytes = offset_bytes + length_bytes
        end_bytes = min(end_bytes, size_bytes)
        first = offset_bytes >> _SHIFT
        count = (end_bytes + PART_BYTES - 1 >> _SHIFT) - first
        if count <= 0:
            return
        parts, at = file.parts, first >> 3
        bits = (1 << count) - 1 << (first & 7)
        if bits < 256:  # most READs
            parts[at] |= bits
            return
        end = at + (bits.bit_length() + 7 >> 3)
        parts[at:end] = (int.from_bytes(parts[at:end], "little") | bits).to_bytes(end - at, "little")

    def lent(self, path: bytes, version: bytes, size_bytes: int) -> None:
        """The kernel reads a whole file by itself: how much of it is not seen."""
        self.on_look()  # what was read before may have been of another version
        file = self._file(path, version, size_bytes)
        if file is not None:
            file.touch_all()

    def _file(self, path: bytes, version: bytes, size_bytes: int) -> TouchedFile | None:
        """Something is read of it now; None: there is no room to note it."""
        self._last_read_s = self._clock()
        file = self._now.files.get(path)
        if file is None or file.version != version:
            file = self._add(path, version, size_bytes)
        if file is not None:
            self._dirty = True
        return file

    def _add(self, path: bytes, version: bytes, size_bytes: int) -> TouchedFile | None:
        job = self._now
        need_bytes = _parts_bytes(size_bytes) + len(path) + _FILE_BYTES
        if job.held_bytes + need_bytes > self._most_bytes:
            job.complete = False
            return None
        job.held_bytes += need_bytes
        file = job.files[path] = TouchedFile(version, size_bytes)
        return file

    async def tend(self, open_handles: int) -> None:
        """Note that a job is over; write down what was read since, now and then."""
        self.on_look()
        now_s = self._clock()
        if self._now.files and not open_handles and now_s - self._last_read_s >= limits.LEARN_CLOSED_REST_S:
            self._end()
            await self.save()
        elif self._dirty and now_s - self._saved_s >= limits.LAST_JOB_SAVE_S:
            await self.save()

    def _end(self) -> None:
        read_bytes, before_bytes = self._now.touched_bytes, self._last.touched_bytes
        if not self._last.files or read_bytes >= min(_SMALL_BYTES, before_bytes // _SMALL_SHARE):
            self._last = self._now
        self._now = _Job()

    def files(self) -> Mapping[bytes, TouchedFile]:
        """By path: of the last job, and of one that goes on. Raises UsageError when nothing is known."""
        found = self._both()
        if not found:
            raise UsageError("no job has read anything through this mount yet: name paths, a plan or an order")
        return found

    def _both(self) -> Mapping[bytes, TouchedFile]:
        self.on_look()
        found = {**self._last.files}
        for path, file in self._now.files.items():
            before = found.get(path)
            found[path] = file if before is None or before.version != file.version else file.with_also(before)
        return found

    def touched_bytes(self, path: bytes, version: bytes) -> int:
        """Of this file, in whole parts; 0: not read."""
        self.on_look()
        files = [job.files.get(path) for job in (self._last, self._now)]
        return max((file.touched_bytes for file in files if file is not None and file.version == version), default=0)

    # --- on disk -----------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Take in what an earlier process noted. Never raises: it is a help and no more."""
        try:
            self._last = await asyncio.to_thread(_read, self._path)
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, zlib.error) as error:
            log.warning("what the last job read is not known any more", path=str(self._path), error=str(error))

    async def save(self) -> None:
        """Write it down. Never raises."""
        self._dirty, self._saved_s = False, self._clock()
        try:
            files = self.files()
        except UsageError:
            return
        copied = [(path, file.version, file.size_bytes, bytes(file.parts)) for path, file in files.items()]
        try:
            await asyncio.to_thread(_write, self._path, copied, complete=self.is_complete)
        except OSError as error:
            log.warning("what this job reads cannot be kept", path=str(self._path), error=error.strerror)

    async def forget(self) -> None:
        self.on_look()
        self._last, self._now = _Job(), _Job()
        self._dirty = False
        await asyncio.to_thread(self._path.unlink, missing_ok=True)

    @property
    def is_complete(self) -> bool:
        return self._last.complete and self._now.complete

    def facts(self) -> Mapping[str, Any]:
        """For ``status``."""
        both = self._both()
        return {
            "files": len(both),
            "bytes": sum(file.touched_bytes for file in both.values()),
            "complete": self.is_complete,
            "goes_on": bool(self._now.files),
        }


def _read(path: Path) -> _Job:
    found = json.loads(path.read_text("ascii"))
    if found["format"] != _FORMAT:
        raise ValueError(f"format {found['format']!r}, and this spoke knows {_FORMAT}")
    job = _Job()
    job.complete = bool(found["complete"])
    for name, version, size_bytes, packed in found["files"]:
        file = TouchedFile(bytes.fromhex(version), int(size_bytes))
        most_bytes = len(file.parts)
        unpacked = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), most_bytes + 1)
        if len(unpacked) != most_bytes:
            raise ValueError(f"{len(unpacked)} bytes for the parts of a file of {size_bytes}")
        file.parts[:] = unpacked
        job.files[os.fsencode(name)] = file
        job.held_bytes += most_bytes + len(name) + _FILE_BYTES
    return job


def _write(path: Path, files: list[tuple[bytes, bytes, int, bytes]], *, complete: bool) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    rows = [
        [os.fsdecode(name), version.hex(), size_bytes, base64.b64encode(zlib.compress(parts, 1)).decode()]
        for name, version, size_bytes, parts in files
    ]
    replace_file(path, json.dumps({"format": _FORMAT, "complete": complete, "files": rows}))
