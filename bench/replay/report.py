"""What came out: a table on the terminal, JSON, and a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.replay.runs import Report

COLUMNS = ("speed", "delay s", "stall s", "hit %", "late %", "wasted MB", "amplification", "full after")


def _cells(report: Report) -> list[str]:
    full = "never" if report.full_speed_after is None else str(report.full_speed_after)
    return [
        f"{report.speed:.3f}",
        f"{report.delay_s:.2f}",
        f"{report.stall_s:.1f}",
        f"{100 * report.hit_share:.1f}",
        f"{100 * report.late_share:.1f}",
        f"{report.wasted_bytes / 1e6:.1f}",
        f"{report.amplification:.2f}",
        full,
    ]


def show(reports: Sequence[Report], about: str, console: Console) -> None:
    """One row a pattern and policy; the best of a pattern (the oracle apart) is marked."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=about, title_justify="left", title_style="")
    table.add_column("pattern")
    table.add_column("policy")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for pattern, rows in _by_pattern(reports).items():
        best = min((row.job_s for row in rows if not row.policy.startswith("oracle")), default=0.0)
        for number, row in enumerate(rows):
            style = "bold" if row.job_s == best else "dim" if row.policy.startswith("oracle") else ""
            table.add_row("" if number else pattern, row.policy, *_cells(row), style=style)
        table.add_section()
    console.print(table)
    console.print(
        "  speed: job time with local data / job time. delay: the job ends so much later than with local data."
    )
    console.print(
        "  stall: readers' waits added up. full after: batches until 0.98 of local speed. Bold: best but for the oracle."
    )
    timed = [row for row in reports if row.read_us is not None]
    if timed:
        medians = sorted(row.read_us or 0.0 for row in timed)
        worst = max(timed, key=lambda row: row.read_us or 0.0)
        console.print(
            f"  the planner thinks about a READ for {medians[len(medians) // 2]:.1f} us "
            f"(median of the patterns' medians; the most: {worst.read_us:.1f} us, {worst.pattern})"
        )


def _by_pattern(reports: Sequence[Report]) -> dict[str, list[Report]]:
    found: dict[str, list[Report]] = {}
    for report in reports:
        found.setdefault(report.pattern, []).append(report)
    return found


def gaps(reports: Sequence[Report]) -> list[tuple[str, float, float]]:
    """(pattern, planner's job time over the oracle's, over kernel readahead's), worst against the oracle first."""
    found = []
    for pattern, rows in _by_pattern(reports).items():
        by_policy = {row.policy: row.job_s for row in rows}
        if {"planner", "oracle", "kernel"} <= by_policy.keys():
            mine = by_policy["planner"]
            found.append((pattern, mine / by_policy["oracle"], mine / by_policy["kernel"]))
    return sorted(found, key=lambda row: -row[1])


def markdown(reports: Sequence[Report]) -> str:
    """Patterns down, policies across: speed (amplification), for the results page."""
    policies = list(dict.fromkeys(report.policy for report in reports))
    lines = ["| pattern | " + " | ".join(policies) + " |", "|---|" + "---|" * len(policies)]
    for pattern, rows in _by_pattern(reports).items():
        by_policy = {row.policy: row for row in rows}
        cells = [
            f"{by_policy[policy].speed:.3f} ({by_policy[policy].amplification:.2f})" if policy in by_policy else ""
            for policy in policies
        ]
        lines.append(f"| {pattern} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write(reports: Sequence[Report], facts: dict[str, Any], out: Path, name: str) -> list[Path]:
    """JSON, Markdown and PNG below ``out``; returns their paths."""
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}.json", out / f"{name}.md", out / f"{name}.png"]
    paths[0].write_text(json.dumps({**facts, "reports": [report.as_json() for report in reports]}, indent=1) + "\n")
    paths[1].write_text(markdown(reports))
    draw(reports, paths[2])
    return paths


def draw(reports: Sequence[Report], path: Path) -> None:
    """A bar for each pattern and policy: share of local speed; the amplification above it."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    by_pattern = _by_pattern(reports)
    policies = list(dict.fromkeys(report.policy for report in reports))
    height = 0.8 / len(policies)
    figure, axes = plt.subplots(figsize=(10, 1.5 + 0.16 * len(by_pattern) * (len(policies) + 1)), layout="constrained")
    for number, policy in enumerate(policies):
        rows = [row for row in reports if row.policy == policy]
        places = [list(by_pattern).index(row.pattern) + number * height for row in rows]
        axes.barh(places, [row.speed for row in rows], height * 0.9, label=policy)
        for place, row in zip(places, rows, strict=True):
            axes.text(row.speed + 0.005, place, f"{row.amplification:.2f}x", va="center", fontsize=5)
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(by_pattern))], list(by_pattern))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.08)
    axes.axvline(0.98, color="grey", linewidth=0.5)
    axes.set_xlabel("share of local speed; amplification beside the bars")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.06), ncols=len(policies), frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)
