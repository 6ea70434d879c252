"""``python -m bench.experiment``: the same job beside the data and across a long link, all runs, one report.

Exit codes: 0 all done, the same data and losses everywhere, 1 something failed, 2 wrong use or a machine that cannot mount.
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

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.experiment.windows import DTYPES, ORDERS
from bench.flags import add_link_flags, positive
from bench.lab import Lab, in_lab, ready
from bench.link import LinkShape
from bench.path import ROOT, describe
from common.errors import UsageError
from common.terminal import EXIT_USAGE
from common.units import parse_duration, parse_size

SMALL = {
    "batches": 36, "batch": 8, "gpus": 8, "step_time": 0.02, "cut": 1.0,
    "cut_after": 0.0, "text_size": 1_500_000, "bare_batches": 2,
    "model_batches": 3, "model_ranks": 2, "model_window": 512, "window": 4096, "checkpoint_bytes": 4 << 20,
}  # fmt: skip
SHOWN = (0, 3, 4, 5, 6, 8, 11)


def run(arguments: argparse.Namespace, console: Console, lab: Lab) -> None:
    from bench.experiment import (
        page,
        pictures,
        shards,
    )  # torch, tokenizers, matplotlib: not before wrong flags are refused
    from bench.experiment.costs import Prices
    from bench.experiment.runs import Jobs, Runs

    @contextlib.contextmanager
    def say(what: str) -> Iterator[None]:
        started_s = time.monotonic()
        yield
        console.print(f"[green]✓[/] {escape(what)} [dim]({time.monotonic() - started_s:.1f} s)[/]")

    data = lab.directory / "data"
    tokens = tokens_wanted(arguments)
    with say("tokenize text"):
        documents = shards.documents_of(arguments.text, arguments.text_size)
    with say("write shards of packed tokens"):
        files = shards.write_all(data, documents, tokens, arguments.dtype)
    shape = LinkShape(arguments.rtt, arguments.rate)
    with Jobs(lab) as jobs:
        phases = Runs(arguments, lab, data, documents, shape, say, jobs).all()
    total_bytes = sum(path.stat().st_size for path in files)
    data_words = f"{tokens:,} tokens of real text in {len(files)} files, {total_bytes / 1e6:,.0f} MB"
    step_s = statistics.median(phases[0].epoch.step_s)
    settings = settings_of(arguments, lab, data_words, step_s)
    prices = Prices(arguments.price_gb, arguments.price_gpu, arguments.gpus, arguments.price_data)
    with say("draw"):
        drawn = pictures.draw_all(phases, arguments.out, prices, arguments.rate)
    report, figures = arguments.out / "experiment.html", arguments.out / "experiment.json"
    report.write_text(page.page(phases, drawn, settings))
    figures.write_text(json.dumps(page.as_json(phases, settings), indent=1) + "\n")

    table = Table(box=box.SIMPLE_HEAD, title=settings["summary"], title_justify="left")
    for place in SHOWN:
        table.add_column(page.HEAD[place], justify="right" if place else "left", no_wrap=not place)
    for row in page.table_rows(phases):
        table.add_row(*(row[place] for place in SHOWN))
    console.print(table)
    for one in page.verdicts(phases):
        mark = "[green]met[/]" if one.met else "[red]missed[/]"
        console.print(f"  {escape(one.name)}: {escape(one.value)} ({escape(one.target)}: {mark})")
    for path in (report, figures, *drawn.values()):
        console.print(f"  {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")


def tokens_wanted(arguments: argparse.Namespace) -> int:
    """So many that an epoch has all batches asked for, and nothing is left over but the last window's target."""
    if arguments.step_time:
        samples, window = arguments.batch * arguments.gpus, arguments.window
    else:
        samples, window = arguments.model_batch * arguments.model_ranks, arguments.model_window
    return int(arguments.batches * samples * window) + 1


