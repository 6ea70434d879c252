"""Fair shares at one hub: light spokes beside a greedy one, each share against what is fair: ``python -m bench.fair``.

The hub is the real process with its real command line; the spokes speak the real wire over loopback TCP, through
``spoke.hub_client``, without cache or mount: the light ones in one process, each with the two links and the few megabytes asked for
ahead that keep it hungry, the greedy one in another, with 32 links and as much asked for as the hub allows. What is
shared is the hub's total rate (``--rate``); without one (``--rate none``) it is the hub's own time, and whoever reads slowly
leaves his share to others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.lab import Lab, raise_on_sigterm
from bench.path import ROOT, GivenWay
from bench.read_path import write_random
from common import limits, runtime
from common.blocks import EXTENT_BLOCKS, EXTENT_BYTES, BlockRange
from common.errors import HeadraceError
from common.log import configure
from common.serving.weights import Weights, parse_weights
from common.terminal import EXIT_FAILED, EXIT_USAGE
from common.units import format_rate, parse_duration
from common.wire.messages import Data, Priority, SnapshotPage, Subscribe
from spoke.hub_client.client import FeedMessage, HubClient, Request, make_hello
from spoke.hub_client.links import Link

DATASET = "fair"
FILE = b"shared.bin"
FILE_BYTES = 64 << 20
GREEDY = "greedy"
SETTLE_S = 2.0
"""Between the first bytes and the first count: the pace of each is found by then."""


@dataclass(frozen=True)
class Shape:
    """One hungry spoke. ``read_extents``: the size of one READ; ``deep_bytes``: how much it keeps asked for."""

    identity: str
    links: int
    read_extents: int
    deep_bytes: int


def light(number: int, links: int) -> Shape:
    return Shape(f"light-{number:02}", links, 1, 4 * EXTENT_BYTES)


GREEDY_SHAPE = Shape(GREEDY, 31, 16, limits.SPOKE_MAX_OUTSTANDING_BYTES - 16 * EXTENT_BYTES)


class Hungry:
    """Keeps ``deep_bytes`` asked for, for ever; a READ that fails is counted and asked for again. Follows no names but the first."""

    def __init__(self, shape: Shape, host: str, port: int, dice: Random) -> None:
        self._shape = shape
        self._dice = dice
        self._version: bytes | None = None
        self.linked = asyncio.Event()
        """The name of the bytes is known; the links that are still missing come within the time that does not count."""
        self.failures = 0
        self.payload_bytes = 0
        self.client = HubClient(
            host, port, make_hello(DATASET, shape.identity, os.urandom(16), compression=False),
            bulk_links=shape.links, follower=self, clock=runtime.now_s, dice=dice,
        )  # fmt: skip

    def feed_up(self, link: Link) -> None:
        link.send(Subscribe(b"", 0))

    def feed_message(self, link: Link, message: FeedMessage) -> None:
        if isinstance(message, SnapshotPage) and self._version is None:
            self._version = next(entry.version for path, entry in message.entries if path == FILE)
            self.linked.set()

    def feed_lost(self, link: Link) -> None: ...

    def begin(self) -> None:
        for _ in range(self._shape.deep_bytes // (self._shape.read_extents * EXTENT_BYTES)):
            self._ask()

    def _ask(self) -> None:
        assert self._version is not None
        reads = FILE_BYTES // (self._shape.read_extents * EXTENT_BYTES)
        first_block = self._dice.randrange(reads) * self._shape.read_extents * EXTENT_BLOCKS
        blocks = BlockRange(first_block, self._shape.read_extents * EXTENT_BLOCKS)
        self.client.submit(Request(self._version, [blocks], Priority.PREFETCH, None, self))

    def arrived(self, request: Request, data: Data) -> None:
        self.payload_bytes += len(data.payload)

    def finished(self, request: Request) -> None:
        self._ask()

    def failed(self, request: Request, error: HeadraceError) -> None:
        self.failures += 1
        asyncio.get_running_loop().call_later(0.2, self._ask)


async def be_hungry(shapes: Sequence[Shape], host: str, port: int, for_s: float) -> None:
    """A process's part: says when it is linked, begins when told, prints what came to each in ``for_s`` seconds."""
    spokes = [Hungry(shape, host, port, Random(shape.identity)) for shape in shapes]
    for spoke in spokes:
        spoke.client.start()
    async with asyncio.timeout(30):
        for spoke in spokes:
            await spoke.linked.wait()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    for spoke in spokes:
        spoke.begin()
    await asyncio.sleep(SETTLE_S)
    before = [spoke.payload_bytes for spoke in spokes]
    began_s = runtime.now_s()
    await asyncio.sleep(for_s)
    took_s = runtime.now_s() - began_s
    rates = {
        shape.identity: (spoke.payload_bytes - was) / took_s
        for shape, spoke, was in zip(shapes, spokes, before, strict=True)
    }
    print(json.dumps({"rates": rates, "failures": sum(spoke.failures for spoke in spokes)}), flush=True)
    os._exit(0)  # nothing to say goodbye for


@dataclass(frozen=True)
class Share:
    identity: str
    weight: float
    bytes_per_s: float
    of_fair: float


@dataclass(frozen=True)
class Round:
    total_bytes_per_s: float
    failures: int
    shares: list[Share]

    @property
    def worst(self) -> Share:
        """The one furthest from fair, the greedy one left out."""
        return max(
            (share for share in self.shares if share.identity != GREEDY), key=lambda share: abs(share.of_fair - 1)
        )


