"""A plain peer for tests of a server: dials, speaks the wire as a spoke does, and reads only when the test says so."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Sequence

from common.blocks import BlockRange, byte_length, whole_file
from common.digest import first_mismatch
from common.errors import from_wire
from common.wire.connection import Closed, Connection, Event, Received, Role
from common.wire.messages import Codec, Data, Error, Hello, Message, Priority, Read, Welcome

_serials = itertools.count(1)


class WireClient:
    """``async with WireClient(port) as client``. Events are taken in order with ``receive``."""

    def __init__(
        self,
        port: int,
        dataset: str = "memory",
        *,
        spoke_id: bytes | None = None,
        identity: str = "test-spoke",
        receive_buffer_bytes: int | None = None,
    ) -> None:
        self.hello = Hello(
            versions=(1,),
            dataset=dataset,
            identity=identity,
            spoke_id=spoke_id or next(_serials).to_bytes(16, "big"),
            codecs=(Codec.RAW,),
        )
        self.connection = Connection(Role.SPOKE)
        self.welcome: Welcome | None = None
        self._port = port
        self._receive_buffer_bytes = receive_buffer_bytes
        self._events: list[Event] = []
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def dial(self) -> None:
        """Connect and say nothing."""
        sock = socket.socket()
        sock.setblocking(False)
        if self._receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
        self._reader, self._writer = await asyncio.open_connection(sock=sock, limit=64 * 1024)

    async def greet(self) -> Welcome:
        """HELLO and WELCOME. Raises the error the server answered with."""
        self.send(self.hello)
        event = await self.receive()
        if isinstance(event, Received) and isinstance(event.message, Welcome):
            self.welcome = event.message
            return event.message
        if isinstance(event, Received) and isinstance(event.message, Error):
            raise from_wire(event.message.code, event.message.message)
        raise ConnectionError(f"no WELCOME: {event}")

    async def __aenter__(self) -> WireClient:
        await self.dial()
        await self.greet()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

    def send(self, message: Message, request_id: int = 0) -> None:
        self.connection.send(message, request_id)
        self.send_raw(b"".join(bytes(chunk) for chunk in self.connection.data_to_send()))

    def send_raw(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)

    def read(
        self,
        version: bytes,
        *ranges: BlockRange,
        priority: Priority = Priority.DEMAND,
        deadline_ms: int = 0,
    ) -> int:
        """Send a READ; returns its id."""
        request_id = self.connection.new_request_id()
        self.send(Read(version, ranges, priority, deadline_ms), request_id)
        return request_id

    async def receive(self) -> Event:
        """The next event; ``Closed`` at the end of the stream."""
        assert self._reader is not None
        while not self._events:
            try:
                data = await self._reader.read(256 * 1024)
            except ConnectionError as error:
                return Closed(f"reset: {error}", orderly=False)
            if data:
                self._events += self.connection.receive_data(data)
            else:
                self._events += self.connection.receive_eof() or [Closed("the stream ended", orderly=False)]
        return self._events.pop(0)

    async def message(self) -> Message:
        """The next event, which must be a message."""
        event = await self.receive()
        assert isinstance(event, Received), event
        return event.message

    async def answer(self, request_id: int) -> list[Data]:
        """All DATA of one READ, others dropped. Raises the error that ended it."""
        found: list[Data] = []
        while True:
            event = await self.receive()
            if not isinstance(event, Received):
                raise ConnectionError(event.reason)
            if event.request_id == request_id:
                if isinstance(event.message, Error):
                    raise from_wire(event.message.code, event.message.message)
                assert isinstance(event.message, Data)
                found.append(event.message)
                if event.message.last:
                    return found

    async def fetch(self, version: bytes, size_bytes: int, ranges: Sequence[BlockRange] = ()) -> bytes:
        """Read blocks (default: the whole file, up to 16 MiB) and verify them; the bytes in block order."""
        wanted = tuple(ranges) or (whole_file(size_bytes),)
        answers = await self.answer(self.read(version, *wanted))
        for data in answers:
            assert len(data.payload) == byte_length(data.blocks, size_bytes)
            assert first_mismatch(version, data.blocks.first_block, data.payload, data.digests) is None
        return b"".join(bytes(data.payload) for data in sorted(answers, key=lambda data: data.blocks))
