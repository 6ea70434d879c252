"""The pictures of the report: phases over time, cold against the reference, latency, WAN bytes, cost, a cold run by the second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from bench.experiment.costs import Prices, cost_of, full_speed_rates
from bench.experiment.measures import Phase, per_second, read_percentiles

mpl.use("Agg")
from matplotlib import pyplot as plt

LOCAL, COLD, WARM, OTHER, REFERENCE = "#8a8f98", "#1f6f8b", "#e07a1f", "#7a5195", "#c9b458"
REFERENCE_SLOW_BATCHES = (100, 150)
REFERENCE_SLOW_SHARE = (0.8, 0.9)
SIZE = (9.6, 4.6)


def colour_of(phase: Phase) -> str:
    if phase.name.startswith("local"):
        return LOCAL
    if "warm" in phase.name or phase.name in ("changed", "half-again"):
        return WARM
    return OTHER if phase.name in ("copy-first", "no-prefetch") else COLD


def named(phases: Sequence[Phase], name: str) -> Phase:
    return next(phase for phase in phases if phase.name == name)


def draw_all(phases: Sequence[Phase], directory: Path, prices: Prices, rate_bytes_per_s: float) -> dict[str, Path]:
    """Each picture's file by its name. Raises OSError."""
    pictures: dict[str, Callable[[Any], None]] = {
        "phases": lambda figure: _phases(figure, phases),
        "cold": lambda figure: _cold(figure, named(phases, "cold")),
        "seconds": lambda figure: _seconds(figure, named(phases, "cold")),
        "cut": lambda figure: _seconds(figure, named(phases, "cut")),
        "latency": lambda figure: _latency(figure, phases),
        "wan": lambda figure: _wan(figure, phases),
        "cost": lambda figure: _cost(figure, phases, prices, rate_bytes_per_s),
    }
    if any(epoch.losses[0] for epoch in (phase.epoch for phase in phases)):
        pictures["losses"] = lambda figure: _losses(figure, phases)
    tall = {"phases": (9.6, 1.2 + 0.36 * len(phases)), "seconds": (9.6, 8.4), "cut": (9.6, 8.4)}
    written = {}
    for name, draw in pictures.items():
        figure = plt.figure(figsize=tall.get(name, SIZE), dpi=150, layout="constrained")
        draw(figure)
        for axes in figure.axes:
            axes.set_axisbelow(True)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        written[name] = directory / f"{name}.png"
        figure.savefig(written[name])
        plt.close(figure)
    return written


def _phases(figure: Any, phases: Sequence[Phase]) -> None:
    """Each run a row: for each batch, what the job did with the time."""
    axes = figure.subplots()
    top_s = max(phase.before_s + phase.epoch.seconds for phase in phases)
    for row, phase in enumerate(phases):
        at_s = phase.before_s
        if phase.before_s:
            axes.barh(row, phase.before_s, color="#d9d2e0", height=0.62)
            axes.text(phase.before_s / 2, row, "copying", ha="center", va="center", fontsize=7.5, color="#4a3560")
        spans = list(zip(phase.epoch.wait_s, phase.epoch.step_s, strict=True))
        waits, steps = [], []
        for wait_s, step_s in spans:
            waits.append((at_s, wait_s))
            steps.append((at_s + wait_s, step_s))
            at_s += wait_s + step_s
        axes.broken_barh(steps, (row - 0.31, 0.62), color=colour_of(phase))
        axes.broken_barh(waits, (row - 0.31, 0.62), color="#d7263d")
        for mark_s, what in phase.marks:
            inside_s = mark_s - phase.epoch.started_s
            if 0 <= inside_s <= phase.epoch.seconds:
                axes.plot([inside_s] * 2, [row - 0.45, row + 0.45], color="black", linewidth=1.2)
                axes.text(inside_s, row - 0.47, what, fontsize=7, ha="center", va="bottom")
        told = f"{phase.epoch.utilisation:.1%} busy"
        if phase.ratio is not None:
            told += f", {phase.ratio:.3f} of local"
        axes.text(at_s + top_s * 0.01, row, told, va="center", fontsize=7.5, color="#444444")
    axes.set_yticks(range(len(phases)), [phase.title for phase in phases], fontsize=8)
    axes.set_ylim(len(phases) - 0.4, -0.8)
    axes.set_xlim(0, top_s * 1.2)
    axes.set_xlabel("seconds from the start of each run")
    axes.set_title("Each run: computing (colour) and waiting for data (red)", loc="left", fontsize=11)


