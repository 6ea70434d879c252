"""What needs no hub while every fetch is stuck: ``python -m bench.stuck``.

A hub that is stopped, a spoke without passthrough (else the kernel serves cached reads alone), and so many threads that wait for
a page of the hub's, with the kernel's readahead behind each. Cached reads (their pages dropped from the kernel's cache before
each), ``ls``, ``stat`` and ``statfs`` are timed one by one in a process of their own: first with nothing stuck, then with all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from bench.flags import positive
from bench.lab import Lab, LabError, Spoke, in_lab, ready
from bench.link import LinkShape
from bench.path import ROOT
from bench.quantiles import quantile
from common.terminal import EXIT_USAGE

MIB = 1 << 20
WARM_BYTES = 16 * MIB
DIRECTORIES = 200
STEP_BYTES = 65536
STUCK_TIMEOUT_S = 60.0
SHARES = {"p50": 0.5, "p99": 0.99, "max": 1.0}

READERS = """
import os, sys, threading
threading.stack_size(65536)
fd = os.open(sys.argv[1], os.O_RDONLY)
def read(number):
    try:
        os.pread(fd, 4096, number << 20)
    except OSError:
        pass
for number in range(int(sys.argv[2])):
    threading.Thread(target=read, args=(number,)).start()
"""


def measure(mountpoint: Path, samples: int) -> dict[str, list[float]]:
    """Seconds of each call, by its kind."""
    fd = os.open(mountpoint / "warm", os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    steps = WARM_BYTES // STEP_BYTES
    calls: dict[str, Callable[[int], object]] = {
        "cached read": lambda number: os.pread(fd, 4096, number % steps * STEP_BYTES),
        "ls": lambda number: os.listdir(mountpoint / f"d{number % DIRECTORIES}"),
        "stat": lambda number: os.stat(mountpoint / f"d{number % DIRECTORIES}" / "f"),
        "statfs": lambda _number: os.statvfs(mountpoint),
    }
    took_s: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(samples):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        for name, call in calls.items():
            began_s = time.perf_counter()
            call(number)
            took_s[name].append(time.perf_counter() - began_s)
    os.close(fd)
    return took_s


def measured_apart(spoke: Spoke, samples: int) -> dict[str, dict[str, float]]:
    """The same in a process of its own, as shares of the calls in milliseconds. Raises LabError."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.stuck", "--measure", str(spoke.mountpoint), "--samples", str(samples)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    if done.returncode:
        raise LabError(f"measuring failed: {done.stderr.strip()}")
    return {
        name: {said: 1000 * quantile(times, share) for said, share in SHARES.items()}
        for name, times in json.loads(done.stdout).items()
    }


def work(lab: Lab, arguments: argparse.Namespace, console: Console) -> None:
    data = lab.directory / "data"
    data.mkdir()
    (data / "warm").write_bytes(os.urandom(WARM_BYTES))
    with (data / "cold").open("wb") as file:
        file.truncate((arguments.stuck + 1) * MIB)
    for number in range(DIRECTORIES):
        (data / f"d{number}").mkdir()
        (data / f"d{number}" / "f").touch()
    lab.start_hub("bench", data, LinkShape(rtt_s=0.001, rate_bytes_per_s=125e6), "proxy")
    spoke = lab.mount("bench", "stuck", "--no-passthrough", "--no-prefetch", "--read-timeout", "0")
    (spoke.mountpoint / "warm").read_bytes()
    quiet = measured_apart(spoke, arguments.samples)
    hub_pid = lab.hub_pid()
    os.kill(hub_pid, signal.SIGSTOP)
    stuck = subprocess.Popen([sys.executable, "-c", READERS, spoke.mountpoint / "cold", str(arguments.stuck)])
    try:
        deadline_s = time.monotonic() + STUCK_TIMEOUT_S
        while (waiting := spoke.status()["reads"]["waiting"]) < arguments.stuck:
            if time.monotonic() > deadline_s:
                raise LabError(f"only {waiting} reads wait, not {arguments.stuck}")
            time.sleep(0.5)
        busy = measured_apart(spoke, arguments.samples)
        waiting = spoke.status()["reads"]["waiting"]
    finally:
        stuck.kill()
        stuck.wait()
        os.kill(hub_pid, signal.SIGCONT)
    table = Table(
        box=box.SIMPLE_HEAD, title=f"{waiting:,} READs stuck; milliseconds a call, {arguments.samples} of each"
    )
    for title in ("", *(f"{said}, none stuck" for said in SHARES), *(f"{said}, stuck" for said in SHARES)):
        table.add_column(title, justify="right" if title else "left")
    for name in quiet:
        table.add_row(name, *(f"{side[name][said]:.2f}" for side in (quiet, busy) for said in SHARES))
    console.print(table)
    facts = {
        "stuck": waiting,
        "samples": arguments.samples,
        "none_stuck_ms": quiet,
        "stuck_ms": busy,
    }
    (arguments.out / "stuck.json").write_text(json.dumps(facts, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.stuck", description="Cached reads and names, all fetches stuck."
    )
    parser.add_argument("--stuck", type=positive, default=1200, help="threads that wait for the hub (default 1200)")
    parser.add_argument("--samples", type=positive, default=1000, help="calls of each kind (default 1000)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out", help="where the JSON goes")
    parser.add_argument("--keep", action="store_true", help="leave the temporary directory")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    console = Console(highlight=False, soft_wrap=True)
    if (inner := parser.parse_args()).measure is not None:
        json.dump(measure(inner.measure, inner.samples), sys.stdout)
        return 0
    arguments = ready(console, parser.parse_args)
    if arguments is None:
        return EXIT_USAGE
    return in_lab(console, lambda lab: work(lab, arguments, console), keep=arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
