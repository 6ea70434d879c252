"""How bytes cross the link: lanes (the two directions), pipes (one direction of a connection), sockets at their ends.

Reading stops, never the order: a pipe whose lane is full, whose window is used up, or whose receiver does not take more
holds its source back, so what is under way stays bounded and nothing is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from enum import Enum, IntFlag, auto
from typing import Literal, Protocol, cast

from bench.link import Link
from common.runtime import now_s

Way = Literal["up", "down"]
"""``up`` is towards the target."""

TICK_S = 0.001
"""Releases that fall due within a tick go out together: event loops here count in milliseconds anyway."""

SINK_BUFFER_BYTES = 1024 * 1024
"""Written to a socket and not yet taken by the kernel; more stays in the pipe."""

RECEIVE_BUFFER_BYTES = 256 * 1024
"""Of each socket: what waits in the kernel in front of the link is a queue that the model does not see, so keep it short."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class End(Enum):
    EOF = "eof"
    RESET = "reset"


class Hold(IntFlag):
    """Why a pipe does not read from its source just now."""

    NOT_CONNECTED = auto()
    QUEUE = auto()
    WINDOW = auto()
    BLACKHOLE = auto()


class Owner(Protocol):
    """What connections tell the proxy."""

    def client_accepted(self, connection: Connection) -> None: ...
    def connection_closed(self, connection: Connection) -> None: ...
    def count_held(self, size_bytes: int) -> None: ...
    def count_delivered(self, way: Way, size_bytes: int, *, lost: bool) -> None: ...


class Lane:
    """One direction of the link, shared by all connections: what is under way, in order of release."""

    def __init__(self, loop: asyncio.AbstractEventLoop, link: Link) -> None:
        self.link = link
        self._loop = loop
        self._under_way: deque[tuple[float, Pipe, memoryview | End]] = deque()
        self._waiting: list[Pipe] = []
        self._release_timer: asyncio.TimerHandle | None = None
        self._queue_timer: asyncio.TimerHandle | None = None
        self._frozen = False

    def accept(self, pipe: Pipe, item: memoryview | End) -> None:
        time_s = now_s()  # the loop's own clock stands still while it handles events, and counts in milliseconds
        size_bytes = len(item) if isinstance(item, memoryview) else 0
        self._under_way.append((self.link.release_at(time_s, size_bytes), pipe, item))
        if self.link.is_full(time_s):
            pipe.hold(Hold.QUEUE)
            self._waiting.append(pipe)
        self._arm(time_s)

    def freeze(self, frozen: bool) -> None:
        self._frozen = frozen
        if not frozen:
            self._arm(now_s())
            return
        for timer in (self._release_timer, self._queue_timer):
            if timer is not None:
                timer.cancel()
        self._release_timer = self._queue_timer = None

    def _arm(self, time_s: float) -> None:
        if self._frozen:
            return
        if self._under_way and self._release_timer is None:
            wait_s = max(self._under_way[0][0] - time_s, TICK_S)
            self._release_timer = self._loop.call_later(wait_s, self._release)
        if self._waiting and self._queue_timer is None:
            wait_s = max(self.link.ready_at() - time_s, TICK_S)
            self._queue_timer = self._loop.call_later(wait_s, self._resume_sources)

    def _release(self) -> None:
        self._release_timer = None
        time_s = now_s()
        while self._under_way and self._under_way[0][0] <= time_s + TICK_S / 2:
            _, pipe, item = self._under_way.popleft()
            pipe.deliver(item)
        self._arm(time_s)

    def _resume_sources(self) -> None:
        self._queue_timer = None
        time_s = now_s()
        if self.link.ready_at() <= time_s + TICK_S / 2:
            waiting, self._waiting = self._waiting, []
            for pipe in waiting:
                pipe.let_go(Hold.QUEUE)
        self._arm(time_s)