def _cold(figure: Any, phase: Phase) -> None:
    axes = figure.subplots()
    speed = full_speed_rates(phase)
    count = len(speed)
    batches = np.arange(1, count + 1)
    low, high = REFERENCE_SLOW_SHARE
    axes.fill_between([0, REFERENCE_SLOW_BATCHES[1]], low, high, color=REFERENCE, alpha=0.45, linewidth=0,
                      label="published reference, cold: 80-90 % for 100-150 batches")  # fmt: skip
    axes.axhline(1, color=LOCAL, linewidth=1.2, label="local directory: the level of the runs beside it")
    for place, local in enumerate(phase.local):
        beside = [local.samples / took / phase.local_level for took in local.batch_s]
        label = "local directory: each batch" if not place else None
        axes.plot(range(1, len(beside) + 1), beside, color=LOCAL, linewidth=0.8, alpha=0.7, label=label)
    axes.plot(batches, speed, color=COLD, linewidth=1.8, label="mount, cold: each batch")
    after = phase.full_speed_after
    told = "never at full speed" if after is None else f"at full speed after {after} batch{'' if after == 1 else 'es'}"
    axes.set_title(f"A cold start: {told}", loc="left", fontsize=11)
    axes.set_xlim(0, max(count, REFERENCE_SLOW_BATCHES[1]))
    axes.set_ylim(0, 1.15)
    axes.set_xlabel("batch")
    axes.set_ylabel("speed, local = 1")
    axes.legend(loc="lower right", frameon=False, fontsize=8.5)


def _seconds(figure: Any, phase: Phase) -> None:
    """What the spoke and the readers saw, second by second."""
    reads, times, wire, cache = figure.subplots(4, 1, sharex=True)
    start_s = phase.epoch.started_s
    rows = per_second(phase.seconds, start_s)
    at = [row["second"] for row in rows]
    bottom = np.zeros(len(rows))
    for name, colour in (("hit", COLD), ("late", WARM), ("miss", "#d7263d")):
        values = np.array([row[name] for row in rows])
        reads.bar(at, values, 0.42, bottom=bottom, color=colour, label=name)
        bottom += values
    reads.set_ylabel("reads/s at the spoke")
    seen = read_percentiles(phase.epoch.reads, start_s)
    for place, name, colour in ((1, "p50", COLD), (2, "p95", WARM), (3, "p99", "#d7263d")):
        times.plot([row[0] + 0.5 for row in seen], [row[place] * 1000 for row in seen], ".-", color=colour, label=name)
    times.set_yscale("log")
    times.axhline(5, color="#bbbbbb", linewidth=0.8, linestyle="--")
    times.set_ylabel("one sample, ms")
    wire.plot(at, [row["fetched_bytes"] / 1e6 for row in rows], color=LOCAL, label="raw")
    wire.plot(at, [row["received_bytes"] / 1e6 for row in rows], color=COLD, label="sent")
    wire.set_ylabel("WAN, MB/s")
    cache.plot(at, [row["cache_bytes"] / 1e6 for row in rows], color=COLD, label="cache fill")
    cache.plot(at, [row["window_bytes"] / 1e6 for row in rows], color=WARM, label="window: on its way ahead of readers")
    cache.set_ylabel("MB")
    cache.set_xlabel("seconds since the start of the job")
    for axes in (reads, times, wire, cache):
        for mark_s, _what in phase.marks:
            axes.axvline(mark_s - start_s, color="black", linewidth=1, linestyle="--")
        axes.grid(axis="y", color="#e3e3e3", linewidth=0.7)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 0.98), frameon=False, fontsize=8, ncols=3)
    reads.set_title(f"{phase.title}, by the second", loc="left", fontsize=11)


