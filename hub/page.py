"""The hub's web page: its fleet now, curves of the last hour, alerts. Takes a sample now and then; shows no settings."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from common import limits
from common.serving.server import SpokeView
from common.web import Page, assemble
from hub.fleet import DatasetView, Fleet
from hub.source import HubSource


class Shown(Protocol):
    """What the page reads; the hub is this."""

    def status(self) -> Mapping[str, Any]: ...
    def spoke_views(self) -> list[SpokeView]: ...
    @property
    def sources(self) -> Mapping[str, HubSource]: ...


class _Sample(NamedTuple):
    at_s: float
    rate_bytes_per_s: float
    spokes: int


class HubPage:
    """``page`` goes to the HTTP port; ``run`` is a task for the hub's life."""

    def __init__(self, hub: Shown, clock: Callable[[], float]) -> None:
        self._hub = hub
        self._clock = clock
        self._fleet = Fleet()
        self._samples: deque[_Sample] = deque(maxlen=limits.SAMPLES_KEPT)
        self.page = Page(assemble("hub", "hub.html"), self.facts)

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self.sample()
            await asyncio.sleep(limits.SAMPLE_INTERVAL_S)

    def sample(self) -> None:
        now_s, spokes = self._clock(), self._hub.spoke_views()
        self._fleet.look(now_s, spokes, {name: source.head_revision for name, source in self._hub.sources.items()})
        self._samples.append(_Sample(now_s, sum(spoke.rate_bytes_per_s for spoke in spokes), len(spokes)))

    def facts(self) -> Mapping[str, Any]:
        """What ``/live`` gives: bounded by FLEET_SPOKES_MAX and SERIES_POINTS."""
        now_s, status = self._clock(), self._hub.status()
        datasets = _datasets(status["datasets"])
        stride = max(1, -(-len(self._samples) // limits.SERIES_POINTS))
        picked = list(self._samples)[(len(self._samples) - 1) % stride :: stride] if self._samples else []
        return {
            **{
                name: status[name] for name in ("version", "listen", "serving", "uptime_s", "raw_bytes", "packed_bytes")
            },
            "rate_limit": f"limit {status['rate_limit']['limit']}",
            **self._fleet.facts(now_s, self._hub.spoke_views(), datasets),
            "datasets": [dataset._asdict() for dataset in datasets],
            "workers": _workers(status["workers"]),
            "series": {
                "ago_s": [round(now_s - sample.at_s, 1) for sample in picked],
                "rate": [round(sample.rate_bytes_per_s) for sample in picked],
                "spokes": [sample.spokes for sample in picked],
            },
        }


def _datasets(shown: Mapping[str, Mapping[str, Any]]) -> Sequence[DatasetView]:
    names = [name for name in DatasetView._fields if name != "name"]
    return [DatasetView(name, *(facts[field] for field in names)) for name, facts in shown.items()]


def _workers(shown: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: worker[name] for name in ("pid", "serving", "spokes", "connections")} for worker in shown]
