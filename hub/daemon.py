"""One hub: a source for each dataset, one server in front of them, one HTTP port beside it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from prometheus_client import CollectorRegistry

from common import __version__, limits, runtime
from common.config import Loaded
from common.errors import HeadraceError, UsageError
from common.log import get_logger
from common.metrics import HttpPages, TableCollector
from common.processes import allow_open_files
from common.runtime import cancel_and_wait
from common.serving.packing import Packer
from common.serving.server import Server, SpokeView
from common.systemd import ServiceManager
from common.tls import Certificates
from common.token import TokenFile
from common.units import format_address, parse_address
from hub.audit import AuditFile, AuditTrail
from hub.config import HubSettings
from hub.counts import Counts
from hub.exposure import check_exposure
from hub.identities import IdentitiesFile
from hub.metrics import METRICS, Packed
from hub.orders.desk import OrderDeskOfHub
from hub.page import HubPage
from hub.rate_schedule import RateSchedule
from hub.source import HubSource
from hub.timetable import Timetable, parse_zone
from hub.watcher import WatcherSettings
from hub.workers.messages import Start
from hub.workers.pool import Pool

log = get_logger(__name__)


class Hub:
    """Use :func:`run_hub`, or ``await hub.start()`` and ``await hub.close()``."""

    def __init__(self, loaded: Loaded[HubSettings]) -> None:
        settings = self.settings = loaded.settings
        self._loaded = loaded
        self._started_s = runtime.now_s()
        self._ready = False
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._counts = Counts()
        watching = WatcherSettings(rescan_interval_s=settings.rescan_interval)
        self.sources = {
            name: HubSource(name, directory, settings.state_dir, settings=watching, clock=runtime.now_s)
            for name, directory in settings.dataset.items()
        }
        self._packer = Packer(settings.compression)
        self.certificates = Certificates(settings.tls, runtime.wall_time_s) if settings.tls is not None else None
        token = TokenFile(settings.token_file) if settings.token_file is not None else None
        self._audit_file = AuditFile(settings.audit_log) if settings.audit_log else None
        self._audit = (
            AuditTrail(self._audit_file.emit, self.sources, runtime.now_s, runtime.wall_time_s)
            if self._audit_file is not None
            else None
        )
        if settings.identities.table and settings.tls is None:
            log.warning("without TLS a spoke's identity is what it says of itself: [identities] keeps nobody out")
        self.orders = (
            OrderDeskOfHub(self.sources, settings.state_dir, runtime.now_s, runtime.wall_time_s)
            if settings.share_orders
            else None
        )
        self.server: Server | Pool = (
            self._pool()
            if settings.workers > 1
            else Server(
                self.sources,
                listen=parse_address(settings.listen),
                clock=runtime.now_s,
                total_rate_bytes_per_s=settings.rate_limit.most_bytes_per_s,  # what one socket may reach; the schedule sets it
                weights=settings.weights,
                observer=self._counts,
                codecs=self._packer.codecs,
                pack=self._packer.pack,
                access=settings.identities,
                certificates=self.certificates,
                token=token,
                auditor=self._audit,
                orders=self.orders,
            )
        )
        self._identities = (
            IdentitiesFile(loaded.file, settings.identities, self.server.set_access)
            if loaded.file is not None
            else None
        )
        self._identities_task: asyncio.Task[None] | None = None
        timetable = Timetable(settings.rate_limit.rules, parse_zone(settings.rate_limit_zone))
        self.rate_schedule = RateSchedule(timetable, self.server.limit_total, runtime.wall_time_s)
        self._rate_task: asyncio.Task[None] | None = None
        registry = CollectorRegistry()
        registry.register(TableCollector(METRICS, self))
        self._page = HubPage(self, runtime.now_s)
        self._page_task: asyncio.Task[None] | None = None
        self.pages = HttpPages(registry, self.health, self.status, self._page.page)

    def _pool(self) -> Pool:
        settings = self.settings
        start_words = Start(
            {name: (os.fsencode(directory), -1) for name, directory in settings.dataset.items()},
            os.fsencode(settings.state_dir),
            settings.compression.value,
            rate_bytes_per_s=settings.rate_limit.most_bytes_per_s,
            share_bytes_per_s=None,
            weights=settings.weights.table,
            processes=settings.workers,
            log_level=settings.log_level,
            log_format=settings.log_format,
            security={
                "tls": [os.fsencode(path) for path in settings.tls] if settings.tls is not None else None,
                "token": os.fsencode(settings.token_file) if settings.token_file is not None else None,
                "audit": bool(settings.audit_log),
            },
            identities=settings.identities.plain(),
            orders=settings.share_orders,
        )
        return Pool(
            self.sources,
            settings.workers,
            listen=parse_address(settings.listen),
            clock=runtime.now_s,
            start_words=start_words,
            on_failed=self.fail,
            on_audit=self._audit_file.emit if self._audit_file is not None else None,
            orders=self.orders,
        )

    def fail(self, error: HeadraceError) -> None:
        """It cannot go on: whoever waits in :meth:`failed` ends it."""
        if not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # retrieved: a start that failed reports it itself

    async def failed(self) -> None:
        """Raises the error with which this hub must end; waits for one for ever."""
        await asyncio.shield(self._failure)

    async def start(self) -> None:
        """Scan, then listen: a spoke that gets through sees a whole tree. Raises UsageError for what cannot be served."""
        settings = self.settings
        await self.pages.start(*parse_address(settings.metrics))  # first: /healthz says "scanning" meanwhile
        for name, source in self.sources.items():
            await source.start()
            log.info("dataset scanned", dataset=name, entries=source.status.entries, revision=source.head_revision)
        if self.orders is not None:
            await self.orders.start()
        self.rate_schedule.look()  # before the first spoke
        try:
            await self.server.start()
        except OSError as error:
            # The loop's own words are long; those of a name service have numbers of their own.
            named = isinstance(error, socket.gaierror)
            reason = error.strerror if named else os.strerror(error.errno) if error.errno else error
            raise UsageError(f"cannot listen on {settings.listen}: {reason}; choose another --listen") from None
        self._rate_task = asyncio.create_task(self.rate_schedule.run(), name="rate schedule")
        if self._identities is not None:
            self._identities_task = asyncio.create_task(self._identities.run(), name="identities")
        self._page_task = asyncio.create_task(self._page.run(), name="samples for the page")
        self._ready = True

    async def close(self) -> None:
        self._ready = False
        await cancel_and_wait(self._rate_task, self._page_task, self._identities_task)
        await self.server.close()
        if self._audit is not None:
            await self._audit.close()
        await self._packer.close()
        if self.orders is not None:
            await self.orders.close()
        for source in self.sources.values():
            await source.close()
        await self.pages.close()
        if self._audit_file is not None:
            await asyncio.to_thread(self._audit_file.close)

    # --- what it shows -----------------------------------------------------------------------------------

    @property
    def counts(self) -> Counts:
        return self.server.counts if isinstance(self.server, Pool) else self._counts

    @property
    def packed(self) -> Packed:
        return self.server if isinstance(self.server, Pool) else self._packer

    @property
    def worker_restarts(self) -> int:
        return self.server.restarts if isinstance(self.server, Pool) else 0

    def spoke_views(self) -> list[SpokeView]:
        """The spokes linked now."""
        return self.server.spokes() if self._ready else []

    @property
    def listening(self) -> str:
        """The address that was really bound."""
        return format_address(parse_address(self.settings.listen)[0], self.server.port)

    def health(self) -> tuple[bool, Mapping[str, Any]]:
        held = {name: source.held for name, source in self.sources.items()} if self._ready else {}
        return self._ready, {"serving": self._ready, "held": {name: why.reason for name, why in held.items() if why}}

    def status(self) -> Mapping[str, Any]:
        """The facts behind ``headrace-hub status``; sizes in bytes, times in seconds."""
        return {
            "version": __version__,
            "listen": self.listening if self._ready else self.settings.listen,
            "serving": self._ready,
            "uptime_s": runtime.now_s() - self._started_s,
            "rate_limit_bytes_per_s": self.rate_schedule.rate_bytes_per_s or 0.0,
            "rate_limit": self.rate_schedule.status(),
            "raw_bytes": self.packed.raw_bytes,
            "packed_bytes": self.packed.packed_bytes,
            "security": {
                "tls": self.certificates is not None,
                "token": self.settings.token_file is not None,
                "certificate_left_s": self.certificates.left_s if self.certificates is not None else None,
                "audit_lines_dropped": self._audit_file.dropped_total if self._audit_file is not None else 0,
            },
            "workers": self.server.workers() if isinstance(self.server, Pool) else [],
            "datasets": {
                name: {
                    "directory": str(self.settings.dataset[name]),
                    "entries": source.status.entries,
                    "revision": source.head_revision,
                    "held": held.reason if (held := source.held) is not None else None,
                    "watches": source.status.watches,
                    "unwatched": source.status.unwatched,
                    "overflows": source.status.overflows_total,
                    "scans": source.status.scans_total,
                    "last_scan_s": source.status.last_scan_s,
                    "skipped": dict(source.status.skipped),
                    "unreadable": source.status.unreadable,
                    "orders": self.orders.facts(name) if self.orders is not None else None,
                }
                for name, source in (self.sources.items() if self._ready else ())
            },
            "spokes": [
                {
                    "identity": spoke.identity,
                    "dataset": spoke.dataset,
                    "address": spoke.links[0].address if spoke.links else "",
                    "connections": len(spoke.links),
                    "weight": spoke.weight,
                    "rate_bytes_per_s": spoke.rate_bytes_per_s,
                    "connected_s": spoke.connected_s,
                    "sent_bytes": spoke.sent_bytes,
                    "outstanding_bytes": spoke.outstanding_bytes,
                    "stats": dict(spoke.stats),
                    "stats_age_s": spoke.stats_age_s,
                }
                for spoke in self.server.spokes()
            ],
            "settings": {
                name: {"value": _plain(value), "source": self._loaded.sources[name]}
                for name, value in self.settings.model_dump().items()
            },
        }


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def run_hub(loaded: Loaded[HubSettings], on_ready: Callable[[str], object]) -> None:
    """Serve until SIGTERM or SIGINT; ``on_ready`` gets one line once spokes can connect."""
    runtime.run(_serve(loaded, on_ready))


async def _serve(loaded: Loaded[HubSettings], on_ready: Callable[[str], object]) -> None:
    with ServiceManager() as systemd:
        await _serve_told(loaded, on_ready, systemd)


async def _serve_told(loaded: Loaded[HubSettings], on_ready: Callable[[str], object], systemd: ServiceManager) -> None:
    stop = asyncio.Event()
    runtime.stop_on_signals(stop)
    check_exposure(loaded.settings)
    allow_open_files(limits.HUB_OPEN_FILES)
    hub = Hub(loaded)
    starting = asyncio.create_task(hub.start(), name="start")
    stopped = asyncio.create_task(stop.wait(), name="stop signal")
    failed = asyncio.create_task(hub.failed(), name="failure")
    try:
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            metrics = format_address(*hub.pages.address) if hub.pages.address else "none (port taken)"
            line = f"listening on {hub.listening}, metrics on {metrics}"
            on_ready(line)
            systemd.ready(line)
            await asyncio.wait([stopped, failed], return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
    finally:
        systemd.stopping()
        await cancel_and_wait(starting, stopped, failed)
        await hub.close()
        log.info("stopped")
