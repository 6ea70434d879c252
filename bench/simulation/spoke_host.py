"""A spoke as a simulated process: the real daemon without a kernel under it, and the programs that read through its mount."""

from __future__ import annotations

import asyncio
import errno
import os
import struct
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from random import Random
from typing import Any

from bench.simulation.disks import Faults, Marks, SpokeDisk, SpokeFiles
from bench.simulation.hub_host import DATASET, HUB_PORT
from bench.simulation.loop import Process, SimLoop
from bench.simulation.network import Network
from common import limits
from common.config import Loaded
from common.errors import HeadraceError
from spoke.cache.store import Store
from spoke.config import SpokeSettings
from spoke.daemon import Spoke
from spoke.fuse import kernel
from spoke.fuse.kernel import Opcode
from spoke.fuse.operations import Operations
from spoke.fuse.passthrough import Passthrough
from spoke.namespace.journal import Journal
from spoke.reads import Handle


class _NoKernel:
    """Takes the news that operations have for a kernel."""

    def entry(self, _parent_id: int, _name: bytes) -> None: ...
    def deleted(self, _parent_id: int, _child_id: int, _name: bytes) -> None: ...
    def attributes(self, _node_id: int) -> None: ...


class _NoBacking:
    def open(self, _fd: int) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def close(self, _backing_id: int) -> None: ...


class _Nothing:
    """The HTTP port and the commands' socket: nobody asks at either."""

    async def start(self, *_: object, **__: object) -> None: ...
    async def close(self) -> None: ...


