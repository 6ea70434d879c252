"""The pictures of the report: phases over time, cold against the reference, latency, WAN bytes, cost, a cold run by the second.

Each is drawn twice, for a light and a dark page. One whose runs are missing is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from bench.experiment.costs import Prices, cost_of, full_speed_rates
from bench.experiment.measures import Phase, per_second, read_percentiles

mpl.use("Agg")
from matplotlib import pyplot as plt


@dataclass(frozen=True)
class Palette:
    """Colours of what is drawn on ``paper``."""

    paper: str
    ink: str
    dim: str
    grid: str
    local: str
    cold: str
    warm: str
    other: str
    reference: str
    waiting: str
    copying: str

    @property
    def rc(self) -> dict[Any, Any]:
        inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        papers = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
        return dict.fromkeys(inks, self.ink) | dict.fromkeys(papers, self.paper)


LIGHT = Palette(
    paper="#ffffff", ink="#1d2733", dim="#5d6875", grid="#e3e6ea", local="#8a8f98", cold="#1f6f8b", warm="#e07a1f",
    other="#7a5195", reference="#c9b458", waiting="#d7263d", copying="#d9d2e0",
)  # fmt: skip
DARK = Palette(
    paper="#171c23", ink="#dde3ea", dim="#9aa5b1", grid="#2c343e", local="#8b939e", cold="#4fb0cf", warm="#f0974a",
    other="#b48ad6", reference="#a8924a", waiting="#ef5566", copying="#453a55",
)  # fmt: skip
SCHEMES: Mapping[str, Palette] = {"": LIGHT, "-dark": DARK}
REFERENCE_SLOW_BATCHES = (100, 150)
REFERENCE_SLOW_SHARE = (0.8, 0.9)
SIZE = (9.6, 4.6)


def colour_of(phase: Phase, palette: Palette) -> str:
    if phase.name.startswith("local"):
        return palette.local
    if "warm" in phase.name or phase.name in ("changed", "half-again"):
        return palette.warm
    return palette.other if phase.name in ("copy-first", "no-prefetch") else palette.cold


def named(phases: Sequence[Phase], name: str) -> Phase:
    """Raises LookupError when that run is missing."""
    for phase in phases:
        if phase.name == name:
            return phase
    raise LookupError(name)


def has(phases: Sequence[Phase], *names: str) -> bool:
    return set(names) <= {phase.name for phase in phases}


def draw_all(phases: Sequence[Phase], directory: Path, prices: Prices, rate_bytes_per_s: float) -> dict[str, Path]:
    """Each picture's file by its name, and by NAME-dark the same for a dark page. Raises OSError."""
    pictures: dict[str, Callable[[Any, Palette], None]] = {
        "phases": lambda figure, palette: _phases(figure, palette, phases)
    }
    if has(phases, "cold"):
        pictures["cold"] = lambda figure, palette: _cold(figure, palette, phases)
        pictures["seconds"] = lambda figure, palette: _seconds(figure, palette, named(phases, "cold"))
    if has(phases, "cut"):
        pictures["cut"] = lambda figure, palette: _seconds(figure, palette, named(phases, "cut"))
    pictures["latency"] = lambda figure, palette: _latency(figure, palette, phases)
    if has(phases, "cold", "copy-first"):
        pictures["wan"] = lambda figure, palette: _wan(figure, palette, phases)
        pictures["cost"] = lambda figure, palette: _cost(figure, palette, phases, prices, rate_bytes_per_s)
    if has(phases, *(loss_runs(phases)[1])):
        pictures["losses"] = lambda figure, palette: _losses(figure, palette, phases)
    tall = {"phases": (9.6, 1.2 + 0.34 * len(phases)), "seconds": (9.6, 7.6), "cut": (9.6, 7.6), "cost": (9.6, 2.6)}
    written = {}
    for suffix, palette in SCHEMES.items():
        with mpl.rc_context(palette.rc):
            for name, draw in pictures.items():
                figure = plt.figure(figsize=tall.get(name, SIZE), dpi=150, layout="constrained")
                draw(figure, palette)
                for axes in figure.axes:
                    axes.set_axisbelow(True)
                    for side in ("top", "right"):
                        axes.spines[side].set_visible(False)
                written[name + suffix] = directory / f"{name}{suffix}.png"
                figure.savefig(written[name + suffix])
                plt.close(figure)
    return written


