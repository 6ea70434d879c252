"""``python -m bench.experiment``: the same job beside the data and across a long link, all runs, one report.

Exit codes: 0 all done, the same data and losses everywhere, 1 something failed (the report shows the rest), 2 wrong use or
a machine that cannot mount, 130 interrupted (the report shows what there was).
Whether the targets were met is said in the report, not by the exit code.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.experiment import tokens
from bench.experiment.instruments import Jobs
from bench.experiment.progress import Progress
from bench.experiment.windows import ORDERS
from bench.flags import add_link_flags, positive
from bench.lab import Lab, LabError, in_lab, ready
from bench.link import LinkShape
from bench.path import ROOT, describe
from common.errors import UsageError
from common.terminal import EXIT_USAGE
from common.units import parse_duration, parse_size

SMALL = {
    "batches": 36, "batch": 8, "gpus": 8, "step_time": 0.02, "cut": 1.0, "cold_starts": 2, "cold_batches": 24, "pairs": 3,
    "cut_after": 0.0, "text_size": 1_500_000, "bare_batches": 2,
    "model_batches": 3, "model_ranks": 2, "model_window": 512, "window": 4096, "checkpoint_bytes": 4 << 20,
}  # fmt: skip
RUNS = (
    "warm", "cold", "cut", "checkpoints", "small-cache", "no-prefetch", "copy-first", "pairs", "changed", "losses",
)  # fmt: skip
BATCHES_MIN = 12
"""Fewer say nothing: the first ten are the start."""


class Voice:
    """Says what is done, how long it took, and how much is left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress: Progress | None = None

    @contextlib.contextmanager
    def say(self, what: str) -> Iterator[None]:
        started_s = time.monotonic()
        with self.console.status(f"{escape(what)} {self._left()}"):
            yield
        self.console.print(f"[green]✓[/] {escape(what)} [dim]({time.monotonic() - started_s:.1f} s){self._left()}[/]")

    def fail(self, what: str) -> None:
        self.console.print(f"[red]✗[/] {escape(what)}")

    def _left(self) -> str:
        return f" · {self.progress.words}" if self.progress else ""


def run(arguments: argparse.Namespace, console: Console, lab: Lab) -> None:
    from bench.experiment.runs import Runs  # torch: not before wrong flags are refused

    voice = Voice(console)
    data = lab.directory / "data"
    files, data_words = make_data(arguments, data, voice)
    with Jobs(lab) as jobs:
        runs = Runs(arguments, lab, data, LinkShape(arguments.rtt, arguments.rate), voice, jobs)
        interrupted = False
        try:
            runs.all()
        except KeyboardInterrupt:
            interrupted = True
            console.print("interrupted; the report will show what there is (again: no report)")
        voice.progress = None
        total_bytes = sum(path.stat().st_size for path in files)
        report(arguments, runs, voice, f"{data_words}, {total_bytes / 1e6:,.0f} MB", interrupted=interrupted)
    if interrupted:
        raise KeyboardInterrupt
    if runs.failures:
        raise LabError(f"{len(runs.failures)} of the runs failed: {', '.join(one.run for one in runs.failures)}")
    if wrong := [phase.title for phase in runs.finished() if not phase.same]:
        raise LabError(f"other tokens or losses than on the local directory: {', '.join(wrong)}")


def make_data(arguments: argparse.Namespace, directory: Path, voice: Voice) -> tuple[list[Path], str]:
    """The dataset to serve, and what it is in words: as much as the runs need of the user's own, or of real text."""
    wanted = tokens_wanted(arguments)
    if arguments.data is not None:
        found = tokens.find(arguments.data, arguments.dtype)
        if found[0].kind == "flat":
            arguments.dtype = found[0].dtype.name  # said to the jobs, which then need not look
        with voice.say(f"copy the first {wanted:,} tokens of {arguments.data}"):
            files = tokens.excerpt(found, wanted, directory)
        kind = tokens.KINDS[found[0].kind]
        names = arguments.data.name or arguments.data
        return files, f"the first {wanted:,} tokens of {names}, {kind}, {found[0].dtype}, in {len(files)} files"
    from bench.experiment import shards  # tokenizers

    with voice.say("tokenize text"):
        documents = shards.documents_of(arguments.text, arguments.text_size)
    with voice.say("write shards of packed tokens"):
        files = shards.write_all(directory, documents, wanted, arguments.dtype)
    return files, f"{wanted:,} tokens of real text in {len(files)} files"


