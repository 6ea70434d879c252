"""Metrics as a table read at scrape time, and the HTTP port of a daemon: ``/metrics``, ``/healthz``, ``/status``, a page at ``/``.

The hot paths count in plain integers; Prometheus objects are made only when somebody scrapes. A fault here never
fails a read: a taken port is logged and the daemon goes on without it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as PrometheusMetric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from common.errors import HeadraceError, UsageError
from common.log import get_logger
from common.units import format_address
from common.web import HEADERS, Page

if TYPE_CHECKING:  # a third of a second, which a mount need not wait for: imported where it listens
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


async def preload() -> Any:
    """The HTTP library: read in a thread, so that nobody waits for it."""
    return await asyncio.to_thread(import_module, "aiohttp.web")


class Source(Protocol):
    """Who answers at a port. ``what``: ``status`` or ``live``; ``mount``: whose it is, where several share the port."""

    async def exposition(self) -> bytes: ...
    async def page(self, what: str, mount: str | None) -> Mapping[str, Any]: ...


class _Alone:
    """One daemon for itself: there is nobody else to ask for."""

    def __init__(self, registry: CollectorRegistry, status: Callable[[], Mapping[str, Any]], page: Page | None) -> None:
        self._registry = registry
        self._facts_of = {"status": status, **({"live": page.facts} if page is not None else {})}

    async def exposition(self) -> bytes:
        return generate_latest(self._registry)

    async def page(self, what: str, _mount: str | None) -> Mapping[str, Any]:
        return self._facts_of[what]()


class HttpPages:
    """Serves the pages on one address. ``health`` gives (ok, facts); ``status`` the daemon's own picture; ``page`` is for people."""

    def __init__(
        self,
        registry: CollectorRegistry,
        health: Callable[[], tuple[bool, Mapping[str, Any]]],
        status: Callable[[], Mapping[str, Any]],
        page: Page | None = None,
        shared: Source | None = None,
    ) -> None:
        self._source: Source = shared or _Alone(registry, status, page)
        self._health = health
        self._page = page
        self._runner: web.AppRunner | None = None
        self.address: tuple[str, int] | None = None

    async def start(self, host: str, port: int, *, complain: bool = True) -> bool:
        """Listen; a port that cannot be had is logged (unless the caller has a better word for it), not raised."""
        web = await preload()
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
            if complain:
                where = format_address(host, port)
                log.error("metrics port not available, going on without it", address=where, error=str(error))
            return False
        self._runner = runner
        self.address = (host, runner.addresses[0][1])
        log.info("metrics", address=format_address(*self.address))
        return True

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve_page(self, _request: web.Request) -> web.Response:
        assert self._page is not None
        return _answer(self._page.html, "text/html", headers=HEADERS)

    async def _serve_live(self, request: web.Request) -> web.Response:
        try:
            facts = await self._source.page("live", request.query.get("mount"))
        except HeadraceError as error:
            return _refusal(error)
        text = json.dumps(facts, separators=(",", ":"), allow_nan=False)
        return _answer(text, "application/json", headers=HEADERS)

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        return _answer((await self._source.exposition()).decode(), CONTENT_TYPE_PLAIN_0_0_4)

    async def _serve_health(self, _request: web.Request) -> web.Response:
        ok, facts = self._health()
        return _json(facts, status=200 if ok else 503)

    async def _serve_status(self, request: web.Request) -> web.Response:
        try:
            return _json(await self._source.page("status", request.query.get("mount")))
        except HeadraceError as error:
            return _refusal(error)


def _answer(
    text: str, content_type: str, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    from aiohttp import web

    kind, _, _rest = content_type.partition(";")
    full = content_type if _rest else f"{kind}; charset=utf-8"
    return web.Response(body=text.encode(), status=status, headers={**(headers or {}), "Content-Type": full})


def _json(value: Mapping[str, Any], status: int = 200) -> web.Response:
    return _answer(json.dumps(value, indent=1) + "\n", "application/json", status=status)


def _refusal(error: HeadraceError) -> web.Response:
    """404: there is no such mount here; 503: it does not answer."""
    return _json({"error": str(error)}, status=404 if isinstance(error, UsageError) else 503)
