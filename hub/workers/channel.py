"""One end of the channel between the main process and a serving process: messages both ways, sockets handed over.

A Unix socket that keeps packets apart (SOCK_SEQPACKET): a descriptor arrives with its message and never with another, and
the death of either process is an end of file at the other. Messages longer than a packet travel in pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable

from common import limits
from common.log import get_logger
from hub.workers.messages import Message, pack, unpack

log = get_logger(__name__)

_LAST, _MORE = b"\0", b"\1"
_PACKETS_PER_TURN = 64


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, neither inherited by a process that is not given it."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Channel:
    """``on_message``: a message, and the socket that came with it (the receiver's from then on) if one did.

    ``on_end`` is called once when the peer is gone or takes nothing any more; not after :meth:`close`.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Message, socket.socket | None], None],
        on_end: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_message = on_message
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[bytes, socket.socket | None]] = deque()
        self._queued_bytes = 0
        self._writing = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._piece = bytearray()
        self._came: socket.socket | None = None
        self._closed = False
        self._loop.add_reader(sock.fileno(), self._readable)

    def send(self, message: Message, sock: socket.socket | None = None) -> None:
        """Queue a message. ``sock``: handed over, and closed here once it has left. Dropped, both, when the channel has ended."""
        if self._closed:
            if sock is not None:
                sock.close()
            return
        data = pack(message)
        for start in range(0, len(data), limits.CHANNEL_PIECE_BYTES):
            end = start + limits.CHANNEL_PIECE_BYTES
            piece = (_MORE if end < len(data) else _LAST) + data[start:end]
            self._queue.append((piece, sock))
            self._queued_bytes += len(piece)
            sock = None
        self._empty.clear()
        if self._queued_bytes > limits.CHANNEL_QUEUE_MAX_BYTES:
            log.error("the other process takes no messages", queued_bytes=self._queued_bytes)
            self._loop.call_soon(self._end)
        elif not self._writing:
            self._write()

    async def drained(self) -> None:
        """Returns once all has left, or the channel has ended."""
        await self._empty.wait()

    def close(self) -> None:
        """What is queued and not sent is dropped."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock.fileno())
        if self._writing:
            self._loop.remove_writer(self._sock.fileno())
        for _, sock in self._queue:
            if sock is not None:
                sock.close()
        self._queue.clear()
        self._empty.set()
        if self._came is not None:
            self._came.close()
        self._sock.close()

    def read_rest(self) -> None:
        """Take what a peer that has ended said last."""
        while not self._closed and self._read_one():
            pass

    def _write(self) -> None:
        try:
            while self._queue:
                piece, sock = self._queue[0]
                socket.send_fds(self._sock, [piece], [sock.fileno()] if sock is not None else [])
                self._queue.popleft()
                self._queued_bytes -= len(piece)
                if sock is not None:
                    sock.close()
        except BlockingIOError:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._sock.fileno(), self._write)
            return
        except OSError:
            self._loop.call_soon(self._end)  # not from inside the caller's send
            return
        self._empty.set()
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        for _ in range(_PACKETS_PER_TURN):
            if self._closed or not self._read_one():
                return

    def _read_one(self) -> bool:
        """False when there is nothing more to read now."""
        try:
            data, fds, flags, _ = socket.recv_fds(
                self._sock, 1 + limits.CHANNEL_PIECE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        except OSError:
            self._end()
            return False
        if flags & socket.MSG_CTRUNC:
            log.error("no descriptor left for a connection: raise the limit of open files (LimitNOFILE)")
        for fd in fds:
            if self._came is not None:
                self._came.close()
            self._came = _socket_of(fd)
        if not data:
            self._end()
            return False
        self._piece += data[1:]
        if data[:1] == _LAST:
            whole, self._piece = self._piece, bytearray()
            came, self._came = self._came, None
            self._on_message(unpack(whole), came)
        return True

    def _end(self) -> None:
        if not self._closed:
            self.close()
            self._on_end()


def _socket_of(fd: int) -> socket.socket | None:
    try:
        return socket.socket(fileno=fd)
    except OSError:  # not a socket: nothing of ours
        with contextlib.suppress(OSError):
            os.close(fd)
        return None