def report(arguments: argparse.Namespace, runs: Any, voice: Voice, data_words: str, *, interrupted: bool) -> None:
    """Page, pictures, JSON, and the table on the terminal. Raises LabError when there is nothing to show."""
    from bench.experiment import page, pictures  # matplotlib
    from bench.experiment.costs import Prices

    phases = runs.finished()
    local = [phase for phase in phases if phase.name == "local"]
    if not local:
        raise LabError("there is no local run to hold others against")
    settings = settings_of(arguments, runs.lab, data_words, statistics.median(local[0].epoch.step_s))
    result = page.Result(phases, settings, runs.pairs, runs.failures, interrupted)
    prices = Prices(arguments.price_gb, arguments.price_gpu, arguments.gpus, arguments.price_data)
    with voice.say("draw"):
        drawn = pictures.draw_all(phases, arguments.out, prices, arguments.rate)
    html, figures = arguments.out / "experiment.html", arguments.out / "experiment.json"
    html.write_text(page.page(result, drawn))
    figures.write_text(json.dumps(page.as_json(result), indent=1) + "\n")

    console = voice.console
    table = Table(box=box.SIMPLE_HEAD, title=settings["summary"], title_justify="left")
    for place in page.SHOWN:
        table.add_column(page.HEAD[place], justify="right" if place else "left", no_wrap=not place)
    for row in page.table_rows(phases):
        table.add_row(*(row[place] for place in page.SHOWN))
    console.print(table)
    marks = {True: ": [green]met[/]", False: ": [red]missed[/]", None: ""}
    for one in page.verdicts(result):
        console.print(
            f"  {escape(one.name)}: {escape(one.value)} [dim]({escape(one.detail)})[/]; {escape(one.target)}{marks[one.met]}"
        )
    for path in (html, figures, *(path for name, path in drawn.items() if not name.endswith("-dark"))):
        console.print(f"  {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")


def per_batch(arguments: argparse.Namespace) -> tuple[int, int]:
    """(samples a batch, tokens a sample) of the runs that are compared."""
    if arguments.train:
        return arguments.model_batch * arguments.model_ranks, arguments.model_window
    return arguments.batch * arguments.gpus, arguments.window


def tokens_wanted(arguments: argparse.Namespace) -> int:
    """So many that an epoch has all batches asked for, and nothing is left over but the last window's target."""
    samples, window = per_batch(arguments)
    return int(arguments.batches * samples * window) + 1


