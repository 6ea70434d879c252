"""What each reader is doing, in memory shared with the harness: it can be looked at while the reader hangs, and after its death."""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

SLOT_BYTES = 512
_FACTS = struct.Struct("<QdQQQ")
_TEXT_AT = _FACTS.size


@dataclass(frozen=True, slots=True)
class Seen:
    """``busy_since_s`` 0: between two calls. Counters: of all processes this slot had."""

    pid: int
    busy_since_s: float
    operations: int
    bytes_checked: int
    errors: int
    text: str


class Slots:
    def __init__(self, path: Path, count: int) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if os.fstat(fd).st_size < count * SLOT_BYTES:
            os.ftruncate(fd, count * SLOT_BYTES)
        self._map = mmap.mmap(fd, count * SLOT_BYTES)
        os.close(fd)
        self.count = count

    def see(self, number: int) -> Seen:
        start = number * SLOT_BYTES
        pid, busy_s, operations, checked, errors = _FACTS.unpack_from(self._map, start)
        text = bytes(self._map[start + _TEXT_AT : start + SLOT_BYTES]).split(b"\0", 1)[0]
        return Seen(pid, busy_s, operations, checked, errors, text.decode("utf-8", "replace"))

    def write(self, number: int, seen: Seen) -> None:
        start = number * SLOT_BYTES
        text = seen.text.encode()[: SLOT_BYTES - _TEXT_AT - 1] + b"\0"
        self._map[start + _TEXT_AT : start + _TEXT_AT + len(text)] = text
        _FACTS.pack_into(
            self._map, start, seen.pid, seen.busy_since_s, seen.operations, seen.bytes_checked, seen.errors
        )

    def close(self) -> None:
        self._map.close()
