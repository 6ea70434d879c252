"""What a byte costs each daemon in CPU time, cold and in order over loopback: ``python -m bench.cpu``.

Beside it, in turns, a plain copy of the same file: one process reads it and sends it over loopback TCP, another receives
it and writes it to a file. That is the least any daemon with a cache has to do (it does not even hand the bytes on to a
reader), so the ratios hold when the machine is slow or shared, while CPU seconds move with it.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench import used_memory
from bench.cpu_time import cpu_time
from bench.lab import Lab, in_lab, ready
from bench.path import ROOT, GivenWay
from bench.read_path import DATASET, FILE, READ_BYTES, read_in_order, write_random
from common.errors import HeadraceError
from common.terminal import EXIT_USAGE
from common.units import parse_size

SETTLE_S = 0.5
"""After the last byte was read: what is still to be written to the cache is part of the cost."""


@dataclass(frozen=True)
class Cost:
    """CPU seconds per 10^9 bytes."""

    user: float
    kernel: float

    @property
    def both(self) -> float:
        return self.user + self.kernel


@dataclass(frozen=True)
class Round:
    hub: Cost
    spoke: Cost
    plain_sender: Cost
    plain_receiver: Cost
    bytes_per_s: float


def in_child(work: Callable[[], object]) -> int:
    """Run ``work`` in a process of its own; returns its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def cost_of_child(pid: int, size_bytes: int) -> Cost:
    """Wait for its end. Raises HeadraceError when it failed."""
    _, status, usage = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise HeadraceError("a plain copy failed")
    return Cost(usage.ru_utime / size_bytes * 1e9, usage.ru_stime / size_bytes * 1e9)


def plain_copy(source: Path, target: Path) -> tuple[Cost, Cost]:
    """The sender's cost and the receiver's."""
    size_bytes = source.stat().st_size
    server = socket.create_server(("127.0.0.1", 0))

    def send() -> None:
        buffer = memoryview(bytearray(READ_BYTES))
        with server.accept()[0] as peer, source.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                peer.sendall(buffer[:count])

    def receive() -> None:
        buffer = memoryview(bytearray(READ_BYTES))
        with socket.create_connection(server.getsockname()) as hub, target.open("wb", buffering=0) as file:
            while count := hub.recv_into(buffer, READ_BYTES, socket.MSG_WAITALL):
                file.write(buffer[:count])

    with server:
        sender = in_child(send)
        receiver = in_child(receive)
        costs = cost_of_child(sender, size_bytes), cost_of_child(receiver, size_bytes)
    target.unlink()
    return costs


def cold_read(lab: Lab, name: str, size_bytes: int, flags: list[str]) -> tuple[Cost, Cost, float]:
    """The hub's cost, the spoke's, and the reader's speed."""
    spoke = lab.mount(DATASET, name, "--cache-size", format(size_bytes * 2, "d"), *flags)
    pids = lab.hub_pid(), int(spoke.status()["pid"])
    before = [cpu_time(pid) for pid in pids]
    bytes_per_s = read_in_order(spoke.mountpoint / FILE)
    time.sleep(SETTLE_S)
    after = [cpu_time(pid) for pid in pids]
    lab.unmount(spoke)
    hub, spoke_cost = (
        Cost((end.user_s - start.user_s) / size_bytes * 1e9, (end.system_s - start.system_s) / size_bytes * 1e9)
        for start, end in zip(before, after, strict=True)
    )
    return hub, spoke_cost, bytes_per_s


def measure(lab: Lab, arguments: argparse.Namespace, say: Callable[[str], object]) -> dict[str, Any]:

    def settle() -> None:
        if arguments.used_memory:
            used_memory.fill()

    data = lab.directory / "data"
    data.mkdir()
    settle()  # before the data: what was read last leaves memory last
    write_random(data / FILE, arguments.size)
    lab.start_hub_at(GivenWay("loopback", [], "127.0.0.1"), DATASET, data)
    rounds: list[Round] = []
    # The first round warms the interpreter's and the machine's memory, and does not count.
    for number in range(arguments.rounds + 1):
        say(f"round {number} of {arguments.rounds}")
        settle()
        sender, receiver = plain_copy(data / FILE, lab.directory / "plain")
        settle()  # the copy is gone, and the memory it took is free
        hub, spoke, bytes_per_s = cold_read(lab, f"cold{number}", arguments.size, arguments.spoke_flag)
        if number:
            rounds.append(Round(hub, spoke, sender, receiver, bytes_per_s))
    return {
        "machine": {"kernel": platform.release(), "python": platform.python_version(), "cores": os.cpu_count()},
        "file_bytes": arguments.size,
        "rounds": [asdict(found) for found in rounds],
        "hub": summary([(found.hub, found.plain_sender) for found in rounds]),
        "spoke": summary([(found.spoke, found.plain_receiver) for found in rounds]),
    }


def summary(pairs: list[tuple[Cost, Cost]]) -> dict[str, float]:
    """Least, because what else runs on the machine only ever adds; and the median of the ratios within each round."""
    least = min((ours for ours, _ in pairs), key=lambda cost: cost.both)
    return {
        "least_user_s_per_gb": least.user,
        "least_kernel_s_per_gb": least.kernel,
        "least_s_per_gb": least.both,
        "median_s_per_gb": statistics.median(ours.both for ours, _ in pairs),
        "plain_least_s_per_gb": min(plain.both for _, plain in pairs),
        "ratio_to_plain": statistics.median(ours.both / plain.both for ours, plain in pairs),
        "gb_per_s_per_core": 1 / least.both,
    }


def show(result: dict[str, Any], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, title="CPU seconds per GB, cold, in order, over loopback", title_justify="left")
    for name in ("", "least", "user", "kernel", "median", "plain copy", "ratio", "GB/s per core"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name in ("hub", "spoke"):
        found = result[name]
        numbers = ("least_s_per_gb", "least_user_s_per_gb", "least_kernel_s_per_gb", "median_s_per_gb")
        more = ("plain_least_s_per_gb", "ratio_to_plain", "gb_per_s_per_core")
        table.add_row(name, *(f"{found[key]:.2f}" for key in (*numbers, *more)))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu", description="CPU time per byte of each daemon.")
    parser.add_argument("--size", type=parse_size, default=512 << 20, help="of the file (default 512MiB)")
    parser.add_argument("--rounds", type=int, choices=range(1, 20), default=3, metavar="N", help="(default 3)")
    parser.add_argument("--spoke-flag", action="append", default=[], help="a flag for headrace-spoke mount")
    used_memory.add_memory_flag(parser)
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out", help="where the JSON goes")
    console = Console(highlight=False, soft_wrap=True)
    arguments = ready(console, parser.parse_args)
    if arguments is None:
        return EXIT_USAGE

    def work(lab: Lab) -> None:
        result = measure(lab, arguments, lambda line: console.print(f"  {line}"))
        (arguments.out / "cpu.json").write_text(json.dumps(result, indent=1) + "\n")
        show(result, console)

    return in_lab(console, work)


if __name__ == "__main__":
    sys.exit(main())