def settings_of(arguments: argparse.Namespace, lab: Lab, data_words: str, step_s: float) -> dict[str, Any]:
    samples, window = per_batch(arguments)
    heads = f"{arguments.heads} head{'s' if arguments.heads > 1 else ''}"
    sizes = (
        f"{arguments.layers} layers of {arguments.dim}, {heads}, vocabulary {arguments.vocabulary:,} (ids modulo it)"
    )
    trained = f"a LLaMA-style decoder ({sizes}) with AdamW, {arguments.model_ranks} rank{'s' if arguments.model_ranks > 1 else ''}"
    gpus = f"{arguments.gpus} GPUs with batches of {arguments.batch} each, read side by side"
    losses = (
        f"; {arguments.model_batches} batches more train {trained}, for the losses."
        if "losses" in arguments.runs
        else "."
    )
    if arguments.train:
        mode, mode_words = (
            "model",
            f"Mode: the real model in all runs, {trained}; it shares the processor with everything else.",
        )
    elif arguments.step_time:
        mode = "timed step"
        mode_words = (
            f"Mode: a timed step of {arguments.step_time * 1000:g} ms stands for {gpus}, "
            f"so that reading is what is measured{losses}"
        )
    else:
        mode, mode_words = "no step", f"Mode: no step at all, the job reads as fast as it can for {gpus}{losses}"
    dtype = tokens.find(arguments.data, arguments.dtype)[0].dtype if arguments.data else np.dtype(arguments.dtype)
    shape = LinkShape(arguments.rtt, arguments.rate)
    return {
        "summary": (
            f"PyTorch DataLoader, {samples} windows of {window:,} tokens a batch, {arguments.order} order, "
            f"{arguments.workers} workers; {describe(shape)} between hub and spoke."
        ),
        "mode_words": mode_words,
        "mode": mode,
        "samples": samples,
        "rate_bytes_per_s": arguments.rate,
        "rtt_ms": arguments.rtt * 1000,
        "link": lab.link_kind,
        "link_words": f"{describe(shape)}; " + (
            "an ideal link of that round trip, no loss" if lab.link_kind == "delay proxy" else "the kernel's own delay and rate, no loss"
        ),
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}",
        "step_s": step_s,
        "step_bytes": samples * window * dtype.itemsize,
        "data_words": data_words,
        "dtype": dtype.name,
        "cut_s": arguments.cut,
        "command": shlex.join(["python", "-m", "bench.experiment", *sys.argv[1:]]),
        "flags": {name: str(value) for name, value in sorted(vars(arguments).items()) if name not in ("out", "keep")},
    }  # fmt: skip