class Endpoint(asyncio.BufferedProtocol):
    """One socket: what arrives goes into the ``outgoing`` pipe; the ``incoming`` pipe is written to it."""

    def __init__(self, connection: Connection) -> None:
        self.transport: asyncio.Transport | None = None
        self.outgoing: Pipe
        self.incoming: Pipe
        self._connection = connection
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=SINK_BUFFER_BYTES)
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self._connection.endpoint_ready(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        wanted_bytes = self.outgoing.lane.link.shape.read_bytes
        if len(self._buffer) != wanted_bytes:
            self._buffer = bytearray(wanted_bytes)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes * 2 >= len(self._buffer):
            chunk = memoryview(self._buffer)[:nbytes]
            self._buffer = bytearray()
        else:
            # A small message must not keep a large buffer alive while it travels.
            chunk = memoryview(bytes(memoryview(self._buffer)[:nbytes]))
        self.outgoing.accept(chunk)

    def eof_received(self) -> bool:
        self.outgoing.accept_end(End.EOF)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.incoming.sink_is_gone()
        self.outgoing.accept_end(End.EOF if exc is None else End.RESET)
        self._connection.endpoint_lost()

    def pause_writing(self) -> None:
        self.incoming.sink_is_full(True)

    def resume_writing(self) -> None:
        self.incoming.sink_is_full(False)

    def reset(self) -> None:
        """Close with RST, as a path that died or a peer that crashed does."""
        if self.transport is not None:
            sock = self.transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.transport.abort()


class Pipe:
    """One direction of one connection: from its source's socket over the lane to its sink's socket."""

    def __init__(self, lane: Lane, source: Endpoint, sink: Endpoint, owner: Owner, way: Way) -> None:
        self.lane = lane
        self.ended = False
        self._source, self._sink = source, sink
        self._owner = owner
        self._way = way
        self._holds = Hold(0)
        self._held_bytes = 0
        self._early: list[memoryview | End] = []
        self._arrived: deque[memoryview | End] = deque()
        self._sink_full = False
        self._sink_gone = False
        self._end_accepted = False

    def hold(self, reason: Hold) -> None:
        if not self._holds and self._source.transport is not None:
            self._source.transport.pause_reading()
        self._holds |= reason

    def let_go(self, reason: Hold) -> None:
        before, self._holds = self._holds, self._holds & ~reason
        transport = self._source.transport
        if before and not self._holds and transport is not None and not transport.is_closing():
            transport.resume_reading()

    def apply_holds(self) -> None:
        """Called just after the source's socket came up: it starts out reading."""
        transport = self._source.transport
        if self._holds and transport is not None and not transport.is_closing():
            transport.pause_reading()

    def accept(self, chunk: memoryview) -> None:
        self._held_bytes += len(chunk)
        self._owner.count_held(len(chunk))
        if self._held_bytes > self.lane.link.shape.window_bytes:
            self.hold(Hold.WINDOW)
        self._send(chunk)

    def accept_end(self, end: End) -> None:
        if not self._end_accepted or end is End.RESET:
            self._end_accepted = True
            self._send(end)

    def connected(self) -> None:
        """The handshake has crossed the link: the source may be read, and what it sent too early starts now."""
        self.let_go(Hold.NOT_CONNECTED)
        early, self._early = self._early, []
        for item in early:
            self._send(item)

    def _send(self, item: memoryview | End) -> None:
        if Hold.NOT_CONNECTED in self._holds:
            self._early.append(item)
        else:
            self.lane.accept(self, item)

    def deliver(self, item: memoryview | End) -> None:
        """The item has crossed the link: write it, or keep it while the sink does not take more."""
        self._arrived.append(item)
        self._flush()

    def sink_is_full(self, full: bool) -> None:
        self._sink_full = full
        self._flush()

    def sink_is_gone(self) -> None:
        self._sink_gone = True
        self._flush()

    def _flush(self) -> None:
        while self._arrived and (self._sink_gone or not self._sink_full):
            item = self._arrived.popleft()
            if isinstance(item, End):
                self._finish(item)
                continue
            self._held_bytes -= len(item)
            self._owner.count_delivered(self._way, len(item), lost=self._sink_gone)
            if self._sink.transport is not None:
                self._sink.transport.write(item)
        if self._held_bytes * 2 <= self.lane.link.shape.window_bytes:
            self.let_go(Hold.WINDOW)

    def _finish(self, end: End) -> None:
        self.ended = True
        transport = self._sink.transport
        if transport is None or transport.is_closing():
            return
        if end is End.RESET:
            self._sink.reset()
        elif self._sink.outgoing.ended or self._source.transport is None:
            transport.close()  # nothing can go the other way any more
        else:
            transport.write_eof()
        if end is End.EOF and self._sink.outgoing.ended and self._source.transport is not None:
            self._source.transport.close()


class Connection:
    """A client's socket, the socket to the target, and the two pipes between them."""

    def __init__(self, owner: Owner, up: Lane, down: Lane) -> None:
        self._owner = owner
        self.client, self.target = Endpoint(self), Endpoint(self)
        self.up = Pipe(up, self.client, self.target, owner, "up")
        self.down = Pipe(down, self.target, self.client, owner, "down")
        self.client.outgoing = self.target.incoming = self.up
        self.client.incoming = self.target.outgoing = self.down
        self.up.hold(Hold.NOT_CONNECTED)
        self._open_count = 0
        self.dial: asyncio.Task[None] | None = None

    def endpoint_ready(self, endpoint: Endpoint) -> None:
        self._open_count += 1
        # The event loop begins to read after connection_made whatever that asked for, and may read once before this runs.
        asyncio.get_running_loop().call_soon(endpoint.outgoing.apply_holds)
        if endpoint is self.client:
            self._owner.client_accepted(self)
        else:
            self.up.connected()

    def endpoint_lost(self) -> None:
        self._open_count -= 1
        if self._open_count == 0:
            self._owner.connection_closed(self)

    def blackhole(self, on: bool) -> None:
        for pipe in (self.up, self.down):
            if on:
                pipe.hold(Hold.BLACKHOLE)
            else:
                pipe.let_go(Hold.BLACKHOLE)

    def reset(self) -> None:
        if self.dial is not None:
            self.dial.cancel()
        self.client.reset()
        self.target.reset()
