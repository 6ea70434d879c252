"""What a measurement of a long link says: the arithmetic, a table on the terminal, JSON, and a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.quantiles import quantile

FIRST_ROUND_TRIPS = 12
"""What a connection may need to find the rate of its path; shares of the link are given before and after."""


@dataclass(frozen=True)
class Run:
    """One load on a fresh mount, or ``after_idle_s`` of silence on one that had such a load.

    ``wire_bytes``: received by the spoke meanwhile; ``…_cpu_s``: of the daemons, user and system.
    """

    readers: int
    bucket_s: float
    bytes_by_bucket: Sequence[int]
    ended_s: Sequence[float]
    probes: Sequence[Sequence[float]]
    wire_bytes: int
    hub_cpu_s: float
    spoke_cpu_s: float
    links: int
    after_idle_s: float = 0.0

    @property
    def label(self) -> str:
        again = f", {self.after_idle_s:g} s later" if self.after_idle_s else ""
        return f"{self.readers} reader{'s' if self.readers > 1 else ''}{again}"

    @property
    def read_bytes(self) -> int:
        return sum(self.bytes_by_bucket)

    @property
    def goodput_bytes_per_s(self) -> float:
        """Until the last reader was done."""
        return self.read_bytes / max(self.ended_s)

    @property
    def probes_s(self) -> list[float]:
        return [took_s for _, took_s in self.probes]

    def between(self, start_s: float, end_s: float) -> float:
        """Bytes per second read by all within a span; a bucket cut by its edges counts in proportion."""
        size_bytes = 0.0
        for bucket, count in enumerate(self.bytes_by_bucket):
            overlap_s = min(end_s, (bucket + 1) * self.bucket_s) - max(start_s, bucket * self.bucket_s)
            size_bytes += count * max(0.0, overlap_s) / self.bucket_s
        return size_bytes / (end_s - start_s)


@dataclass(frozen=True)
class Result:
    """``idle_s``: how long single cold pages took on an idle link; ``plain_s``: plain exchanges of their size, right after them.
    ``rate_bytes_per_s`` inf: the link has no limit."""

    link: str
    rtt_s: float
    rate_bytes_per_s: float
    idle_s: Sequence[float]
    plain_s: Sequence[float]
    runs: Sequence[Run]
    command: str

    def shares(self, run: Run) -> dict[str, float | None]:
        """Goodput as a share of the link: in all, in the first round trips, after them while all readers read."""
        first_s = FIRST_ROUND_TRIPS * self.rtt_s
        end_s = min(run.ended_s)
        if math.isinf(self.rate_bytes_per_s):
            return {"all": None, "first": None, "after": None}
        return {
            "all": run.goodput_bytes_per_s / self.rate_bytes_per_s,
            "first": run.between(0, min(first_s, end_s)) / self.rate_bytes_per_s if first_s else None,
            "after": run.between(first_s, end_s) / self.rate_bytes_per_s if end_s > first_s + run.bucket_s else None,
        }


def as_json(result: Result) -> dict[str, Any]:
    idle_p99_s = quantile(result.idle_s, 0.99)
    return {
        "command": result.command,
        "link": {
            "text": result.link,
            "rtt_s": result.rtt_s,
            "rate_bytes_per_s": None if math.isinf(result.rate_bytes_per_s) else result.rate_bytes_per_s,
        },
        "idle": {**_latency(result.idle_s), "latencies_s": list(result.idle_s)},
        "plain": {**_latency(result.plain_s), "latencies_s": list(result.plain_s)},
        "runs": [
            {
                "readers": run.readers,
                "after_idle_s": run.after_idle_s,
                "read_bytes": run.read_bytes,
                "seconds": max(run.ended_s),
                "goodput_bytes_per_s": run.goodput_bytes_per_s,
                "share_of_link": result.shares(run),
                "wire_bytes_per_read_byte": run.wire_bytes / run.read_bytes,
                "hub_cpu_s_per_gb": run.hub_cpu_s / run.read_bytes * 1e9,
                "spoke_cpu_s_per_gb": run.spoke_cpu_s / run.read_bytes * 1e9,
                "links": run.links,
                "loaded": {**_latency(run.probes_s), "p99_to_idle": quantile(run.probes_s, 0.99) / idle_p99_s},
                "bucket_s": run.bucket_s,
                "bytes_by_bucket": list(run.bytes_by_bucket),
                "probes": [list(seen) for seen in run.probes],
                "ended_s": list(run.ended_s),
            }
            for run in result.runs
        ],
    }


def _latency(values: Sequence[float]) -> dict[str, float]:
    return {"count": len(values), "p50_s": quantile(values, 0.5), "p99_s": quantile(values, 0.99)}


def show(result: Result, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=result.link, title_justify="left")
    table.add_column("", no_wrap=True)
    for run in result.runs:
        table.add_column(run.label, justify="right", no_wrap=True)
    shares = [result.shares(run) for run in result.runs]
    idle = f"{_ms(quantile(result.idle_s, 0.5))} / {_ms(quantile(result.idle_s, 0.99))}"
    plain = f"{_ms(quantile(result.plain_s, 0.5))} / {_ms(quantile(result.plain_s, 0.99))}"
    more_s = quantile(result.idle_s, 0.5) - quantile(result.plain_s, 0.5)
    rows: list[tuple[str, list[str]]] = [
        ("read, MB/s", [f"{run.goodput_bytes_per_s / 1e6:,.1f}" for run in result.runs]),
        ("  of the link", [_ratio(share["all"]) for share in shares]),
        (f"  first {FIRST_ROUND_TRIPS} round trips", [_ratio(share["first"]) for share in shares]),
        ("  after them", [_ratio(share["after"]) for share in shares]),
        ("one cold page, idle, p50 / p99 ms", [idle for _ in result.runs]),
        ("  a plain exchange of its size", [plain for _ in result.runs]),
        ("  p50 above that", [_ms(more_s) for _ in result.runs]),
        ("  under load", [f"{_ms(quantile(run.probes_s, 0.5))} / {_ms(quantile(run.probes_s, 0.99))}" for run in result.runs]),
        ("  p99 to idle", [_ratio(quantile(run.probes_s, 0.99) / quantile(result.idle_s, 0.99)) for run in result.runs]),
        ("bytes on the wire / read", [_ratio(run.wire_bytes / run.read_bytes) for run in result.runs]),
        ("hub, CPU s per GB", [f"{run.hub_cpu_s / run.read_bytes * 1e9:.2f}" for run in result.runs]),
        ("spoke, CPU s per GB", [f"{run.spoke_cpu_s / run.read_bytes * 1e9:.2f}" for run in result.runs]),
        ("links", [str(run.links) for run in result.runs]),
    ]  # fmt: skip
    for name, cells in rows:
        table.add_row(name, *cells)
    console.print(table)


def _ms(value_s: float) -> str:
    return f"{value_s * 1000:,.1f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"


def write(result: Result, directory: Path, name: str) -> list[Path]:
    """``NAME.json`` and, where matplotlib is installed, ``NAME.png`` in ``directory``. Raises OSError."""
    data, picture = directory / f"{name}.json", directory / f"{name}.png"
    data.write_text(json.dumps(as_json(result), indent=1) + "\n")
    return [data, picture] if _draw(result, picture) else [data]


def _draw(result: Result, path: Path) -> bool:
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    colours = ("#1f6f8b", "#e07a1f", "#5b8c5a", "#7a5195")
    figure, (rates, waits) = plt.subplots(2, 1, figsize=(9, 6.4), dpi=150, layout="constrained", sharex=True)
    for run, colour in zip(result.runs, colours, strict=False):
        together = max(1, round(max(0.2, result.rtt_s) / run.bucket_s))
        steps = [
            sum(run.bytes_by_bucket[start : start + together]) / (together * run.bucket_s) * 8 / 1e9
            for start in range(0, len(run.bytes_by_bucket) - together + 1, together)
        ]
        edges = [step * together * run.bucket_s for step in range(len(steps) + 1)]
        share = result.shares(run)["all"]
        label = run.label
        label += f": {share:.2f} of the link" if share is not None else ""
        rates.stairs(steps, edges, baseline=None, color=colour, linewidth=2, label=label)
        waits.plot(*zip(*run.probes, strict=True), ".", color=colour, label=f"{label.partition(':')[0]} beside it")
    if not math.isinf(result.rate_bytes_per_s):
        rates.axhline(result.rate_bytes_per_s * 8 / 1e9, color="#9a9a9a", linewidth=1, linestyle="--", label="the link")
    idle_p99_s = quantile(result.idle_s, 0.99)
    waits.axhline(1.5 * idle_p99_s, color="#9a9a9a", linewidth=1, linestyle="--", label="1.5 x the idle p99")
    rates.set_ylabel("read, Gbit/s")
    rates.set_title(result.link, loc="left", fontsize=11)
    waits.set_ylabel("one cold page, s")
    waits.set_xlabel(f"seconds; idle: p50 {_ms(quantile(result.idle_s, 0.5))}, p99 {_ms(idle_p99_s)} ms")
    for axes in (rates, waits):
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(loc="lower right", frameon=False, fontsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.savefig(path)
    plt.close(figure)
    return True
