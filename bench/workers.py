"""What a hub sends with one serving process and with several, over loopback: ``python -m bench.workers``.

Each reader is a process of its own that speaks the wire as a spoke with one connection, asks for the same file again and
again, and drops what it gets, unverified. Readers and hub share the machine's cores, so on two cores two serving
processes can at best use what the readers leave; CPU seconds per GB say what more cores would give.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.cpu_time import cpu_time
from bench.lab import Lab, ready
from bench.path import ROOT, GivenWay
from bench.read_path import DATASET, FILE, write_random
from common import limits
from common.blocks import BLOCK_BYTES, BlockRange
from common.errors import HeadraceError
from common.terminal import EXIT_FAILED, EXIT_USAGE
from common.units import parse_size
from common.wire import messages as m
from common.wire.connection import Closed, Connection, Received, Role

READ_BLOCKS = limits.READ_MAX_BLOCKS // 4
READS_AHEAD = 8
WARM_UP_S = 1.0


@dataclass(frozen=True)
class Round:
    """``hub_s_per_gb`` and ``readers_s_per_gb``: CPU of all their processes."""

    workers: int
    bytes_per_s: float
    hub_s_per_gb: float
    readers_s_per_gb: float
    slowest_to_fastest: float


class Reader:
    """One connection, blocking."""

    def __init__(self, address: tuple[str, int], number: int) -> None:
        self._socket = socket.create_connection(address)
        self._connection = Connection(Role.SPOKE)
        self._events: list[Closed | Received] = []
        hello = m.Hello((1,), DATASET, f"reader-{number}", number.to_bytes(16, "big"), codecs=(m.Codec.RAW,))
        self._send(hello)
        self.next()

    def _send(self, message: m.Message, request_id: int = 0) -> None:
        self._connection.send(message, request_id)
        self._socket.sendall(b"".join(bytes(chunk) for chunk in self._connection.data_to_send()))

    def next(self) -> m.Message:
        while not self._events:
            count = self._socket.recv_into(self._connection.get_buffer())
            if not count:
                raise HeadraceError("the hub closed a connection")
            self._events += self._connection.buffer_updated(count)
        event = self._events.pop(0)
        if isinstance(event, Closed):
            raise HeadraceError(event.reason)
        return event.message

    def version(self) -> bytes:
        """Of the one file there is."""
        self._send(m.Subscribe(b"", 0))
        page = self.next()
        assert isinstance(page, m.SnapshotPage)
        return dict(page.entries)[FILE.encode()].version

    def read_until(self, version: bytes, size_bytes: int, start_s: float, end_s: float) -> int:
        """Bytes received between two moments of the monotonic clock."""
        last_start = size_bytes // BLOCK_BYTES - READ_BLOCKS
        position, got_bytes = 0, 0

        def ask() -> None:
            nonlocal position
            request = m.Read(version, (BlockRange(position, READ_BLOCKS),), m.Priority.PREFETCH, 0)
            self._send(request, self._connection.new_request_id())
            position = position + READ_BLOCKS if position + READ_BLOCKS <= last_start else 0

        for _ in range(READS_AHEAD):
            ask()
        while (now_s := time.monotonic()) < end_s:
            data = self.next()
            if isinstance(data, m.Data):
                got_bytes += len(data.payload) if now_s >= start_s else 0
                if data.last:
                    ask()
            elif isinstance(data, m.Error):
                raise HeadraceError(data.message)
        return got_bytes


def in_child(work: Callable[[], int]) -> tuple[int, int]:
    """(pid, descriptor to read a number from)."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(write_fd, str(work()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write_fd)
    return pid, read_fd


