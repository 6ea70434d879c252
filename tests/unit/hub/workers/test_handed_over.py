"""What the server's tests ask, of connections that were accepted, greeted and handed over: the spoke sees no difference."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import uvloop

from common.errors import Overloaded
from common.serving.server import Server
from common.wire.messages import Hello, Ping, Pong
from hub.workers import messages as m
from hub.workers.channel import Channel, channel_pair
from hub.workers.doorman import Doorman
from tests.fakes.counting_observer import Counted
from tests.fakes.memory_source import MemorySource
from tests.fakes.wire_client import WireClient
from tests.unit.common.serving.test_server import *  # noqa: F403

# The server's own count of half-open connections, and its listening socket, are the doorman's here.
del test_half_open_connections_make_room_for_honest_ones  # noqa: F821
del test_connections_are_limited_in_total_and_per_spoke  # noqa: F821
del test_close_says_goodbye_and_ends_in_time  # noqa: F821


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


class HandedOver:
    """A doorman, a channel, and a server that adopts what comes through it; looks like that server."""

    def __init__(self, server: Server, observer: Counted) -> None:
        self._server = server
        self.full: str | None = None
        ours, theirs = channel_pair()
        self._to_server = Channel(ours, lambda _message, _sock: None, lambda: None)
        self._from_doorman = Channel(theirs, self._take, lambda: None)
        self.doorman = Doorman(self._give, lambda _half_open: self.full, observer.refused)
        self._adopting: set[asyncio.Task[Any]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    @property
    def port(self) -> int:
        return self.doorman.port

    def _give(self, sock: socket.socket, received: bytes, _hello: Hello) -> None:
        self._to_server.send(m.Take(1, received), sock)

    def _take(self, message: m.Message, sock: socket.socket | None) -> None:
        assert isinstance(message, m.Take)
        assert sock is not None
        task = asyncio.create_task(self._server.adopt(sock, message.received))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def close(self) -> None:
        await self.doorman.close()
        await self._server.close()
        self._to_server.close()
        self._from_doorman.close()


@pytest.fixture
def source() -> MemorySource:
    return MemorySource()


@pytest.fixture
def observer() -> Counted:
    return Counted()


@pytest.fixture
async def serve(source: MemorySource, observer: Counted) -> AsyncIterator[Callable[..., Any]]:
    made: list[HandedOver] = []

    async def start(**settings: Any) -> HandedOver:
        server = Server({"memory": source}, listen=None, observer=observer, **settings)
        await server.start()
        found = HandedOver(server, observer)
        await found.doorman.bind("127.0.0.1", 0)
        found.doorman.listen()
        made.append(found)
        return found

    yield start
    async with asyncio.timeout(10):
        for found in made:
            await found.close()


async def test_silent_connections_make_room_for_honest_ones(
    serve: Callable[..., Any], observer: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.limits.CONNECTIONS_HALF_OPEN_MAX", 3)
    server = await serve()
    silent = [WireClient(server.port) for _ in range(5)]
    for client in silent:
        await client.dial()
    for client in silent[:2]:
        with pytest.raises(Overloaded, match="not said HELLO"):
            await client.greet()
    async with WireClient(server.port) as honest:
        honest.send(Ping(1))
        assert await honest.message() == Pong(1)
    for client in silent:
        await client.close()
    assert observer.codes[:2] == ["overloaded", "overloaded"]


async def test_who_is_refused_at_the_door_hears_why(serve: Callable[..., Any], observer: Counted) -> None:
    server = await serve()
    server.full = "no room"
    client = WireClient(server.port)
    await client.dial()
    with pytest.raises(Overloaded, match="no room"):
        await client.greet()
    await client.close()
    assert observer.codes == ["overloaded"]


async def test_a_hello_that_comes_byte_by_byte_is_heard(serve: Callable[..., Any], source: MemorySource) -> None:
    source.put(b"f", b"1")
    server = await serve()
    client = WireClient(server.port)
    await client.dial()
    client.connection.send(client.hello)
    for byte in b"".join(bytes(chunk) for chunk in client.connection.data_to_send()):
        client.send_raw(bytes([byte]))
        await asyncio.sleep(0)
    assert type(await client.message()).__name__ == "Welcome"
    client.send(Ping(4))
    assert await client.message() == Pong(4)
    await client.close()


async def test_who_leaves_before_hello_costs_nothing(serve: Callable[..., Any]) -> None:
    server = await serve()
    for _ in range(10):
        client = WireClient(server.port)
        await client.dial()
        await client.close()
    await until(lambda: server.doorman.half_open == 0)  # noqa: F405
