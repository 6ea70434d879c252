"""Servers over in-memory sources on loopback, under both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import uvloop

from common.serving.server import Server
from tests.fakes.counting_observer import Counted
from tests.fakes.memory_source import MemorySource


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every asynchronous test below runs under both."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture
def source() -> MemorySource:
    return MemorySource()


@pytest.fixture
def observer() -> Counted:
    return Counted()


@pytest.fixture
async def serve(source: MemorySource, observer: Counted) -> AsyncIterator[Callable[..., Any]]:
    """``await serve(**settings)`` starts a server of the fixture's source; all end with the test, in bounded time."""
    servers: list[Server] = []

    async def start(**settings: Any) -> Server:
        server = Server({"memory": source}, listen=("127.0.0.1", 0), observer=observer, **settings)
        await server.start()
        servers.append(server)
        return server

    yield start
    async with asyncio.timeout(10):
        for server in servers:
            await server.close()
    leftover = {task.get_name() for task in asyncio.all_tasks()} & {"serving read", "feed"}
    assert not leftover