def seconds(text: str) -> float:
    """``"0.2"`` and ``"0"`` are seconds; else a duration with its unit."""
    try:
        return parse_duration(float(text))
    except ValueError:
        return parse_duration(text)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.experiment", description="The same training job beside the data and across a long link."
    )

    def number(name: str, default: int, meaning: str) -> None:
        parser.add_argument(f"--{name}", type=positive, default=default, help=f"{meaning} (default {default:,})")

    parser.add_argument("--small", action="store_true", help="a test of the experiment itself, in a minute")
    parser.add_argument("--step-time", type=seconds, metavar="SECONDS",
                        help="a timed step in place of the model, as 0.2 or 200ms; 0: read as fast as it can (default 0.2)")  # fmt: skip
    parser.add_argument("--train", action="store_true", help="train the model in all runs, in place of the timed step")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), metavar="RUN",
                        help=f"only these, beside the local ones: {', '.join(RUNS)}")  # fmt: skip
    parser.add_argument("--order", choices=ORDERS, default="sweep", help="in which samples come (default sweep)")
    parser.add_argument("--data", type=Path, metavar="PATH",
                        help=f"your own tokens: {tokens.ALLOWED}, or a directory of one kind; they are only read")  # fmt: skip
    parser.add_argument("--dtype", choices=tokens.DTYPES, help="of flat .bin files (default uint32, of --data uint16)")
    number("window", 4096, "tokens a sample")
    number("batch", 24, "samples a batch and GPU, with the timed step")
    number("gpus", 16, "that the timed step stands for, each read by a thread of its own")
    number("ranks", 1, "processes, with the timed step")
    number("batches", 70, "a run")
    number("cold-starts", 3, "each with an empty cache; the median counts")
    number("cold-batches", 25, "of the cold starts after the first")
    number("pairs", 5, "of runs without a step, local and mount in turns")
    number("bare-batches", 15, "of the run without prefetch")
    number("workers", 2, "of the DataLoader, a rank")
    number("seed", 1234, "of orders and the model")
    number("model-batches", 12, "trained by the model for its losses")
    number("model-batch", 1, "samples a batch and rank of the model")
    number("model-ranks", 2, "of the model, joined by gloo")
    number("model-window", 4096, "tokens a sample of the model")
    number("vocabulary", 4096, "of the model")
    number("dim", 64, "of the model")
    number("layers", 2, "of the model")
    number("heads", 4, "of the model")
    number("checkpoint-every", 10, "batches")
    parser.add_argument(
        "--checkpoint-bytes", type=parse_size, default=64 << 20, help="beside the state (default 64MiB)"
    )
    parser.add_argument("--text", type=Path, help="a directory with text; default: Python's standard library")
    parser.add_argument("--text-size", type=parse_size, default=24_000_000, help="most text to use (default 24MB)")
    parser.add_argument("--cache-size", default="8GiB", help="of the spokes, but for the small one (default 8GiB)")
    add_link_flags(parser)
    parser.add_argument("--cut", type=parse_duration, default=20.0, help="how long the link is cut (default 20s)")
    parser.add_argument(
        "--cut-after", type=parse_duration, default=2.0, help="after the first read of its run (default 2s)"
    )
    parser.add_argument("--price-gb", type=float, default=0.02, help="US dollars a GB between regions (default 0.02)")
    parser.add_argument("--price-gpu", type=float, default=2.5, help="US dollars a GPU and hour (default 2.5)")
    parser.add_argument(
        "--price-data", type=parse_size, default=10**12, help="dataset of the cost picture (default 1TB)"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out/experiment", help="where the report goes")
    parser.add_argument("--keep", action="store_true", help="leave the temporary directory")
    if parser.parse_args(argv).small:
        parser.set_defaults(**SMALL)  # what is said beside --small wins
    arguments = parser.parse_args(argv)
    if arguments.train and arguments.step_time is not None and not arguments.small:
        raise UsageError("--train and --step-time exclude each other: the timed step takes the place of the model")
    if arguments.step_time is None or arguments.train:
        arguments.step_time = 0.0 if arguments.train else 0.2
    check(arguments)
    return arguments


def check(arguments: argparse.Namespace) -> None:
    """Raises UsageError for what cannot be run; with fewer tokens of the user's own than wanted, lowers ``batches``."""
    if arguments.text is not None and not arguments.text.is_dir():
        raise UsageError(f"--text {arguments.text} is not a directory")
    if arguments.data is not None and arguments.text is not None:
        raise UsageError("--data and --text exclude each other")
    if not (math.isfinite(arguments.rate) and arguments.rate > 0):
        raise UsageError("--rate must be above 0, for example 1gbit")
    if arguments.gpus % arguments.ranks:
        raise UsageError(f"--gpus {arguments.gpus} cannot be divided among --ranks {arguments.ranks}")
    if arguments.dim % (2 * arguments.heads):
        raise UsageError(f"--dim {arguments.dim} must be a multiple of 2 x --heads {arguments.heads}")
    if arguments.data is None:
        arguments.dtype = arguments.dtype or "uint32"
    else:
        held = sum(file.tokens for file in tokens.find(arguments.data, arguments.dtype))
        samples, window = per_batch(arguments)
        most = (held - 1) // (samples * window)
        if most < min(BATCHES_MIN, arguments.batches):
            raise UsageError(
                f"{arguments.data} holds {held:,} tokens, {most} batches of {samples} windows of {window:,}; {BATCHES_MIN} are needed: "
                "smaller --batch, --gpus or --window, or more data"
            )
        arguments.batches = min(arguments.batches, most)
    needed = arguments.model_window * arguments.model_batch * arguments.model_ranks * arguments.model_batches
    if not arguments.train and "losses" in arguments.runs and tokens_wanted(arguments) <= needed:
        raise UsageError(
            "the model would need more tokens than the dataset has; fewer --model-batches, or more --batches"
        )


def main() -> int:
    width = None if sys.stdout.isatty() else 140  # in a file the table is not squeezed into 80 columns
    console = Console(highlight=False, soft_wrap=True, width=width)
    arguments = ready(console, parse)
    if arguments is None:
        return EXIT_USAGE
    return in_lab(console, lambda lab: run(arguments, console, lab), keep=arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