def _latency(figure: Any, phases: Sequence[Phase]) -> None:
    axes = figure.subplots()
    edges = np.logspace(-5.3, 1.5, 90)
    shown = (("local", LOCAL), ("warm-job", WARM), ("cold", COLD), ("no-prefetch", OTHER))
    for name, colour in shown:
        phase = named(phases, name)
        took = np.array([took_s for _, took_s in phase.epoch.reads])
        weights = np.full(len(took), 100 / len(took))
        axes.hist(took, edges, weights=weights, histtype="step", color=colour, linewidth=1.7,
                  label=f"{phase.title}: {phase.fast_reads:.1%} below 5 ms")  # fmt: skip
    axes.axvline(0.005, color="black", linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("time to have one sample, s")
    axes.set_ylabel("% of samples")
    axes.set_title("How long the loader waited for a sample", loc="left", fontsize=11)
    axes.legend(loc="upper right", frameon=False, fontsize=8.5)


def _wan(figure: Any, phases: Sequence[Phase]) -> None:
    axes = figure.subplots()
    cold, copy = named(phases, "cold"), named(phases, "copy-first")
    first = cold.seconds[0]
    at = [look.at_s - cold.epoch.started_s for look in cold.seconds]
    axes.plot(at, [(look.fetched_bytes - first.fetched_bytes) / 1e6 for look in cold.seconds], color=LOCAL, linestyle="--",
              label="mount, cold: raw")  # fmt: skip
    axes.plot(at, [(look.received_bytes - first.received_bytes) / 1e6 for look in cold.seconds], color=COLD, linewidth=2,
              label="mount, cold: on the wire")  # fmt: skip
    axes.plot(*zip(*[(at_s, done / 1e6) for at_s, done in copy.before_seen], strict=True), color=OTHER, linewidth=2,
              label="copy first")  # fmt: skip
    axes.axvline(copy.before_s, color=OTHER, linewidth=1, linestyle=":")
    axes.annotate(
        "the copy's job starts", (copy.before_s, 0), (4, 250), textcoords="offset points", fontsize=8, color=OTHER
    )
    first_batch_s = cold.epoch.wait_s[0]
    axes.axvline(first_batch_s, color=COLD, linewidth=1, linestyle=":")
    axes.annotate(
        "the mount's first batch", (first_batch_s, 0), (4, 270), textcoords="offset points", fontsize=8, color=COLD
    )
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.1 * copy.wan_bytes / 1e6)
    axes.set_xlabel("seconds since one wanted to train")
    axes.set_ylabel("MB over the link")
    share = cold.wan_bytes / copy.wan_bytes
    axes.set_title(f"WAN bytes: the mount moved {share:.2f} of what the copy moved", loc="left", fontsize=11)
    axes.legend(loc="lower right", frameon=False, fontsize=8.5)


def _cost(figure: Any, phases: Sequence[Phase], prices: Prices, rate_bytes_per_s: float) -> None:
    axes = figure.subplots()
    rows = cost_of(phases, prices, rate_bytes_per_s)
    names = [row.name for row in rows]
    axes.barh(names, [row.transfer for row in rows], color=COLD, label="bytes between regions")
    axes.barh(
        names, [row.idle for row in rows], left=[row.transfer for row in rows], color="#d7263d", label="idle GPUs"
    )
    for place, row in enumerate(rows):
        axes.text(
            row.transfer + row.idle,
            place,
            f"  ${row.transfer + row.idle:,.2f}",
            va="center",
            fontsize=9,
            parse_math=False,
        )
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel(f"US dollars to the first pass over {prices.data_bytes / 1e12:g} TB")
    axes.set_title(prices.told(rate_bytes_per_s), loc="left", fontsize=9.5, parse_math=False)
    axes.legend(loc="lower right", frameon=False, fontsize=8.5)


def _losses(figure: Any, phases: Sequence[Phase]) -> None:
    """Both epochs of the local job, wide, and of the job on the mount, narrow on top of it."""
    axes = figure.subplots()
    by_name: dict[str, Phase] = {}
    for phase in phases:
        if phase.epoch.losses[0]:
            by_name.setdefault(phase.name, phase)
    suffix = "model" if "model-cold" in by_name else ""
    local = ("local-model", "local-model-again") if suffix else ("local", "local-again")
    mount = ("model-cold", "model-warm") if suffix else ("cold", "warm")
    for names, label, colour, width, style in (
        (local, "local directory", "#c3c7cd", 6.0, "-"),
        (mount, "mount: cold, then warm", COLD, 1.6, "-"),
    ):
        losses = [float.fromhex(loss) for name in names for loss in by_name[name].epoch.losses[0]]
        axes.plot(range(1, len(losses) + 1), losses, style, color=colour, linewidth=width, label=label)
    first = len(by_name[mount[0]].epoch.losses[0])
    axes.axvline(first + 0.5, color="#999999", linewidth=0.8, linestyle="--")
    axes.annotate(
        " second epoch", (first + 0.5, 0.03), xycoords=("data", "axes fraction"), fontsize=8.5, color="#555555"
    )
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("batch")
    axes.set_ylabel("loss, first rank")
    axes.set_title("Losses of the model: the same bits on the mount as on the local directory", loc="left", fontsize=11)
    axes.legend(loc="upper right", frameon=False, fontsize=9)
