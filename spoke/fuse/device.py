"""The /dev/fuse descriptor: mounting, reading requests, writing replies, and taking the mount away again.

Owns the descriptor, the tasks of READs that wait, and the notifier's thread. What a request means is operations' to say.
A request is answered where it is read; only a READ whose bytes are not at hand becomes a task. Nothing a request
holds can end the loop: what cannot be parsed, and what fails in a handler, is answered with EIO.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from common.errors import HeadraceError, MountpointError
from common.limits import FUSE_LOOK_S, FUSE_MOUNT_TIMEOUT_S, FUSE_REQUESTS_PER_WAKEUP, FUSE_UNMOUNT_TIMEOUT_S
from common.log import get_logger
from spoke.fuse import kernel, mounting, mountpoint
from spoke.fuse.interrupts import Interrupts
from spoke.fuse.kernel import Negotiated, Opcode
from spoke.fuse.ledger import Ledger
from spoke.fuse.notifier import Notifier
from spoke.fuse.operations import Bytes, Handler
from spoke.fuse.passthrough import DeviceBacking, Passthrough, open_probe_file, why_not
from spoke.fuse.readahead import KernelReadAhead

log = get_logger(__name__)

_TRY_AGAIN = frozenset({errno.EINTR, errno.EAGAIN, errno.ENOENT})
_ENDED = {errno.ENODEV: "unmounted", errno.ECONNABORTED: "aborted", errno.ENOTCONN: "aborted", errno.EPERM: "aborted"}


class Serving(Protocol):
    """What the device needs of Operations."""

    @property
    def handlers(self) -> dict[int, Handler]: ...

    def known_names(self) -> Any: ...

    def release_all(self) -> None: ...

    def let_go(self) -> None: ...


@dataclass(frozen=True, slots=True)
class MountOptions:
    """``max_readahead_bytes``: more makes random readers of mapped files move several times the bytes they use.
    ``cache_dir``: where backing files for passthrough live; None turns it off."""

    allow_other: bool = True
    max_readahead_bytes: int = 128 * 1024
    passthrough: bool = True
    cache_dir: Path | None = None


class Device:
    """One connection with the kernel.

    Made by :meth:`mount` or :meth:`from_fd`; ``serve`` it once, ``close`` it always. ``notifier`` and ``passthrough``
    are there before ``serve``, for whoever makes the operations.
    """

    def __init__(
        self, fd: int, options: MountOptions, mounted: mounting.Mounted | None, ledger: Ledger | None = None
    ) -> None:
        self._fd = fd
        self.ledger = ledger
        self._options = options
        self._mounted = mounted
        self._runtime_dir: Path | None = None
        self._owner: mountpoint.Owner | None = None
        self.notifier = Notifier.for_fd(fd)
        self.passthrough = Passthrough(DeviceBacking(fd), why_not(options.passthrough, options.cache_dir))
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(kernel.REQUEST_BUFFER_BYTES)) if ledger is None else ledger.request_buffer
        self._buffers = [self._buffer]
        self._handlers: dict[int, Handler] = {}
        self._serving: Serving | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._letting_go = False
        self._waiting_since_s: dict[int, float] = {}
        self._interrupts = Interrupts(self._loop, self._give_up)
        self._ready: asyncio.Future[Negotiated] = self._loop.create_future()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._reading = False
        self._closing = False
        self._close_task: asyncio.Task[None] | None = None
        self._wakeups = 0
        self._crowded = False
        self._looked_s = 0.0
        self.requests_total = 0

    @classmethod
    async def mount(
        cls, where: Path, dataset: str, runtime_dir: Path, options: MountOptions, *, outlives_us: bool = False
    ) -> Device:
        """Mount ``dataset`` read-only on an empty directory, a stale mount of ours taken away first. Raises MountpointError.

        ``runtime_dir`` keeps the record by which a later start tells a live mount from a stale one. ``outlives_us``: this process
        is a worker, and its parent the supervisor that owns the mount; the device then keeps a ledger for the next worker.
        """
        path = await mountpoint.in_thread(lambda: mountpoint.prepare(where, runtime_dir))
        mounting_now = asyncio.ensure_future(
            mountpoint.in_thread(lambda: mounting.mount(path, dataset, options.allow_other))
        )
        try:
            mounted = await asyncio.shield(mounting_now)
        except asyncio.CancelledError:
            with contextlib.suppress(MountpointError):  # what was begun must not be left behind
                mounted = await mounting_now
                mountpoint.detach(mounted.path, mounted.minor, force=True)
                os.close(mounted.fd)
            raise
        device = cls(mounted.fd, options, mounted)
        try:
            if outlives_us:
                identity = {"mountpoint": path, "minor": mounted.minor, "dataset": dataset, "notes": mounted.notes}
                device._use_ledger(Ledger.create(identity))
            device._own(runtime_dir, os.getppid() if outlives_us else os.getpid())
        except OSError as error:
            await device.close()
            raise MountpointError(f"cannot write to the runtime directory {runtime_dir}: {error.strerror}") from error
        for note in mounted.notes:
            log.warning("mounted with less than asked for", note=note)
        return device

    @classmethod
    def take_over(cls, fd: int, ledger: Ledger, runtime_dir: Path, options: MountOptions) -> Device:
        """Go on with the mount of an earlier worker. Raises LedgerUnusable, or OSError for the record."""
        identity = ledger.identity()
        mounted = mounting.Mounted(fd, identity["mountpoint"], identity["minor"], tuple(identity["notes"]))
        device = cls(fd, options, mounted, ledger)
        device._own(runtime_dir, os.getppid())
        return device

    def _use_ledger(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._buffer = ledger.request_buffer
        self._buffers = [self._buffer]

    def _own(self, runtime_dir: Path, pid: int) -> None:
        assert self._mounted is not None
        cache_dir = os.path.realpath(self._options.cache_dir) if self._options.cache_dir is not None else ""
        self._owner = mountpoint.Owner.of(pid, self._mounted.path, self._mounted.minor, cache_dir)
        self._runtime_dir = runtime_dir
        mountpoint.write_owner(runtime_dir, self._owner)

    @classmethod
    def from_fd(cls, fd: int, options: MountOptions) -> Device:
        """Serve a descriptor that somebody else mounted and will unmount; it becomes this object's to close."""
        os.set_blocking(fd, False)
        return cls(fd, options, None)

    # --- state -------------------------------------------------------------------------------------------

    @property
    def path(self) -> str | None:
        """The resolved mountpoint, if we mounted it."""
        return self._mounted.path if self._mounted is not None else None

    @property
    def read_ahead(self) -> KernelReadAhead | None:
        """The kernel's readahead for this mount, if we mounted it."""
        return KernelReadAhead(self._mounted.minor) if self._mounted is not None else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the operator asked for and did not get."""
        return self._mounted.notes if self._mounted is not None else ()

    @property
    def negotiated(self) -> Negotiated | None:
        return self._ready.result() if self._ready.done() and not self._ready.exception() else None

    @property
    def waiting_reads(self) -> int:
        return len(self._tasks)

    def fileno(self) -> int:
        """The descriptor, for whoever hands it on."""
        return self._fd

    @property
    def request_id(self) -> int:
        """The unique of the request that is being dispatched."""
        return int(kernel.IN_HEADER.unpack_from(self._buffer)[2])

    @property
    def waited_s(self) -> float:
        """How long the request that is being dispatched has waited with earlier workers, as far as they wrote it down."""
        since_s = self._since_s(self.request_id)
        return time.monotonic() - since_s if since_s else 0.0

    def _since_s(self, unique: int) -> float:
        """When a request came to an earlier worker; 0: it did not, or that is not known."""
        if not unique & kernel.UNIQUE_RESEND:
            return 0.0
        return self._waiting_since_s.get(unique & ~kernel.UNIQUE_RESEND, 0.0)

    def pause(self) -> None:
        """Stop reading requests; what is unanswered stays so. For handing the descriptor on."""
        self._stop_reading()

    async def told(self, timeout_s: float) -> bool:
        """Once the kernel has heard all that it was to hear until now; False when that took longer."""
        return await mountpoint.in_thread(lambda: self.notifier.flush(timeout_s))

    async def let_go(self, timeout_s: float) -> None:
        """Leave mount, connection and ledger to the next worker: read no more, give what waits ``timeout_s`` to be answered, and
        leave the rest unanswered: the kernel sends it again, or (where it cannot) the next worker refuses it."""
        self._stop_reading()
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        self._letting_go = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._interrupts.close()
        await self.told(timeout_s)
        await mountpoint.in_thread(lambda: self.notifier.close(timeout_s))
        if self._serving is not None:
            self._serving.let_go()
        if not self._ended.done():
            self._ended.set_result("let go")
        os.close(self._fd)
        if self.ledger is not None:
            self.ledger.close()

    async def wait_ended(self) -> str:
        """Returns why, once the connection is gone: "unmounted", "aborted" or "closed"."""
        return await asyncio.shield(self._ended)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- serving -----------------------------------------------------------------------------------------

    async def serve(self, serving: Serving, resume: Negotiated | None = None) -> Negotiated:
        """Start answering; returns once the kernel has agreed on the terms.

        ``resume``: the terms of a connection that an earlier process served: no INIT comes, and the kernel is asked to send
        again what is unanswered; a kernel that cannot leaves it with the worker that died, and it is refused with EIO, as far
        as the ledger knows it. Raises UnsupportedKernel, or MountpointError when the kernel never asked.
        """
        self._serving = serving
        self._handlers = serving.handlers
        left_in_hand = self.ledger.left_in_hand() if self.ledger is not None else {}
        self._waiting_since_s = {
            unique & ~kernel.UNIQUE_RESEND: since_s for unique, since_s in left_in_hand.items() if since_s
        }
        self._loop.add_reader(self._fd, self._on_readable)
        self._reading = True
        if resume is not None:
            self._agree(resume, taken_over=True)
            self.notifier.everything()
            if resume.resend:
                with contextlib.suppress(OSError):  # the connection ended meanwhile: the next read says so
                    os.write(self._fd, kernel.notify_resend())
            else:
                for unique in left_in_hand:
                    self._refuse(Opcode.READ, unique, errno.EIO)
                log.error(
                    "this kernel cannot send requests again (Linux 6.9 or newer can): those the last worker had in hand got EIO",
                    requests=len(left_in_hand),
                )
        try:
            async with asyncio.timeout(FUSE_MOUNT_TIMEOUT_S):
                return await asyncio.shield(self._ready)
        except TimeoutError as error:
            raise MountpointError("the kernel did not start the connection") from error

    def _agree(self, terms: Negotiated, taken_over: bool = False) -> None:
        assert self._serving is not None
        if self._ready.done():
            return  # the worker before agreed, and died before the kernel had its answer
        self._probe_passthrough(terms, taken_over)
        self.notifier.start(terms.inc_epoch, self._serving.known_names)
        self._ready.set_result(terms)

    def _probe_passthrough(self, terms: Negotiated, taken_over: bool) -> None:
        if not self.passthrough.wished or self._options.cache_dir is None:
            return
        try:
            probe_fd = open_probe_file(self._options.cache_dir)
        except OSError as error:
            self.passthrough.rule_out(f"no file can be made in the cache directory: {error.strerror}")
            return
        try:
            self.passthrough.probe(terms.passthrough, probe_fd, taken_over)
        finally:
            os.close(probe_fd)

    def look(self) -> None:
        """Take what waits, if nobody looked for a while: for whoever takes long within one step of the loop."""
        if self._reading and time.monotonic() - self._looked_s > FUSE_LOOK_S:
            self._crowded = True
            self._on_readable()

    def _on_readable(self) -> None:
        self._looked_s = time.monotonic()
        fd, buffers, readv, dispatch = self._fd, self._buffers, os.readv, self._dispatch
        # A single reader sends its next request only once it has this answer: looking for one would cost an EAGAIN each time.
        # The loop comes back by itself while there is something to read; now and then look whether there is more at once.
        self._wakeups += 1
        limit = FUSE_REQUESTS_PER_WAKEUP if self._crowded or not self._wakeups % 16 else 1
        self._crowded = False
        for answered in range(limit):
            try:
                size_bytes = readv(fd, buffers)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _TRY_AGAIN:
                    continue
                self._end(_ENDED.get(error.errno or 0, f"failed: {error.strerror}"))
                return
            dispatch(size_bytes)
            self._crowded = answered > 0
            if not self._reading:
                return

    def _dispatch(self, size_bytes: int) -> None:
        buffer = self._buffer
        length_bytes, opcode, unique, node_id, _, _, task_id, _, _ = kernel.IN_HEADER.unpack_from(buffer)
        if size_bytes < kernel.IN_HEADER_BYTES or length_bytes != size_bytes:
            log.error("a request of the wrong length", read_bytes=size_bytes)
            if size_bytes >= kernel.IN_HEADER_BYTES:
                self._refuse(opcode, unique, errno.EIO)
            return
        self.requests_total += 1
        handler = self._handlers.get(opcode)
        try:
            if handler is None or self._closing or not self._ready.done():
                self._dispatch_rare(opcode, unique, node_id, buffer[kernel.IN_HEADER_BYTES : size_bytes], task_id)
                return
            result = handler(node_id, buffer[kernel.IN_HEADER_BYTES : size_bytes], task_id)
            kind = type(result)
            if kind is bytes or kind is memoryview or kind is bytearray:
                self._reply(unique, result)  # type: ignore[arg-type]
            elif kind is int:
                self._refuse(opcode, unique, result)  # type: ignore[arg-type]
            elif result is not None:
                self._answer_later(unique, result)  # type: ignore[arg-type]
        except HeadraceError as error:
            if error.errno == errno.EIO:
                log.warning("request failed", opcode=opcode, node_id=node_id, error=str(error))
            self._refuse(opcode, unique, error.errno)
        except Exception:
            log.exception("request failed", opcode=opcode, node_id=node_id)
            self._refuse(opcode, unique, errno.EIO)

    def _dispatch_rare(self, opcode: int, unique: int, node_id: int, body: memoryview, task_id: int) -> None:
        match opcode:
            case Opcode.INIT:
                self._initialise(unique, body)
            case Opcode.INTERRUPT:
                (interrupted,) = kernel.INTERRUPT_IN.unpack_from(body)
                if interrupted in self._tasks:
                    self._interrupts.arrived(interrupted)
            case Opcode.DESTROY:
                self._reply(unique, b"")
            case Opcode.FORGET | Opcode.BATCH_FORGET | Opcode.RELEASE | Opcode.RELEASEDIR if opcode in self._handlers:
                result = self._handlers[opcode](node_id, body, task_id)
                if isinstance(result, bytes):
                    self._reply(unique, result)
            case _:
                code = errno.ENOSYS
                if self._closing:
                    code = errno.EIO if opcode == Opcode.READ else errno.ENOTCONN
                self._refuse(opcode, unique, code)

    def _initialise(self, unique: int, body: memoryview) -> None:
        offer = kernel.parse_init(body)
        if offer.major > kernel.MAJOR:
            # The kernel then asks again with our major version.
            self._reply(unique, kernel.pack_major())
            return
        wishes = kernel.InitWishes(self._options.max_readahead_bytes, passthrough=self.passthrough.wished)
        try:
            terms, reply = kernel.negotiate(offer, wishes)
        except kernel.UnsupportedKernel as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            self._refuse(Opcode.INIT, unique, errno.EPROTO)
            return
        if self.ledger is not None:
            self.ledger.agree(terms)
        self._reply(unique, reply)
        self._agree(terms)
        log.debug("connected", minor=terms.minor, flags=hex(terms.flags))

    # --- answers -----------------------------------------------------------------------------------------

    def _reply(self, unique: int, payload: Bytes) -> None:
        header = kernel.OUT_HEADER.pack(kernel.OUT_HEADER_BYTES + len(payload), 0, unique)
        try:
            os.writev(self._fd, (header, payload))
        except OSError as error:
            self._reply_failed(unique, error)

    def _refuse(self, opcode: int, unique: int, code: int) -> None:
        if opcode in kernel.NO_REPLY:
            return
        try:
            os.write(self._fd, kernel.OUT_HEADER.pack(kernel.OUT_HEADER_BYTES, -code, unique))
        except OSError as error:
            self._reply_failed(unique, error)

    def _reply_failed(self, unique: int, error: OSError) -> None:
        # ENOENT: the request was interrupted or aborted meanwhile; the others: the connection is gone, the next read says so.
        if error.errno != errno.ENOENT and error.errno not in _ENDED:
            log.error("the kernel refused a reply", unique=unique, error=str(error))

    def _answer_later(self, unique: int, answer: Coroutine[Any, Any, Bytes]) -> None:
        task = self._loop.create_task(self._answer(unique, answer), name=f"fuse-read-{unique}")
        self._tasks[unique] = task
        self._interrupts.started(unique, kernel.IN_HEADER.unpack_from(self._buffer)[6])
        if self.ledger is None:
            task.add_done_callback(partial(self._finish, unique, answer))
        else:
            slot = self.ledger.began(unique, self._since_s(unique))
            task.add_done_callback(partial(self._finish_noted, unique, answer, slot))

    async def _answer(self, unique: int, answer: Coroutine[Any, Any, Bytes]) -> None:
        """The reply leaves in the step that has the bytes; what else may become of a READ is said once its task has ended."""
        self._reply(unique, await answer)

    def _finish_noted(
        self, unique: int, answer: Coroutine[Any, Any, Bytes], slot: int, task: asyncio.Task[None]
    ) -> None:
        self._finish(unique, answer, task)
        assert self.ledger is not None
        if not (self._letting_go and task.cancelled()):
            self.ledger.ended(slot)

    def _finish(self, unique: int, answer: Coroutine[Any, Any, Bytes], task: asyncio.Task[None]) -> None:
        answer.close()  # cancelled before its first step it would never have begun
        del self._tasks[unique]
        self._interrupts.finished(unique)
        if task.cancelled() and self._letting_go:
            return
        if task.cancelled():
            self._refuse(Opcode.READ, unique, errno.EIO if self._closing else errno.EINTR)
            return
        error = task.exception()
        if error is None:
            return
        if isinstance(error, HeadraceError):
            if error.errno == errno.EIO and not error.logged:
                log.warning("read failed", error=str(error))
            self._refuse(Opcode.READ, unique, error.errno)
        else:
            log.error("read failed", exc_info=error)
            self._refuse(Opcode.READ, unique, errno.EIO)

    def _give_up(self, unique: int) -> None:
        """Nobody waits for this READ any more."""
        task = self._tasks.get(unique)
        if task is not None:
            task.cancel()

    # --- the end -----------------------------------------------------------------------------------------

    def _end(self, reason: str) -> None:
        self._stop_reading()
        for task in self._tasks.values():
            task.cancel()
        if not self._ready.done():
            self._ready.set_exception(MountpointError(f"the connection ended before it began: {reason}"))
            self._ready.exception()  # seen: whoever waits in serve still gets it
        if not self._ended.done():
            self._ended.set_result(reason)

    def _stop_reading(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._fd)
            self._reading = False

    async def close(self) -> None:
        """Refuse what comes, end what waits (EIO), unmount, and let go of the descriptor. Within 5 s, also with blocked readers.

        A mount made by somebody else (from_fd) is left mounted.
        """
        if self._close_task is None:
            self._close_task = self._loop.create_task(self._close(), name="fuse-close")
        await asyncio.shield(self._close_task)

    async def _close(self) -> None:
        self._closing = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=FUSE_UNMOUNT_TIMEOUT_S / 4)
        if self._mounted is not None:
            await self._unmount(self._mounted)
        self._end("closed")
        self._interrupts.close()
        quiet = await mountpoint.in_thread(lambda: self.notifier.close(FUSE_UNMOUNT_TIMEOUT_S / 2))
        if self._serving is not None:
            self._serving.release_all()
        if quiet:
            os.close(self._fd)
            if self.ledger is not None:
                self.ledger.close()
        else:  # a thread is inside the kernel with this number: closing it could hit another file later
            log.error("a notification hangs in the kernel; the device stays open")
        if self._runtime_dir is not None and self._owner is not None:
            with contextlib.suppress(OSError):
                mountpoint.remove_owner(self._runtime_dir, self._owner)

    async def _unmount(self, mounted: mounting.Mounted) -> None:
        """Detach while still answering; open files would keep the connection, so then it is aborted."""
        gone = await mountpoint.in_thread(lambda: mountpoint.detach(mounted.path, mounted.minor))
        if not gone:
            log.warning("the mount could not be taken away", mountpoint=mounted.path)
        if self._reading:
            # Without open files the kernel ends the connection by itself, at once.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FUSE_UNMOUNT_TIMEOUT_S / 10):
                    await asyncio.shield(self._ended)
        if not self._ended.done():
            # Closing the descriptor aborts too, unless another process holds a copy of it.
            mountpoint.abort(mounted.minor)
