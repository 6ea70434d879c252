"""The delay proxy with real sockets. Times are only ever compared from below: the machine may be slow, never fast."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

import pytest

from bench.delay_proxy import DelayProxy, obey
from bench.link import LinkShape
from common.errors import UsageError

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SLACK_S = 0.003
"""Timers of the event loop count in milliseconds."""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers until the peer has said all, then closes."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def proxied(
    shape: LinkShape, handler: Handler = echo
) -> AsyncIterator[tuple[DelayProxy, Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]]]:
    """A proxy in front of a server that runs ``handler``, and a way to connect through it."""
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    writers: list[asyncio.StreamWriter] = []
    async with server, DelayProxy(server.sockets[0].getsockname()[:2], shape) as proxy:

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(*proxy.address)
            writers.append(writer)
            return reader, writer

        yield proxy, connect
        for writer in writers:
            writer.close()


async def until(condition: Callable[[], bool]) -> None:
    """The proxy's counters have no event to wait for."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_bytes_come_back_whole_after_the_round_trip() -> None:
    async with proxied(LinkShape(rtt_s=0.050)) as (_, connect):
        reader, writer = await connect()
        started_s = time.monotonic()
        writer.write(b"first")
        assert await reader.readexactly(5) == b"first"
        assert time.monotonic() - started_s >= 2 * 0.050 - SLACK_S  # handshake, then there and back
        started_s = time.monotonic()
        writer.write(b"second")
        assert await reader.readexactly(6) == b"second"
        assert time.monotonic() - started_s >= 0.050 - SLACK_S


async def test_large_data_both_ways_on_many_connections_is_intact_and_ends_with_eof() -> None:
    async def exchange(number: int) -> None:
        reader, writer = await connect()
        payload = Random(number).randbytes(1_500_000 + number)

        async def send() -> None:
            writer.write(payload)
            await writer.drain()
            writer.write_eof()

        _, received = await asyncio.gather(send(), reader.read())
        assert received == payload

    async with proxied(LinkShape(rtt_s=0.010, rate_bytes_per_s=60e6, jitter_s=0.002)) as (proxy, connect):
        await asyncio.gather(*map(exchange, range(4)))
        await until(lambda: proxy.counters().connections_open == 0)
        counters = proxy.counters()
        assert counters.connections_total == 4
        assert counters.up_bytes_total == counters.down_bytes_total == sum(1_500_000 + number for number in range(4))
        assert counters.held_bytes == 0


async def test_connections_share_the_rate() -> None:
    sizes_bytes, rate_bytes_per_s = [400_000, 600_000], 4e6

    async def give(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(sizes_bytes[int(await reader.readexactly(1))]))
        writer.close()

    async def take(number: int) -> int:
        reader, writer = await connect()
        writer.write(b"%d" % number)
        return len(await reader.read())

    async with proxied(LinkShape(rtt_s=0.0, rate_bytes_per_s=rate_bytes_per_s), give) as (_, connect):
        started_s = time.monotonic()
        assert await asyncio.gather(take(0), take(1)) == sizes_bytes
        assert time.monotonic() - started_s >= sum(sizes_bytes) / rate_bytes_per_s - SLACK_S


async def test_a_reader_that_does_not_read_bounds_what_is_held() -> None:
    shape = LinkShape(rtt_s=0.0, rate_bytes_per_s=500e6)
    let_go = asyncio.Event()

    async def ignore(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await let_go.wait()
        writer.close()

    async with proxied(shape, ignore) as (proxy, connect):
        _, writer = await connect()
        writer.write(bytes(4 * shape.window_bytes))
        async with asyncio.timeout(30):
            await until(lambda: proxy.counters().held_max_bytes > shape.window_bytes)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await writer.drain()
        assert proxy.counters().held_max_bytes < 1.1 * shape.window_bytes
        let_go.set()


async def test_a_blackhole_holds_everything_and_loses_nothing() -> None:
    async with proxied(LinkShape(rtt_s=0.020)) as (proxy, connect):
        reader, writer = await connect()
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        proxy.blackhole(True)
        writer.write(b"during")
        late_reader, late_writer = await connect()
        late_writer.write(b"late")
        reads = [asyncio.ensure_future(reader.readexactly(6)), asyncio.ensure_future(late_reader.readexactly(4))]
        done, _ = await asyncio.wait(reads, timeout=0.2)
        assert not done
        assert proxy.counters().up_bytes_total == len(b"before")
        proxy.blackhole(False)
        async with asyncio.timeout(10):
            assert await asyncio.gather(*reads) == [b"during", b"late"]


async def test_a_cut_resets_both_ends() -> None:
    ended: asyncio.Queue[str] = asyncio.Queue()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await reader.readexactly(1))
            await reader.read()
            ended.put_nowait("closed")
        except ConnectionResetError:
            ended.put_nowait("reset")
        writer.close()

    async with proxied(LinkShape(rtt_s=0.010), watch) as (proxy, connect):
        reader, writer = await connect()
        writer.write(b"?")
        assert await reader.readexactly(1) == b"?"
        assert proxy.cut() == 1
        async with asyncio.timeout(10):
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
            assert await ended.get() == "reset"
        await until(lambda: proxy.counters().connections_open == 0)
        assert proxy.counters().cut_total == 1


async def test_a_server_that_goes_away_takes_the_client_along() -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.transport.abort()

    async with proxied(LinkShape(rtt_s=0.010), leave) as (proxy, connect):
        reader, writer = await connect()
        writer.write(b"?")
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        await until(lambda: proxy.counters().connections_open == 0)


async def test_a_target_that_refuses_resets_the_client() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    nobody = server.sockets[0].getsockname()[:2]
    server.close()
    await server.wait_closed()
    async with DelayProxy(nobody, LinkShape(rtt_s=0.010)) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        async with asyncio.timeout(10):
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
        assert proxy.counters().connections_refused_total == 1
        writer.close()


async def test_a_new_shape_holds_from_then_on() -> None:
    async with proxied(LinkShape(rtt_s=0.0)) as (proxy, connect):
        reader, writer = await connect()
        writer.write(b"quick")
        assert await reader.readexactly(5) == b"quick"
        assert obey(proxy, "rtt 80ms") == {"rtt_s": 0.08}
        started_s = time.monotonic()
        writer.write(b"slow")
        assert await reader.readexactly(4) == b"slow"
        assert time.monotonic() - started_s >= 0.080 - SLACK_S


async def test_commands_that_make_no_sense_are_refused() -> None:
    async with DelayProxy(("127.0.0.1", 1), LinkShape(rtt_s=0.0)) as proxy:
        for line in ("blackhole perhaps", "cut all", "rtt", "", "rate fast"):
            with pytest.raises(UsageError):
                obey(proxy, line)


async def test_the_command_says_where_it_listens_obeys_and_counts() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    command = [sys.executable, "-m", "bench.delay_proxy", "--target", f"{host}:{port}", "--rtt", "10ms", "--commands"]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    async with server, asyncio.timeout(30):
        listening = (await process.stdout.readline()).decode()
        assert listening.startswith("listening on 127.0.0.1:")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(listening.rsplit(":", 1)[1]))
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        process.stdin.write(b"nonsense\nstats\n")
        assert "error" in json.loads(await process.stdout.readline())
        assert json.loads(await process.stdout.readline())["up_bytes_total"] == 5
        process.terminate()
        assert json.loads(await process.stdout.readline())["connections_total"] == 1
        assert await process.wait() == 0
        writer.close()
