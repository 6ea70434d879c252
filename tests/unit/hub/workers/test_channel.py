"""Messages and sockets between two processes of a hub: whole, in order, bounded, and the end is noticed."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from common import limits
from hub.workers import messages as m
from hub.workers.channel import Channel, channel_pair


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


class End:
    """One end, and what came to it."""

    def __init__(self, sock: socket.socket) -> None:
        self.came: asyncio.Queue[tuple[m.Message, socket.socket | None]] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.channel = Channel(sock, lambda message, came: self.came.put_nowait((message, came)), self.ended.set)

    async def message(self) -> tuple[m.Message, socket.socket | None]:
        async with asyncio.timeout(5):
            return await self.came.get()


@pytest.fixture
async def ends() -> tuple[End, End]:
    left, right = channel_pair()
    return End(left), End(right)


@pytest.mark.parametrize("size_bytes", [0, 1, limits.CHANNEL_PIECE_BYTES, 5 * limits.CHANNEL_PIECE_BYTES + 17])
async def test_messages_of_any_size_arrive_whole_and_in_order(ends: tuple[End, End], size_bytes: int) -> None:
    left, right = ends
    sent = [m.Take(number, os.urandom(size_bytes)) for number in range(20)]
    for message in sent:
        left.channel.send(message)
    assert [(await right.message())[0] for _ in sent] == sent
    right.channel.send(m.Ended(3))
    assert (await left.message())[0] == m.Ended(3)
    left.channel.close()
    right.channel.close()


async def test_a_socket_arrives_with_its_message_and_is_closed_here(ends: tuple[End, End]) -> None:
    left, right = ends
    pairs = [socket.socketpair() for _ in range(30)]
    for number, (_, handed) in enumerate(pairs):
        left.channel.send(m.Share(float(number)))
        left.channel.send(m.Take(number, b"x" * (number * 7000)), handed)
    for number, (kept, handed) in enumerate(pairs):
        assert (await right.message()) == (m.Share(float(number)), None)
        message, came = await right.message()
        assert isinstance(message, m.Take)
        assert message.number == number
        assert came is not None
        assert handed.fileno() == -1
        came.sendall(b"%d" % number)
        assert kept.recv(10) == b"%d" % number
        kept.close()
        came.close()
    left.channel.close()
    right.channel.close()


async def test_the_end_is_noticed_once_and_what_was_said_before_it_is_heard(ends: tuple[End, End]) -> None:
    left, right = ends
    left.channel.send(m.Ended(1))
    await left.channel.drained()
    left.channel.close()
    async with asyncio.timeout(5):
        await right.ended.wait()
    assert right.came.get_nowait()[0] == m.Ended(1)
    assert not left.ended.is_set(), "who closes knows"
    kept, handed = socket.socketpair()
    right.channel.send(m.Take(1, b""), handed)
    assert kept.recv(1) == b"", "dropped, and closed"
    kept.close()


async def test_a_peer_that_takes_nothing_is_given_up_and_sockets_in_the_queue_are_closed() -> None:
    left, right = channel_pair()
    end = End(left)
    kept, handed = socket.socketpair()
    for number in range(10):
        end.channel.send(m.Take(number, bytes(limits.CHANNEL_QUEUE_MAX_BYTES // 9)), handed if number == 9 else None)
    async with asyncio.timeout(5):
        await end.ended.wait()
    assert kept.recv(1) == b""
    kept.close()
    right.close()


identity = st.text(max_size=20)
counted = st.fixed_dictionaries(
    {"sent_bytes": st.dictionaries(identity, st.integers(0, 2**62)), "connections_total": st.integers(0, 2**40)}
)


@given(
    st.one_of(
        st.builds(m.Moved, identity, st.integers(0, 2**62), st.none() | st.lists(st.binary(min_size=16, max_size=16))),
        st.builds(m.Ask, st.integers(0, 2**62), identity, st.binary(), st.booleans()),
        st.builds(m.Report, counted, st.integers(0, 2**62), st.integers(0), st.integers(0, 2048), st.just(())),
        st.builds(m.Share, st.none() | st.floats(0, 1e12)),
        st.just(m.Stop()),
    ).filter(lambda message: not isinstance(message, m.Report) or message.packed_bytes < 2**63)
)
def test_packing_keeps_what_is_said(message: m.Message) -> None:
    again = m.unpack(m.pack(message))
    assert type(again) is type(message)
    if isinstance(message, m.Moved):
        message = message._replace(replaced=tuple(message.replaced) if message.replaced is not None else None)
    assert again == message
