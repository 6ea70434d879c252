"""How fast bytes come through the mount, as ratios within one run: ``python -m bench.read_path``.

Cold: one reader, a whole file in order, empty cache, default settings, over the link; goodput as a share of the link.
Warm: the same file through the mount and, directly, the cache's own data file, both in the page cache, taking turns
(A B A B …); the median of the pairs' ratios. The loops run in Python, whose cost a read is in both sides of a ratio.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.demo.summary import difference, reads_seen
from bench.flags import add_link_flags
from bench.lab import Lab, Spoke, in_lab, ready
from bench.link import LinkShape
from bench.path import ROOT, describe, make_way
from common.errors import HeadraceError
from common.terminal import EXIT_USAGE
from common.units import format_size, parse_size

DATASET = "bench"
FILE = "data.bin"
READ_BYTES = 1 << 20
PAGE_BYTES = 4096
RANDOM_READS = 20_000
WARM_PAIRS = 7


@dataclass(frozen=True)
class Pairs:
    """Speeds of the two sides, pair by pair; the unit is the measurement's."""

    mount: list[float]
    direct: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(ours / theirs for ours, theirs in zip(self.mount, self.direct, strict=True))


def read_in_order(path: Path) -> float:
    """Bytes per second of one pass in reads of 1 MiB, from open to the last byte."""
    buffer = bytearray(READ_BYTES)
    total_bytes = 0
    started_s = time.perf_counter()
    fd = os.open(path, os.O_RDONLY)
    try:
        while count := os.readv(fd, [buffer]):
            total_bytes += count
    finally:
        os.close(fd)
    elapsed_s = time.perf_counter() - started_s
    if total_bytes != path.stat().st_size:
        raise HeadraceError(f"{path}: read {total_bytes} bytes of {path.stat().st_size}")
    return total_bytes / elapsed_s