def settings_of(arguments: argparse.Namespace, lab: Lab, data_words: str, step_s: float) -> dict[str, Any]:
    timed = bool(arguments.step_time)
    samples = arguments.batch * arguments.gpus if timed else arguments.model_batch * arguments.model_ranks
    window = arguments.window if timed else arguments.model_window
    heads = f"{arguments.heads} head{'s' if arguments.heads > 1 else ''}"
    sizes = (
        f"{arguments.layers} layers of {arguments.dim}, {heads}, vocabulary {arguments.vocabulary:,} (ids modulo it)"
    )
    trained = f"a LLaMA-style decoder ({sizes}) with AdamW, {arguments.model_ranks} rank{'s' if arguments.model_ranks > 1 else ''}"
    if timed:
        mode_words = (
            f"Mode: a timed step of {arguments.step_time * 1000:g} ms stands for {arguments.gpus} GPUs with batches of "
            f"{arguments.batch} each, so that reading is what is measured; {arguments.model_batches} batches more train "
            f"{trained}, for the losses."
        )
    else:
        mode_words = f"Mode: the real model in all runs, {trained}, which shares the processor with everything else."
    token_bytes = 2 if arguments.dtype == "uint16" else 4
    shape = LinkShape(arguments.rtt, arguments.rate)
    return {
        "summary": (
            f"PyTorch DataLoader, {samples} windows of {window:,} tokens a batch, {arguments.order} order, "
            f"{arguments.workers} workers; {describe(shape)} between hub and spoke."
        ),
        "mode_words": mode_words,
        "mode": "timed step" if timed else "model",
        "rtt_ms": arguments.rtt * 1000,
        "link": lab.link_kind,
        "link_words": f"{describe(shape)}; " + (
            "an ideal link of that round trip, no loss" if lab.link_kind == "delay proxy" else "the kernel's own delay and rate, no loss"
        ),
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}",
        "step_s": step_s,
        "step_bytes": samples * window * token_bytes,
        "data_words": data_words,
        "dtype": arguments.dtype,
        "cut_s": arguments.cut,
        "command": shlex.join(["python", "-m", "bench.experiment", *sys.argv[1:]]),
        "flags": {name: str(value) for name, value in sorted(vars(arguments).items()) if name not in ("out", "text", "keep")},
    }  # fmt: skip


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.experiment", description="The same training job beside the data and across a long link."
    )

    def number(name: str, default: int, meaning: str) -> None:
        parser.add_argument(f"--{name}", type=positive, default=default, help=f"{meaning} (default {default:,})")

    parser.add_argument("--small", action="store_true", help="a test of the experiment itself, in a minute")
    parser.add_argument("--step-time", type=parse_duration, default=0.2,
                        help="a timed step in place of the model; 0: train the model in all runs (default 200ms)")  # fmt: skip
    parser.add_argument("--order", choices=ORDERS, default="sweep", help="in which samples come (default sweep)")
    parser.add_argument("--dtype", choices=DTYPES, default="uint32", help="of the tokens (default uint32)")
    number("window", 4096, "tokens a sample")
    number("batch", 24, "samples a batch and GPU, with the timed step")
    number("gpus", 16, "that the timed step stands for")
    number("ranks", 1, "processes, with the timed step")
    number("batches", 70, "a run")
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
    arguments = parser.parse_args(argv)
    if arguments.small:
        for name, value in SMALL.items():
            setattr(arguments, name, value)
    if arguments.text is not None and not arguments.text.is_dir():
        raise UsageError(f"--text {arguments.text} is not a directory")
    if not (math.isfinite(arguments.rate) and arguments.rate > 0):
        raise UsageError("--rate must be above 0, for example 1gbit")
    if arguments.batch * arguments.gpus % arguments.ranks:
        raise UsageError(
            f"{arguments.batch} x {arguments.gpus} samples cannot be divided among --ranks {arguments.ranks}"
        )
    if arguments.dim % (2 * arguments.heads):
        raise UsageError(f"--dim {arguments.dim} must be a multiple of 2 x --heads {arguments.heads}")
    needed = arguments.model_window * arguments.model_batch * arguments.model_ranks * arguments.model_batches
    if arguments.step_time and tokens_wanted(arguments) <= needed:
        raise UsageError(
            "the model would need more tokens than the dataset has; fewer --model-batches, or more --batches"
        )
    return arguments


def main() -> int:
    width = None if sys.stdout.isatty() else 140  # in a file the table is not squeezed into 80 columns
    console = Console(highlight=False, soft_wrap=True, width=width)
    arguments = ready(console, parse)
    if arguments is None:
        return EXIT_USAGE
    return in_lab(console, lambda lab: run(arguments, console, lab), keep=arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
