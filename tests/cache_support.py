"""What the cache's tests share: content by version, ways to write and read it, a disk that fails on request."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from common.blocks import BLOCK_BYTES, EXTENT_BYTES, BlockRange, byte_length, split_at_extents, whole_file
from common.digest import block_digests
from spoke.cache.disk import Disk
from spoke.cache.store import BlocksMissing, Store

MIB = 1 << 20
CAPACITY_BYTES = 16 * MIB


def version_of(number: int) -> bytes:
    return number.to_bytes(4, "big") * 4


def content_of(version: bytes, size_bytes: int) -> bytes:
    return Random(version).randbytes(size_bytes)


class ManualClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class File:
    """A version with its content, and the ways tests use it."""

    def __init__(self, number: int, size_bytes: int) -> None:
        self.version = version_of(number)
        self.size_bytes = size_bytes
        self.content = content_of(self.version, size_bytes)

    async def put(self, store: Store, blocks: BlockRange | None = None) -> None:
        """Write blocks (all of them by default) extent by extent, as they come from the hub."""
        for piece in split_at_extents(blocks or whole_file(self.size_bytes)):
            start = piece.first_block * BLOCK_BYTES
            data = self.content[start : start + byte_length(piece, self.size_bytes)]
            digests = block_digests(self.version, piece.first_block, data)
            await store.write(self.version, self.size_bytes, piece.first_block, data, digests)

    async def check(self, store: Store, offset_bytes: int = 0, length_bytes: int | None = None) -> None:
        """Read and compare; BlocksMissing passes through."""
        length_bytes = self.size_bytes if length_bytes is None else length_bytes
        got = await store.read(self.version, self.size_bytes, offset_bytes, length_bytes)
        assert bytes(got) == self.content[offset_bytes : offset_bytes + length_bytes]

    async def right_bytes(self, store: Store) -> int:
        """How many blocks can be read, each compared; a wrong byte fails the test."""
        return sum([await self._right_blocks(store, piece) for piece in split_at_extents(whole_file(self.size_bytes))])

    async def _right_blocks(self, store: Store, blocks: BlockRange) -> int:
        length_bytes = byte_length(blocks, self.size_bytes)
        with contextlib.suppress(BlocksMissing):
            await self.check(store, blocks.first_block * BLOCK_BYTES, length_bytes)
            return blocks.block_count
        if blocks.block_count == 1 or store.missing(self.version, self.size_bytes, blocks) == [blocks]:
            return 0
        half = blocks.block_count // 2
        first = BlockRange(blocks.first_block, half)
        rest = BlockRange(blocks.first_block + half, blocks.block_count - half)
        return await self._right_blocks(store, first) + await self._right_blocks(store, rest)

    def missing(self, store: Store) -> list[BlockRange]:
        return store.missing(self.version, self.size_bytes, whole_file(self.size_bytes))

    def state(self, store: Store) -> str:
        return store.state(self.version, self.size_bytes)

    def path(self, cache: Path, kind: str = "data") -> Path:
        name = self.version.hex()
        return cache / "versions" / name[:2] / f"{name}.{kind}"


def disk_usage(cache: Path) -> int:
    """What ``du`` says of the versions; what a thread of the store deletes during the walk counts nothing."""

    def occupied(path: str) -> int:
        try:
            return os.stat(path).st_blocks * 512
        except FileNotFoundError:
            return 0

    total = 0
    for folder, _, names in os.walk(cache / "versions"):
        if folder != str(cache / "versions"):
            total += occupied(folder)
        total += sum(occupied(os.path.join(folder, name)) for name in names)
    return total


class FaultyDisk(Disk):
    """Calls fail, are cut short or wait, by the name of the call."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self._errors: dict[str, tuple[int, int]] = {}
        self.gates: dict[str, Callable[[], None]] = {}
        self.short_bytes: int | None = None
        self.free_override: tuple[int, int] | None = None
        self._lock = threading.Lock()

    def fail(self, name: str, code: int, after: int = 0) -> None:
        """From the ``after``-th next call of ``name`` on, fail with errno ``code``."""
        self._errors[name] = (code, self.calls.get(name, 0) + after)

    def fail_once(self, name: str, code: int, after: int = 0) -> None:
        self.fail(name, -code, after)

    def heal(self) -> None:
        self._errors.clear()
        self.gates.clear()
        self.short_bytes = None
        self.free_override = None

    def _enter(self, name: str) -> None:
        with self._lock:
            count = self.calls[name] = self.calls.get(name, 0) + 1
            code, after = self._errors.get(name, (0, 0))
            failing = code != 0 and count > after
            if failing and code < 0:
                del self._errors[name]
        gate = self.gates.get(name)
        if gate is not None:
            gate()
        if failing:
            raise OSError(abs(code), os.strerror(abs(code)))

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        self._enter("open")
        return os.open(path, flags, mode)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self._enter("unlink")
        os.unlink(path)

    def preadv(self, fd: int, buffers: Any, offset_bytes: int, flags: int = 0) -> int:  # type: ignore[override]
        self._enter("preadv_nowait" if flags else "preadv")
        if self.short_bytes is not None and not flags:
            buffers = [memoryview(buffers[0])[: self.short_bytes]]
        return os.preadv(fd, buffers, offset_bytes, flags)

    def pwrite(self, fd: int, data: Any, offset_bytes: int) -> int:  # type: ignore[override]
        self._enter("pwrite")
        if self.short_bytes is not None:
            data = memoryview(data)[: self.short_bytes]
        return os.pwrite(fd, data, offset_bytes)

    def pwritev(self, fd: int, pieces: Any, offset_bytes: int) -> int:  # type: ignore[override]
        return self.pwrite(fd, b"".join(pieces), offset_bytes)

    def punch_hole(self, fd: int, offset_bytes: int, length_bytes: int) -> None:
        self._enter("punch_hole")
        super().punch_hole(fd, offset_bytes, length_bytes)

    def statvfs(self, path: str) -> Any:  # type: ignore[override]
        self._enter("statvfs")
        found = os.statvfs(path)
        if self.free_override is None:
            return found
        free_bytes, free_inodes = self.free_override

        class Found:
            f_blocks, f_frsize = found.f_blocks, found.f_frsize
            f_bavail, f_files, f_favail = free_bytes // found.f_frsize, found.f_files, free_inodes

        return Found


__all__ = ["BLOCK_BYTES", "EXTENT_BYTES", "BlocksMissing", "FaultyDisk", "File", "ManualClock", "disk_usage"]
