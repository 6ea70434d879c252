"""Hub and spoke over a long link: goodput, demand latency idle and under load, bytes on the wire, CPU.

The link is netem in a namespace where the kernel has it, else the delay proxy; or whatever lies between two ends that
somebody else has made: ``--hub-exec 'PREFIX…' --spoke-exec 'PREFIX…' --hub-address HOST`` (``--rtt`` and ``--rate`` then
only say what to compare with). The ends must share this mount namespace: the readers run here, on the spoke's mount.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import xxhash
from rich.console import Console

from bench import used_memory
from bench.cpu_time import cpu_time
from bench.lab import Lab, Spoke, in_lab, ready
from bench.link import LinkShape
from bench.path import ROOT, GivenWay, Way, describe, make_way
from bench.wan import echo, report
from common.errors import HeadraceError, UsageError
from common.terminal import EXIT_USAGE
from common.units import format_size, parse_duration, parse_rate, parse_size

DATASET = "wan"
PROBED = "probed"
PROBED_BYTES = 64 << 20
POOL_BYTES = 16 << 20
PIECE_BYTES = 1 << 20


def write_noise(path: Path, size_bytes: int, dice: Random, pool: memoryview) -> str:
    """Bytes that do not compress within any transfer unit, and whose every block is its own; returns their xxh3-64."""
    hashed = xxhash.xxh3_64()
    with path.open("wb") as file:
        for start_bytes in range(0, size_bytes, PIECE_BYTES):
            at = dice.randrange(len(pool) - PIECE_BYTES)
            piece = bytearray(pool[at : at + min(PIECE_BYTES, size_bytes - start_bytes)])
            piece[:16] = dice.randbytes(16)[: len(piece)]
            hashed.update(piece)
            file.write(piece)
    return hashed.hexdigest()


def make_dataset(directory: Path, loads: Sequence[int], total_bytes: int, turns: int = 1) -> dict[str, str]:
    """For each number of readers, and each turn, as many files of ``total_bytes`` together, and one for its prober; digests by name."""
    dice = Random(1)
    pool = memoryview(os.urandom(POOL_BYTES))
    (directory / PROBED).mkdir()
    for readers in loads:
        write_noise(directory / probed_name(readers), PROBED_BYTES, dice, pool)
    return {
        name: write_noise(directory / name, total_bytes // readers, dice, pool)
        for readers in loads
        for turn in range(turns)
        for name in file_names(readers, turn)
    }


def file_names(readers: int, turn: int = 0) -> list[str]:
    return [f"load{readers}-{number}{'-again' * turn}.bin" for number in range(readers)]


def probed_name(readers: int) -> str:
    """Each load's prober has a file of its own: what one mount reads is an order that the hub keeps, and another mount that reads
    the same pages follows it and fetches what else was read beside them. And a directory: what comes after the last of the readers'
    files is fetched as their next one."""
    return f"{PROBED}/{readers}.bin"


def put_load(
    spoke: Spoke, names: Sequence[str], probed: str, skip: int, most: int, gap_s: float, timeout_s: float
) -> dict[str, Any]:
    command = [
        *(sys.executable, "-m", "bench.wan.load", *(str(spoke.mountpoint / name) for name in names)),
        *("--probe", str(spoke.mountpoint / probed), "--skip", str(skip), "--most", str(most), "--gap", str(gap_s)),
    ]
    try:
        done = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=ROOT, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        raise HeadraceError(f"the load did not end within {timeout_s:g} s") from None
    if done.returncode:
        raise HeadraceError(f"the load failed: {done.stderr.strip()}")
    facts = json.loads(done.stdout)
    assert isinstance(facts, dict)
    return facts


class Outage:
    """Silences the way once, some time after ``begin``. ``end`` waits for it and raises what went wrong."""

    def __init__(self, way: Way, at_s: float, for_s: float) -> None:
        self._way, self._at_s, self._for_s = way, at_s, for_s
        self._error: HeadraceError | None = None
        self._thread = threading.Thread(target=self._run, name="outage", daemon=True)

    def begin(self) -> None:
        if self._for_s:
            self._thread.start()

    def end(self) -> None:
        if self._for_s:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            time.sleep(self._at_s)
            self._way.silence(on=True)
            try:
                time.sleep(self._for_s)
            finally:
                self._way.silence(on=False)
        except HeadraceError as error:
            self._error = error


def measure(lab: Lab, way: Way, arguments: argparse.Namespace, say: Callable[[str], object]) -> report.Result:
    """All of it; raises HeadraceError."""
    shape = LinkShape(arguments.rtt, arguments.rate, loss=arguments.loss)
    data = lab.directory / "data"
    data.mkdir()
    total_bytes = arguments.size
    say(f"{format_size(total_bytes)} for each load")
    if arguments.used_memory:
        # Before the dataset: what was read last leaves memory last.
        used_memory.fill()
    turns = 2 if arguments.idle else 1
    digests = make_dataset(data, arguments.readers, total_bytes, turns)
    lab.start_hub_at(way, DATASET, data, *shlex.split(arguments.hub_flags))
    hub_pid = lab.hub_pid()
    flags = ("--cache-size", str((1 + turns) * total_bytes + (1 << 30)), *shlex.split(arguments.spoke_flags))
    timeout_s = 60 + 20 * total_bytes / min(shape.rate_bytes_per_s, 1e8)
    idle_s: list[float] = []
    plain_s: list[float] = []
    runs = []
    for readers in arguments.readers:
        spoke = lab.mount(DATASET, f"load{readers}", *flags)
        if not idle_s:
            say(f"{arguments.probes} cold pages over an idle link")
            facts = put_load(spoke, [], probed_name(readers), 0, arguments.probes, 0.02, timeout_s)
            idle_s = [took_s for _, took_s in facts["probes"]]
            plain_s = echo.measure(way, shlex.split(arguments.spoke_exec or ""), arguments.probes)
            time.sleep(arguments.pause)
        if arguments.used_memory:
            used_memory.fill()
        pages = arguments.probes
        for turn in range(turns):
            if turn:
                say(f"nothing for {arguments.idle:g} s, and then the same load over the same connections")
                time.sleep(arguments.idle)
            say(f"{readers} reader{'s' if readers > 1 else ''}, and cold pages beside")
            before, hub_before_s = spoke.status(), cpu_time(hub_pid).total_s
            spoke_before_s = cpu_time(before["pid"]).total_s
            outage = Outage(way, arguments.outage_at, arguments.outage)
            outage.begin()
            names = file_names(readers, turn)
            facts = put_load(spoke, names, probed_name(readers), pages, 10_000, arguments.gap, timeout_s)
            outage.end()
            pages += len(facts["probes"])
            after = spoke.status()
            check(facts, digests)
            runs.append(
                report.Run(
                    readers=readers,
                    bucket_s=facts["bucket_s"],
                    bytes_by_bucket=facts["bytes_by_bucket"],
                    ended_s=[reader["ended_s"] for reader in facts["readers"]],
                    probes=facts["probes"],
                    wire_bytes=after["hub"]["received_bytes"] - before["hub"]["received_bytes"],
                    hub_cpu_s=cpu_time(hub_pid).total_s - hub_before_s,
                    spoke_cpu_s=cpu_time(after["pid"]).total_s - spoke_before_s,
                    links=len(after["hub"]["links"]),
                    after_idle_s=arguments.idle * turn,
                )
            )
        lab.unmount(spoke)
    text = f"{describe(shape)}{f', {shape.loss:.2%} loss' if shape.loss else ''} ({way.kind})"
    if arguments.outage:
        text += f", silent for {arguments.outage:g} s"
    return report.Result(text, shape.rtt_s, shape.rate_bytes_per_s, idle_s, plain_s, runs, shlex.join(sys.argv[1:]))


def check(facts: dict[str, Any], digests: dict[str, str]) -> None:
    for reader in facts["readers"]:
        if reader["error"]:
            raise HeadraceError(f"reading {reader['file']}: {reader['error']}")
        if reader["digest"] != digests[reader["file"]]:
            raise HeadraceError(f"the mount gave other bytes of {reader['file']} than the hub's file has")


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Raises UsageError; argparse's own exits for unknown flags."""
    parser = argparse.ArgumentParser(prog="python -m bench.wan", description="What a long link leaves of its speed.")
    parser.add_argument("--rtt", type=parse_duration, default=0.060, help="round trip (default 60ms)")
    parser.add_argument("--rate", type=parse_rate, default=125e6, help="of the link (default 1gbit)")
    parser.add_argument("--loss", type=float, default=0.0, help="share of packets lost, 0.001 is 0.1 %% (netem only)")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of each load, at the link's full rate (default 10)"
    )
    parser.add_argument("--size", type=parse_size, help="of each load instead, e.g. 300MiB")
    parser.add_argument("--readers", default="1,8", help="loads by number of readers (default 1,8)")
    parser.add_argument("--probes", type=int, default=50, help="cold pages read on the idle link (default 50)")
    parser.add_argument("--gap", type=parse_duration, default=0.02, help="between two cold pages under load (20ms)")
    parser.add_argument(
        "--idle",
        type=parse_duration,
        default=0.0,
        help="after each load so much silence, then another on the same mount",
    )
    parser.add_argument(
        "--pause", type=parse_duration, default=0.0, help="of silence between idle probes and first load"
    )
    parser.add_argument("--outage", type=parse_duration, default=0.0, help="silence during each load (default none)")
    parser.add_argument("--outage-at", type=parse_duration, default=3.0, help="after the load began (default 3s)")
    parser.add_argument("--link", choices=("auto", "proxy", "netem"), default="auto", help="what makes it long")
    parser.add_argument("--hub-exec", help="command prefix that runs the hub at its end of a given link")
    parser.add_argument("--spoke-exec", help="the same for the spoke")
    parser.add_argument("--hub-address", help="where the hub listens on a given link")
    parser.add_argument("--outage-begin", help="command that silences a given link")
    parser.add_argument("--outage-end", help="command that undoes it")
    parser.add_argument("--hub-flags", default="", help="more flags for the hub, as one word")
    parser.add_argument("--spoke-flags", default="", help="more flags for the spoke, as one word")
    used_memory.add_memory_flag(parser)
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out/wan", help="where JSON and picture go")
    parser.add_argument("--name", default="wan", help="of the files there")
    parser.add_argument("--keep", action="store_true", help="leave the temporary directory")
    arguments = parser.parse_args(words)
    try:
        arguments.readers = [int(word) for word in str(arguments.readers).split(",")]
    except ValueError:
        raise UsageError(
            f"--readers {arguments.readers!r}: numbers with commas between them, for example 1,8"
        ) from None
    if min(arguments.readers) < 1 or max(arguments.readers) > 64:
        raise UsageError(f"--readers {arguments.readers}: 1 to 64 each")
    if len(set(arguments.readers)) < len(arguments.readers):
        raise UsageError(
            f"--readers {arguments.readers}: each number once, the second would find the first one's cache"
        )
    given = [arguments.hub_exec, arguments.spoke_exec, arguments.hub_address]
    if any(given) != all(given):
        raise UsageError("a given link needs all of --hub-exec, --spoke-exec and --hub-address")
    if arguments.outage and any(given) and not (arguments.outage_begin and arguments.outage_end):
        raise UsageError("an outage of a given link needs --outage-begin and --outage-end")
    if not arguments.rate > 0:
        raise UsageError("--rate is above 0")
    if not arguments.size:
        if math.isinf(arguments.rate):
            raise UsageError("a link without limit needs --size")
        arguments.size = int(arguments.rate * arguments.seconds)
    arguments.size -= arguments.size % (PIECE_BYTES * math.lcm(*arguments.readers))
    if arguments.size <= 0:
        raise UsageError("a load of less than 1 MiB for each reader measures nothing")
    return arguments


def main() -> int:
    console = Console(highlight=False, soft_wrap=True)
    arguments = ready(console, parse)
    if arguments is None:
        return EXIT_USAGE

    def work(lab: Lab) -> None:
        if arguments.hub_address:
            silencers = (
                shlex.split(arguments.outage_begin or "false"),
                shlex.split(arguments.outage_end or "false"),
            )
            way = GivenWay("a given link", shlex.split(arguments.hub_exec), arguments.hub_address, silencers)
            result = measure(lab, way, arguments, lambda line: console.print(f"  {line}"))
        else:
            shape = LinkShape(arguments.rtt, arguments.rate, loss=arguments.loss)
            with make_way(arguments.link, shape, lab.directory / "proxy.log", lab.environ) as made:
                result = measure(lab, made, arguments, lambda line: console.print(f"  {line}"))
        report.show(result, console)
        for path in report.write(result, arguments.out, arguments.name):
            console.print(f"  {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")

    return in_lab(console, work, keep=arguments.keep, spoke_prefix=shlex.split(arguments.spoke_exec or ""))


if __name__ == "__main__":
    sys.exit(main())