def read_at_random(path: Path, dice: Random) -> float:
    """Reads of 4 KiB a second at random pages."""
    buffer = bytearray(PAGE_BYTES)
    offsets = [dice.randrange(path.stat().st_size // PAGE_BYTES) * PAGE_BYTES for _ in range(RANDOM_READS)]
    fd = os.open(path, os.O_RDONLY)
    try:
        started_s = time.perf_counter()
        for offset in offsets:
            os.preadv(fd, [buffer], offset)
        return len(offsets) / (time.perf_counter() - started_s)
    finally:
        os.close(fd)


def in_turns(measure: Callable[[Path], float], mount: Path, direct: Path) -> Pairs:
    """A B A B …, after one pass of each that is not counted."""
    measure(mount), measure(direct)
    pairs = [(measure(mount), measure(direct)) for _ in range(WARM_PAIRS)]
    return Pairs([pair[0] for pair in pairs], [pair[1] for pair in pairs])


def plain_stream(lab: Lab, shape: LinkShape, size_bytes: int) -> float:
    """What one plain TCP connection gets through the delay proxy, bytes per second, connecting included."""
    server = socket.create_server(("127.0.0.1", 0))

    def send() -> None:
        with server, server.accept()[0] as peer:
            block = memoryview(bytes(READ_BYTES))
            left_bytes = size_bytes
            while left_bytes:
                left_bytes -= peer.send(block[:left_bytes])

    sender = threading.Thread(target=send, name="plain stream", daemon=True)
    sender.start()
    with make_way("proxy", shape, lab.directory / "plain-proxy.log", lab.environ) as way:
        host, port = way.open(server.getsockname()[:2]).rsplit(":", 1)
        started_s = time.perf_counter()
        with socket.create_connection((host, int(port))) as connection:
            buffer = bytearray(READ_BYTES)
            received_bytes = 0
            while count := connection.recv_into(buffer):
                received_bytes += count
        elapsed_s = time.perf_counter() - started_s
    sender.join()
    return received_bytes / elapsed_s


def cached_data(spoke: Spoke, size_bytes: int) -> Path:
    """The cache's own file for the one file of the dataset (one sparse file a version)."""
    found = [path for path in (spoke.cache / "versions").rglob("*.data") if path.stat().st_size == size_bytes]
    if len(found) != 1:
        raise HeadraceError(f"expected one data file of {size_bytes} bytes in {spoke.cache}, found {len(found)}")
    return found[0]


def write_random(path: Path, size_bytes: int) -> None:
    dice = Random(1)
    with path.open("wb") as file:
        for start in range(0, size_bytes, READ_BYTES):
            file.write(dice.randbytes(min(READ_BYTES, size_bytes - start)))


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def measure(lab: Lab, arguments: argparse.Namespace, say: Callable[[str], object]) -> dict[str, Any]:
    """All of it; raises HeadraceError."""
    shape = LinkShape(arguments.rtt, arguments.rate)
    data = lab.directory / "data"
    data.mkdir()
    # Random bytes: what a link carries of them cannot be flattered by compression.
    write_random(data / FILE, arguments.size)
    wanted = sha256(data / FILE)
    lab.start_hub(DATASET, data, shape, arguments.link)
    plain = plain_stream(lab, shape, arguments.size) if lab.link_kind == "delay proxy" else None
    cold: list[float] = []
    for number in range(arguments.rounds):
        say(f"cold, {number + 1} of {arguments.rounds}: {format_size(arguments.size)} over {describe(shape)}")
        spoke = lab.mount(DATASET, f"cold{number}", "--cache-size", format(arguments.size * 2, "d"))
        cold.append(read_in_order(spoke.mountpoint / FILE))
        if sha256(spoke.mountpoint / FILE) != wanted:
            raise HeadraceError("the mount gave other bytes than the hub's file has")
        if number + 1 < arguments.rounds:
            lab.unmount(spoke)
    say("warm: the mount and the cache's data file in turns")
    spoke.warm()
    through, direct = spoke.mountpoint / FILE, cached_data(spoke, arguments.size)
    before = spoke.numbers()
    in_order = in_turns(read_in_order, through, direct)
    at_random = in_turns(lambda path: read_at_random(path, Random(2)), through, direct)
    reached = reads_seen(difference(before, spoke.numbers()))
    status = spoke.status()
    lab.unmount(spoke)
    return {
        "link": {"text": f"{describe(shape)} ({lab.link_kind})", **asdict(shape)},
        "machine": {"kernel": platform.release(), "python": platform.python_version(), "cores": os.cpu_count()},
        "file_bytes": arguments.size,
        "cold": {
            "bytes_per_s": cold,
            "share_of_link": statistics.median(cold) / shape.rate_bytes_per_s,
            "plain_stream_share_of_link": plain and plain / shape.rate_bytes_per_s,
        },
        "warm_in_order": {**asdict(in_order), "unit": "bytes/s", "ratio": in_order.ratio},
        "warm_at_random": {**asdict(at_random), "unit": "reads/s of 4 KiB", "ratio": at_random.ratio},
        "warm_reads_that_reached_the_spoke": reached,
        "data_path": status["data_path"],
    }


def show(result: dict[str, Any], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=f"{result['link']['text']}; median of the run", title_justify="left")
    for name in ("", "mount", "compared with", "ratio"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    cold, in_order, at_random = result["cold"], result["warm_in_order"], result["warm_at_random"]
    median = statistics.median
    link_bytes_per_s = result["link"]["rate_bytes_per_s"]
    rows = [
        ("cold, in order", median(cold["bytes_per_s"]) / 1e6, link_bytes_per_s / 1e6, "MB/s", cold["share_of_link"]),
        ("warm, in order, 1 MiB", median(in_order["mount"]) / 1e6, median(in_order["direct"]) / 1e6, "MB/s", in_order["ratio"]),
        ("warm, random, 4 KiB", median(at_random["mount"]), median(at_random["direct"]), "reads/s", at_random["ratio"]),
    ]  # fmt: skip
    for name, ours, theirs, unit, ratio in rows:
        table.add_row(name, f"{ours:,.0f} {unit}", f"{theirs:,.0f} {unit}", f"{ratio:.3f}")
    console.print(table)
    plain = cold["plain_stream_share_of_link"]
    if plain is not None:
        console.print(f"  One plain TCP stream of as many bytes over the same kind of link: {plain:.3f} of it.")
    path = result["data_path"]
    console.print(
        f"  Cold is compared with the link, warm with the cache's data file read directly; passthrough is "
        f"{'live' if path['passthrough'] else 'off: ' + str(path['reason'])}, {path['passthrough_opens']} such opens, "
        f"{result['warm_reads_that_reached_the_spoke']} warm reads reached the spoke."
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.read_path", description="Read speed through the mount.")
    parser.add_argument("--size", type=parse_size, default=300 << 20, help="of the file (default 300MiB)")
    add_link_flags(parser)
    parser.add_argument(
        "--rounds", type=int, choices=range(1, 20), default=3, metavar="N", help="cold reads (default 3)"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out", help="where the JSON goes")
    parser.add_argument("--keep", action="store_true", help="leave the temporary directory")
    console = Console(highlight=False, soft_wrap=True)
    arguments = ready(console, parser.parse_args)
    if arguments is None:
        return EXIT_USAGE

    def work(lab: Lab) -> None:
        result = measure(lab, arguments, lambda line: console.print(f"  {line}"))
        out = arguments.out / "read_path.json"
        out.write_text(json.dumps(result, indent=1) + "\n")
        show(result, console)
        console.print(f"  {out.relative_to(ROOT) if out.is_relative_to(ROOT) else out}")

    return in_lab(console, work, keep=arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
