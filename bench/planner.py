"""``python -m bench.planner``: what prefetch decisions cost, in CPU time, apart from everything else.

The events of simulated patterns (READs, arrivals, evictions) are recorded once and then fed to fresh ``spoke.ahead.Ahead``, in whose
place before the hub a stub stands. So all is counted that a READ costs between its report and the return from it: counters, the choice of
the kernel's readahead, the planner, asking for what it plans; with ``--learn`` also the recorder of orders and what is noted for
``warm --last``. ``--against DIR``: another checkout's takes turns with this one's, in processes of their own, so that
what else the machine does meanwhile meets both. ``steady`` is one reader in order at 1 GB/s over 10 Gbit/s; its mean tells what share of
a core decisions take there, arrivals and evictions included. Calls of Python and C functions are counted apart: they are the same
however busy the machine is.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.flags import positive
from bench.path import ROOT
from bench.replay.evictors import make_evictor
from bench.replay.pages import MIB, READ, Scale, sweep
from bench.replay.patterns import expand, make
from bench.replay.predictors import Bounds, Planned
from bench.replay.runs import world_for
from bench.replay.simulator import RESULTS, Read, Simulation
from bench.replay.trace import Process, Trace, TraceFile
from common import limits
from common.blocks import BLOCK_BYTES, BlockRange
from common.errors import UsageError
from common.terminal import EXIT_USAGE
from spoke.ahead import Ahead
from spoke.last_job import LastJob
from spoke.metrics import Counts
from spoke.prefetch.planner import Planner
from spoke.prefetch.succession import OrderRecorder
from spoke.reads import Handle

RTT_S, RATE_BYTES_PER_S, LOAD, CACHE_SHARE = 0.06, 125e6, 0.5, 0.25
STEADY_CACHE_SHARE = 0.5  # a stream may be an eighth of the cache ahead, and needs 130 MB
SEQUENTIAL_BYTES_PER_S, STEADY_RATE_BYTES_PER_S, STEADY_BYTES = 1e9, 1.25e9, 4 << 30
DEFAULT = "steady,sweep-workers,interleaved,megatron,mds,strided,hf-arrow,random"

Event = tuple[str, float, int, tuple[Any, ...]]
Recording = tuple[Bounds, float, list[Event]]
"""The planner's bounds, the link's rate, and what was told: name, time, bytes of prefetch under way, arguments."""


class Recorded(Planned):
    """The spoke's planner in the simulator; notes all that it is told."""

    def __init__(self, trace: Trace, capacity_bytes: int) -> None:
        super().__init__(trace, capacity_bytes)
        self.events: list[Event] = []

    def _note(self, name: str, now_s: float, *arguments: Any) -> None:
        self.events.append((name, now_s, self.sim.prefetch_outstanding_bytes, arguments))

    def opened(self, now_s: float, handle: int, task: int, file: int) -> None:
        self._note("opened", now_s, handle, task, tuple(self.facts[file]))
        super().opened(now_s, handle, task, file)

    def closed(self, now_s: float, handle: int) -> None:
        self._note("closed", now_s, handle)
        super().closed(now_s, handle)

    def read(self, now_s: float, read: Read, result: int) -> None:
        self._note("read", now_s, read.handle, read.lane.task, read.offset_bytes, read.length_bytes, RESULTS[result])
        super().read(now_s, read, result)

    def arrived(self, now_s: float, file: int, blocks: BlockRange) -> None:
        self._note("arrived", now_s, self.facts[file].version, blocks, blocks.block_count * BLOCK_BYTES)
        super().arrived(now_s, file, blocks)

    def evicted(self, file: int, blocks: BlockRange) -> None:
        self._note("evicted", self.sim.now_s, self.facts[file].version, blocks)
        super().evicted(file, blocks)


