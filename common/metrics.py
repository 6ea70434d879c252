"""Metrics as a table read at scrape time, and the HTTP port of a daemon: ``/metrics``, ``/healthz``, ``/status``, a page at ``/``.

The hot paths count in plain integers; Prometheus objects are made only when somebody scrapes. A fault here never
fails a read: a taken port is logged and the daemon goes on without it.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as PrometheusMetric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from common.log import get_logger
from common.units import format_address
from common.web import HEADERS, Page

if TYPE_CHECKING:
    from aiohttp import web

log = get_logger(__name__)


OwnerT = TypeVar("OwnerT")
LabelValues = tuple[str, ...]


@dataclass(frozen=True)
class Metric(Generic[OwnerT]):
    """One family. ``name``: without ``_total``; ``read``: the value, or values by label values, from the owner."""

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    read: Callable[[OwnerT], float | Mapping[LabelValues, float]]
    labels: tuple[str, ...] = ()


class TableCollector(Collector, Generic[OwnerT]):
    """Turns a table of metrics and the object they are read from into what Prometheus scrapes."""

    def __init__(self, table: Sequence[Metric[OwnerT]], owner: OwnerT) -> None:
        self._table = table
        self._owner = owner

    def collect(self) -> Iterator[PrometheusMetric]:
        for metric in self._table:
            make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = make(metric.name, metric.meaning, labels=metric.labels)
            value = metric.read(self._owner)
            for labels, number in value.items() if isinstance(value, Mapping) else [((), value)]:
                family.add_metric(labels, number)
            yield family


class HttpPages:
    """Serves the pages on one address. ``health`` gives (ok, facts); ``status`` the daemon's own picture; ``page`` is for people."""

    def __init__(
        self,
        registry: CollectorRegistry,
        health: Callable[[], tuple[bool, Mapping[str, Any]]],
        status: Callable[[], Mapping[str, Any]],
        page: Page | None = None,
    ) -> None:
        self._registry = registry
        self._health = health
        self._status = status
        self._page = page
        self._runner: web.AppRunner | None = None
        self.address: tuple[str, int] | None = None

    @staticmethod
    async def read_code() -> None:
        """Import the server, a third of all that a spoke imports, in a thread: after a worker died readers wait, and not for this."""
        await asyncio.to_thread(importlib.import_module, "aiohttp.web")

    async def start(self, host: str, port: int) -> None:
        """Listen; a port that cannot be had is logged, not raised."""
        await self.read_code()
        from aiohttp import web  # not before: see read_code

        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._serve_metrics),
                web.get("/healthz", self._serve_health),
                web.get("/status", self._serve_status),
            ]
        )
        if self._page is not None:
            app.add_routes([web.get("/", self._serve_page), web.get("/live", self._serve_live)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port, shutdown_timeout=1.0).start()
        except OSError as error:
            await runner.cleanup()
            log.error(
                "metrics port not available, going on without it", address=format_address(host, port), error=str(error)
            )
            return
        self._runner = runner
        self.address = (host, runner.addresses[0][1])
        log.info("metrics", address=format_address(*self.address))

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve_page(self, _request: web.Request) -> web.Response:
        assert self._page is not None
        return _response(text=self._page.html, content_type="text/html", charset="utf-8", headers=HEADERS)

    async def _serve_live(self, _request: web.Request) -> web.Response:
        assert self._page is not None
        text = json.dumps(self._page.facts(), separators=(",", ":"), allow_nan=False)
        return _response(text=text, content_type="application/json", headers=HEADERS)

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        return _response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def _serve_health(self, _request: web.Request) -> web.Response:
        ok, facts = self._health()
        return _json(facts, status=200 if ok else 503)

    async def _serve_status(self, _request: web.Request) -> web.Response:
        return _json(self._status())


def _json(value: Mapping[str, Any], status: int = 200) -> web.Response:
    return _response(text=json.dumps(value, indent=1) + "\n", content_type="application/json", status=status)


def _response(**parts: Any) -> web.Response:
    from aiohttp import web  # read by now

    return web.Response(**parts)
