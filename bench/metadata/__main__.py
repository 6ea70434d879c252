"""What a million names cost, from the hub's first scan to a walk of the mount: ``python -m bench.metadata``.

Makes a tree of real, tiny files, serves it, replicates it over the delay proxy, and measures: the scan, the first
replication, the spoke's memory, ``find`` with the link held still, restarts of either daemon with changes in between,
how long a change takes to show at the mount, and what reads and names suffer in a burst of changes. Every stage ends with the
mount's names compared with the directory's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.flags import positive
from bench.lab import Lab, in_lab, ready
from bench.metadata import stages
from bench.metadata.tree import clean, make_tree
from bench.path import ROOT
from common.terminal import EXIT_USAGE
from common.units import format_size, parse_duration

READY_TIMEOUT_S = 300.0


def say(line: str) -> None:
    print(line, flush=True)


def measure(names: stages.Names, arguments: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """(stage, what was seen) as the stages end. Raises LabError."""

    def compare() -> None:
        say(f"the mount shows the directory's {names.compare()} files")

    yield "scan", stages.scan(names, arguments.rtt)
    yield "first_replication", stages.first_replication(names)
    yield "spoke_memory_replicated_bytes", names.spoke_memory_bytes()
    yield "walk", stages.walk(names)
    yield "spoke_memory_walked_bytes", names.spoke_memory_bytes()
    compare()
    yield "change_latency", stages.change_latency(names)
    yield "burst", stages.burst(names, arguments.changes)
    compare()
    yield "restarts", {"hub": stages.hub_restart(names), "spoke": stages.spoke_restart(names)}
    compare()
    yield "hub_memory_bytes", names.hub_memory_bytes()


def work(lab: Lab, arguments: argparse.Namespace) -> None:
    tree = (arguments.tree or lab.directory / "tree").absolute()
    result: dict[str, Any] = {
        "files": arguments.files,
        "directories": arguments.directories,
        "rtt_s": arguments.rtt,
        "machine": {"kernel": platform.release(), "python": platform.python_version(), "cores": os.cpu_count()},
    }
    if not tree.exists():
        say(f"made {arguments.files} files in {make_tree(tree, arguments.files, arguments.directories):.0f} s")
    clean(tree)
    try:
        for stage, seen in measure(stages.Names(lab, tree), arguments):
            result[stage] = seen
            say(f"{stage}: {json.dumps(seen, default=str)}")
    finally:
        if arguments.tree is not None:
            clean(tree)
    out = arguments.out / "metadata.json"
    out.write_text(json.dumps(result, indent=1) + "\n")
    say(f"spoke memory after the walk {format_size(result['spoke_memory_walked_bytes']['now'])}; {out}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.metadata", description="Names by the million.")
    parser.add_argument("--files", type=positive, default=1_000_000, help="(default 1,000,000)")
    parser.add_argument("--directories", type=positive, default=1000, help="(default 1,000)")
    parser.add_argument("--changes", type=positive, default=100_000, help="in the burst (default 100,000)")
    parser.add_argument("--rtt", type=parse_duration, default=0.060, help="round trip (default 60ms)")
    parser.add_argument("--tree", type=Path, help="made there if absent, and kept (default: a temporary one)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out", help="where the JSON goes")
    console = Console()
    arguments = ready(console, parser.parse_args)
    if arguments is None:
        return EXIT_USAGE
    return in_lab(console, lambda lab: work(lab, arguments), ready_timeout_s=READY_TIMEOUT_S)


if __name__ == "__main__":
    sys.exit(main())