def steady() -> Trace:
    """One reader through one file, in READs of the kernel's readahead."""
    process = Process(workers=1, depth=2)
    sweep(process, 0, 0, STEADY_BYTES)
    process.end_batches(MIB // READ)
    return Trace("steady", [TraceFile(b"tokens.bin", STEADY_BYTES)], [process]).at_load(SEQUENTIAL_BYTES_PER_S)


def record(pattern: str, reads: int) -> Recording:
    if pattern == "steady":
        trace, rate_bytes_per_s = steady(), STEADY_RATE_BYTES_PER_S
    else:
        trace, rate_bytes_per_s = make(pattern, Scale(reads=reads)).at_load(RATE_BYTES_PER_S * LOAD), RATE_BYTES_PER_S
    world = world_for(trace, RTT_S, rate_bytes_per_s, STEADY_CACHE_SHARE if pattern == "steady" else CACHE_SHARE)
    recorded = Recorded(trace, world.capacity_bytes)
    Simulation(
        trace, world, make_evictor("ours", trace, world.capacity_bytes, 1, lambda: lambda _extent: 0), recorded
    ).run()
    return recorded.bounds, rate_bytes_per_s, recorded.events


class _World:
    """All that an :class:`Ahead` has around it: the clock, the event loop's next step, the link, the fetcher and its memory."""

    rate_bytes_per_s = 0.0
    rtt_s = RTT_S
    up = (True,)
    is_behind = False
    prefetch_bytes = limits.PREFETCH_MAX_OUTSTANDING_BYTES
    write_backlog_bytes = held_bytes = 0

    def __init__(self) -> None:
        self.now_s = 0.0
        self.prefetch_outstanding_bytes = 0
        self.steps: list[Callable[[], None]] = []
        self.memory = self.links = self

    def prefetch_room_bytes(self, _held_bytes: int) -> int:
        return self.prefetch_bytes

    def call_soon(self, step: Callable[[], None]) -> None:
        self.steps.append(step)

    def prefetch(self, _version: bytes, _size_bytes: int, blocks: BlockRange, _why: int, *, to_keep: bool) -> int:
        asked_bytes = blocks.block_count * BLOCK_BYTES
        self.prefetch_outstanding_bytes += asked_bytes
        return asked_bytes

    def expedite(self, _version: bytes, _size_bytes: int, _blocks: BlockRange, _why: int) -> None: ...


Step = tuple[str, float, int, tuple[Any, ...]]


def replay(recording: Recording, *, learn: bool) -> dict[str, Any]:
    """CPU time of this thread, ns: the median by READ, and of everything. ``learn``: as a mount has it by default."""
    read_ns: list[int] = []
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call" or event == "c_call"

    clock_ns = []
    for _ in range(1001):
        began_ns = time.thread_time_ns()
        clock_ns.append(time.thread_time_ns() - began_ns)
    gc.collect()
    gc.disable()
    _replay(recording, read_ns, learn=learn)
    total_ns = _replay(recording, None, learn=learn) - _replay(recording, None, learn=learn, idle=True)
    sys.setprofile(count)
    _replay(recording, None, learn=learn)
    with_all, calls = calls, 0
    _replay(recording, None, learn=learn, idle=True)
    sys.setprofile(None)
    gc.enable()
    return {
        "read_ns": statistics.median(read_ns) - statistics.median(clock_ns),
        "total_ns": total_ns,
        "reads": len(read_ns),
        "read_bytes": sum(arguments[3] for name, _, _, arguments in recording[2] if name == "read"),
        "calls": with_all - calls,
    }


def _replay(recording: Recording, read_ns: list[int] | None, *, learn: bool, idle: bool = False) -> int:
    """Returns the CPU time of it, ns. ``read_ns``: what each READ takes; None: no clock is read, which costs more than most of them.

    ``idle``: nobody is told, so that all this is the bench's own part.
    """
    bounds, rate_bytes_per_s, events = recording
    world = _World()
    world.rate_bytes_per_s = rate_bytes_per_s
    planner = Planner(**bounds, recorder=OrderRecorder(limits.LEARN_MEMORY_BYTES) if learn else None)
    ahead = Ahead(planner, Counts(), lambda: world.now_s, None)
    ahead.attach(world, world)  # type: ignore[arg-type]
    if learn:
        ahead.last_job = LastJob(Path("nowhere"), limits.LEARN_MEMORY_BYTES, lambda: world.now_s)
    told = {
        name: _nothing if idle else getattr(ahead, name) for name in ("opened", "closed", "arrived", "evicted", "read")
    }
    steps, all_steps, clock = list(_steps(events)), world.steps, time.thread_time_ns
    asyncio._set_running_loop(world)  # type: ignore[arg-type]
    try:
        started_ns = clock()
        for name, world.now_s, world.prefetch_outstanding_bytes, arguments in steps:
            if read_ns is None or name != "read":
                told[name](*arguments)
                while all_steps:
                    all_steps.pop()()
            else:
                began_ns = clock()
                told[name](*arguments)
                while all_steps:
                    all_steps.pop()()
                read_ns.append(clock() - began_ns)
        return clock() - started_ns
    finally:
        asyncio._set_running_loop(None)


def _nothing(*_arguments: Any) -> None: ...


def _steps(events: list[Event]) -> Iterator[Step]:
    """As ``spoke.ahead`` is told, with handles as the read path makes them."""
    handles: dict[int, Handle] = {}
    for name, now_s, outstanding_bytes, arguments in events:
        told = arguments
        if name == "opened":
            number, task, (path, version, size_bytes) = arguments
            handles[number] = Handle(number, path, version, size_bytes)
            told = handles[number], task
        elif name == "closed":
            told = (handles.pop(arguments[0]),)
        elif name == "read":
            told = handles[arguments[0]], *arguments[1:]
        yield name, now_s, outstanding_bytes, told


def child() -> int:
    """Reads the path of a pickle of a recording from stdin, line by line; answers each with JSON."""
    for line in sys.stdin:
        learn, _, path = line.strip().partition(" ")
        print(json.dumps(replay(pickle.loads(Path(path).read_bytes()), learn=learn == "learn")), flush=True)
    return 0


class Tree:
    """A checkout whose planner is measured. This module comes from here, all that it measures from there."""

    def __init__(self, directory: Path) -> None:
        # The bench's own code is the same in both; -P and the order of the path make spoke and common theirs.
        code = (
            f"import sys; sys.path[:0] = [{str(directory)!r}]; import runpy, spoke.prefetch.planner\n"
            f"sys.path.insert(0, {str(ROOT)!r}); import bench; bench.__path__[:] = [{str(ROOT / 'bench')!r}]\n"
            "from bench.planner import child; sys.exit(child())"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=directory
        )

    def measure(self, recording: Path, *, learn: bool) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{'learn' if learn else 'plain'} {recording}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise UsageError("a planner could not be fed: its checkout is too old for these events")
        result: dict[str, Any] = json.loads(line)
        return result

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.planner", description="What prefetch decisions cost.")
    parser.add_argument("--patterns", default=DEFAULT, help=f"as bench.replay has them, or all (default {DEFAULT})")
    parser.add_argument("--reads", type=positive, default=8000, help="of each pattern, about (default 8000)")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--learn", action="store_true", help="with the recorder that learns orders, as on a mount")
    parser.add_argument("--against", type=Path, help="another checkout to take turns with")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out/planner.json")
    arguments = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)
    try:
        words = arguments.patterns.split(",")
        names = [name for word in words for name in (["steady"] if word == "steady" else expand([word]))]
        if arguments.against is not None and not (arguments.against / "spoke/prefetch/planner.py").exists():
            raise UsageError(f"--against {arguments.against}: no checkout with a planner")
    except UsageError as error:
        console.print(f"[red]refused:[/] {error}")
        return EXIT_USAGE
    trees = [Tree(ROOT), *([Tree(arguments.against.resolve())] if arguments.against is not None else [])]
    rows: dict[str, list[list[dict[str, Any]]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            path = Path(scratch, name)
            path.write_bytes(pickle.dumps(record(name, arguments.reads)))
            rows[name] = [
                [tree.measure(path, learn=arguments.learn) for tree in trees] for _ in range(arguments.rounds)
            ]
    for tree in trees:
        tree.end()
    show(rows, console)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def show(rows: dict[str, list[list[dict[str, Any]]]], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("pattern", "us a READ, median", "mean, all events", "calls", "of a core at 1 GB/s"):
        table.add_column(column, justify="left" if column == "pattern" else "right")
    for name, rounds in rows.items():
        for tree in range(len(rounds[0])):
            turns = [turn[tree] for turn in rounds]
            a_byte_ns = statistics.median(turn["total_ns"] / turn["read_bytes"] for turn in turns)
            table.add_row(
                name if not tree else "  the other's",
                f"{statistics.median(turn['read_ns'] for turn in turns) / 1e3:.1f}",
                f"{statistics.median(turn['total_ns'] / turn['reads'] for turn in turns) / 1e3:.1f}",
                f"{turns[0]['calls'] / turns[0]['reads']:.1f}",
                f"{a_byte_ns * SEQUENTIAL_BYTES_PER_S / 1e9:.1%}",
            )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
