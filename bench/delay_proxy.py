"""A TCP proxy that makes the way to a server long and narrow: round trip, rate, jitter, blackhole, cut.

All connections share one link in each direction (bench.link has the model). TCP ends at the proxy, so what users of it
see is an ideal link of that round trip: no loss, no slow start across it. A connection attempt costs one round trip.
Held, not lost: during a blackhole nothing comes out, and what was under way comes out when it ends, as after TCP's
retransmissions; the kernel of the proxy still acknowledges, so only an application's own heartbeat can notice.

As a library: ``async with DelayProxy(target, shape) as proxy: proxy.address``. As a command:
``python -m bench.delay_proxy --target HOST:PORT --rtt 60ms --rate 1gbit``; with ``--commands`` it reads lines
``blackhole on|off``, ``cut``, ``rtt 300ms``, ``rate 100mbit``, ``stats`` from stdin and answers each with a line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from dataclasses import asdict, dataclass, replace
from random import Random
from types import TracebackType
from typing import Any

from bench.forwarding import Connection, Lane, Way
from bench.link import Link, LinkShape
from common.errors import UsageError
from common.runtime import cancel_and_wait, run, stop_on_signals
from common.units import format_address, parse_address, parse_duration, parse_rate


@dataclass(slots=True)
class Counters:
    """``up`` is towards the target. ``held_bytes``: accepted and not yet handed to the receiving socket."""

    connections_total: int = 0
    connections_open: int = 0
    connections_refused_total: int = 0
    cut_total: int = 0
    up_bytes_total: int = 0
    down_bytes_total: int = 0
    held_bytes: int = 0
    held_max_bytes: int = 0


class DelayProxy:
    """Forwards every connection to ``target`` over one link of the given shape; an async context manager.

    ``listen``: port 0 takes a free one; ``address`` says which. Raises OSError when it cannot listen.
    """

    def __init__(
        self, target: tuple[str, int], shape: LinkShape, *, listen: tuple[str, int] = ("127.0.0.1", 0), seed: int = 0
    ) -> None:
        self._target = target
        self._listen = listen
        self._shape = shape
        self._dice = Random(seed)
        self._connections: set[Connection] = set()
        self._dials: set[asyncio.Task[None]] = set()
        self._blackhole = False
        self._healed = asyncio.Event()
        self._healed.set()
        self._counters = Counters()
        self._server: asyncio.Server | None = None
        self._up: Lane
        self._down: Lane

    async def __aenter__(self) -> DelayProxy:
        loop = asyncio.get_running_loop()
        self._up = Lane(loop, Link(self._shape, self._dice))
        self._down = Lane(loop, Link(self._shape, self._dice))
        self._server = await loop.create_server(lambda: self._new_connection().client, *self._listen, backlog=512)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._up.freeze(True)
        self._down.freeze(True)
        self._reset_all()
        await cancel_and_wait(*self._dials)
        await self._server.wait_closed()

    @property
    def address(self) -> tuple[str, int]:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def shape(self) -> LinkShape:
        return self._shape

    def counters(self) -> Counters:
        return replace(self._counters, connections_open=len(self._connections))

    def reshape(self, shape: LinkShape) -> None:
        """From now on the link is like this; what is under way keeps its arrival time."""
        self._shape = self._up.link.shape = self._down.link.shape = shape

    def blackhole(self, on: bool) -> None:
        """While on, nothing comes out on either side and nothing more is taken in; new connections hang."""
        self._blackhole = on
        for connection in self._connections:
            connection.blackhole(on)
        self._up.freeze(on)
        self._down.freeze(on)
        if on:
            self._healed.clear()
        else:
            self._healed.set()

    def cut(self) -> int:
        """Reset every connection at both ends at once; returns how many."""
        count = len(self._connections)
        self._counters.cut_total += count
        self._reset_all()
        return count

    def _reset_all(self) -> None:
        for connection in list(self._connections):
            connection.reset()

    # --- called by connections and pipes ---------------------------------------------------------------------

    def _new_connection(self) -> Connection:
        return Connection(self, self._up, self._down)

    def client_accepted(self, connection: Connection) -> None:
        self._counters.connections_total += 1
        self._connections.add(connection)
        connection.blackhole(self._blackhole)
        dial = asyncio.get_running_loop().create_task(self._dial(connection), name="delay proxy dial")
        self._dials.add(dial)
        dial.add_done_callback(self._dials.discard)
        connection.dial = dial

    def connection_closed(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def count_held(self, size_bytes: int) -> None:
        self._counters.held_bytes += size_bytes
        self._counters.held_max_bytes = max(self._counters.held_max_bytes, self._counters.held_bytes)

    def count_delivered(self, way: Way, size_bytes: int, *, lost: bool) -> None:
        self._counters.held_bytes -= size_bytes
        if lost:
            return
        if way == "up":
            self._counters.up_bytes_total += size_bytes
        else:
            self._counters.down_bytes_total += size_bytes

    async def _dial(self, connection: Connection) -> None:
        """SYN and SYN-ACK cross the link before the first byte does."""
        await asyncio.sleep(self._shape.rtt_s)
        await self._healed.wait()
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection.target, *self._target)
        except OSError:
            self._counters.connections_refused_total += 1
            connection.client.reset()
            return
        if connection.client.transport is None:
            connection.target.reset()


# --- the command ---------------------------------------------------------------------------------------------


def obey(proxy: DelayProxy, line: str) -> dict[str, Any]:
    """Carry out one command line; the answer goes back as JSON. Raises UsageError."""
    match line.split():
        case ["blackhole", ("on" | "off") as state]:
            proxy.blackhole(state == "on")
            return {"blackhole": state}
        case ["cut"]:
            return {"cut": proxy.cut()}
        case ["rtt", text]:
            proxy.reshape(replace(proxy.shape, rtt_s=parse_duration(text)))
            return {"rtt_s": proxy.shape.rtt_s}
        case ["rate", text]:
            proxy.reshape(replace(proxy.shape, rate_bytes_per_s=parse_rate(text)))
            return {"rate_bytes_per_s": proxy.shape.rate_bytes_per_s}
        case ["stats"]:
            return asdict(proxy.counters())
        case _:
            raise UsageError(f"{line!r} is not a command; use blackhole on|off, cut, rtt TIME, rate RATE or stats")


async def _take_commands(proxy: DelayProxy) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode("utf-8", "replace").strip():
        try:
            answer = obey(proxy, line)
        except (UsageError, ValueError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


async def _serve(arguments: argparse.Namespace) -> None:
    shape = LinkShape(arguments.rtt, arguments.rate, arguments.jitter, arguments.queue)
    stop = asyncio.Event()
    stop_on_signals(stop)
    async with DelayProxy(arguments.target, shape, listen=arguments.listen, seed=arguments.seed) as proxy:
        print(f"listening on {format_address(*proxy.address)}", flush=True)
        commands = asyncio.create_task(_take_commands(proxy), name="commands") if arguments.commands else None
        await stop.wait()
        await cancel_and_wait(commands)
        print(json.dumps(asdict(proxy.counters())), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.delay_proxy", description="Make the way to a server long.")
    parser.add_argument("--target", required=True, type=parse_address, help="HOST:PORT to forward to")
    parser.add_argument(
        "--listen", default=("127.0.0.1", 0), type=parse_address, help="HOST:PORT (default: a free port)"
    )
    parser.add_argument("--rtt", default=0.060, type=parse_duration, help="round trip, e.g. 60ms (default)")
    parser.add_argument(
        "--rate", default=math.inf, type=parse_rate, help="per direction, e.g. 1gbit (default: no limit)"
    )
    parser.add_argument("--jitter", default=0.0, type=parse_duration, help="added at random to the one-way delay")
    parser.add_argument(
        "--queue", default=0.010, type=parse_duration, help="what may wait before the wire (default 10ms)"
    )
    parser.add_argument("--seed", default=0, type=int, help="of the jitter")
    parser.add_argument("--commands", action="store_true", help="obey lines from stdin")
    try:
        run(_serve(parser.parse_args()))
    except (OSError, UsageError, ValueError) as error:
        print(f"delay proxy: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
