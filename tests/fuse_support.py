"""Shared by the tests of the mount: a dataset in memory, a reader over it, and a real mount of both."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from common.entries import Change, Entry, Kind
from common.errors import HeadraceError
from spoke.fuse import mountpoint
from spoke.fuse.device import Device, MountOptions
from spoke.fuse.operations import Operations
from spoke.namespace.tree import Invalidation, Node, Tree

MTIME_NS = 1_700_000_000_123_456_789


def _why_no_mount() -> str:
    if not os.path.exists("/dev/fuse"):
        return "/dev/fuse is not there"
    if os.geteuid() != 0 and mountpoint.fusermount() is None:
        return "neither root nor fusermount3"
    return ""


needs_mount = [
    pytest.mark.mount,
    pytest.mark.skipif(bool(_why_no_mount()), reason=_why_no_mount() or "mounting works here"),
]


class OpenVersion:
    def __init__(self, version: bytes, data: bytes) -> None:
        self.version = version
        self.data = memoryview(data)
        self.size_bytes = len(data)
        self.fd: int | None = None


class MemoryReader:
    """Bytes by version. ``held``: versions whose reads wait until ``release_held``; ``failing``: error by version.

    ``whole``: files that hold a version for passthrough. Reads of versions in ``later`` take the asynchronous road.
    """

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self.held: set[bytes] = set()
        self.later: set[bytes] = set()
        self.failing: dict[bytes, Exception] = {}
        self.whole: dict[bytes, Path] = {}
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()
        self.opens = 0
        self.releases = 0
        self.reads = 0
        self.cancelled = 0
        self.short_by_bytes = 0
        self.kept: list[bytes] = []

    def open(self, node: Node, task_id: int) -> OpenVersion:
        self.opens += 1
        return OpenVersion(node.entry.version, self.data[node.entry.version])

    def read_nowait(self, handle: OpenVersion, offset_bytes: int, length_bytes: int, task_id: int) -> memoryview | None:
        self.reads += 1
        if handle.version in self.held or handle.version in self.later:
            return None
        if handle.version in self.failing:
            raise self.failing[handle.version]
        return handle.data[offset_bytes : offset_bytes + length_bytes - self.short_by_bytes]

    async def read(
        self, handle: OpenVersion, offset_bytes: int, length_bytes: int, task_id: int, waited_s: float
    ) -> memoryview:
        if handle.version in self.held:
            self.waiting.set()
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        await asyncio.sleep(0)
        if handle.version in self.failing:
            raise self.failing[handle.version]
        return handle.data[offset_bytes : offset_bytes + length_bytes]

    def release(self, handle: OpenVersion) -> None:
        self.releases += 1
        if handle.fd is not None:
            os.close(handle.fd)

    def reopen(self, path: bytes, version: bytes, size_bytes: int, lent: bool) -> OpenVersion:
        self.opens += 1
        return OpenVersion(version, self.data[version])

    def keep(self, handle: OpenVersion) -> None:
        self.kept.append(handle.version)

    def passthrough_fd(self, handle: OpenVersion) -> int | None:
        path = self.whole.get(handle.version)
        if path is None:
            return None
        if handle.fd is None:
            handle.fd = os.open(path, os.O_RDONLY)
        return handle.fd


class Dataset:
    """A tree and the bytes behind it. Each change returns what Operations.changed wants to know."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.reader = MemoryReader()
        self._edits = 0

    def put(self, path: bytes, data: bytes, mode: int = 0o644, mtime_ns: int = MTIME_NS) -> list[Invalidation]:
        self._edits += 1
        version = hashlib.md5(b"%d/%s" % (self._edits, path)).digest()
        self.reader.data[version] = data
        return self._apply(path, Entry(Kind.FILE, mode, len(data), mtime_ns, version))

    def mkdir(self, path: bytes) -> list[Invalidation]:
        return self._apply(path, Entry(Kind.DIRECTORY, 0o755, 0, MTIME_NS))

    def link(self, path: bytes, target: bytes) -> list[Invalidation]:
        return self._apply(path, Entry(Kind.SYMLINK, 0o777, len(target), MTIME_NS, b"", target))

    def chmod(self, path: bytes, mode: int) -> list[Invalidation]:
        entry = self.node(path).entry
        return self._apply(path, Entry(entry.kind, mode, entry.size_bytes, entry.mtime_ns, entry.version, entry.target))

    def remove(self, path: bytes) -> list[Invalidation]:
        return self._apply(path, None)

    def node(self, path: bytes) -> Node:
        node = self.tree.resolve(path)
        assert node is not None, path
        return node

    def version(self, path: bytes) -> bytes:
        return self.node(path).entry.version

    def _apply(self, path: bytes, entry: Entry | None) -> list[Invalidation]:
        return self.tree.apply(Change(self.tree.revision + 1, path, entry))


class Mount:
    """A dataset mounted at ``path``."""

    def __init__(self, path: Path, dataset: Dataset, device: Device, operations: Operations[OpenVersion]) -> None:
        self.path = path
        self.dataset = dataset
        self.device = device
        self.operations = operations

    async def changed(self, invalidations: Iterable[Invalidation]) -> None:
        """Tell the kernel, and wait until it knows."""
        self.operations.changed(invalidations)
        await self.told()

    async def told(self) -> None:
        assert await asyncio.to_thread(self.device.notifier.flush, 10)


@asynccontextmanager
async def mounted(
    dataset: Dataset, base: Path, options: MountOptions | None = None, **operations_options: Any
) -> AsyncIterator[Mount]:
    where = base / "mnt"
    with suppress(FileExistsError):
        os.mkdir(where)  # not Path.mkdir, which looks at what is there: it may be a mount that hangs
    device = await Device.mount(where, "tests", base / "run", options or MountOptions())
    operations = Operations(dataset.tree, dataset.reader, device.notifier, device.passthrough, **operations_options)
    try:
        await device.serve(operations)
        yield Mount(where, dataset, device, operations)
    finally:
        await device.close()
        force_unmount(where)


def force_unmount(where: Path) -> None:
    """Whatever a failed test left behind."""
    for entry in mountpoint.mounts_at(os.path.realpath(where.parent) + "/" + where.name):
        if entry.is_ours:
            mountpoint.detach(entry.path, entry.minor, force=True)


async def run(*command: str | bytes | Path, timeout_s: float = 60, check: bool = True) -> tuple[int, bytes, bytes]:
    """A command in a process of its own: a page fault or a walk in this one would hold the interpreter that must answer."""
    process = await asyncio.create_subprocess_exec(
        *(os.fspath(part) for part in command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert not check or process.returncode == 0, (process.returncode, out, err)
    return process.returncode or 0, out, err


async def python(script: str, *arguments: str | bytes | Path, timeout_s: float = 60, check: bool = True) -> bytes:
    return (await run(sys.executable, "-c", script, *arguments, timeout_s=timeout_s, check=check))[1]


async def read_file(path: Path) -> bytes:
    return await asyncio.to_thread(_read, path)


def _read(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(fd, 1 << 20):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


class Failure(HeadraceError):
    """A read that fails with an errno of the test's choice."""

    def __init__(self, code: int) -> None:
        super().__init__(f"errno {code}")
        self.errno = code  # type: ignore[misc]
