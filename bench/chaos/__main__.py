"""``make chaos`` or ``python -m bench.chaos --for 30m --seed 1``: faults by the dozen, and not one wrong byte.

Ends with a table and exit code 0 if nothing failed. A run that failed is begun again by the same ``--seed``, ``--for`` and ``--faults``:
the same faults come at the same times with the same choices (what the scheduler of the machine does with them is its own).
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.chaos.faults import BEYOND, FAULTS, usual
from bench.chaos.run import READERS, Report, Run
from bench.chaos.schedule import kinds_of
from bench.lab import why_no_mount
from common.errors import HeadraceError
from common.terminal import EXIT_FAILED, EXIT_USAGE
from common.units import format_size, parse_duration


def show(console: Console, report: Report) -> None:
    table = Table(title=f"chaos, seed {report.seed}: {report.took_s:.0f} s, cache on {report.cache_disk}")
    for name in ("fault", "times", "longest call of a reader"):
        table.add_column(name, justify="left" if name == "fault" else "right")
    done = report.kinds_done
    for kind in sorted(report.kinds):
        longest = report.longest_s.get(kind)
        table.add_row(
            kind,
            f"[yellow]not here: {escape(report.skipped[kind])}[/]" if kind in report.skipped else str(done[kind]),
            f"{longest:.1f} s" if longest is not None else "< 0.3 s",
        )
    console.print(table)
    counts = report.failure_counts
    console.print(f"faults         {sum(done.values())} of {len(done)} kinds")
    console.print(f"checked        {format_size(report.bytes_checked)} in {report.calls} calls")
    console.print(f"wrong bytes    {counts.get('wrong bytes', 0)}")
    console.print(f"hangs          {counts.get('hang', 0)}")
    console.print(f"errors given   {', '.join(f'{name}: {count}' for name, count in report.errors.items()) or 'none'}")
    console.print(f"readers killed {report.readers_killed}, the slowest died in {report.longest_death_s * 1000:.0f} ms")
    for kind, count in counts.items():
        console.print(f"[red]{kind}: {count}[/]")
    for failure in report.failures[:10]:
        console.print(f"[red]  {failure['at_s']:.1f} s[/] {failure['kind']}: {escape(failure['what'])}")
        if "near" in failure:
            console.print(
                f"      at {failure['at'][0]:.1f}-{failure['at'][1]:.1f} s; broken then: {', '.join(failure['near']) or 'nothing'}"
            )
    console.print(
        "[green]nothing failed[/]"
        if report.passed
        else "[red]interrupted[/]"
        if report.interrupted
        else "[red]FAILED[/]"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.chaos", description="Break everything for a while; check every byte."
    )
    parser.add_argument(
        "--for", dest="length_s", default=1800.0, type=parse_duration, help="how long, e.g. 30m (default)"
    )
    parser.add_argument("--seed", type=int, help="of the schedule and all choices (default: a new one, printed)")
    parser.add_argument("--faults", help="only these, with commas between (default: all that --list shows as such)")
    parser.add_argument("--read-timeout", default=10.0, type=parse_duration, help="of the spoke (default 10s)")
    parser.add_argument(
        "--out", type=Path, default=Path("bench/out"), help="directory for the JSON, and logs of a failed run"
    )
    parser.add_argument("--keep", action="store_true", help="leave the working directory behind")
    parser.add_argument("--mount-flags", default="", help="more flags for headrace-spoke mount, with spaces between")
    parser.add_argument("--quiet", action="store_true", help="only the table at the end")
    parser.add_argument("--list", action="store_true", help="print the kinds of faults and end")
    console = Console(highlight=False, soft_wrap=True)
    try:
        given = parser.parse_args()
        if given.list:
            for kind, fault in FAULTS.items():
                console.print(
                    f"{kind:24} {' '.join(sorted(fault.shape.uses))}{', only when named' if kind in BEYOND else ''}"
                )
            return 0
        kinds = usual() if given.faults is None else kinds_of(given.faults, list(FAULTS))
        if reason := why_no_mount():
            raise ValueError(f"this machine cannot mount: {reason}")
    except (ValueError, HeadraceError) as error:
        console.print(f"[red]error:[/] {escape(str(error))}")
        return EXIT_USAGE
    seed = given.seed if given.seed is not None else secrets.randbelow(1_000_000)
    console.print(
        f"python -m bench.chaos --for {given.length_s:g}s --seed {seed}"
        + (f" --faults {given.faults}" if given.faults else "")
    )
    run = Run(
        seed,
        given.length_s,
        kinds,
        read_timeout_s=given.read_timeout,
        readers=READERS,
        extra=given.mount_flags.split(),
        say=(lambda _line: None) if given.quiet else (lambda line: console.print(line, markup=False)),
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: run.stop())
    report = run(given.out, keep=given.keep)
    show(console, report)
    return 0 if report.passed else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
