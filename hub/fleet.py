"""The fleet as the hub's page shows it: each spoke's rate, hit rate, lag and lately's curve, and what calls for somebody. Pure.

What a spoke tells of itself (STATS, every 5 s) are numbers of its own; they are shown, and nothing is decided by them.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from common import limits
from common.serving.server import SpokeView

_LATELY_S = 60.0
_SILENT_S = 30.0
_FEW_READS = 100
_LOW_HITS, _HIGH_STALL = 0.9, 0.1
_BEHIND_S = 15.0


class _Point(NamedTuple):
    at_s: float
    sent_bytes: int
    hits: float
    reads: float
    lost_s: float


@dataclass(slots=True)
class _Past:
    points: deque[_Point] = field(default_factory=lambda: deque(maxlen=limits.FLEET_POINTS))
    behind_since_s: float | None = None


class DatasetView(NamedTuple):
    """What the page is told of one dataset."""

    name: str
    directory: str
    entries: int
    revision: int
    held: str | None
    unreadable: int
    unwatched: int
    overflows: int


Level = Literal["problem", "warning"]


class Fleet:
    """``look`` every ``limits.SAMPLE_INTERVAL_S``; ``facts`` when somebody looks."""

    def __init__(self) -> None:
        self._past: OrderedDict[bytes, _Past] = OrderedDict()

    def look(self, now_s: float, spokes: Iterable[SpokeView], revisions: Mapping[str, int]) -> None:
        """Take down how things stand; ``revisions``: of each dataset's head."""
        for spoke in spokes:
            past = self._past.get(spoke.spoke_id)
            if past is None:
                past = self._past[spoke.spoke_id] = _Past()
                if len(self._past) > limits.FLEET_SPOKES_MAX:
                    self._past.popitem(last=False)
            self._past.move_to_end(spoke.spoke_id)
            past.points.append(_point(now_s, spoke))
            behind = _behind(spoke, revisions)
            if not behind:
                past.behind_since_s = None
            elif past.behind_since_s is None:
                past.behind_since_s = now_s

    def facts(self, now_s: float, spokes: Sequence[SpokeView], datasets: Sequence[DatasetView]) -> Mapping[str, Any]:
        """Spokes by identity, at most FLEET_SPOKES_MAX, and alerts, problems first."""
        revisions = {dataset.name: dataset.revision for dataset in datasets}
        shown = sorted(spokes, key=lambda spoke: (spoke.identity, spoke.spoke_id))[: limits.FLEET_SPOKES_MAX]
        rows = [self._row(now_s, spoke, revisions) for spoke in shown]
        alerts = [*_dataset_alerts(datasets), *(alert for row in rows for alert in _spoke_alerts(row))]
        return {
            "spokes": rows,
            "spokes_not_shown": len(spokes) - len(shown),
            "alerts": [
                {"level": level, "text": text}
                for level, text in sorted(alerts, key=lambda alert: alert[0] != "problem")
            ][: limits.FLEET_ALERTS_MAX],
        }

    def _row(self, now_s: float, spoke: SpokeView, revisions: Mapping[str, int]) -> dict[str, Any]:
        past = self._past.get(spoke.spoke_id)
        points = list(past.points) if past is not None else []
        now = _point(now_s, spoke)
        before = next((point for point in points if now_s - point.at_s <= _LATELY_S), now)
        reads, span_s = now.reads - before.reads, now_s - before.at_s
        rates = [
            (later.sent_bytes - earlier.sent_bytes) / max(1e-9, later.at_s - earlier.at_s)
            for earlier, later in pairwise(points)
        ]
        stats = spoke.stats
        behind_s = now_s - past.behind_since_s if past is not None and past.behind_since_s is not None else 0.0
        return {
            "identity": spoke.identity,
            "dataset": spoke.dataset,
            "address": spoke.links[0].address if spoke.links else "",
            "connections": len(spoke.links),
            "connected_s": spoke.connected_s,
            "version": _version(stats),
            "weight": spoke.weight,
            "rate_bytes_per_s": spoke.rate_bytes_per_s,
            "sent_bytes": spoke.sent_bytes,
            "rtt_s": _finite(stats.get("rtt_seconds")) or None,
            "hit_rate": (now.hits - before.hits) / reads if reads > 0 else None,
            "reads": max(0.0, reads),
            "stall_share": min(1.0, max(0.0, now.lost_s - before.lost_s) / span_s) if span_s >= 1 else None,
            "revision": int(_finite(stats.get("revision")) or 0) if stats else None,
            "behind": _behind(spoke, revisions),
            "behind_s": behind_s,
            "staleness_s": _finite(stats.get("staleness_seconds")),
            "cache_used_bytes": _finite(stats.get("cache_used_bytes")),
            "cache_capacity_bytes": _finite(stats.get("cache_capacity_bytes")),
            "stats_age_s": spoke.stats_age_s,
            "rates": [round(rate) for rate in rates],
        }


def _point(now_s: float, spoke: SpokeView) -> _Point:
    hits, late, misses, lost = (
        _finite(spoke.stats.get(name)) or 0.0 for name in ("hits", "late", "misses", "lost_seconds")
    )
    return _Point(now_s, spoke.sent_bytes, hits, hits + late + misses, lost)


def _behind(spoke: SpokeView, revisions: Mapping[str, int]) -> int:
    """Revisions between the head and what the spoke says it shows; 0 where it says nothing."""
    said = _finite(spoke.stats.get("revision"))
    return max(0, revisions.get(spoke.dataset, 0) - int(said)) if said is not None else 0


def _version(stats: Mapping[str, float]) -> str | None:
    parts = [_finite(stats.get(f"version_{name}")) for name in ("major", "minor", "patch")]
    return ".".join(str(int(part)) for part in parts if part is not None) or None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _dataset_alerts(datasets: Iterable[DatasetView]) -> Iterable[tuple[Level, str]]:
    for dataset in datasets:
        if dataset.held:
            yield "problem", f"{dataset.name}: the catalog is held as it was: {dataset.held}"
        if dataset.unreadable:
            yield "warning", f"{dataset.name}: {dataset.unreadable} paths cannot be read; they stay as they were known"
        if dataset.unwatched:
            yield (
                "warning",
                f"{dataset.name}: {dataset.unwatched} directories have no watch; changes there are seen by rescans",
            )


def _spoke_alerts(row: Mapping[str, Any]) -> Iterable[tuple[Level, str]]:
    name, age_s = row["identity"], row["stats_age_s"]
    if age_s is not None and age_s > _SILENT_S:
        yield "problem", f"{name}: linked, and silent for {age_s:.0f} s"
    if row["behind_s"] > _BEHIND_S:
        yield "warning", f"{name}: {row['behind']} revisions behind for {row['behind_s']:.0f} s"
    if row["reads"] >= _FEW_READS and row["hit_rate"] is not None and row["hit_rate"] < _LOW_HITS:
        yield "warning", f"{name}: only {100 * row['hit_rate']:.0f} % of the last minute's reads did not wait"
    if row["stall_share"] is not None and row["stall_share"] > _HIGH_STALL:
        yield "warning", f"{name}: somebody waited for {100 * row['stall_share']:.0f} % of the last minute"
