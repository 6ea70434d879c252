"""One of several links goes silent without a word, as when one path of many breaks: its requests come over the others."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from common import limits
from common.blocks import EXTENT_BLOCKS, EXTENT_BYTES, BlockRange
from common.errors import HeadraceError
from common.runtime import cancel_and_wait
from common.serving.server import Server
from common.wire.messages import Data, Priority
from spoke.hub_client.client import FeedMessage, HubClient, Request, make_hello
from spoke.hub_client.links import Link
from tests.fakes.memory_source import MemorySource

EXTENTS = 24


class Forwarder:
    """Passes connections on to the hub; the first that has carried an extent is held from then on, in both directions."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self.carried: dict[int, int] = {}
        self.held: int | None = None
        self._released = asyncio.Event()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.carried)
        self.carried[number] = 0
        hub_reader, hub_writer = await asyncio.open_connection("127.0.0.1", self._port)
        for source, sink, counts in ((reader, hub_writer, False), (hub_reader, writer, True)):
            task = asyncio.create_task(self._pass_on(number, source, sink, counts=counts), name="forward")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, number: int, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counts: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(64 * 1024):
                if counts:
                    self.carried[number] += len(data)
                    if self.held is None and self.carried[number] > EXTENT_BYTES:
                        self.held = number  # the first to carry an extent carries nothing more
                if number == self.held:
                    await self._released.wait()
                sink.write(data)
                await sink.drain()
        sink.close()

    async def close(self) -> None:
        self._released.set()
        await cancel_and_wait(*self._tasks)


class Follower:
    def feed_up(self, link: Link) -> None: ...
    def feed_message(self, link: Link, message: FeedMessage) -> None: ...
    def feed_lost(self, link: Link) -> None: ...


class Sink:
    def __init__(self) -> None:
        self.payload = bytearray()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def arrived(self, request: Request, data: Data) -> None:
        self.payload += data.payload

    def finished(self, request: Request) -> None:
        self.done.set_result(None)

    def failed(self, request: Request, error: HeadraceError) -> None:
        self.done.set_exception(error)


async def test_the_requests_of_a_silent_link_move_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINK_CHECK_INTERVAL_S", 0.1)
    monkeypatch.setattr(limits, "LINK_STALLED_AFTER_S", 0.4)
    source = MemorySource()
    data = random.Random(5).randbytes(EXTENTS * EXTENT_BYTES)
    version = source.put(b"f", data)
    loop = asyncio.get_running_loop()
    async with Server({"data": source}, listen=("127.0.0.1", 0)) as server:
        forwarder = Forwarder(server.port)
        listener = await asyncio.start_server(forwarder.accept, "127.0.0.1", 0)
        client = HubClient(
            *listener.sockets[0].getsockname()[:2],
            make_hello("data", "spoke", bytes(16), compression=False),
            bulk_links=3,
            follower=Follower(),
            clock=loop.time,
            dice=random.Random(1),
        )
        client.start()
        try:
            async with asyncio.timeout(20):
                while len(client.links.up) < 4:
                    await asyncio.sleep(0.01)
                sinks = [Sink() for _ in range(EXTENTS)]
                for number, sink in enumerate(sinks):
                    blocks = BlockRange(number * EXTENT_BLOCKS, EXTENT_BLOCKS)
                    client.submit(Request(version, [blocks], Priority.PREFETCH, None, sink))
                await asyncio.gather(*(sink.done for sink in sinks))
            assert forwarder.held is not None
            assert b"".join(sink.payload for sink in sinks) == data
        finally:
            await client.close()
            listener.close()
            await forwarder.close()
