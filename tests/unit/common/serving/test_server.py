"""A real server and real sockets: what a spoke gets, in which order, and what no spoke can do to the others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, BlockRange, whole_file
from common.errors import (
    DeadlineExceeded,
    HeadraceError,
    Overloaded,
    ProtocolError,
    SourceReadError,
    StaleVersion,
    UnknownDataset,
    VersionMismatch,
)
from common.serving.server import Server
from common.wire.connection import Closed, Received
from common.wire.frame import HEADER_BYTES, FrameType, parse_header
from common.wire.message_codec import encode
from common.wire.messages import (
    CAPABILITIES,
    CHECK,
    PIN,
    Cancel,
    Changes,
    Check,
    Checked,
    Codec,
    Data,
    Error,
    Heartbeat,
    Hello,
    Ping,
    Pong,
    Priority,
    Promote,
    Read,
    SnapshotPage,
    Stats,
    Subscribe,
)
from tests.fakes.counting_observer import Counted
from tests.fakes.memory_source import MemorySource
from tests.fakes.wire_client import WireClient

Serve = Callable[..., Awaitable[Server]]


def noise(size_bytes: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


async def until(condition: Callable[[], bool]) -> None:
    """For what happens at the other end of a socket and has no event of its own."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


# --- what a spoke gets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [1, BLOCK_BYTES, BLOCK_BYTES + 1, EXTENT_BYTES - 1, 3 * EXTENT_BYTES + 5])
async def test_bytes_arrive_verified(serve: Serve, source: MemorySource, size_bytes: int) -> None:
    data = noise(size_bytes)
    version = source.put(b"f", data)
    server = await serve()
    async with WireClient(server.port) as client:
        assert await client.fetch(version, size_bytes) == data


async def test_ranges_of_one_read_come_as_extents_and_one_is_last(serve: Serve, source: MemorySource) -> None:
    version = source.put(b"f", noise(4 * EXTENT_BYTES))
    server = await serve()
    async with WireClient(server.port) as client:
        answers = await client.answer(client.read(version, BlockRange(3, 2), BlockRange(250, 300), BlockRange(1000, 1)))
    assert sorted(data.blocks for data in answers) == [
        BlockRange(3, 2),
        BlockRange(250, 6),
        BlockRange(256, 256),
        BlockRange(512, 38),
        BlockRange(1000, 1),
    ]
    assert [data.last for data in answers] == [False] * 4 + [True]


async def test_welcome_names_the_catalog_and_agrees_only_to_what_is_spoken(serve: Serve, source: MemorySource) -> None:
    source.put(b"a", b"1")
    server = await serve()
    client = WireClient(server.port)
    client.hello = Hello((1,), "memory", "x", bytes(16), codecs=(Codec.ZSTD, Codec.RAW), capabilities=("teleport",))
    async with client:
        assert client.welcome is not None
        assert client.welcome.catalog_id == source.catalog_id
        assert client.welcome.head_revision == source.head_revision
        assert client.welcome.codecs == (Codec.RAW,)
        assert client.welcome.capabilities == ()
        assert client.welcome.heartbeat_interval_ms == limits.HEARTBEAT_INTERVAL_S * 1000


async def test_ping_is_answered_in_order(serve: Serve) -> None:
    server = await serve()
    async with WireClient(server.port) as client:
        for token in (5, 6):
            client.send(Ping(token))
        assert [await client.message(), await client.message()] == [Pong(5), Pong(6)]


async def test_subscriber_gets_the_tree_then_its_changes(serve: Serve, source: MemorySource) -> None:
    for i in range(3000):
        source.put(b"d%d/%d" % (i % 10, i), b"")
    server = await serve()
    async with WireClient(server.port) as client:
        client.send(Subscribe(b"", 0))
        tree = {}
        while True:
            page = await client.message()
            assert isinstance(page, SnapshotPage)
            tree.update(page.entries)
            if page.last:
                break
        assert tree == source.entries()
        assert isinstance(await client.message(), Heartbeat)
        source.put(b"new", b"1")
        changes = await client.message()
        assert isinstance(changes, Changes)
        assert [change.path for change in changes.changes] == [b"new"]


