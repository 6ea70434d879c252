"""``make sim`` or ``python -m bench.simulation --for 2m``: seed after seed of the whole system in one process, until the time is over.

``make sim SEED=7`` plays one seed and tells what happened; the same seed is the same run, to the byte, in any process.
"""

from __future__ import annotations

import argparse
import gc
import secrets
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import NoReturn

from rich.console import Console
from rich.markup import escape

from bench.simulation.model import INVARIANTS
from bench.simulation.plan import KINDS, plan_of
from bench.simulation.run import Outcome, run_seed
from common.errors import HeadraceError
from common.terminal import EXIT_FAILED, EXIT_USAGE
from common.units import format_size, parse_duration

COLLECT_EVERY = 8
"""Runs: what a run leaves in cycles is some ten MiB."""

LOG_LINES = 60


class Totals:
    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.seeds = 0
        self.virtual_s = 0.0
        self.reads = self.bytes = 0
        self.errors: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.failed: list[int] = []

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.virtual_s += outcome.took_s
        self.reads += outcome.reads
        self.bytes += outcome.read_bytes
        self.errors += outcome.errors
        self.faults += outcome.faults
        if outcome.violations:
            self.failed.append(outcome.seed)

    def show(self, console: Console, only: Sequence[str] | None) -> None:
        took_s = time.monotonic() - self.began_s
        console.print(f"seeds        {self.seeds} in {took_s:.1f} s, {self.seeds / max(took_s, 1e-3):.2f} a second")
        console.print(
            f"virtual time {self.virtual_s:.0f} s, {self.virtual_s / max(took_s, 1e-3):.0f} times as fast as real"
        )
        console.print(f"checked      {self.reads} reads, {format_size(self.bytes)}")
        console.print(f"errors given {_counted(self.errors)}")
        console.print(f"faults       {sum(self.faults.values())}: {_counted(self.faults)}")
        if self.failed:
            console.print(f"[red]FAILED       {len(self.failed)} of {self.seeds} seeds[/]")
            for seed in self.failed:
                console.print(f"             {again(seed, only)}")
        else:
            console.print("[green]nothing failed[/]")


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def again(seed: int, only: Sequence[str] | None) -> str:
    return f"make sim SEED={seed}" + (f" ARGS='--faults \"{','.join(only)}\"'" if only is not None else "")


def show_failure(console: Console, outcome: Outcome, lines: int, only: Sequence[str] | None) -> None:
    for line in outcome.words[-lines:]:
        console.print(f"  {escape(line)}")
    for violation in outcome.violations[:5]:
        console.print(f"[red]seed {outcome.seed}: {escape(violation)}[/]")
        sentence = INVARIANTS.get(violation[1:].partition("]")[0])
        if sentence is not None:
            console.print(f"      what must hold: {sentence}")
    console.print(f"  the same again: {again(outcome.seed, only)}   (trace {outcome.digest})")


def play_one(console: Console, seed: int, lines: int | None, only: Sequence[str] | None) -> int:
    """One seed, and what happened."""
    plan = plan_of(seed, only)
    console.print(
        f"seed {seed}: {plan.spokes} spokes with {plan.readers} readers each, {plan.files} files, {plan.delay_s * 1000:g} ms one way at"
        f" {format_size(int(plan.rate_bytes_per_s))}/s, an edit every {plan.edit_every_s:g} s, read timeout {plan.read_timeout_s:g} s,"
        f" prefetch {'on' if plan.prefetch else 'off'}, consistency {'strict' if plan.strict else 'lease'}, compression {plan.compression}"
    )
    outcome = run_seed(seed, only)
    if outcome.violations:
        show_failure(console, outcome, LOG_LINES if lines is None else lines, only)
    else:
        for line in outcome.words[-lines:] if lines is not None else _faults_in(outcome.words):
            console.print(f"  {escape(line)}")
    console.print(
        f"trace {outcome.digest}: {outcome.took_s:.1f} s of virtual time, {outcome.reads} reads checked"
        f" ({format_size(outcome.read_bytes)}), errors given: {_counted(outcome.errors)}"
    )
    console.print("[red]FAILED[/]" if outcome.violations else "[green]nothing failed[/]")
    return EXIT_FAILED if outcome.violations else 0


def _faults_in(words: list[str]) -> list[str]:
    """The lines of the event log that say what was broken, and when all was mended."""
    return [line for line in words if line.split("  ", 1)[-1].startswith((*KINDS, "all mended", "shows", "ended"))]


def play_many(
    console: Console, first: int | None, seeds: int | None, length_s: float, only: Sequence[str] | None, *, quiet: bool
) -> int:
    """``first`` None: seeds that nobody has played yet."""
    totals = Totals()
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: stopped.append(number))
    first = secrets.randbelow(1_000_000_000) if first is None else first
    seed = first
    while not stopped and (seed - first < seeds if seeds is not None else time.monotonic() - totals.began_s < length_s):
        outcome = run_seed(seed, only)
        totals.add(outcome)
        if outcome.violations:
            show_failure(console, outcome, 20, only)
        elif not quiet:
            console.print(
                f"seed {seed}: {outcome.took_s:.0f} s, {outcome.reads} reads, {sum(outcome.faults.values())} faults"
            )
        seed += 1
        if totals.seeds % COLLECT_EVERY == 0:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
    totals.show(console, only)
    return EXIT_FAILED if totals.failed else 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"error: {message}; see --help", file=sys.stderr)
        raise SystemExit(EXIT_USAGE)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _kinds(text: str) -> list[str]:
    given = [kind.strip() for kind in text.split(",")]
    for kind in given:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"{kind!r} is not a kind of fault; --list shows them")
    return given


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except HeadraceError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main() -> int:
    parser = _Parser(
        prog="python -m bench.simulation", description="Simulate hub, spokes, links and disks under a seed."
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=_seed, help="play this one, and tell what happened")
    which.add_argument("--seeds", type=_count, help="play so many")
    which.add_argument(
        "--for", dest="length_s", type=_duration, default=120.0, help="play seeds for so long (default 2m)"
    )
    parser.add_argument(
        "--first", type=_seed, metavar="SEED", help="with --seeds or --for: begin here, not at a fresh one"
    )
    parser.add_argument("--faults", type=_kinds, help="only these, with commas between (--list shows them)")
    parser.add_argument("--list", action="store_true", help="print the kinds of faults, and what must hold, and end")
    parser.add_argument("--log", type=_count, metavar="LINES", help="with --seed: so much of the end of the event log")
    parser.add_argument("--quiet", action="store_true", help="no line for a seed that went well")
    given = parser.parse_args()
    if given.list:
        print("\n".join([*KINDS, "", *(f"{name}: {sentence}" for name, sentence in INVARIANTS.items())]))
        return 0
    warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that a kill left unawaited
    console = Console(highlight=False, soft_wrap=True)
    if given.seed is not None:
        return play_one(console, given.seed, given.log, given.faults)
    return play_many(console, given.first, given.seeds, given.length_s, given.faults, quiet=given.quiet)


if __name__ == "__main__":
    sys.exit(main())
