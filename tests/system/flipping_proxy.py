"""A way to the hub that changes bytes where TCP's checksum no longer looks: in the payload or the digests of DATA frames."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import Callable, Iterator

import msgpack

_HEADER = struct.Struct("<IIHHI")
_DATA = 8

Choose = Callable[[int], str]
"""Given the number of a DATA frame: "payload", "digests", or "" to leave it as it is."""


class FlippingProxy:
    """Listens on ``port`` until ``close``; ``choose`` may be set anew at any time. ``flipped`` counts what it did."""

    def __init__(self, target_port: int) -> None:
        self.choose: Choose = lambda number: ""
        self.flipped = {"payload": 0, "digests": 0}
        self.frames = 0
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="flipping proxy")
        self._thread.start()
        started.wait(10)

    def _run(self, started: threading.Event) -> None:
        async def main() -> None:
            self._stop = asyncio.Event()
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            started.set()
            await self._stop.wait()
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._loop.run_until_complete(main())
        self._loop.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        hub_reader, hub_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, hub_writer))
                both.create_task(self._frames(hub_reader, writer))
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            hub_writer.close()

    async def _frames(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readexactly(_HEADER.size)
            body_bytes, map_bytes, kind, _, _ = _HEADER.unpack(head)
            body = bytearray(await reader.readexactly(body_bytes))
            if kind == _DATA:
                self.frames += 1
                self._flip(body, map_bytes, self.choose(self.frames))
            writer.write(head + body)
            await writer.drain()

    def _flip(self, body: bytearray, map_bytes: int, what: str) -> None:
        if what == "payload":
            body[map_bytes + (len(body) - map_bytes) // 2] ^= 0x10
        elif what == "digests":
            digests = msgpack.unpackb(bytes(body[:map_bytes]))["x"]
            body[bytes(body[:map_bytes]).index(digests) + len(digests) // 2] ^= 0x01
        else:
            return
        self.flipped[what] += 1


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError("the other end is done")


@contextlib.contextmanager
def flipping(target_port: int) -> Iterator[FlippingProxy]:
    proxy = FlippingProxy(target_port)
    try:
        yield proxy
    finally:
        proxy.close()