async def test_a_second_subscribe_replaces_the_first(serve: Serve, source: MemorySource) -> None:
    source.put(b"a", b"1")
    server = await serve()
    async with WireClient(server.port) as client:
        client.send(Subscribe(source.catalog_id, source.head_revision))
        assert isinstance(await client.message(), Heartbeat)
        client.send(Subscribe(b"", 0))
        page = await client.message()
        assert isinstance(page, SnapshotPage)
        assert isinstance(await client.message(), Heartbeat)
        source.put(b"b", b"2")
        assert isinstance(await client.message(), Changes)
        client.send(Ping(1))
        assert await client.message() == Pong(1)  # and not the same changes twice


async def test_fleet_view_and_observer(serve: Serve, source: MemorySource, observer: Counted) -> None:
    version = source.put(b"f", noise(EXTENT_BYTES))
    server = await serve()
    spoke_id = b"s" * 16
    async with (
        WireClient(server.port, spoke_id=spoke_id, identity="gpu-7") as one,
        WireClient(server.port, spoke_id=spoke_id, identity="gpu-7") as two,
    ):
        await one.fetch(version, EXTENT_BYTES)
        two.send(Stats({"hits": 0.5}))
        two.send(Ping(1))
        await two.message()
        (view,) = server.spokes()
        assert (view.identity, view.dataset, view.spoke_id) == ("gpu-7", "memory", spoke_id)
        assert view.stats == {"hits": 0.5}
        assert view.stats_age_s is not None
        assert len(view.links) == 2
        assert view.sent_bytes == observer.sent_bytes["gpu-7"]
        assert EXTENT_BYTES < view.sent_bytes < EXTENT_BYTES * 1.01
        assert view.outstanding_bytes == 0
        assert all(link.path is None or link.path.rtt_s < 1 for link in view.links)
        assert len(observer.done) == 1
        await one.close()
        await until(lambda: len(server.spokes()[0].links) == 1)
        assert server.spokes()[0].sent_bytes == view.sent_bytes
    await until(lambda: server.spokes() == [])
    assert (observer.connected_count, observer.disconnected_count) == (2, 2)


# --- order -----------------------------------------------------------------------------------------------------


async def order(client: WireClient, *request_ids: int) -> list[int]:
    """The ids of all DATA until each of these READs is complete."""
    left = set(request_ids)
    seen: list[int] = []
    while left:
        event = await client.receive()
        assert isinstance(event, Received), event
        assert isinstance(event.message, Data), event
        seen.append(event.request_id)
        if event.message.last:
            left.discard(event.request_id)
    return seen