def loss_runs(phases: Sequence[Phase]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the runs whose losses are compared: two epochs on the local directory, two on the mount."""
    if any(phase.name.startswith("local-model") for phase in phases):
        return ("local-model", "local-model-again"), ("model-cold", "model-warm")
    if any(phase.epoch.losses[0] for phase in phases):
        return ("local", "local-again"), ("cold", "warm")
    return (), ("no model was trained",)


def _phases(figure: Any, palette: Palette, phases: Sequence[Phase]) -> None:
    """Each run a row: for each batch, what the job did with the time."""
    axes = figure.subplots()
    top_s = max(phase.before_s + phase.epoch.seconds for phase in phases)
    for row, phase in enumerate(phases):
        at_s = phase.before_s
        if phase.before_s:
            axes.barh(row, phase.before_s, color=palette.copying, height=0.62)
            axes.text(phase.before_s / 2, row, "copying", ha="center", va="center", fontsize=7.5, color=palette.ink)
        spans = list(zip(phase.epoch.wait_s, phase.epoch.step_s, strict=True))
        waits, steps = [], []
        for wait_s, step_s in spans:
            waits.append((at_s, wait_s))
            steps.append((at_s + wait_s, step_s))
            at_s += wait_s + step_s
        # Without an edge, which is a point wide: a wait of 8 ms has a fifth of one here, and would look as long as the step.
        axes.broken_barh(steps, (row - 0.31, 0.62), color=colour_of(phase, palette), linewidth=0)
        axes.broken_barh(waits, (row - 0.31, 0.62), color=palette.waiting, linewidth=0)
        for mark_s, what in phase.marks:
            inside_s = mark_s - phase.epoch.started_s
            if 0 <= inside_s <= phase.epoch.seconds:
                axes.plot([inside_s] * 2, [row - 0.45, row + 0.45], color=palette.ink, linewidth=1.2)
                axes.text(inside_s, row - 0.47, what, fontsize=7, ha="center", va="bottom")
        told = f"{phase.epoch.utilisation:.1%} computing"
        if phase.ratio is not None:
            told += f", {phase.ratio:.3f} of local"
        axes.text(at_s + top_s * 0.01, row, told, va="center", fontsize=7.5, color=palette.dim)
    axes.set_yticks(range(len(phases)), [phase.title for phase in phases], fontsize=8)
    axes.set_ylim(len(phases) - 0.4, -0.8)
    axes.set_xlim(0, top_s * 1.36)
    axes.set_xlabel("seconds from the start of each run")
    axes.set_title("Each run: computing (colour) and waiting for data (red)", loc="left", fontsize=11)


def _cold(figure: Any, palette: Palette, phases: Sequence[Phase]) -> None:
    axes = figure.subplots()
    phase = named(phases, "cold")
    again = [other for other in phases if other.name.startswith("cold-")]
    speed = full_speed_rates(phase)
    count = len(speed)
    batches = np.arange(1, count + 1)
    low, high = REFERENCE_SLOW_SHARE
    axes.fill_between([0, REFERENCE_SLOW_BATCHES[1]], low, high, color=palette.reference, alpha=0.45, linewidth=0,
                      label="published reference, cold: 80-90 % for 100-150 batches")  # fmt: skip
    axes.axhline(1, color=palette.local, linewidth=1.2, label="local directory: the level of the runs beside it")
    for place, local in enumerate(phase.local):
        beside = [local.samples / took / phase.local_level for took in local.batch_s]
        label = "local directory: each batch" if not place else None
        axes.plot(range(1, len(beside) + 1), beside, color=palette.local, linewidth=0.8, alpha=0.7, label=label)
    for place, other in enumerate(again):
        label = None if place else "mount, cold: each batch, further cold starts"
        rates = full_speed_rates(other)
        axes.plot(range(1, len(rates) + 1), rates, color=palette.cold, linewidth=0.9, alpha=0.55, label=label)
    axes.plot(batches, speed, color=palette.cold, linewidth=1.8, label="mount, cold: each batch")
    afters = [other.full_speed_after for other in (phase, *again)]
    told = ", ".join("never" if after is None else f"{after}" for after in afters)
    axes.set_title(f"Batches until full speed, by cold start: {told}", loc="left", fontsize=11)
    axes.set_xlim(0, max(count, REFERENCE_SLOW_BATCHES[1]))
    axes.set_ylim(0, 1.15)
    axes.set_xlabel("batch")
    axes.set_ylabel("speed, local = 1")
    axes.legend(loc="lower right", frameon=False, fontsize=8.5)


def _seconds(figure: Any, palette: Palette, phase: Phase) -> None:
    """What the spoke and the readers saw, second by second."""
    reads, times, wire, cache = figure.subplots(4, 1, sharex=True)
    start_s = phase.epoch.started_s
    rows = per_second(phase.seconds, start_s)
    at = [row["second"] for row in rows]
    bottom = np.zeros(len(rows))
    for name, colour in (("hit", palette.cold), ("late", palette.warm), ("miss", palette.waiting)):
        values = np.array([row[name] for row in rows])
        reads.bar(at, values, 0.42, bottom=bottom, color=colour, label=name)
        bottom += values
    reads.set_ylabel("reads/s at the spoke")
    seen = read_percentiles(phase.epoch.reads, start_s)
    for place, name, colour in ((1, "p50", palette.cold), (2, "p95", palette.warm), (3, "p99", palette.waiting)):
        times.plot([row[0] + 0.5 for row in seen], [row[place] * 1000 for row in seen], ".-", color=colour, label=name)
    times.set_yscale("log")
    times.axhline(5, color=palette.dim, linewidth=0.8, linestyle="--")
    times.set_ylabel("one sample, ms")
    wire.plot(at, [row["fetched_bytes"] / 1e6 for row in rows], color=palette.local, label="raw")
    wire.plot(at, [row["received_bytes"] / 1e6 for row in rows], color=palette.cold, label="sent")
    wire.set_ylabel("WAN, MB/s")
    cache.plot(at, [row["cache_bytes"] / 1e6 for row in rows], color=palette.cold, label="cache fill")
    cache.plot(
        at, [row["window_bytes"] / 1e6 for row in rows], color=palette.warm, label="window: on its way ahead of readers"
    )
    cache.set_ylabel("MB")
    cache.set_xlabel("seconds since the start of the job")
    for axes in (reads, times, wire, cache):
        for mark_s, _what in phase.marks:
            axes.axvline(mark_s - start_s, color=palette.ink, linewidth=1, linestyle="--")
        axes.grid(axis="y", color=palette.grid, linewidth=0.7)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 0.98), frameon=False, fontsize=8, ncols=3)
    reads.set_title(f"{phase.title}, by the second", loc="left", fontsize=11)


def _latency(figure: Any, palette: Palette, phases: Sequence[Phase]) -> None:
    axes = figure.subplots()
    edges = np.logspace(-5.3, 1.5, 90)
    shown = (
        ("local", palette.local),
        ("warm-job", palette.warm),
        ("cold", palette.cold),
        ("no-prefetch", palette.other),
    )
    for name, colour in shown:
        if not has(phases, name):
            continue
        phase = named(phases, name)
        took = np.array([took_s for _, took_s in phase.epoch.reads])
        weights = np.full(len(took), 100 / len(took))
        axes.hist(took, edges, weights=weights, histtype="step", color=colour, linewidth=1.7,
                  label=f"{phase.title}: {phase.fast_reads:.1%} below 5 ms")  # fmt: skip
    axes.axvline(0.005, color=palette.ink, linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("time to have one sample, s")
    axes.set_ylabel("% of samples")
    axes.set_title("How long the loader waited for a sample", loc="left", fontsize=11)
    axes.legend(loc="upper right", frameon=False, fontsize=8.5)


def _wan(figure: Any, palette: Palette, phases: Sequence[Phase]) -> None:
    axes = figure.subplots()
    cold, copy = named(phases, "cold"), named(phases, "copy-first")
    first = cold.seconds[0]
    at = [look.at_s - cold.epoch.started_s for look in cold.seconds]
    axes.plot(at, [(look.fetched_bytes - first.fetched_bytes) / 1e6 for look in cold.seconds], color=palette.local, linestyle="--",
              label="mount, cold: raw")  # fmt: skip
    axes.plot(at, [(look.received_bytes - first.received_bytes) / 1e6 for look in cold.seconds], color=palette.cold, linewidth=2,
              label="mount, cold: on the wire")  # fmt: skip
    axes.plot(*zip(*[(at_s, done / 1e6) for at_s, done in copy.before_seen], strict=True), color=palette.other, linewidth=2,
              label="copy first")  # fmt: skip
    axes.axvline(copy.before_s, color=palette.other, linewidth=1, linestyle=":")
    marked: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "fontsize": 8}
    axes.annotate("the copy's job starts", (copy.before_s, 0.86), (4, 0), color=palette.other, **marked)
    first_batch_s = cold.epoch.wait_s[0]
    axes.axvline(first_batch_s, color=palette.cold, linewidth=1, linestyle=":")
    axes.annotate("the mount's first batch", (first_batch_s, 0.95), (4, 0), color=palette.cold, **marked)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.1 * copy.wan_bytes / 1e6)
    axes.set_xlabel("seconds since one wanted to train")
    axes.set_ylabel("MB over the link")
    share = cold.wan_bytes / copy.wan_bytes
    axes.set_title(f"WAN bytes: the mount moved {share:.2f} of what the copy moved", loc="left", fontsize=11)
    axes.legend(loc="lower right", frameon=False, fontsize=8.5)


def _cost(figure: Any, palette: Palette, phases: Sequence[Phase], prices: Prices, rate_bytes_per_s: float) -> None:
    axes = figure.subplots()
    rows = cost_of(phases, prices, rate_bytes_per_s)
    names = [row.name for row in rows]
    axes.barh(names, [row.transfer for row in rows], color=palette.cold, label="bytes between regions")
    axes.barh(
        names, [row.idle for row in rows], left=[row.transfer for row in rows], color=palette.waiting, label="idle GPUs"
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


def _losses(figure: Any, palette: Palette, phases: Sequence[Phase]) -> None:
    """Both epochs of the local job, wide, and of the job on the mount, narrow on top of it."""
    axes = figure.subplots()
    by_name: dict[str, Phase] = {}
    for phase in phases:
        by_name.setdefault(phase.name, phase)
    local, mount = loss_runs(phases)
    for names, label, colour, width, style in (
        (local, "local directory", palette.local, 6.0, "-"),
        (mount, "mount: cold, then warm", palette.cold, 1.6, "-"),
    ):
        losses = [float.fromhex(loss) for name in names for loss in by_name[name].epoch.losses[0]]
        axes.plot(range(1, len(losses) + 1), losses, style, color=colour, linewidth=width, label=label)
    first = len(by_name[mount[0]].epoch.losses[0])
    axes.axvline(first + 0.5, color=palette.dim, linewidth=0.8, linestyle="--")
    axes.annotate(
        " second epoch", (first + 0.5, 0.03), xycoords=("data", "axes fraction"), fontsize=8.5, color=palette.dim
    )
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("batch")
    axes.set_ylabel("loss, first rank")
    same = all(by_name[name].same for name in mount)
    told = "the same bits on the mount as on the local directory" if same else "NOT the same on the mount"
    axes.set_title(f"Losses of the model: {told}", loc="left", fontsize=11)
    axes.legend(loc="upper right", frameon=False, fontsize=9)
