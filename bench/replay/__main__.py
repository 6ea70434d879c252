"""``python -m bench.replay``: patterns (or recorded traces) x policies, over a link and a cache that are simulated.

Exit codes: 0 done, 1 a trace could not be read, 2 wrong use.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from bench.path import ROOT
from bench.replay import report
from bench.replay.pages import Scale
from bench.replay.patterns import PATTERNS, TRANSFORMS, expand, make
from bench.replay.recorded import read_trace
from bench.replay.runs import Bench, Report, world_for
from bench.replay.trace import Trace
from common.errors import HeadraceError, UsageError
from common.terminal import EXIT_FAILED, EXIT_USAGE
from common.units import format_rate, format_size, parse_duration, parse_rate, parse_size

POLICIES = "none,kernel,window,planner,oracle"


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.replay", description="What fetching ahead is worth, simulated."
    )
    parser.add_argument("--patterns", default="all", help=f"comma-separated: all, {', '.join(PATTERNS)}; "
                        f"with +{', +'.join(TRANSFORMS)} after a name (default all)")  # fmt: skip
    parser.add_argument(
        "--trace", type=Path, action="append", default=[], help="a file that `mount --record` wrote, instead"
    )
    parser.add_argument("--policies", default=POLICIES, help="none, kernel[:SIZE], window[:SIZE], perceptron, planner, orders, oracle; "
                        f"/ours, /lru, /clock or /belady for the eviction (default {POLICIES})")  # fmt: skip
    parser.add_argument("--rtt", type=parse_duration, default=0.060, help="round trip (default 60ms)")
    parser.add_argument("--rate", type=parse_rate, default=125e6, help="of the link (default 1gbit)")
    parser.add_argument(
        "--load", type=float, default=0.5, help="what the job asks for, as a share of the rate (default 0.5)"
    )
    parser.add_argument("--cache-share", type=float, default=0.25, help="cache / data (default 0.25, at least 16 MiB)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=parse_size, default=Scale.data_bytes, help="size of the data set (default 2GiB)")
    parser.add_argument(
        "--reads", type=int, default=Scale.reads, help=f"READs of a trace, about (default {Scale.reads})"
    )
    parser.add_argument("--processes", type=int, default=Scale.processes, help="ranks of the job")
    parser.add_argument("--workers", type=int, default=Scale.workers, help="of each")
    parser.add_argument("--epochs", type=int, default=Scale.epochs)
    parser.add_argument("--timed", action="store_true", help="measure what the planner thinks about each READ")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "bench/out/replay", help="where JSON, Markdown and picture go"
    )
    parser.add_argument("--name", default="replay", help="of the files there")
    arguments = parser.parse_args(words)
    for name in ("reads", "processes", "workers", "epochs", "rate"):
        if not getattr(arguments, name) > 0:
            raise UsageError(f"--{name} {getattr(arguments, name)}: above 0")
    if not arguments.load > 0:
        raise UsageError(f"--load {arguments.load}: above 0; 0.5 is a job that wants half of the link")
    return arguments


def traces(arguments: argparse.Namespace) -> list[Trace]:
    """Those that were recorded, else those of the patterns. Raises UsageError or DamagedTrace."""
    if arguments.trace:
        return [read_trace(path) for path in arguments.trace]
    scale = Scale(
        arguments.seed, arguments.data, arguments.reads, arguments.processes, arguments.workers, arguments.epochs
    )
    names = expand(str(arguments.patterns).split(","))
    return [make(name, scale).at_load(arguments.rate * arguments.load) for name in names]


def run(arguments: argparse.Namespace, console: Console) -> list[Report]:
    reports: list[Report] = []
    began_s = time.monotonic()
    made = traces(arguments)
    for trace in made:
        bench = Bench(trace, world_for(trace, arguments.rtt, arguments.rate, arguments.cache_share), arguments.seed)
        for policy in str(arguments.policies).split(","):
            reports.append(bench.run(policy, timed=arguments.timed))
            console.print(f"  {trace.name}: {policy}", style="dim") if console.is_terminal else None
    reads = sum(row.reads for row in reports)
    console.print(f"  {reads:,} READs simulated in {time.monotonic() - began_s:.1f} s")
    return reports


def main() -> int:
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)
    try:
        arguments = parse()
        reports = run(arguments, console)
    except UsageError as error:
        console.print(f"[red]refused:[/] {escape(str(error))}")
        return EXIT_USAGE
    except (HeadraceError, OSError) as error:
        console.print(f"[red]failed:[/] {escape(str(error))}")
        return EXIT_FAILED
    about = (
        f"{arguments.rtt * 1e3:g} ms, {format_rate(arguments.rate)}; the job asks for {arguments.load:g} of it; "
        f"cache {arguments.cache_share:g} of the data; seed {arguments.seed}"
    )
    if not arguments.trace:
        about += f"; {format_size(arguments.data)} at most, about {arguments.reads:,} READs each"
    report.show(reports, about, console)
    for pattern, to_oracle, to_kernel in report.gaps(reports)[:10]:
        console.print(
            f"  {pattern}: the planner's job takes {to_oracle:.2f} x the oracle's, {to_kernel:.2f} x kernel readahead's"
        )
    facts: dict[str, Any] = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in vars(arguments).items()
        if key != "trace"
    }
    for path in report.write(reports, facts, arguments.out, arguments.name):
        console.print(f"  {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
