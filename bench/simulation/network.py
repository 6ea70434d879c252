"""Links between simulated hosts: bytes take time, in pieces of any size, and all that goes wrong with TCP goes wrong here.

A connection is two :class:`Transport` ends. What an end writes waits in its send buffer, leaves in segments as its window
allows, and arrives in order after the path's delay. A path that is silent holds everything (no reset, as a firewall that drops);
one that corrupts flips bits behind TCP's checksum. Deaths of a process reach its peers as the kernel would have them.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import itertools
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from bench.simulation.loop import PROCESS, Process, SimLoop
from common import limits

WINDOW_BYTES = 512 * 1024
"""What may be under way on one connection: a small socket buffer."""

READ_BYTES = 64 * 1024
_FIN, _RST = object(), object()


@dataclass(slots=True, eq=False)
class Path:
    """Between one spoke's host and the hub's; shared by all their connections. Times one way, in seconds."""

    name: str
    delay_s: float = 0.02
    jitter_s: float = 0.0
    rate_bytes_per_s: float = 50e6
    segment_bytes: int = 256 * 1024
    """Segments are cut at random up to here."""
    silent: bool = False
    unreachable: bool = False
    corrupt_share: float = 0.0
    """Of segments, a bit is flipped in so many."""
    free_at_s: float = 0.0
    ends: dict[Transport, None] = field(default_factory=dict)
    waiting: list[asyncio.Future[None]] = field(default_factory=list)

    def speak(self) -> None:
        """Silent no more: what was held arrives now."""
        self.silent = False
        for end in list(self.ends):
            end.arrivals_due()
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)
        self.waiting.clear()


class SimSocket:
    """What is asked of a socket beside its bytes: every option is taken, and TCP_INFO is not to be had."""

    family = 2

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def setsockopt(self, *_: object) -> None:
        """Nothing here depends on it."""

    def getsockopt(self, *_: object) -> bytes:
        raise OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def fileno(self) -> int:
        return -1


class Transport(asyncio.Transport):
    """One end. ``peer`` is the other; ``process`` whose end it is."""

    def __init__(
        self, network: Network, number: str, path: Path, address: tuple[str, int], to: tuple[str, int]
    ) -> None:
        super().__init__()
        process = PROCESS.get()
        assert process is not None
        self.process: Process = process
        self.number = number
        self.path = path
        self.peer: Transport
        self._network = network
        self._loop = network.loop
        self._context = contextvars.copy_context()
        self._address, self._to = address, to
        self._protocol: Any = None
        self._out = bytearray()
        self._window_bytes = WINDOW_BYTES
        self._under_way_bytes = 0
        self._wire: deque[tuple[float, Any]] = deque()
        """To this end: (when it arrives, bytes or how it ends)."""
        self._inbox: deque[Any] = deque()
        self._reading_paused = False
        self._write_paused = False
        self._high_bytes, self._low_bytes = 64 * 1024, 16 * 1024
        self._eof_wanted = False
        self._eof_sent = False
        self._closing = False
        self.gone = False
        """The socket is closed, or its process dead."""
        self._moved_s = self._loop.time()
        self._watching = False

    # --- asyncio.Transport ----------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": SimSocket(self._address), "peername": self._to, "sockname": self._address}.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self._protocol)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._reading_paused

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self._soon(self._read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = 64 * 1024 if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return len(self._out)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._eof_wanted:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or self.gone:
            return
        self._out += data
        self._send()
        if len(self._out) > self._high_bytes and not self._write_paused:
            self._write_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._eof_wanted = True
        self._send()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if not self._out:
            self._soon(self._lost, None)

    def abort(self) -> None:
        if self.gone:
            return
        self._closing = True
        self._out.clear()
        self._soon(self._lost, None)

    # --- sending --------------------------------------------------------------------------------------------

    def _soon(self, callback: Callable[..., None], *args: Any) -> None:
        self._loop.call_soon(callback, *args, context=self._context)

    def _send(self) -> None:
        """What the window takes goes on its way."""
        dice = self._network.dice
        while self._out and self._under_way_bytes < self._window_bytes:
            most = min(len(self._out), self._window_bytes - self._under_way_bytes)
            size_bytes = most if dice.random() < 0.6 else dice.randint(1, most)
            size_bytes = min(size_bytes, self.path.segment_bytes)
            segment = bytes(self._out[:size_bytes])
            del self._out[:size_bytes]
            self._under_way_bytes += size_bytes
            self._put_on_wire(segment, size_bytes)
            self._watch()
        if not self._out and self._eof_wanted and not self._eof_sent:
            self._eof_sent = True
            self._put_on_wire(_FIN, 60)

    def _put_on_wire(self, what: Any, size_bytes: int) -> None:
        path, now_s = self.path, self._loop.time()
        path.free_at_s = max(path.free_at_s, now_s) + size_bytes / path.rate_bytes_per_s
        arrival_s = path.free_at_s + path.delay_s + self._network.dice.random() * path.jitter_s
        peer = self.peer
        if peer._wire:
            arrival_s = max(arrival_s, peer._wire[-1][0])
        peer._wire.append((arrival_s, what))
        self._loop.call_at(arrival_s, peer.arrivals_due, context=self._network.context)

    def _acknowledged(self, size_bytes: int) -> None:
        self._under_way_bytes -= size_bytes
        self._moved_s = self._loop.time()
        if self.gone:
            return
        self._send()
        if self._write_paused and len(self._out) <= self._low_bytes:
            self._write_paused = False
            self._protocol.resume_writing()
        if self._closing and not self._out:
            self._lost(None)

    def _watch(self) -> None:
        """TCP_USER_TIMEOUT: unacknowledged for so long, the connection ends."""
        if self._watching:
            return
        if self._under_way_bytes == len(self._out) == 0:
            return
        if self._under_way_bytes and not self._watching:
            self._watching = True
            self._moved_s = self._loop.time()
            self._loop.call_later(limits.TCP_DEAD_AFTER_MS / 1000, self._watched, context=self._context)

    def _watched(self) -> None:
        self._watching = False
        if self.gone or not self._under_way_bytes:
            return
        if self._peer_is_full:  # it acknowledges, and has no room: TCP goes on for ever
            self._moved_s = self._loop.time()
        left_s = self._moved_s + limits.TCP_DEAD_AFTER_MS / 1000 - self._loop.time()
        if left_s <= 0:
            self._lost(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
        else:
            self._watching = True
            self._loop.call_later(left_s, self._watched, context=self._context)

    @property
    def _peer_is_full(self) -> bool:
        return not self.path.silent and bool(self.peer._inbox)

    # --- receiving ------------------------------------------------------------------------------------------

    def arrivals_due(self) -> None:
        """What has come over the path by now; called by the network, not by a process."""
        now_s = self._loop.time()
        while self._wire and self._wire[0][0] <= now_s and not self.path.silent:
            what = self._wire.popleft()[1]
            if self.gone:
                if what is not _RST and not self.peer.gone:
                    self.peer.reset_soon()
                continue
            if isinstance(what, bytes):
                what = self._damaged(what)
            self._inbox.append(what)
            if not self._reading_paused or what is _RST:
                self._soon(self._read)

    def hurry(self) -> None:
        """The path is quick again: what was queued for long comes now."""
        now_s = self._loop.time()
        soon_s = now_s + self.path.delay_s
        self._wire = deque((min(arrival_s, soon_s), what) for arrival_s, what in self._wire)
        self._loop.call_at(soon_s, self.arrivals_due, context=self._network.context)

    def _damaged(self, segment: bytes) -> bytes:
        dice = self._network.dice
        if not self.path.corrupt_share or dice.random() >= self.path.corrupt_share:
            return segment
        changed = bytearray(segment)
        for _ in range(dice.randint(1, 3)):
            changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
        self._network.loop.trace.event("bits flipped on the wire", self.number)
        return bytes(changed)

    def _read(self) -> None:
        if self.gone:
            return
        if _RST in self._inbox:
            self._inbox.clear()
            self._lost(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
            return
        while self._inbox and not self._reading_paused and not self._closing and not self.gone:
            what = self._inbox.popleft()
            if what is _FIN:
                if not self._protocol.eof_received():
                    self.close()
                return
            data = memoryview(what)
            while data and not self._reading_paused and not self._closing:
                data = data[self._give(data) :]
            taken_bytes = len(what) - len(data)
            if len(data):
                self._inbox.appendleft(bytes(data))
            self._network.loop.trace.step("read", self.number, taken_bytes)
            self._loop.call_later(
                self.path.delay_s, self.peer._acknowledged_by_path, taken_bytes, context=self._network.context
            )

    def _acknowledged_by_path(self, size_bytes: int) -> None:
        if self.process.alive:
            self._soon(self._acknowledged, size_bytes)

    def _give(self, data: memoryview) -> int:
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            buffer: Any = self._protocol.get_buffer(min(len(data), READ_BYTES))
            size_bytes = min(len(buffer), len(data))
            buffer[:size_bytes] = data[:size_bytes]
            self._protocol.buffer_updated(size_bytes)
            return size_bytes
        self._protocol.data_received(bytes(data))
        return len(data)

    # --- ends -----------------------------------------------------------------------------------------------

    def reset_soon(self) -> None:
        """A reset from the other end, after the path's delay; one that the path swallows is lost."""
        self._loop.call_later(self.path.delay_s, self._reset, context=self._network.context)

    def _reset(self) -> None:
        if not self.path.silent and not self.gone:
            self._inbox.append(_RST)
            self._soon(self._read)

    def cut(self) -> None:
        """Something on the way resets this end."""
        if not self.gone:
            self._inbox.append(_RST)
            self._soon(self._read)

    def half_close(self) -> None:
        """Something on the way tells this end that the other has finished."""
        self._wire.clear()
        if not self.gone:
            self._inbox.append(_FIN)
            self._soon(self._read)

    def _lost(self, error: Exception | None) -> None:
        if self.gone:
            return
        self._leave(orderly=error is None and not self._inbox)
        self._network.loop.trace.step("lost", self.number, error is None)
        self._protocol.connection_lost(error)

    def _leave(self, *, orderly: bool) -> None:
        """The kernel closes the socket: it tells the other end, by a reset where bytes were not read."""
        self.gone = self._closing = True
        self._out.clear()
        self.path.ends.pop(self, None)
        if self.peer.gone:
            return
        if orderly and not self._eof_sent:
            self._put_on_wire(_FIN, 60)
        elif not orderly:
            self.peer.reset_soon()

    def die(self, silently: bool) -> None:
        """Its process was killed; ``silently``: with its host, so that the other end hears nothing until it sends or its keepalive asks."""
        if self.gone:
            return
        if not silently:
            self._leave(orderly=False)
            return
        self.gone = self._closing = True
        self.path.ends.pop(self, None)
        keepalive_s = limits.TCP_KEEPALIVE_IDLE_S + limits.TCP_KEEPALIVE_INTERVAL_S
        self._loop.call_later(keepalive_s, self.peer.reset_soon, context=self._network.context)


