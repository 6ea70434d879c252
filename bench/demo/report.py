"""What the demonstration leaves behind: a table on the terminal, JSON, and a picture."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.demo.summary import FULL_SPEED, Sweep, batches_to_full_speed, hit_rate, reads_seen

SHOWN_STEPS = 6
WAN_BYTES = "headrace_spoke_wan_received_bytes_total"
STALL_SECONDS = "headrace_spoke_read_stall_seconds_total"


@dataclass(frozen=True)
class Result:
    """``…_gained``: differences of the spoke's counters over a run, ``total_gained`` over all of the mount's life.

    ``swept_bytes``: size of the files the job reads; ``dataset_bytes``: of all files served.
    """

    local: Sweep
    cold: Sweep
    warm: Sweep
    local_alone: Sweep
    warm_alone: Sweep
    cold_gained: Mapping[str, float]
    warm_gained: Mapping[str, float]
    total_gained: Mapping[str, float]
    dataset_bytes: int
    swept_bytes: int
    files: int
    tokens: int
    link: str
    rtt_s: float
    rate_bytes_per_s: float
    step_s: float
    workers: int
    status: Mapping[str, Any]

    @property
    def level(self) -> float:
        return self.local.level_samples_per_s


def show(result: Result, console: Console) -> None:
    """The table, and below it what its words mean."""
    runs = (result.local, result.cold, result.warm)
    gained = (None, result.cold_gained, result.warm_gained)
    table = Table(box=box.SIMPLE_HEAD, title=f"{result.link}; samples per second", title_justify="left")
    for name in ("", "local", "cold", "ratio", "warm", "ratio"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for steps in list(zip(*(sweep.steps() for sweep in runs), strict=True))[:SHOWN_STEPS]:
        _add_rates(table, f"batches {steps[0].first}-{steps[0].last}", *(step.samples_per_s for step in steps))
    table.add_section()
    _add_rates(table, f"all {result.cold.batches} batches", *(sweep.samples_per_s for sweep in runs))
    _add_rates(table, "median step of 10 batches", *(sweep.level_samples_per_s for sweep in runs))
    alone = result.local_alone.level_samples_per_s, None, result.warm_alone.level_samples_per_s
    _add_rates(table, "median, loader alone", *alone)
    table.add_section()
    _add(table, "batches until full speed", "{:d}", *(batches_to_full_speed(sweep, result.level) for sweep in runs))
    _add(table, "job without a batch, s", "{:.2f}", *(sweep.waited_s for sweep in runs))
    _add(table, "reads stalled on the WAN, s", "{:.2f}", *_counter(gained, STALL_SECONDS))
    _add(table, "reads that reached the spoke", "{:,d}", *(reads_seen(change) if change else None for change in gained))
    rates = [hit_rate(change) if change else None for change in gained]
    _add(table, "  without a wait, %", "{:.1f}", *(rate if rate is None else 100 * rate for rate in rates))
    wan = _counter(gained, WAN_BYTES)
    _add(table, "WAN bytes, MB", "{:,.1f}", *(value if value is None else value / 1e6 for value in wan))
    _add(table, "  per byte of the job's files", "{:.3f}", *(v if v is None else v / result.swept_bytes for v in wan))
    console.print(table)
    for note in _notes(result):
        console.print(f"  {note}")


def _notes(result: Result) -> list[str]:
    total_bytes = result.total_gained.get(WAN_BYTES, 0.0)
    path = result.status.get("data_path", {})
    why = "" if path.get("passthrough") else f" ({path.get('reason', 'unknown')})"
    return [
        f"Same SHA-256 on both sides for all {result.files} files, {result.dataset_bytes / 1e6:,.1f} MB; "
        f"{total_bytes / 1e6:,.1f} MB crossed the link ({total_bytes / result.dataset_bytes:.3f}), names and framing included.",
        f"The job: a PyTorch DataLoader, {result.workers} workers, prefetch_factor 4, batches of "
        f"{result.local.batch_samples} windows of 4,096 tokens, files in order through np.memmap.",
        f"A step touches each token and then waits until {result.step_s * 1000:g} ms are over: it stands for the GPU. "
        "Loader alone: without that wait.",
        "Cold: empty spoke cache, fresh mount. Local files and the hub's were just written, so they are in the page cache.",
        f"Full speed: the ten batches that follow run at {FULL_SPEED:g} of the local median or more.",
        f"Passthrough is {'live' if path.get('passthrough') else 'off' + why}, "
        f"{path.get('passthrough_opens', 0)} opens so far; reads that the kernel answers itself do not reach the spoke.",
    ]


def _counter(gained: Sequence[Mapping[str, float] | None], name: str) -> list[float | None]:
    return [None if change is None else change.get(name, 0.0) for change in gained]


def _add_rates(table: Table, name: str, local: float, cold: float | None, warm: float) -> None:
    ratios = [None if value is None else value / local for value in (cold, warm)]
    shown = [_show("{:,.1f}", value) for value in (local, cold, warm)]
    table.add_row(name, shown[0], shown[1], _show("{:.3f}", ratios[0]), shown[2], _show("{:.3f}", ratios[1]))


def _add(table: Table, name: str, form: str, local: float | None, cold: float | None, warm: float | None) -> None:
    shown = [_show(form, value) for value in (local, cold, warm)]
    table.add_row(name, shown[0], shown[1], "", shown[2], "")


def _show(form: str, value: float | None) -> str:
    return "-" if value is None else form.format(value)


def as_json(result: Result) -> dict[str, Any]:
    runs = {"local": result.local, "cold": result.cold, "warm": result.warm}
    alone = {"local_loader_alone": result.local_alone, "warm_loader_alone": result.warm_alone}
    return {
        "link": {"text": result.link, "rtt_s": result.rtt_s, "rate_bytes_per_s": result.rate_bytes_per_s},
        "machine": {"kernel": platform.release(), "python": platform.python_version()},
        "dataset": {"files": result.files, "bytes": result.dataset_bytes, "swept_bytes": result.swept_bytes},
        "tokens": result.tokens,
        "step_s": result.step_s,
        "workers": result.workers,
        "runs": {
            name: {
                "samples_per_s": sweep.samples_per_s,
                "level_samples_per_s": sweep.level_samples_per_s,
                "batches": sweep.batches,
                "batches_to_full_speed": batches_to_full_speed(sweep, result.level) if name in runs else None,
                "waited_s": sweep.waited_s,
                "steps": [step._asdict() for step in sweep.steps()],
                "batch_s": list(sweep.batch_s),
                "wait_s": list(sweep.wait_s),
            }
            for name, sweep in {**runs, **alone}.items()
        },
        "ratio_to_local": {
            "cold": result.cold.samples_per_s / result.local.samples_per_s,
            "warm": result.warm.samples_per_s / result.local.samples_per_s,
            "warm_level": result.warm.level_samples_per_s / result.level,
            "warm_loader_alone": result.warm_alone.level_samples_per_s / result.local_alone.level_samples_per_s,
        },
        "hit_rate": {"cold": hit_rate(result.cold_gained), "warm": hit_rate(result.warm_gained)},
        "wan_bytes": {
            "cold": result.cold_gained.get(WAN_BYTES),
            "warm": result.warm_gained.get(WAN_BYTES),
            "total": result.total_gained.get(WAN_BYTES),
        },
        "stall_s": {"cold": result.cold_gained.get(STALL_SECONDS), "warm": result.warm_gained.get(STALL_SECONDS)},
        "counters": {
            "cold": dict(result.cold_gained),
            "warm": dict(result.warm_gained),
            "total": dict(result.total_gained),
        },
        "status": dict(result.status),
    }


def write(result: Result, directory: Path) -> list[Path]:
    """``demo.json`` and ``demo.png`` in ``directory``. Raises OSError."""
    data, picture = directory / "demo.json", directory / "demo.png"
    data.write_text(json.dumps(as_json(result), indent=1) + "\n")
    _draw(result, picture)
    return [data, picture]


def _draw(result: Result, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.8), dpi=150, layout="constrained")
    top = 0.0
    for name, sweep, colour, width in (
        ("local directory", result.local, "#9a9a9a", 1.4),
        ("mount, warm", result.warm, "#e07a1f", 1.4),
        ("mount, cold", result.cold, "#1f6f8b", 2.4),
    ):
        steps = sweep.steps()
        edges = [steps[0].first - 1, *(step.last for step in steps)]
        rates = [step.samples_per_s for step in steps]
        top = max(top, *rates)
        label = f"{name}: median {sweep.level_samples_per_s:,.0f}"
        axes.stairs(rates, edges, baseline=None, color=colour, linewidth=width, label=label)
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(0, 1.12 * top)
    axes.set_xlabel("batch (steps of ten)")
    axes.set_ylabel("samples per second")
    until = batches_to_full_speed(result.cold, result.level)
    told = (
        "never at full speed"
        if until is None
        else f"at full speed after {until} {'batch' if until == 1 else 'batches'}"
    )
    axes.set_title(f"PyTorch DataLoader, {result.link}: cold, {told}", loc="left", fontsize=11)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    wan_bytes = result.cold_gained.get(WAN_BYTES, 0.0)
    axes.annotate(
        f"{wan_bytes / 1e6:,.0f} MB over the link for {result.swept_bytes / 1e6:,.0f} MB of files, "
        f"{result.cold_gained.get(STALL_SECONDS, 0.0):.1f} s of read stalls",
        (0.01, 0.03),
        xycoords="axes fraction",
        fontsize=9,
        color="#555555",
    )
    figure.savefig(path)
    plt.close(figure)
