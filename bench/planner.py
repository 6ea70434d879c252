"""``python -m bench.planner``: what prefetch decisions cost, in CPU time, apart from everything else.

The events of simulated patterns (READs, arrivals, evictions, budgets) are recorded once and then fed to fresh planners, whose decisions
they do not wait for. ``--against DIR``: another checkout's planner takes turns with this one, in processes of their own, so that
what else the machine does meanwhile meets both. A READ's cost is that of noting or learning from it, and of the plan it leads to.
"""

from __future__ import annotations

import argparse
import gc
import json
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.flags import positive
from bench.path import ROOT
from bench.replay.evictors import make_evictor
from bench.replay.pages import Scale
from bench.replay.patterns import expand, make
from bench.replay.predictors import Planned
from bench.replay.runs import world_for
from bench.replay.simulator import Simulation
from common.errors import UsageError
from common.terminal import EXIT_USAGE
from spoke.prefetch.planner import Planner

RTT_S, RATE_BYTES_PER_S, LOAD, CACHE_SHARE = 0.06, 125e6, 0.5, 0.25
SEQUENTIAL_BYTES_PER_S = 1e9
DEFAULT = "sweep-workers,interleaved,megatron,mds,strided,hf-arrow,random"

Event = tuple[str, tuple[Any, ...]]


class Recorded:
    """A planner that notes what it is told. The order it is given, if any, is made anew by whoever replays."""

    TOLD = ("opened", "closed", "link", "arrived", "evicted", "is_quiet", "read", "plan", "asked")

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self.events: list[Event] = []
        for name in self.TOLD:
            setattr(self, name, self._noting(name, getattr(planner, name)))

    def _noting(self, name: str, method: Any) -> Any:
        def note(*arguments: Any) -> Any:
            self.events.append((name, arguments))
            return method(*arguments)

        return note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._planner, name)


def record(pattern: str, reads: int) -> list[Event]:
    trace = make(pattern, Scale(reads=reads)).at_load(RATE_BYTES_PER_S * LOAD)
    world = world_for(trace, RTT_S, RATE_BYTES_PER_S, CACHE_SHARE)
    planned = Planned(trace, world.capacity_bytes)
    recorded = Recorded(planned.planner)
    planned.planner = recorded  # type: ignore[assignment]
    Simulation(
        trace, world, make_evictor("ours", trace, world.capacity_bytes, 1, lambda: lambda _extent: 0), planned
    ).run()
    return recorded.events


def replay(events: list[Event]) -> dict[str, Any]:
    """CPU time of this thread, ns: a list by READ, and of everything."""
    planner = Planner()
    told = {name: getattr(planner, name) for name in Recorded.TOLD}
    clock = time.thread_time_ns
    read_ns: list[int] = []
    gc.collect()
    gc.disable()
    began_ns = clock()
    looked = True  # the last event was no look at a READ that has not been learnt from yet
    planning = False  # a plan now follows from a READ
    for name, arguments in events:
        method = told[name]
        if name == "is_quiet" or name == "read":
            at_ns = clock()
            method(*arguments)
            spent_ns = clock() - at_ns
            if name == "read" and not looked:
                read_ns[-1] += spent_ns
            else:
                read_ns.append(spent_ns)
            looked = name == "read"
            planning = True
        elif name == "plan" and planning:
            at_ns = clock()
            method(*arguments)
            read_ns[-1] += clock() - at_ns
        else:
            method(*arguments)
            planning = planning and name != "arrived"
    total_ns = clock() - began_ns
    gc.enable()
    return {"read_ns": statistics.median(read_ns), "total_ns": total_ns, "reads": len(read_ns)}


def child() -> int:
    """Reads the path of a pickle of events from stdin, line by line; answers each with JSON."""
    for line in sys.stdin:
        events = pickle.loads(Path(line.strip()).read_bytes())
        print(json.dumps(replay(events)), flush=True)
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

    def measure(self, events: Path) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{events}\n")
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
    parser.add_argument("--against", type=Path, help="another checkout to take turns with")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out/planner.json")
    arguments = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)
    try:
        names = expand(arguments.patterns.split(","))
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
            rows[name] = [[tree.measure(path) for tree in trees] for _ in range(arguments.rounds)]
    for tree in trees:
        tree.end()
    show(rows, console)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def show(rows: dict[str, list[list[dict[str, Any]]]], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = (
        "pattern",
        "us a READ, median",
        "mean, all events",
        "the other's median",
        "mean",
        "ratio of medians",
        "of means",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "pattern" else "right")
    for name, rounds in rows.items():
        cells = [name]
        for tree in range(len(rounds[0])):
            cells.append(f"{statistics.median(turn[tree]['read_ns'] for turn in rounds) / 1e3:.1f}")
            cells.append(
                f"{statistics.median(turn[tree]['total_ns'] / turn[tree]['reads'] for turn in rounds) / 1e3:.1f}"
            )
        if len(rounds[0]) == 2:
            for key in ("read_ns", "total_ns"):
                cells.append(f"{statistics.median(turn[0][key] / turn[1][key] for turn in rounds):.2f}")
        table.add_row(*cells)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