class Listener(asyncio.AbstractServer):
    """A listening socket, open from ``start_serving`` until ``close`` or the death of its process."""

    def __init__(self, network: Network, factory: Callable[[], Any], address: tuple[str, int]) -> None:
        process = PROCESS.get()
        assert process is not None
        self.process: Process = process
        self.context = contextvars.copy_context()
        self.factory = factory
        self.sockets = (SimSocket(address),)
        self._network = network
        self._port = address[1]

    def is_serving(self) -> bool:
        return self._network.listeners.get(self._port) is self

    async def start_serving(self) -> None:
        other = self._network.listeners.get(self._port)
        if other is not None and other.process.alive:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self._network.listeners[self._port] = self

    def close(self) -> None:
        if self.is_serving():
            del self._network.listeners[self._port]

    async def wait_closed(self) -> None:
        """Closed already."""


class Network:
    """Who listens where, and the path of each process."""

    def __init__(self, loop: SimLoop, dice: Random) -> None:
        self.loop = loop
        self.dice = dice
        self.context = contextvars.Context()
        self.listeners: dict[int, Listener] = {}
        self.paths: dict[str, Path] = {}
        self._numbers = itertools.count(1)
        self._ports = itertools.count(40_000)

    def listen(self, factory: Callable[[], Any], host: str, port: int) -> Listener:
        made: Any = Listener  # not all that a server can do is asked of it
        return cast(Listener, made(self, factory, (host, port or next(self._ports))))

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Transport, Any]:
        process = PROCESS.get()
        assert process is not None
        path = self.paths[process.name]
        await asyncio.sleep(2 * path.delay_s + self.dice.random() * path.jitter_s)
        while path.silent:
            waiter = self.loop.create_future()
            path.waiting.append(waiter)
            await waiter
            await asyncio.sleep(2 * path.delay_s)
        if path.unreachable:
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        listener = self.listeners.get(port)
        if listener is None or not listener.process.alive:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        number = next(self._numbers)
        there, here = (host, port), (f"10.0.0.{list(self.paths).index(process.name) + 1}", next(self._ports))
        mine = Transport(self, f"{number}s", path, here, there)
        theirs: Transport = listener.context.copy().run(Transport, self, f"{number}h", path, there, here)
        mine.peer, theirs.peer = theirs, mine
        path.ends[mine] = path.ends[theirs] = None
        self.loop.trace.step("connected", number, process.name)
        theirs._soon(self._accepted, listener, theirs)
        protocol = factory()
        mine.set_protocol(protocol)
        protocol.connection_made(mine)
        return mine, protocol

    def _accepted(self, listener: Listener, transport: Transport) -> None:
        protocol = listener.factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    def process_died(self, process: Process, silently: bool) -> None:
        for path in self.paths.values():
            for end in list(path.ends):
                if end.process is process:
                    end.die(silently)