class SimSpoke(Spoke):
    """The daemon, with operations that the simulation asks where the kernel would."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.control = _Nothing()  # type: ignore[assignment]
        self.pages = _Nothing()  # type: ignore[assignment]
        self.shared_port = _Nothing()  # type: ignore[assignment]

    async def _mount(self) -> None:
        passthrough = Passthrough(_NoBacking(), "simulated")
        operations: Operations[Handle] = Operations(self.tree, self.reads, _NoKernel(), passthrough)
        self.operations = operations
        self.store.on_whole = operations.became_whole
        self.retention.on_erased = operations.forget_bytes


class Mount:
    """Asks operations what the kernel asks, and gives what a program would get: bytes, numbers, or OSError."""

    def __init__(self, operations: Operations[Handle]) -> None:
        self.operations = operations

    async def _ask(self, opcode: Opcode, node_id: int, body: bytes) -> bytes:
        try:
            reply: Any = self.operations.handlers[opcode](node_id, memoryview(body), 0)
            if isinstance(reply, Coroutine):
                reply = await reply
        except HeadraceError as error:
            reply = error.errno
        if isinstance(reply, int):
            raise OSError(reply, os.strerror(reply))
        return b"" if reply is None else bytes(reply)

    async def open(self, path: bytes) -> OpenFile:
        """Raises OSError."""
        node_ids = [kernel.ROOT_NODE_ID]
        try:
            for name in path.split(b"/"):
                reply = await self._ask(Opcode.LOOKUP, node_ids[-1], name + b"\0")
                node_id = struct.unpack_from("<Q", reply)[0]
                if node_id == 0:  # a name that is not there, to be remembered
                    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
                node_ids.append(node_id)
            reply = await self._ask(Opcode.OPEN, node_ids[-1], kernel.OPEN_IN.pack(os.O_RDONLY, 0))
        except OSError:
            await self._forget(node_ids[1:])
            raise
        handle_id = struct.unpack_from("<Q", reply)[0]
        return OpenFile(self, path, node_ids[1:], handle_id, self.operations._files[handle_id].handle)

    async def _forget(self, node_ids: Sequence[int]) -> None:
        for node_id in reversed(node_ids):
            await self._ask(Opcode.FORGET, node_id, kernel.FORGET_IN.pack(1))

    async def read(self, file: OpenFile, offset_bytes: int, length_bytes: int) -> bytes:
        """Raises OSError."""
        body = kernel.READ_IN.pack(file.handle_id, offset_bytes, length_bytes, 0, 0, 0, 0)
        return await self._ask(Opcode.READ, file.node_ids[-1], body)

    async def close(self, file: OpenFile) -> None:
        await self._ask(Opcode.RELEASE, file.node_ids[-1], kernel.RELEASE_IN.pack(file.handle_id, 0, 0, 0))
        await self._forget(file.node_ids)


class OpenFile:
    def __init__(self, mount: Mount, path: bytes, node_ids: Sequence[int], handle_id: int, handle: Handle) -> None:
        self.mount, self.path, self.node_ids, self.handle_id = mount, path, node_ids, handle_id
        self.version, self.size_bytes = handle.version, handle.size_bytes


class SpokeHost:
    """``start``, ``stop`` in order, ``kill``; over again, on one cache directory and one disk."""

    def __init__(
        self,
        name: str,
        loop: SimLoop,
        network: Network,
        scratch: Path,
        dice: Random,
        job_s: Callable[[Faults], float],
        settings: dict[str, Any],
    ) -> None:
        self.name = name
        self._loop, self._network, self._dice = loop, network, dice
        self.faults, self._marks = Faults(), Marks()
        self._job_s = lambda: job_s(self.faults)
        self.cache_dir = scratch / name
        self._settings = SpokeSettings(
            hub=f"10.0.0.254:{HUB_PORT}", dataset=DATASET, cache_dir=self.cache_dir, identity=name, **settings
        )
        self.process = Process(name, loop, self._job_s)
        self.buried: list[Process] = []
        self.spoke: SimSpoke | None = None
        self.mount: Mount | None = None
        self.disk: SpokeDisk | None = None
        self._files: SpokeFiles | None = None
        self._lock_fd_of: Store | None = None

    @property
    def up(self) -> bool:
        return self.mount is not None

    async def start(self) -> None:
        """Returns once the mount would answer. Raises HeadraceError: no names and no hub, or a disk that fails."""
        self.process = Process(self.name, self._loop, self._job_s)
        try:
            await self.process.start(self._start(), "spoke start")
        except HeadraceError:
            self.process.kill(self._dice)
            self.buried.append(self.process)
            self._let_go()
            raise

    async def _start(self) -> None:
        """As Spoke.start, with disks of ours."""
        settings = self._settings
        disk = self.disk = SpokeDisk(self.faults, self._marks, self._dice, self._loop.trace)
        files = self._files = SpokeFiles(disk)
        store = self._lock_fd_of = await asyncio.to_thread(
            Store.open, settings.cache_dir, settings.cache_size, settings.cache_free_floor,
            limits.CACHE_FREE_FLOOR_INODES, Random(self._dice.random()), clock=self._loop.time, disk=disk,
        )  # fmt: skip
        journal = await Journal.open(settings.cache_dir / "names" / DATASET, files=files)
        loaded = Loaded(settings, dict.fromkeys(SpokeSettings.model_fields, "default"))
        spoke = SimSpoke(f"/simulated/{self.name}", loaded, store, journal)
        try:
            await spoke._start()
        except BaseException:
            await spoke.close()
            raise
        assert spoke.operations is not None
        self.spoke, self.mount = spoke, Mount(spoke.operations)

    async def stop(self) -> None:
        """As for SIGTERM: the mount goes, the rest follows."""
        spoke = self.spoke
        assert spoke is not None
        self.mount = None
        await self.process.start(spoke.close(), "spoke stop")

    def kill(self, *, silently: bool) -> None:
        """As by kill -9 of spoke and supervisor; ``silently``: its host with it, though not its disk's cache."""
        self.mount = None
        self.process.kill(self._dice)
        self._network.process_died(self.process, silently)
        self.buried.append(self.process)
        self._let_go()

    def _let_go(self) -> None:
        """What the kernel closes of a killed process."""
        if self._lock_fd_of is not None:
            self._lock_fd_of._directory.close()
        if self.disk is not None:
            self.disk.die()
        if self._files is not None:
            self._files.die()

    # --- what somebody else does to its disk ------------------------------------------------------------------

    def damage(self, kind: str) -> str | None:
        """Something happens to a cached file: which and where, or None when nothing is cached."""
        folder = self.cache_dir / "versions"
        paths = sorted(folder.glob("*/*.index" if kind == "index" else "*/*.data")) if folder.is_dir() else []
        paths = [path for path in paths if path.stat().st_size]
        if not paths:
            return None
        tree = self.spoke.tree if self.spoke is not None else None
        live = [path for path in paths if tree is not None and tree.is_live(bytes.fromhex(path.stem))]
        path = self._dice.choice(live or paths)
        size_bytes = path.stat().st_size
        fd = os.open(path, os.O_RDWR)
        try:
            number = self._marks.number(fd)
            if kind == "cut":
                os.ftruncate(fd, self._dice.randrange(size_bytes))
            else:
                offset_bytes = self._dice.randrange(size_bytes)
                length_bytes = min(size_bytes - offset_bytes, self._dice.choice([1, 16, 4096, 40_000]))
                data = bytearray(os.pread(fd, length_bytes, offset_bytes))
                for at in range(0, len(data), max(1, len(data) // 8)):
                    data[at] ^= 1 << self._dice.randrange(8)
                os.pwrite(fd, data, offset_bytes)
            if kind == "rot":
                self._marks.cold[number] = True  # the medium changed: who reads the page cache sees the old bytes
            else:
                self._marks.changed(number)
        finally:
            os.close(fd)
        return f"{path.name[:8]}{path.suffix}"