def measure(lab: Lab, arguments: argparse.Namespace) -> Round:
    """One round against the hub that runs. Raises HeadraceError."""
    host, port = lab.hub_address
    groups = [
        [light(number, arguments.light_links) for number in range(arguments.spokes)],
        [GREEDY_SHAPE] if arguments.greedy else [],
    ]
    workers = [
        subprocess.Popen(
            [*shlex.split(arguments.spoke_exec), sys.executable, "-m", "bench.fair",
             "--as-spokes", json.dumps([asdict(shape) for shape in group]),
             "--at", f"{host}:{port}", "--for", str(arguments.seconds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=lab.environ,
        )
        for group in groups if group
    ]  # fmt: skip
    try:
        found: dict[str, float] = {}
        failures = 0
        for worker in workers:
            assert worker.stdout is not None
            if worker.stdout.readline().strip() != "ready":
                raise HeadraceError("the spokes could not link to the hub within 30 s")
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        for worker in workers:
            assert worker.stdout is not None
            facts = json.loads(worker.stdout.readline() or "null")
            if facts is None:
                raise HeadraceError("spokes ended before they had counted")
            found.update(facts["rates"])
            failures += facts["failures"]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return as_round(found, failures, arguments.weights)


def as_round(rates: dict[str, float], failures: int, weights: Weights) -> Round:
    total = sum(rates.values())
    total_weight = sum(weights.of(identity) for identity in rates)
    shares = [
        Share(identity, weights.of(identity), rate, rate / (total * weights.of(identity) / total_weight))
        for identity, rate in sorted(rates.items())
    ]
    return Round(total, failures, shares)


def render(rounds: Sequence[Round]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("spoke", "weight", *(f"round {number}" for number in range(1, len(rounds) + 1)), "of fair, median"):
        table.add_column(heading, justify="left" if heading == "spoke" else "right")
    for lines in zip(*(found.shares for found in rounds), strict=True):
        table.add_row(
            lines[0].identity,
            f"{lines[0].weight:g}",
            *(format_rate(share.bytes_per_s) for share in lines),
            f"{statistics.median(share.of_fair for share in lines):.3f}",
        )
    return table


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fair", description=__doc__.partition("\n")[0] if __doc__ else ""
    )
    parser.add_argument("--spokes", type=int, default=16, help="light ones (16)")
    parser.add_argument(
        "--greedy", action=argparse.BooleanOptionalAction, default=True, help="beside them, a greedy one"
    )
    parser.add_argument("--rate", default="1.2gbit", help="the hub's --rate-limit (1.2gbit), or none")
    parser.add_argument(
        "--weights", type=parse_weights, default=Weights(), help="the hub's --weights, as light-0*=2,greedy=0.5"
    )
    parser.add_argument("--for", dest="seconds", type=parse_duration, default=10.0, help="how long to count (10s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out")
    parser.add_argument("--light-links", type=int, default=1, help="bulk connections of a light one (1)")
    parser.add_argument(
        "--hub-exec", default="", help="put in front of the hub's command, to run it at one end of a long link"
    )
    parser.add_argument("--hub-log", type=Path, help="keep the hub's log here, at level debug")
    parser.add_argument("--spoke-exec", default="", help="the same for the spokes, at the other end")
    parser.add_argument("--hub-address", default="127.0.0.1", help="of the hub's end (127.0.0.1)")
    parser.add_argument("--as-spokes", help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(argv: Sequence[str] | None = None) -> int:
    console = Console()
    raise_on_sigterm()
    try:
        arguments = parse(argv)
    except HeadraceError as error:
        console.print(f"[red]error:[/] {escape(str(error))}")
        return EXIT_USAGE
    if arguments.as_spokes:
        host, _, port = arguments.at.rpartition(":")
        shapes = [Shape(**facts) for facts in json.loads(arguments.as_spokes)]
        configure("warning", "json")  # to stderr: stdout is for the counts
        runtime.run(be_hungry(shapes, host, int(port), arguments.seconds))
        return 0
    arguments.out.mkdir(parents=True, exist_ok=True)
    with Lab() as lab:
        try:
            rounds = run(lab, arguments, console.print)
        except HeadraceError as error:
            console.print(f"[red]error:[/] {escape(str(error))}\n{escape(lab.last_words())}")
            return EXIT_FAILED
    facts: dict[str, Any] = {
        "rate_limit": arguments.rate,
        "weights": arguments.weights.table,
        "seconds": arguments.seconds,
        "rounds": [asdict(found) for found in rounds],
    }
    (arguments.out / "fair.json").write_text(json.dumps(facts, indent=1))
    console.print(render(rounds))
    for found in rounds:
        failed = f", {found.failures} READs refused" if found.failures else ""
        console.print(
            f"  {format_rate(found.total_bytes_per_s)} in all; furthest from fair: {found.worst.identity},"
            f" {found.worst.of_fair:.3f} of its share{failed}"
        )
    return 0


def run(lab: Lab, arguments: argparse.Namespace, say: Callable[[str], object]) -> list[Round]:
    data = lab.directory / "data"
    data.mkdir()
    write_random(data / FILE.decode(), FILE_BYTES)
    weights = [f"{identity}={weight:g}" for identity, weight in arguments.weights.table.items()]
    flags = [flag for weight in weights for flag in ("--weights", weight)]
    if arguments.hub_log is not None:
        flags += ["--log-level", "debug"]
    lab.start_hub_at(
        GivenWay("given", shlex.split(arguments.hub_exec), arguments.hub_address),
        DATASET,
        data,
        "--rate-limit",
        arguments.rate,
        *flags,
    )
    say(
        f"{arguments.spokes} light spokes{' and a greedy one' if arguments.greedy else ''}, rate limit {arguments.rate}"
    )
    rounds = [measure(lab, arguments) for _ in range(arguments.rounds)]
    if arguments.hub_log is not None:
        shutil.copy(lab.logs["hub"], arguments.hub_log)
    return rounds


if __name__ == "__main__":
    sys.exit(main())
