"""What a client can do that means harm: it gets an error or nothing, and the honest one beside it gets its bytes."""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import struct
import time
import tracemalloc
from typing import Any

import pytest

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange
from common.errors import StaleVersion
from common.serving.access import Access, Grant
from common.serving.server import Server
from common.tls import Certificates
from common.wire.connection import Closed, Received
from common.wire.frame import FrameType
from common.wire.messages import Check, Error, Stats, Subscribe
from tests.certificates import hub_files, needs_openssl, spoke_files
from tests.fakes.counting_observer import Counted
from tests.fakes.memory_source import MemorySource
from tests.fakes.wire_client import WireClient

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])  # as the daemons run


async def honest_bytes(server: Server, source: MemorySource) -> None:
    """Somebody else is served as ever."""
    source.put(b"honest", b"h" * 10_000)
    async with asyncio.timeout(5), WireClient(server.port) as client:
        assert await client.fetch(source.version(b"honest"), 10_000) == b"h" * 10_000


async def ended(client: WireClient) -> Error:
    """The ERROR with which the server ended this connection."""
    async with asyncio.timeout(5):
        while True:
            event = await client.receive()
            if isinstance(event, Received) and isinstance(event.message, Error) and event.request_id == 0:
                return event.message
            assert not isinstance(event, Closed), event


def frame(frame_type: int, body_bytes: int, map_bytes: int, flags: int = 0, request_id: int = 0) -> bytes:
    return struct.pack("<IIHHI", body_bytes, map_bytes, frame_type, flags, request_id)


@pytest.mark.parametrize(
    "header",
    [
        frame(FrameType.HELLO, 0xFFFF_FFFF, 0xFFFF_FFFF),
        frame(FrameType.HELLO, 0xFFFF_FFFF, 16),
        frame(FrameType.READ, 0x7FFF_FFFF, 0x7FFF_FFFF, request_id=1),
        frame(FrameType.DATA, limits.FRAME_PAYLOAD_MAX_BYTES + 64, 64),
        frame(999, 0xFFFF_FFFF, 10, flags=2),
    ],
    ids=["map", "payload", "read", "data to a hub", "an optional type"],
)
async def test_huge_declared_lengths_cost_nothing(serve: Any, source: MemorySource, header: bytes) -> None:
    server = await serve()
    tracemalloc.start()
    try:
        clients = [WireClient(server.port) for _ in range(20)]
        before_bytes = tracemalloc.get_traced_memory()[0]
        for client in clients:
            await client.dial()
            client.send_raw(header + bytes(1000))
        for client in clients:
            assert (await ended(client)).code == "protocol"
            await client.close()
        grown_bytes = tracemalloc.get_traced_memory()[1] - before_bytes
    finally:
        tracemalloc.stop()
    # A connection's own buffers (here both ends' are counted): 64 KiB for headers and maps, 64 KiB for the client's reader.
    assert grown_bytes < 20 * 400 * 1024
    await honest_bytes(server, source)


async def test_a_hello_drop_by_drop_is_not_waited_for(
    serve: Any, source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HELLO_TIMEOUT_S", 0.3)
    server = await serve()
    client = WireClient(server.port)
    await client.dial()
    client.connection.send(client.hello)
    hello = b"".join(bytes(chunk) for chunk in client.connection.data_to_send())
    began_s = time.monotonic()

    async def drip() -> None:
        for byte in hello:
            client.send_raw(bytes([byte]))
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    assert "no HELLO within" in (await ended(client)).message
    assert time.monotonic() - began_s < 2
    dripping.cancel()
    await client.close()
    await honest_bytes(server, source)


async def test_more_connections_than_there_may_be(
    serve: Any, source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS_HALF_OPEN_MAX", 50)
    server = await serve()
    clients = [WireClient(server.port) for _ in range(600)]
    for client in clients:
        await client.dial()
    assert server.connections <= 600
    await honest_bytes(server, source)
    async with asyncio.timeout(5):
        while server.connections > 50:
            await asyncio.sleep(0.01)
    for client in clients:
        await client.close()


async def test_reads_stay_in_the_dataset_that_was_granted(source: MemorySource) -> None:
    secret = MemorySource({b"key": b"s" * 5000}, dataset="secret")
    access = Access({"guest": Grant(datasets=("memory",))})
    async with Server({"memory": source, "secret": secret}, listen=("127.0.0.1", 0), access=access) as server:
        async with WireClient(server.port, identity="guest") as client:
            with pytest.raises(StaleVersion):
                await client.fetch(secret.version(b"key"), 5000)
        assert not secret.reads


@pytest.mark.parametrize(
    "path", [b"../etc/passwd", b"/etc/passwd", b"a/../../b", b"a//b", b"a/", b".", b"a\0b", b"x" * 5000]
)
async def test_paths_that_lead_elsewhere(serve: Any, source: MemorySource, path: bytes) -> None:
    server = await serve()
    client = WireClient(server.port)
    await client.dial()
    await client.greet()
    good = Check(1, b"x" * len(path) if len(path) < 256 else b"ok")
    client.connection.send(good)
    sent = b"".join(bytes(chunk) for chunk in client.connection.data_to_send())
    if len(path) < 256:
        client.send_raw(sent.replace(good.path, path))
    else:
        import msgpack

        packed = msgpack.packb({"t": 1, "f": path})
        client.send_raw(frame(FrameType.CHECK, len(packed), len(packed), flags=2) + packed)
    assert "not a safe path" in (await ended(client)).message
    assert source.checks == []
    await client.close()


async def test_a_flood_of_tiny_requests_is_bounded_and_delays_nobody(serve: Any, source: MemorySource) -> None:
    source.put(b"f", os.urandom(64 * BLOCK_BYTES))
    version = source.version(b"f")
    server = await serve()
    async with WireClient(server.port, receive_buffer_bytes=4096) as flood:
        for _ in range(limits.REQUESTS_MAX_OUTSTANDING):
            flood.read(version, BlockRange(random.randrange(64), 1))
        for number in range(2000):
            flood.send(Stats({"n": float(number)}))
            flood.send(Subscribe(b"", 0))
        await honest_bytes(server, source)
        scheduler = server.egress.scheduler
        assert scheduler.read_ahead_bytes <= limits.READ_AHEAD_TOTAL_BYTES
        assert max(scheduler.open_requests(session) for session in server._sessions) <= limits.REQUESTS_MAX_OUTSTANDING


@needs_openssl
async def test_garbage_instead_of_tls_and_inside_of_it(serve: Any, source: MemorySource, observer: Counted) -> None:
    server = await serve(certificates=Certificates(hub_files(), time.time))
    dice = random.Random(7)
    for _ in range(30):
        client = WireClient(server.port)
        await client.dial()
        # A TLS record of a handshake, and what a client must never say in it.
        client.send_raw(b"\x16\x03\x01" + struct.pack(">H", 300) + dice.randbytes(300))
        async with asyncio.timeout(5):
            assert client._reader is not None
            await client._reader.read()
        await client.close()
    context = ssl.create_default_context(cafile=hub_files().ca)
    context.load_cert_chain(*spoke_files()[:2])
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    writer.write(dice.randbytes(5000))
    async with asyncio.timeout(5):
        assert b"protocol" in await reader.read()
    writer.close()
    assert set(observer.codes) == {"authentication", "protocol"}
    async with asyncio.timeout(5):
        while server.connections:
            await asyncio.sleep(0.01)
