"""Accepts connections for the serving processes: reads each one's HELLO, to know whose it is, and passes it on unanswered.

What a connection says afterwards, and whether its HELLO is granted, is the business of whoever gets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from common import limits
from common.errors import HeadraceError, Overloaded, ProtocolError
from common.log import get_logger
from common.tcp import tune
from common.wire.connection import Connection, Received, Role, State
from common.wire.message_codec import cut_text
from common.wire.messages import Error, Hello

log = get_logger(__name__)

_RECEIVE_BYTES = 16 * 1024
_ACCEPT_PAUSE_S = 1.0


class Doorman:
    """``give``: takes over a socket, what was read from it, and the HELLO in that; raises HeadraceError to have it refused.

    ``reads_hello`` False: it is inside TLS; connections are passed on as they come, and ``give`` gets neither bytes nor HELLO.

    ``is_full``: why no more connections are taken, or None. ``refused``: counts errors given, by their code.
    """

    def __init__(
        self,
        give: Callable[[socket.socket, bytes, Hello | None], None],
        is_full: Callable[[int], str | None],
        refused: Callable[[str], None],
        *,
        reads_hello: bool = True,
    ) -> None:
        self._give = give
        self._is_full = is_full
        self._refused = refused
        self._reads_hello = reads_hello
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._half_open: dict[asyncio.Task[None], None] = {}  # in the order they came

    async def bind(self, host: str, port: int) -> None:
        """Take the address; nobody can connect yet. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            self._listeners.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            tune(sock, bulk_sender=True)  # accepted sockets inherit it, so it holds from their first segment on
            sock.bind(address)

    def listen(self) -> None:
        for sock in self._listeners:
            sock.listen(512)
            self._accepting.append(asyncio.create_task(self._accept(sock), name="accepting"))

    @property
    def port(self) -> int:
        """The port that was really bound."""
        return int(self._listeners[0].getsockname()[1])

    @property
    def half_open(self) -> int:
        """Connections that have not said HELLO."""
        return len(self._half_open)

    async def close(self) -> None:
        tasks = [*self._accepting, *self._half_open]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sock in self._listeners:
            sock.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except ConnectionAbortedError:
                continue
            except OSError as error:  # out of descriptors or memory: those who wait in the queue may still be served
                log.error("cannot accept connections for a moment", error=str(error))
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if len(self._half_open) >= limits.CONNECTIONS_HALF_OPEN_MAX:
                next(iter(self._half_open)).cancel()
            task = asyncio.create_task(self._meet(sock), name="waiting for HELLO")
            self._half_open[task] = None
            task.add_done_callback(self._half_open.pop)

    async def _meet(self, sock: socket.socket) -> None:
        connection = Connection(Role.HUB)
        try:
            full = self._is_full(len(self._half_open))
            if full is not None:
                raise Overloaded(full)
            if not self._reads_hello:
                self._give(sock, b"", None)
                return
            async with asyncio.timeout(limits.HELLO_TIMEOUT_S):
                received, hello = await _hello(sock, connection)
            self._give(sock, received, hello)
        except HeadraceError as error:
            await self._refuse(sock, connection, error)
        except TimeoutError:
            overdue = ProtocolError(f"no HELLO within {limits.HELLO_TIMEOUT_S:g} s")
            await self._refuse(sock, connection, overdue)
        except asyncio.CancelledError:  # to make room, or at the end
            self._refused(Overloaded.wire_code)
            with contextlib.suppress(OSError):
                sock.send(_last_words(connection, Overloaded("too many connections that have not said HELLO")))
            sock.close()
            raise
        except (OSError, EOFError):
            with contextlib.suppress(OSError):
                sock.send(_queued(connection))
            sock.close()
        except Exception:
            log.exception("greeting a connection failed in an unforeseen way")
            sock.close()

    async def _refuse(self, sock: socket.socket, connection: Connection, error: HeadraceError) -> None:
        log.info("closing a connection", code=error.wire_code, reason=str(error))
        self._refused(error.wire_code)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(limits.CLOSE_GRACE_S):
                await asyncio.get_running_loop().sock_sendall(sock, _last_words(connection, error))
        sock.close()


def _last_words(connection: Connection, error: HeadraceError) -> bytes:
    """ERROR, which the connection may have queued by itself."""
    connection.send(Error(error.wire_code, cut_text(str(error)), error.retryable))
    return _queued(connection)


def _queued(connection: Connection) -> bytes:
    return b"".join(bytes(chunk) for chunk in connection.data_to_send())


async def _hello(sock: socket.socket, connection: Connection) -> tuple[bytes, Hello]:
    """All that was read, and the HELLO in it. Raises ProtocolError, and EOFError when it ended without (we may owe it an answer)."""
    loop = asyncio.get_running_loop()
    received = b""
    while True:
        data = await loop.sock_recv(sock, _RECEIVE_BYTES)
        if not data:
            raise EOFError
        received += data
        for event in connection.receive_data(data):
            if isinstance(event, Received) and isinstance(event.message, Hello):
                return received, event.message
        if connection.state is State.CLOSED:
            raise EOFError
