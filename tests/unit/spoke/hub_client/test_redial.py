"""Links whose hub is away: dialled again with growing waits that differ from link to link, for ever, and at once when it is back."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any

import pytest
from structlog.testing import capture_logs

from common import backoff, limits
from common.backoff import Backoff
from common.errors import HubUnreachable, NotAllowed, ProtocolError
from common.serving.access import Access, Grant
from common.serving.server import Server
from spoke.hub_client import keeper as keeper_module
from spoke.hub_client.client import FeedMessage, HubClient, make_hello
from spoke.hub_client.links import Link
from tests.fakes.memory_source import MemorySource


class Follower:
    def feed_up(self, link: Link) -> None: ...
    def feed_message(self, link: Link, message: FeedMessage) -> None: ...
    def feed_lost(self, link: Link) -> None: ...


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """What each link's back-off said, in order; waited a hundredth of it."""
    kept: list[list[float]] = []

    class Kept(Backoff):
        def __init__(self, first_s: float, cap_s: float) -> None:
            super().__init__(first_s, cap_s)
            self.said: list[float] = []
            kept.append(self.said)

        def next_delay_s(self, dice: random.Random) -> float:
            self.said.append(super().next_delay_s(dice))
            return self.said[-1] / 100

        def reset(self) -> None:
            super().reset()
            self.said.append(0.0)

    monkeypatch.setattr(keeper_module, "Backoff", Kept)
    return kept


def started(port: int, bulk_links: int, follower: Follower | None = None) -> HubClient:
    client = HubClient(
        "127.0.0.1", port, make_hello("data", "spoke", bytes(16)), bulk_links=bulk_links, follower=follower or Follower(),
        clock=asyncio.get_running_loop().time, dice=random.Random(3),
    )  # fmt: skip
    client.start()
    return client


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_waits_grow_to_the_cap_differ_between_links_and_begin_anew_after_a_success(
    waits: list[list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REDIAL_SETTLED_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = started(port, 3)
    try:
        await until(lambda: len(waits) == 4 and all(len(said) >= 8 for said in waits))
        for said in waits:
            for failures, wait_s in enumerate(said[:8]):
                step_s = min(limits.REDIAL_CAP_S, limits.REDIAL_FIRST_S * 2**failures)
                assert step_s / 2 <= wait_s <= step_s
        assert len({said[7] for said in waits}) == 4, "links that dial in step are a stampede"
        server = Server({"data": MemorySource()}, listen=("127.0.0.1", port))
        await server.start()
        await until(lambda: len(client.links.up) == 4)
        await server.close()
        await until(lambda: all(said[-1] > 0 and 0.0 in said for said in waits))
        for said in waits:
            assert said[said.index(0.0) + 1] <= limits.REDIAL_FIRST_S
    finally:
        await client.close()


async def test_a_hub_that_drops_each_link_it_welcomed_is_not_dialled_hot(waits: list[list[float]]) -> None:
    class Dropping(Follower):
        def feed_up(self, link: Link) -> None:
            asyncio.get_running_loop().call_soon(link.close, HubUnreachable("its catalog cannot be opened"))

    async with Server({"data": MemorySource(dataset="data")}, listen=("127.0.0.1", 0)) as server:
        client = started(server.port, 0, Dropping())
        try:
            await until(lambda: waits and len(waits[0]) >= 8)
            assert waits[0][7] >= limits.REDIAL_CAP_S / 2
        finally:
            await client.close()


async def test_who_is_refused_does_not_dial_hot(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def delay_s(failures: int, first_s: float, cap_s: float, dice: random.Random) -> float:
        waited.append(backoff.delay_s(failures, first_s, cap_s, dice))
        return waited[-1] / 5000

    monkeypatch.setattr(keeper_module, "delay_s", delay_s)
    access = Access({"somebody-else": Grant()})
    async with Server({"data": MemorySource(dataset="data")}, listen=("127.0.0.1", 0), access=access) as server:
        client = started(server.port, 1)
        try:
            with pytest.raises(NotAllowed, match="'spoke' may read nothing here"):
                await client.links.first_contact(5)
            await until(lambda: len(waited) >= 12)
            assert min(waited) >= limits.REDIAL_REFUSED_FIRST_S / 2
            assert max(waited) > limits.REDIAL_REFUSED_CAP_S / 2
            assert isinstance(client.links.refusal, NotAllowed)
            server.set_access(Access())
            await until(lambda: len(client.links.up) == 2)
            assert client.links.refusal is None
        finally:
            await client.close()


async def test_what_is_no_hub_is_said_once_however_often_it_is_dialled(waits: list[list[float]]) -> None:
    answered = 0

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        answered += 1
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" + bytes(100))
        await writer.drain()
        writer.close()

    with capture_logs() as lines:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            client = started(server.sockets[0].getsockname()[1], 4)
            try:
                with pytest.raises(ProtocolError, match="does not speak Headrace's protocol"):
                    await client.links.first_contact(5)
                await until(lambda: answered >= 30)
            finally:
                await client.close()
    told = [line["event"] for line in lines if line["log_level"] in ("warning", "error")]
    assert told == ["no link to the hub; dialling goes on"]
