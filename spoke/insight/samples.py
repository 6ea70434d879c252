"""The last hour in samples, and the phase a mount is in. Pure; a ring of a fixed size."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from common import limits

Phase = Literal["idle", "cold", "converging", "steady"]

_PHASE_SPAN_S = 30.0
_FEW_READS = 5
_STEADY_HITS, _STEADY_LOCAL = 0.99, 0.9
_COLD_HITS, _COLD_LOCAL = 0.9, 0.5


class Sample(NamedTuple):
    """Counters as they stood at ``at_s`` (the daemon's clock) and gauges of that moment; bytes, seconds."""

    at_s: float
    hit: int
    late: int
    miss: int
    cache_bytes: int
    wan_bytes: int
    fetched_bytes: int
    received_bytes: int
    stall_s: float
    lost_s: float
    waiting: int
    outstanding_bytes: int
    lead_s_total: float
    leads: int
    used_bytes: int
    capacity_bytes: int
    rtt_s: float
    connected: int
    links: int
    kernel_files: int
    """Open files that the kernel reads by itself."""


class Samples:
    """The newest ``limits.SAMPLES_KEPT``, one every ``limits.SAMPLE_INTERVAL_S``."""

    def __init__(self) -> None:
        self._kept: deque[Sample] = deque(maxlen=limits.SAMPLES_KEPT)

    def add(self, sample: Sample) -> None:
        self._kept.append(sample)

    @property
    def last(self) -> Sample | None:
        return self._kept[-1] if self._kept else None

    def back(self, span_s: float) -> Sample | None:
        """The oldest within ``span_s`` of the newest."""
        if not self._kept:
            return None
        from_s = self._kept[-1].at_s - span_s
        found = self._kept[-1]
        for sample in reversed(self._kept):
            if sample.at_s < from_s:
                break
            found = sample
        return found

    def at(self, at_s: float) -> Sample | None:
        """The newest that is not newer than this."""
        return next((sample for sample in reversed(self._kept) if sample.at_s <= at_s), None)

    def phase(self, now: Sample) -> tuple[Phase, str]:
        """Of the last half minute up to ``now``, and why in words."""
        before = self.back(_PHASE_SPAN_S)
        if before is None:
            return "idle", "just started"
        reads = now.hit + now.late + now.miss - before.hit - before.late - before.miss
        if reads < _FEW_READS:
            if now.kernel_files:
                return "steady", f"the kernel reads {now.kernel_files} open files by itself, from whole cached files"
            return "idle", f"{reads or 'no'} reads in the last half minute"
        hits = (now.hit - before.hit) / reads
        read_bytes = now.cache_bytes + now.wan_bytes - before.cache_bytes - before.wan_bytes
        far_bytes = min(now.fetched_bytes - before.fetched_bytes, read_bytes)
        local = 1 - far_bytes / read_bytes if read_bytes else 1.0
        why = f"{100 * hits:.1f} % of reads did not wait, {100 * local:.0f} % of what was read needed no link"
        if hits >= _STEADY_HITS and local >= _STEADY_LOCAL:
            return "steady", why
        return ("cold" if hits < _COLD_HITS and local < _COLD_LOCAL else "converging"), why

    def series(self, points: int) -> dict[str, Any]:
        """Columns between samples, oldest first, at most ``points`` of them: rates in bytes per second, shares 0 to 1 or None."""
        kept = list(self._kept)
        stride = max(1, -(-max(0, len(kept) - 1) // points))
        picked = kept[(len(kept) - 1) % stride :: stride]
        columns: dict[str, list[float | None]] = {
            name: [] for name in ("ago_s", "cache_rate", "wan_rate", "hit_rate", "stall_share", "window_bytes",
                                  "lead_s", "used_bytes", "rtt_s", "waiting", "connected")
        }  # fmt: skip
        for before, after in pairwise(picked):
            span_s = max(1e-9, after.at_s - before.at_s)
            reads = after.hit + after.late + after.miss - before.hit - before.late - before.miss
            leads = after.leads - before.leads
            values: tuple[float | None, ...] = (
                kept[-1].at_s - after.at_s,
                (after.cache_bytes - before.cache_bytes) / span_s,
                (after.received_bytes - before.received_bytes) / span_s,
                (after.hit - before.hit) / reads if reads else None,
                min(1.0, (after.lost_s - before.lost_s) / span_s),
                after.outstanding_bytes,
                (after.lead_s_total - before.lead_s_total) / leads if leads else None,
                after.used_bytes,
                after.rtt_s or None,
                after.waiting,
                after.connected,
            )
            for column, value in zip(columns.values(), values, strict=True):
                column.append(round(value, 6) if value is not None else None)
        return {"interval_s": limits.SAMPLE_INTERVAL_S * stride, **columns}
