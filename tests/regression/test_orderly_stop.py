"""A spoke that stops in order says GOODBYE on every link, though DATA is still on its way to it, and nobody is alarmed."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from common import limits
from common.blocks import EXTENT_BLOCKS, EXTENT_BYTES, BlockRange
from common.errors import HeadraceError
from common.serving.server import Server
from common.serving.session import Session
from common.wire.messages import Data, Goodbye, Message, Priority
from common.wire.moves import State
from spoke.hub_client import keeper as keeper_module
from spoke.hub_client.client import FeedMessage, HubClient, Request, make_hello
from spoke.hub_client.links import Link
from tests.fakes.memory_source import MemorySource

EXTENTS = 32


class Follower:
    def feed_up(self, link: Link) -> None: ...
    def feed_message(self, link: Link, message: FeedMessage) -> None: ...
    def feed_lost(self, link: Link) -> None: ...


class Sink:
    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.ended: list[str] = []

    def arrived(self, request: Request, data: Data) -> None:
        self.first.set()
        assert not self.ended

    def finished(self, request: Request) -> None:
        self.ended.append("finished")

    def failed(self, request: Request, error: HeadraceError) -> None:
        self.ended.append(str(error))


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Reasons of the GOODBYEs that reached the hub."""
    reasons: list[str] = []
    handle = Session._handle

    def listen(session: Session, request_id: int, message: Message) -> None:
        if isinstance(message, Goodbye):
            reasons.append(message.reason)
        handle(session, request_id, message)

    monkeypatch.setattr(Session, "_handle", listen)
    return reasons


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []

    def warning(event: str, **_facts: Any) -> None:
        said.append(event)

    monkeypatch.setattr(keeper_module.log, "warning", warning, raising=False)
    return said


def make_client(port: int, links: int) -> HubClient:
    loop = asyncio.get_running_loop()
    return HubClient(
        "127.0.0.1", port, make_hello("data", "spoke", bytes(16), compression=False), bulk_links=links,
        follower=Follower(), clock=loop.time, dice=random.Random(1),
    )  # fmt: skip


async def linked(client: HubClient, count: int) -> None:
    async with asyncio.timeout(10):
        while len(client.links.up) < count:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("loaded", [False, True])
async def test_the_hub_hears_goodbye_on_every_link(heard: list[str], warnings: list[str], loaded: bool) -> None:
    source = MemorySource()
    version = source.put(b"f", bytes(EXTENTS * EXTENT_BYTES))
    async with Server({"data": source}, listen=("127.0.0.1", 0)) as server:
        client = make_client(server.port, 3)
        client.start()
        await linked(client, 4)
        sinks = [Sink() for _ in range(EXTENTS if loaded else 0)]
        for number, sink in enumerate(sinks):
            blocks = BlockRange(number * EXTENT_BLOCKS, EXTENT_BLOCKS)
            client.submit(Request(version, [blocks], Priority.PREFETCH, None, sink))
        if loaded:
            async with asyncio.timeout(10):
                await sinks[0].first.wait()
        async with asyncio.timeout(limits.CLOSE_GRACE_S / 2):
            await client.close()
            while server.connections:
                await asyncio.sleep(0.005)
        assert heard == ["the spoke stops"] * 4
        assert warnings == []
        assert all(len(sink.ended) == 1 for sink in sinks)
        assert len(client.links.up) == 0


async def test_a_hub_that_does_not_answer_holds_a_stop_for_a_bounded_time(
    heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLOSE_GRACE_S", 0.2)
    async with Server({"data": MemorySource()}, listen=("127.0.0.1", 0)) as server:
        client = make_client(server.port, 1)
        client.start()
        await linked(client, 2)
        for session in server._sessions.values():
            assert session._transport is not None
            session._transport.pause_reading()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await client.close()
        assert 0.2 <= loop.time() - began_s < 2
        assert heard == []
        assert len(client.links.up) == 0


async def test_what_is_asked_while_goodbye_is_under_way_fails_with_the_reason(
    heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry that came due then was sent on a link that had said GOODBYE: LocalProtocolError. Found by simulation."""
    monkeypatch.setattr(limits, "CLOSE_GRACE_S", 0.2)
    source = MemorySource()
    version = source.put(b"f", bytes(EXTENT_BYTES))
    async with Server({"data": source}, listen=("127.0.0.1", 0)) as server:
        client = make_client(server.port, 1)
        client.start()
        await linked(client, 2)
        for session in server._sessions.values():
            assert session._transport is not None
            session._transport.pause_reading()  # so that GOODBYE takes as long as it may
        stopping = asyncio.create_task(client.close())
        async with asyncio.timeout(10):
            while client.links.up and client.links.up[0]._connection.state is not State.CLOSED:
                await asyncio.sleep(0.005)
        assert client.links.up
        for priority in (Priority.DEMAND, Priority.PREFETCH):
            sink = Sink()
            client.submit(Request(version, [BlockRange(0, EXTENT_BLOCKS)], priority, None, sink))
            assert sink.ended == ["the spoke stops"]
        await stopping
    assert heard == []