async def test_demand_overtakes_prefetch_on_the_same_connection(serve: Serve, source: MemorySource) -> None:
    version = source.put(b"f", noise(16 * EXTENT_BYTES))
    server = await serve()
    client = WireClient(server.port, receive_buffer_bytes=64 * 1024)
    async with client:
        prefetch = client.read(version, whole_file(16 * EXTENT_BYTES), priority=Priority.PREFETCH)
        # The socket is full and the read-ahead as well: this much is read and must be overtaken all the same.
        await until(lambda: len(source.reads) >= limits.READ_AHEAD_LINK_BYTES // EXTENT_BYTES and not source.reads_open)
        demand = client.read(version, BlockRange(0, 1), priority=Priority.DEMAND)
        await until(lambda: source.reads[-1].count == 2 or (version, BlockRange(0, 1)) in source.reads)
        seen = await order(client, prefetch, demand)
    assert seen.index(demand) <= 3, seen


async def test_promote_moves_what_is_read_and_what_is_not(serve: Serve, source: MemorySource) -> None:
    version = source.put(b"f", noise(16 * EXTENT_BYTES))
    server = await serve()
    client = WireClient(server.port, receive_buffer_bytes=64 * 1024)
    async with client:
        first = client.read(version, BlockRange(0, 8 * EXTENT_BLOCKS), priority=Priority.PREFETCH)
        second = client.read(version, BlockRange(8 * EXTENT_BLOCKS, 4 * EXTENT_BLOCKS), priority=Priority.PREFETCH)
        await until(lambda: len(source.reads) >= 4 and not source.reads_open)
        client.send(Promote(Priority.DEMAND, 0), second)
        await until(lambda: (version, BlockRange(11 * EXTENT_BLOCKS, EXTENT_BLOCKS)) in source.reads)
        seen = await order(client, first, second)
    assert seen.index(second) <= 3
    positions = [position for position, request_id in enumerate(seen) if request_id == second]
    assert positions == list(range(positions[0], positions[0] + 4))


async def test_cancel_ends_a_read_and_frees_its_place(serve: Serve, source: MemorySource, observer: Counted) -> None:
    version = source.put(b"f", noise(4 * EXTENT_BYTES))
    source.gate = asyncio.Event()
    server = await serve()
    async with WireClient(server.port) as client:
        request_id = client.read(version, whole_file(4 * EXTENT_BYTES))
        await until(lambda: source.reads_open == 4)
        client.send(Cancel(), request_id)
        await until(lambda: source.reads_open == 0)
        assert server.spokes()[0].outstanding_bytes == 0
        source.gate.set()
        assert len(await client.fetch(version, 4 * EXTENT_BYTES)) == 4 * EXTENT_BYTES
    assert len(observer.done) == 1


async def test_a_deadline_that_passes_is_answered(serve: Serve, source: MemorySource, observer: Counted) -> None:
    version = source.put(b"f", noise(EXTENT_BYTES))
    source.gate = asyncio.Event()
    server = await serve()
    async with WireClient(server.port) as client:
        with pytest.raises(DeadlineExceeded):
            await client.answer(client.read(version, BlockRange(0, 1), deadline_ms=20))
        assert source.reads_open == 0
        source.gate.set()
        assert await client.answer(client.read(version, BlockRange(0, 1), deadline_ms=60_000))
    assert observer.codes == ["deadline"]


async def test_a_rate_is_kept(serve: Serve, source: MemorySource) -> None:
    size_bytes = 6 * EXTENT_BYTES
    version = source.put(b"f", noise(size_bytes))
    server = await serve(total_rate_bytes_per_s=20 * EXTENT_BYTES)
    loop = asyncio.get_running_loop()
    async with WireClient(server.port) as client:
        started_s = loop.time()
        await client.fetch(version, size_bytes)
        assert loop.time() - started_s >= 0.2  # the last extent may start after the five before it are paid


async def test_many_spokes_all_get_their_bytes_and_equal_shares(serve: Serve, source: MemorySource) -> None:
    data = noise(2 * EXTENT_BYTES)
    version = source.put(b"f", data)
    server = await serve(total_rate_bytes_per_s=400 * EXTENT_BYTES)

    async def one(spoke: WireClient) -> None:
        for _ in range(2):
            assert await spoke.fetch(version, len(data)) == data

    clients = [WireClient(server.port) for _ in range(40)]
    for client in clients:
        await client.dial()
        await client.greet()
    async with asyncio.TaskGroup() as tasks:
        for client in clients:
            tasks.create_task(one(client))
    sent = {view.sent_bytes for view in server.spokes()}
    assert len(server.spokes()) == 40
    assert len(sent) == 1
    for client in clients:
        await client.close()


async def test_a_greedy_spoke_does_not_delay_the_demand_of_another(serve: Serve, source: MemorySource) -> None:
    version = source.put(b"f", noise(16 * EXTENT_BYTES))
    rate = 40 * EXTENT_BYTES
    server = await serve(total_rate_bytes_per_s=rate)
    greedy = [WireClient(server.port, spoke_id=b"g" * 16) for _ in range(4)]
    for client in greedy:
        await client.dial()
        await client.greet()
        for _ in range(4):
            client.read(version, whole_file(16 * EXTENT_BYTES), priority=Priority.DEMAND)
    async with WireClient(server.port) as modest:
        await until(lambda: len(source.reads) > 4)
        for _ in range(5):
            before = len(source.reads)
            await modest.answer(modest.read(version, BlockRange(7, 1)))
            mine = source.reads.index((version, BlockRange(7, 1)), before)
            # 256 extents of the other spoke wait; a few may have been ahead in line when the request came.
            assert mine - before <= 4
    for client in greedy:
        await client.close()


# --- what goes wrong stays where it is ---------------------------------------------------------------------------


async def test_unknown_dataset_is_said_and_the_connection_closed(serve: Serve, observer: Counted) -> None:
    server = await serve()
    client = WireClient(server.port, "c4-en")
    await client.dial()
    with pytest.raises(UnknownDataset, match=r"c4-en.*served: memory"):
        await client.greet()
    assert isinstance(await client.receive(), Closed)
    assert observer.codes == ["unknown-dataset"]
    await until(lambda: server.connections == 0)


async def test_no_common_version_is_said(serve: Serve) -> None:
    server = await serve()
    client = WireClient(server.port)
    client.connection = type(client.connection)(client.connection.role, versions=(77,))
    client.hello = Hello((77,), "memory", "x", bytes(16))
    await client.dial()
    with pytest.raises(VersionMismatch):
        await client.greet()
    await until(lambda: server.connections == 0)


async def test_stale_and_failing_reads_end_that_read_only(
    serve: Serve, source: MemorySource, observer: Counted
) -> None:
    good = source.put(b"good", noise(EXTENT_BYTES))
    gone = source.put(b"gone", noise(3 * EXTENT_BYTES, 2))
    source.remove(b"gone")
    server = await serve()
    async with WireClient(server.port) as client:
        with pytest.raises(StaleVersion):
            await client.answer(client.read(gone, whole_file(3 * EXTENT_BYTES)))
        with pytest.raises(ProtocolError, match="pass the end"):
            await client.answer(client.read(good, BlockRange(0, EXTENT_BLOCKS + 1)))
        for failure, expected in ((SourceReadError("EIO"), SourceReadError), (RuntimeError("a bug"), HeadraceError)):
            source.failure = failure
            with pytest.raises(expected):
                await client.answer(client.read(good, BlockRange(0, 1)))
        source.failure = None
        assert len(await client.fetch(good, EXTENT_BYTES)) == EXTENT_BYTES
        assert server.spokes()[0].outstanding_bytes == 0
    assert sorted(observer.codes) == ["internal", "protocol", "source-read", "stale"]


async def test_a_source_that_gives_up_or_lies_is_answered_as_an_error(serve: Serve, source: MemorySource) -> None:
    version = source.put(b"f", noise(EXTENT_BYTES))
    server = await serve()
    async with WireClient(server.port) as client:
        source.failure = asyncio.CancelledError()
        with pytest.raises(HeadraceError, match="closed"):
            await client.answer(client.read(version, BlockRange(0, 1)))
        source.failure = None
        honest = source.read_extent

        async def short(version: bytes, blocks: BlockRange) -> Any:
            extent = await honest(version, blocks)
            return extent._replace(data=extent.data[:-BLOCK_BYTES])

        source.read_extent = short  # type: ignore[method-assign]
        with pytest.raises(HeadraceError, match="internal"):
            await client.answer(client.read(version, BlockRange(0, 2)))
        source.read_extent = honest  # type: ignore[method-assign]
        assert await client.fetch(version, EXTENT_BYTES)


async def test_a_feed_that_fails_closes_its_connection(serve: Serve, source: MemorySource) -> None:
    async def broken(revision: int, limit: int) -> Any:
        raise SourceReadError("the catalog's disk is gone")

    source.put(b"a", b"1")
    source.changes_since = broken  # type: ignore[method-assign]
    server = await serve()
    async with WireClient(server.port) as client:
        client.send(Subscribe(source.catalog_id, 0))
        message = await client.message()
        assert isinstance(message, Error)
        assert message.code == "source-read"
        assert isinstance(await client.receive(), Closed)


async def test_malformed_bytes_close_that_connection_with_the_reason(
    serve: Serve, source: MemorySource, observer: Counted
) -> None:
    version = source.put(b"f", noise(EXTENT_BYTES))
    server = await serve()
    dice = random.Random(5)
    async with WireClient(server.port) as neighbour:
        for case in range(20):
            client = WireClient(server.port)
            await client.dial()
            if case % 2:
                await client.greet()
            client.send_raw(b"\xff" * 16 + dice.randbytes(200))
            message = await client.message()
            assert isinstance(message, Error)
            assert message.code == "protocol"
            assert isinstance(await client.receive(), Closed)
            await client.close()
        assert await neighbour.fetch(version, EXTENT_BYTES)
    assert observer.codes == ["protocol"] * 20
    await until(lambda: server.connections == 0)


async def test_silence_before_hello_is_ended(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HELLO_TIMEOUT_S", 0.05)
    server = await serve()
    client = WireClient(server.port)
    await client.dial()
    message = await client.message()
    assert isinstance(message, Error)
    assert "HELLO" in message.message
    assert isinstance(await client.receive(), Closed)
    async with WireClient(server.port) as other:  # the timer ends with HELLO
        await asyncio.sleep(0.1)
        other.send(Ping(1))
        assert await other.message() == Pong(1)


async def test_half_open_connections_make_room_for_honest_ones(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS_HALF_OPEN_MAX", 3)
    server = await serve()
    silent = [WireClient(server.port) for _ in range(5)]
    for client in silent:
        await client.dial()
    for client in silent[:2]:
        message = await client.message()
        assert isinstance(message, Error)
        assert message.code == "overloaded"
    async with WireClient(server.port) as honest:
        honest.send(Ping(1))
        assert await honest.message() == Pong(1)
    for client in silent:
        await client.close()


async def test_connections_are_limited_in_total_and_per_spoke(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 4)
    monkeypatch.setattr(limits, "CONNECTIONS_PER_SPOKE_MAX", 2)
    server = await serve()
    clients = [WireClient(server.port, spoke_id=b"a" * 16) for _ in range(3)]
    for client in clients[:2]:
        await client.dial()
        await client.greet()
    await clients[2].dial()
    with pytest.raises(Overloaded, match="this spoke"):
        await clients[2].greet()
    await until(lambda: server.connections == 2)
    others = [WireClient(server.port) for _ in range(3)]
    for client in others[:2]:
        await client.dial()
        await client.greet()
    await others[2].dial()
    with pytest.raises((Overloaded, ConnectionError)):
        await others[2].greet()
    for client in clients + others:
        await client.close()
    await until(lambda: server.connections == 0)


async def test_too_much_outstanding_is_refused_for_that_read(
    serve: Serve, source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SPOKE_MAX_OUTSTANDING_BYTES", 4 * EXTENT_BYTES)
    version = source.put(b"f", noise(4 * EXTENT_BYTES))
    source.gate = asyncio.Event()
    server = await serve()
    async with WireClient(server.port) as client:
        first = client.read(version, whole_file(4 * EXTENT_BYTES))
        with pytest.raises(Overloaded):
            await client.answer(client.read(version, BlockRange(0, 1)))
        source.gate.set()
        await client.answer(first)
        assert await client.answer(client.read(version, BlockRange(0, 1)))


async def test_a_slow_reader_holds_bounded_memory_and_nobody_up(serve: Serve, source: MemorySource) -> None:
    size_bytes = 16 * EXTENT_BYTES
    version = source.put(b"f", noise(size_bytes))
    server = await serve()
    stuck = WireClient(server.port, receive_buffer_bytes=16 * 1024)
    await stuck.dial()
    await stuck.greet()
    first = stuck.read(version, whole_file(size_bytes), priority=Priority.PREFETCH)
    for _ in range(3):
        stuck.read(version, whole_file(size_bytes), priority=Priority.PREFETCH)
    await until(lambda: len(source.reads) >= 4 and not source.reads_open)
    async with WireClient(server.port) as client:
        assert len(await client.fetch(version, size_bytes)) == size_bytes
    # What the stuck one has: its read-ahead, one extent in the transport, and what the kernel's buffers took.
    scheduler = server.egress.scheduler
    assert scheduler.read_ahead_bytes <= limits.READ_AHEAD_LINK_BYTES
    assert len(source.reads) <= 16 + 4 + 1 + 8
    assert len(await stuck.answer(first)) == 16  # and it goes on when it reads
    await stuck.close()


async def test_replies_nobody_reads_stop_the_requests(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REPLIES_UNSENT_MAX_BYTES", 16 * 1024)
    monkeypatch.setattr(limits, "FRAME_PAYLOAD_MAX_BYTES", 16 * 1024)
    monkeypatch.setattr(limits, "UNSENT_KERNEL_BYTES", 32 * 1024)
    monkeypatch.setattr(limits, "SPOKE_MAX_OUTSTANDING_BYTES", 0)
    server = await serve()
    client = WireClient(server.port, receive_buffer_bytes=4096)
    await client.dial()
    await client.greet()
    (session,) = server._sessions.values()
    transport = session._transport
    assert transport is not None
    count = 8_000
    read = Read(bytes(16), (BlockRange(0, 1),), Priority.DEMAND, 0)
    client.send_raw(b"".join(bytes(encode(read, number)[0]) for number in range(1, count + 1)))
    await until(lambda: session._read_paused)
    await asyncio.sleep(0.05)
    # The limit, and the replies to one buffer of requests that was read already (a reply is longer than a request).
    assert transport.get_write_buffer_size() < 32 * 1024 + 4 * limits.FRAME_MAP_MAX_BYTES
    assert client._reader is not None
    answered: set[int] = set()
    for _ in range(count):  # once it reads, nothing is missing
        header = parse_header(await client._reader.readexactly(HEADER_BYTES))
        assert header.type is FrameType.ERROR
        answered.add(header.request_id)
        await client._reader.readexactly(header.map_bytes)
    assert answered == set(range(1, count + 1))
    assert not session._read_paused
    await client.close()


async def test_a_dropped_connection_takes_its_reads_along(serve: Serve, source: MemorySource) -> None:
    version = source.put(b"f", noise(8 * EXTENT_BYTES))
    source.gate = asyncio.Event()
    server = await serve()
    client = WireClient(server.port)
    await client.dial()
    await client.greet()
    client.send(Subscribe(b"", 0))
    client.read(version, whole_file(8 * EXTENT_BYTES))
    await until(lambda: source.reads_open > 0)
    await client.close()
    await until(lambda: source.reads_open == 0 and server.connections == 0)
    assert server.egress.scheduler.read_ahead_bytes == 0
    source.gate.set()
    async with WireClient(server.port) as other:
        assert await other.fetch(version, 8 * EXTENT_BYTES)


async def test_close_says_goodbye_and_ends_in_time(
    serve: Serve, source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLOSE_GRACE_S", 0.2)
    version = source.put(b"f", noise(16 * EXTENT_BYTES))
    server = await serve()
    quiet = WireClient(server.port)
    stuck = WireClient(server.port, receive_buffer_bytes=16 * 1024)
    for client in (quiet, stuck):
        await client.dial()
        await client.greet()
    quiet.send(Subscribe(b"", 0))
    stuck.read(version, whole_file(16 * EXTENT_BYTES))
    await until(lambda: len(source.reads) >= 4)
    async with asyncio.timeout(2):
        await server.close()
    assert server.connections == 0
    while isinstance(event := await quiet.receive(), Received):
        pass
    assert event.orderly
    await quiet.close()
    await stuck.close()
    with pytest.raises(ConnectionRefusedError):
        await WireClient(server.port if server._server and server._server.sockets else 1).dial()


async def test_a_check_is_answered_with_a_revision_or_the_reason(serve: Serve, source: MemorySource) -> None:
    source.put(b"d/f", b"1")
    server = await serve()
    client = WireClient(server.port)
    client.hello = replace(client.hello, capabilities=("teleport", *CAPABILITIES))
    async with client:
        assert client.welcome is not None
        assert client.welcome.capabilities == (PIN, CHECK), "this server keeps no orders"
        client.send(Check(7, b"d/f"))
        assert await client.message() == Checked(7, source.catalog_id, source.head_revision)
        source.failure = SourceReadError("the disk is away")
        client.send(Check(8, b"d/f"))
        assert await client.message() == Checked(8, source.catalog_id, 0, "source-read", "the disk is away")
        assert source.checks == [b"d/f", b"d/f"]


async def test_more_checks_than_may_be_open_are_refused_one_by_one(
    serve: Serve, source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHECKS_MAX_OUTSTANDING", 2)
    release = asyncio.Event()

    async def check(path: bytes) -> int:
        await release.wait()
        return 5

    monkeypatch.setattr(source, "check", check)
    server = await serve()
    async with WireClient(server.port) as client:
        for token in range(3):
            client.send(Check(token, b"f"))
        refused = await client.message()
        assert isinstance(refused, Checked)
        assert (refused.token, refused.code) == (2, "overloaded")
        release.set()
        assert {(await client.message()).token for _ in range(2)} == {0, 1}  # type: ignore[union-attr]
