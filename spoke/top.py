"""``headrace-spoke top``: one frame of what goes on, from two answers of ``status``. Makes facts and lines; prints nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from common.terminal import printable
from common.units import format_rate, format_size
from spoke.insight.stalls import in_time

_PHASE_STYLES = {"cold": "bold red", "converging": "yellow", "steady": "green", "idle": "dim"}
_ROWS = 8


def frame_facts(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Rates between two answers and what stands in the later one. Bytes per second, seconds, shares 0 to 1 or None."""
    span_s = max(1e-9, after["uptime_s"] - before["uptime_s"])
    was, now = before["reads"], after["reads"]
    counts = {name: now[name] - was[name] for name in ("hit", "late", "miss")}
    reads = sum(counts.values())
    return {
        "mountpoint": after["mountpoint"],
        "dataset": after["dataset"],
        "span_s": span_s,
        "phase": after["phase"],
        "hub": {name: after["hub"][name] for name in ("address", "connected", "rtt_s", "rate_bytes_per_s")},
        "links": len(after["hub"]["links"]),
        "reads_per_s": reads / span_s,
        "hit_rate": counts["hit"] / reads if reads else None,
        "cache_bytes_per_s": (now["cache_bytes"] - was["cache_bytes"]) / span_s,
        "read_wan_bytes_per_s": (now["wan_bytes"] - was["wan_bytes"]) / span_s,
        "wan_bytes_per_s": (after["hub"]["received_bytes"] - before["hub"]["received_bytes"]) / span_s,
        "lost_share": min(1.0, (after["stalls"]["lost_s"] - before["stalls"]["lost_s"]) / span_s),
        "waiting": now["waiting"],
        "window_bytes": after["prefetch"]["outstanding_bytes"],
        "cache": {name: after["cache"][name] for name in ("used_bytes", "capacity_bytes", "files", "evicted_bytes")},
        "passthrough_opens": after["data_path"]["passthrough_opens"],
        "staleness_s": after["names"]["staleness_s"],
        "said": after["stalls"]["said"],
        "stalls": {
            name: after["stalls"][name] for name in ("lost_s", "stall_s", "processes", "groups", "files", "recent")
        },
        "training": [{name: value for name, value in job.items() if name != "last_steps"} for job in after["training"]],
        "notes": after["notes"],
    }


def draw(facts: Mapping[str, Any]) -> RenderableType:
    """The frame for people."""
    hub, cache = facts["hub"], facts["cache"]
    rtt = "?" if hub["rtt_s"] is None else f"{hub['rtt_s'] * 1000:.1f} ms"
    phase = facts["phase"]["name"]
    hits = "no reads" if facts["hit_rate"] is None else f"{100 * facts['hit_rate']:.1f} % without waiting"
    parts: list[RenderableType] = [
        Text.assemble(
            (facts["mountpoint"], "bold"), f"  {facts['dataset']} from {hub['address']}  ", (phase, _PHASE_STYLES[phase]),
            f"  {facts['phase']['why']}",
        ),
        Text(
            f"hub    {'linked' if hub['connected'] else 'NOT LINKED'}, {facts['links']} links, round trip {rtt}, "
            f"best rate lately {format_rate(hub['rate_bytes_per_s'])}",
            "" if hub["connected"] else "bold red",
        ),
        Text(
            f"reads  {facts['reads_per_s']:.0f}/s, {hits}; from cache {format_rate(facts['cache_bytes_per_s'])}, "
            f"waited for {format_rate(facts['read_wan_bytes_per_s'])}; WAN {format_rate(facts['wan_bytes_per_s'])}"
        ),
        Text(
            f"stall  {100 * facts['lost_share']:.0f} % of this time somebody waited, {facts['waiting']} wait now; "
            f"{in_time(facts['stalls']['lost_s'])} lost since the start"
        ),
        Text(
            f"ahead  {format_size(facts['window_bytes'])} asked for and on the way; cache {format_size(cache['used_bytes'])} of "
            f"{format_size(cache['capacity_bytes'])}, {format_size(cache['evicted_bytes'])} evicted"
        ),
    ]  # fmt: skip
    parts.extend(Text(f"→ {line}", "bold") for line in facts["said"])
    parts.extend(Text(f"NOTE {note}", "yellow") for note in facts["notes"])
    if facts["training"]:
        parts.append(_training(facts["training"]))
    if facts["stalls"]["processes"]:
        parts.append(_processes(facts["stalls"]["processes"]))
        parts.append(_named("group", "cgroup or pod", facts["stalls"]["groups"]))
        parts.append(_named("path", "file", facts["stalls"]["files"]))
    return Group(*parts)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
    for column in columns:
        table.add_column(column, justify="left" if column in _LEFT else "right", no_wrap=True, overflow="ellipsis")
    return table


_LEFT = ("job", "process", "cgroup or pod", "file", "group")


def _training(jobs: list[Mapping[str, Any]]) -> Table:
    table = _table("job", "steps", "step", "data wait", "mount stall", "reads in time", "WAN", "last mark")
    for job in jobs[:_ROWS]:
        recent = job["recent"]
        reads = recent["reads"]
        total = reads["hit"] + reads["late"] + reads["miss"]
        table.add_row(
            _name(job["who"] if job["who"] == job["name"] else f"{job['who']} ({job['name']})"),
            f"{job['steps']:,}",
            _seconds(recent["step_s_median"]),
            _share(recent["data_wait_share"]),
            _share(recent["mount_stall_share"]),
            _share(reads["hit"] / total if total else None),
            format_size(reads["wan_bytes"]),
            f"{in_time(job['last_mark_ago_s'])} ago",
        )
    return table


def _processes(rows: list[Mapping[str, Any]]) -> Table:
    table = _table("lost", "stall", "waits", "now", "pid", "rank", "process", "group")
    for row in rows[:_ROWS]:
        table.add_row(
            in_time(row["lost_s"]), in_time(row["stall_s"]), f"{row['waits']:,}", str(row["waiting"] or ""),
            str(row["pid"] or "?"), "" if row["rank"] is None else str(row["rank"]), _name(row["name"]),
            _name(f"pod {row['pod']}" if row["pod"] else row["group"]),
        )  # fmt: skip
    return table


def _named(key: str, title: str, rows: list[Mapping[str, Any]]) -> Table:
    table = _table("lost", "stall", "waits", title)
    for row in rows[:_ROWS]:
        table.add_row(in_time(row["lost_s"]), in_time(row["stall_s"]), f"{row['waits']:,}", _name(row[key]))
    return table


def _name(name: str) -> Text:
    """Somebody else's: no markup."""
    return Text(printable(name))


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1000:.0f} ms" if value < 10 else in_time(value)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
