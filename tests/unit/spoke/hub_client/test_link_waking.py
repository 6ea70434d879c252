"""A link sleeps through the middle of a large payload, and never past its end."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange
from common.digest import block_digests
from common.wire.connection import Connection, Role
from common.wire.messages import Codec, Data, Hello, Message, Priority, Read, Welcome
from spoke.hub_client.addresses import Address
from spoke.hub_client.links import Link

VERSION = bytes(range(16))
BLOCKS = BlockRange(0, 256)


class Owner:
    def __init__(self) -> None:
        self.arrived: asyncio.Queue[Message] = asyncio.Queue()

    def link_message(self, link: Link, request_id: int, message: Message) -> None:
        self.arrived.put_nowait(message)

    def link_taken(self) -> None: ...

    def link_closed(self, link: Link, error: Exception) -> None:
        pass


class Hub:
    """The other end, by hand: sends what a test tells it to."""

    def __init__(self) -> None:
        self.connection = Connection(Role.HUB)
        self.read: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        while data := await reader.read(65536):
            for event in self.connection.receive_data(data):
                message: Any = getattr(event, "message", None)
                if isinstance(message, Hello):
                    self.connection.send(Welcome(1, "d", bytes(16), 0, 2000))
                elif isinstance(message, Read):
                    self.read.set_result(event.request_id)
            for chunk in self.connection.data_to_send():
                writer.write(chunk)


def lowat(link: Link) -> int:
    assert link._transport is not None
    sock = link._transport.get_extra_info("socket")
    return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 4), "little")


@pytest.mark.parametrize(("rate_bytes_per_s", "sleeps"), [(100e6, True), (1e6, False)])
async def test_a_payload_wakes_its_link_in_large_pieces_and_at_its_end(rate_bytes_per_s: float, sleeps: bool) -> None:
    hub, owner = Hub(), Owner()
    server = await asyncio.start_server(hub.serve, "127.0.0.1", 0)
    link = Link("bulk", Hello((1,), "d", "i", bytes(16)), owner, asyncio.get_running_loop().time)
    try:
        await link.open(Address(socket.AF_INET, server.sockets[0].getsockname()))
        link.rate_bytes_per_s = rate_bytes_per_s
        link.send(Read(VERSION, (BLOCKS,), Priority.PREFETCH, 0), link.new_request_id())
        request_id = await hub.read
        content = bytes(BLOCKS.block_count * BLOCK_BYTES)
        digests = block_digests(VERSION, 0, content)
        hub.connection.send(Data(BLOCKS, Codec.RAW, len(content), digests, True, content), request_id)
        frame = b"".join(hub.connection.data_to_send())
        assert hub.writer is not None
        most = 1
        for start in range(0, len(frame), 100_000):
            hub.writer.write(frame[start : start + 100_000])
            await hub.writer.drain()
            for _ in range(20):
                await asyncio.sleep(0)
            most = max(most, lowat(link))
        arrived = await asyncio.wait_for(owner.arrived.get(), 10)
        assert isinstance(arrived, Data)
        assert bytes(arrived.payload) == content
        assert lowat(link) == 1, "between payloads every byte counts"
        assert (most > 1) is sleeps
        assert most <= limits.RECEIVE_WAKE_MAX_BYTES
    finally:
        await asyncio.sleep(0)
        closing: Any = link.goodbye("done")
        if closing is not None:
            await closing
        server.close()