def one_round(lab: Lab, workers: int, version: bytes, arguments: argparse.Namespace) -> Round:
    with urllib.request.urlopen(f"http://{lab.hub_metrics}/status", timeout=5) as response:
        pids = [lab.hub_pid(), *(worker["pid"] for worker in json.load(response)["workers"])]
    start_s = time.monotonic() + WARM_UP_S
    end_s = start_s + arguments.seconds
    address, size_bytes = lab.hub_address, arguments.size

    def read_as(number: int) -> int:
        return Reader(address, number).read_until(version, size_bytes, start_s, end_s)

    children = [in_child(partial(read_as, number)) for number in range(1, arguments.readers + 1)]
    time.sleep(max(0.0, start_s - time.monotonic()))
    before = [(cpu_time(pid).total_s, pid) for pid in [*pids, *(pid for pid, _ in children)]]
    time.sleep(max(0.0, end_s - time.monotonic() - 0.02))
    used = {pid: cpu_time(pid).total_s - cpu for cpu, pid in before}
    got: list[int] = []
    for pid, read_fd in children:
        with os.fdopen(read_fd) as pipe:
            text = pipe.read()
        os.waitpid(pid, 0)
        if not text:
            raise HeadraceError("a reader failed")
        got.append(int(text))
    moved_gb = sum(got) / 1e9
    return Round(
        workers,
        sum(got) / arguments.seconds,
        sum(used[pid] for pid in pids) / moved_gb,
        sum(used[pid] for pid, _ in children) / moved_gb,
        min(got) / max(got),
    )


def measure(arguments: argparse.Namespace, say: Callable[[str], object]) -> dict[str, Any]:
    rounds: list[Round] = []
    for number in range(arguments.rounds):  # in turns: what else runs on the machine meets all of them
        for workers in arguments.workers:
            say(f"round {number + 1} of {arguments.rounds}, {workers} serving")
            with Lab() as lab:
                data = lab.directory / "data"
                data.mkdir()
                write_random(data / FILE, arguments.size)
                way = GivenWay("loopback", [], "127.0.0.1")
                lab.start_hub_at(way, DATASET, data, "--compression", "off", "--workers", str(workers))
                version = Reader(lab.hub_address, 0).version()
                rounds.append(one_round(lab, workers, version, arguments))
    return {
        "machine": {"kernel": platform.release(), "python": platform.python_version(), "cores": os.cpu_count()},
        "readers": arguments.readers,
        "seconds": arguments.seconds,
        "rounds": [asdict(found) for found in rounds],
    }


def show(result: dict[str, Any], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, title="A hub's serving processes over loopback, medians", title_justify="left")
    for name in ("serving", "GB/s", "hub CPU s/GB", "readers' CPU s/GB", "slowest / fastest reader"):
        table.add_column(name, justify="right", no_wrap=True)
    for workers in dict.fromkeys(found["workers"] for found in result["rounds"]):
        mine = [found for found in result["rounds"] if found["workers"] == workers]
        names = ("hub_s_per_gb", "readers_s_per_gb", "slowest_to_fastest")
        speed = statistics.median(found["bytes_per_s"] for found in mine) / 1e9
        others = (f"{statistics.median(found[name] for found in mine):.2f}" for name in names)
        table.add_row(str(workers), f"{speed:.2f}", *others)
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.workers", description="A hub with several processes.")
    parser.add_argument("--size", type=parse_size, default=256 << 20, help="of the file (default 256MiB)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], metavar="N", help="(default 1 2)")
    parser.add_argument("--readers", type=int, default=2, metavar="N", help="spokes at once (default 2)")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured in each round (default 5)")
    parser.add_argument("--rounds", type=int, choices=range(1, 20), default=3, metavar="N", help="(default 3)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out", help="where the JSON goes")
    console = Console(highlight=False, soft_wrap=True)
    arguments = ready(console, parser.parse_args)
    if arguments is None:
        return EXIT_USAGE
    try:
        result = measure(arguments, lambda line: console.print(f"  {line}"))
    except (HeadraceError, OSError) as error:
        console.print(f"[red]failed:[/] {escape(str(error))}")
        return EXIT_FAILED
    (arguments.out / "workers.json").write_text(json.dumps(result, indent=1) + "\n")
    show(result, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
