"""Questions about orders at a session: a piece leaves after what readers wait for, a flood is refused, who keeps none says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random

from common import limits
from common.blocks import EXTENT_BYTES, whole_file
from common.serving.orders import OrderAnswer, OrderQuestion, Teller
from common.serving.server import Server
from common.wire.connection import Received
from common.wire.messages import (
    CAPABILITIES,
    CHECK,
    ORDERS,
    PIN,
    Data,
    Fetch,
    Kept,
    Orders,
    Piece,
    Priority,
    Report,
    Reported,
)
from tests.fakes.memory_source import MemorySource
from tests.fakes.wire_client import WireClient

Serve = Callable[..., Awaitable[Server]]
DIGEST = b"d" * 16


class Desk:
    """Answers with a piece; while ``gate`` is clear, not yet."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[tuple[str, Teller, OrderQuestion]] = []

    async def answer(self, dataset: str, teller: Teller, question: OrderQuestion) -> OrderAnswer:
        self.asked.append((dataset, teller, question))
        await self.gate.wait()
        if isinstance(question, Fetch):
            return Piece(question.token, 0, limits.ORDER_PIECE_BYTES, bytes(limits.ORDER_PIECE_BYTES))
        raise RuntimeError("a bug of ours")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


async def test_a_hub_that_keeps_orders_says_so_and_hands_questions_on(serve: Serve) -> None:
    desk = Desk()
    server = await serve(orders=desk)
    client = WireClient(server.port, identity="gpu-1", spoke_id=b"s" * 16)
    client.hello = replace(client.hello, capabilities=(ORDERS, "teleport"))
    async with client:
        assert client.welcome is not None
        assert client.welcome.capabilities == (ORDERS,)
        client.send(Fetch(5, DIGEST, 0))
        assert isinstance(await client.message(), Piece)
        assert desk.asked == [("memory", Teller("gpu-1", b"s" * 16), Fetch(5, DIGEST, 0))]
        client.send(Orders(6))
        failed = await client.message()
        assert isinstance(failed, Kept)
        assert (failed.token, failed.code) == (6, "internal")


async def test_a_hub_that_keeps_none_says_so_and_goes_on(serve: Serve) -> None:
    server = await serve()
    client = WireClient(server.port)
    client.hello = replace(client.hello, capabilities=CAPABILITIES)
    async with client:
        assert client.welcome is not None
        assert client.welcome.capabilities == (PIN, CHECK)
        client.send(Report(1, DIGEST, 5, 0, False, b"bytes"))
        refused = await client.message()
        assert isinstance(refused, Reported)
        assert (refused.token, refused.code) == (1, "not-allowed")


async def test_more_questions_than_may_be_open_are_refused_one_by_one(serve: Serve) -> None:
    desk = Desk()
    desk.gate.clear()
    server = await serve(orders=desk)
    most = limits.ORDER_QUESTIONS_MAX_OUTSTANDING
    async with WireClient(server.port) as client:
        for token in range(most + 100):
            client.send(Fetch(token, DIGEST, 0))
        refused = [await client.message() for _ in range(100)]
        assert [(answer.token, answer.code) for answer in refused if isinstance(answer, Piece)] == [
            (token, "overloaded") for token in range(most, most + 100)
        ]
        assert len(desk.asked) == most
        desk.gate.set()
        assert {(await client.message()).token for _ in range(most)} == set(range(most))  # type: ignore[union-attr]


async def test_a_piece_waits_for_what_a_reader_waits_for(serve: Serve, source: MemorySource) -> None:
    much = source.put(b"much", Random(1).randbytes(16 * EXTENT_BYTES))
    little = source.put(b"little", b"wanted now")
    desk = Desk()
    server = await serve(orders=desk)
    async with WireClient(server.port, receive_buffer_bytes=64 * 1024) as client:
        client.read(much, whole_file(16 * EXTENT_BYTES), priority=Priority.PREFETCH)
        (session,) = server._sessions.values()
        await until(lambda: session._write_paused)
        client.send(Fetch(1, DIGEST, 0))
        await until(lambda: bool(session._outbox.pieces))
        wanted = client.read(little, whole_file(10))
        await until(lambda: bool(session._outbox.extents._lanes[Priority.DEMAND]))
        order: list[str] = []
        while len(order) < 2:
            event = await client.receive()
            assert isinstance(event, Received)
            if isinstance(event.message, Data) and event.request_id == wanted:
                order.append("demand")
            elif isinstance(event.message, Piece):
                order.append("piece")
        assert order == ["demand", "piece"]
