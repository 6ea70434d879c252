"""A prefetch whose data are all here, but still being unpacked, was promoted: it was sent anew with no ranges, and the read failed."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import zstandard

from common.blocks import BLOCK_BYTES, BlockRange
from common.digest import block_digests
from common.wire.messages import Codec, Data, Priority, Read
from spoke.hub_client.client import HubClient, Request, make_hello

VERSION = b"p" * 16


class Sink:
    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.landed: list[bytes] = []

    def arrived(self, request: Request, data: Data) -> None:
        self.landed.append(bytes(data.payload))

    def finished(self, request: Request) -> None:
        self.ended.set()

    def failed(self, request: Request, error: Exception) -> None:
        raise error


class Link(SimpleNamespace):
    def new_request_id(self) -> int:
        return len(self.sent) + 1

    def send(self, message: Any, request_id: int = 0) -> None:
        assert not isinstance(message, Read) or message.ranges
        self.sent.append(message)


async def test_a_promotion_while_unpacking_asks_for_nothing_again() -> None:
    client = HubClient("127.0.0.1", 1, make_hello("d", "i", b"s" * 16), bulk_links=1, follower=Sink(),
                       clock=lambda: 0.0, dice=Random(1))  # fmt: skip
    link = Link(role="bulk", requests={}, outstanding_bytes=0, received_bytes=0, is_open=True, sent=[])
    client.links.up.append(link)
    raw = bytes(BLOCK_BYTES)
    blocks = BlockRange(0, 1)
    sink = Sink()
    request = Request(VERSION, [blocks], Priority.PREFETCH, None, sink)
    client.submit(request)
    packed = zstandard.compress(raw)
    data = Data(blocks, Codec.ZSTD, len(raw), block_digests(VERSION, 0, raw), True, packed)
    client.link_message(link, request.request_id, data)
    client.promote(request, None)
    await asyncio.wait_for(sink.ended.wait(), 5)
    assert sink.landed == [raw]
    assert [type(message) for message in link.sent] == [Read]
    client.links.up.clear()
    await client.close()
