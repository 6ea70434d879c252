"""What a spoke says of itself: the facts behind ``status``, the health page, and who keeps the mount. Reads every room, changes
none; ``status.schema.json`` says what may be in them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from common import __version__, runtime
from common.config import Loaded
from common.units import format_address
from spoke.ahead import Ahead
from spoke.config import SpokeSettings
from spoke.fuse.device import Device
from spoke.hub_client.credentials import Credentials
from spoke.insight.watch import Insight
from spoke.last_job import LastJob
from spoke.long_waits import LongWaits
from spoke.memory import Level, MemoryBudget
from spoke.memory_watch import MemoryWatch
from spoke.metrics import Measured
from spoke.namespace.journal import Journal
from spoke.namespace.pin import Pin
from spoke.namespace.replica import Replica
from spoke.orders.exchange import OrderExchange
from spoke.orders.learner import Learner
from spoke.pins import Pins
from spoke.prefetch.planner import Planner
from spoke.shared_port import SharedPort
from spoke.warming import Warming
from spoke.worker import SupervisorLine


class Shown(Measured, Protocol):
    """What the facts are read from; the spoke is this."""

    @property
    def ahead(self) -> Ahead: ...
    @property
    def credentials(self) -> Credentials: ...
    @property
    def device(self) -> Device | None: ...
    @property
    def insight(self) -> Insight: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def last_job(self) -> LastJob: ...
    @property
    def learner(self) -> Learner: ...
    @property
    def order_exchange(self) -> OrderExchange: ...
    @property
    def line(self) -> SupervisorLine | None: ...
    @property
    def loaded(self) -> Loaded[SpokeSettings]: ...
    @property
    def long_waits(self) -> LongWaits: ...
    @property
    def memory(self) -> MemoryBudget: ...
    @property
    def memory_watch(self) -> MemoryWatch: ...
    @property
    def mountpoint(self) -> str: ...
    @property
    def pin(self) -> Pin | None: ...
    @property
    def pins(self) -> Pins: ...
    @property
    def planner(self) -> Planner | None: ...
    @property
    def replica(self) -> Replica: ...
    @property
    def shared_port(self) -> SharedPort: ...
    @property
    def started_s(self) -> float: ...
    @property
    def warming(self) -> Warming: ...


class Facts:
    """Dicts fit for JSON; sizes in bytes, times in seconds."""

    def __init__(self, spoke: Shown) -> None:
        self._spoke = spoke

    def health(self) -> tuple[bool, Mapping[str, Any]]:
        """Healthy while the mount answers; a hub that is away is a fact, not an illness of this daemon."""
        mounted = self._spoke.device is not None and self._spoke.device.negotiated is not None
        return mounted, {
            "mounted": mounted,
            "hub_connected": self._spoke.client.links.connected,
            "hub_holds_names": self._held(),
        }

    def _held(self) -> Mapping[str, Any] | None:
        held = self._spoke.replica.catalog_held
        return {"reason": held.reason, "for_s": max(0.0, runtime.now_s() - held.since_s)} if held is not None else None

    def status(self) -> Mapping[str, Any]:
        """The facts behind ``status``; sizes in bytes, times in seconds."""
        spoke = self._spoke
        counts, usage, client = spoke.counts, spoke.store.usage(), spoke.client
        settings = spoke.loaded.settings
        staleness_s = spoke.staleness_s()
        metrics, metrics_served_by = spoke.shared_port.where()
        passthrough = spoke.device.passthrough.status() if spoke.device is not None else None
        notes = list(spoke.device.notes) if spoke.device is not None else []
        if usage.bypass is not None:
            notes.append(f"the cache is bypassed: {usage.bypass}")
        elif usage.trouble is not None:
            notes.append(f"the cache disk: {usage.trouble.reason}")
        if spoke.memory.level >= Level.DROP_IDLE:
            notes.append("memory is short: nothing is fetched ahead; see memory_limit")
        descriptors, most_descriptors = runtime.open_descriptors()
        if spoke.journal.failure is not None:
            notes.append(f"names are not kept on disk: {spoke.journal.failure}")
        return {
            "version": __version__,
            "pid": os.getpid(),
            "supervision": self.supervision(),
            "mountpoint": spoke.mountpoint,
            "dataset": settings.dataset,
            "uptime_s": runtime.now_s() - spoke.started_s,
            "metrics": format_address(*metrics) if metrics is not None else None,
            "metrics_served_by": metrics_served_by,
            "hub": {
                "address": settings.hub,
                "connected": client.links.connected,
                "in_words": client.links.in_words(),
                "error": str(client.links.last_error) if client.links.last_error is not None else None,
                "rtt_s": client.links.rtt_s,
                "rate_bytes_per_s": client.links.rate_bytes_per_s,
                "received_bytes": client.links.wire_bytes_total,
                "links": client.links.facts(),
                "tls": spoke.credentials.certificates is not None,
                "token": spoke.credentials.token is not None,
                "certificate_left_s": spoke.certificate_left_s()
                if spoke.credentials.certificates is not None
                else None,
            },
            "names": {
                "revision": spoke.tree.revision,
                "entries": spoke.tree.entry_count,
                "file_bytes": spoke.tree.file_bytes,
                "staleness_s": staleness_s if staleness_s != float("inf") else None,
                "suspicious": str(spoke.suspicious) if spoke.suspicious is not None else None,
                "held": self._held(),
                "resyncs": spoke.replica.resyncs_total,
                "pinned": str(spoke.pin) if spoke.pin is not None else None,
                "opens_confirmed": spoke.client.checks.asked_total,
            },
            "cache": {
                "directory": str(settings.cache_dir),
                "used_bytes": usage.used_bytes,
                "capacity_bytes": usage.capacity_bytes,
                "files": usage.files,
                "evicted_bytes": usage.evicted_bytes_total,
                "erased_bytes": spoke.retention.erased_bytes_total,
                "corrupt_blocks": usage.corrupt_blocks_total,
                "trouble": usage.trouble._asdict() if usage.trouble is not None else None,
                "read_errors": usage.read_errors_total,
                "write_errors": usage.write_errors_total,
                "skipped_bytes": spoke.fetcher.skipped_bytes_total,
                "scrub": spoke.scrub.facts(),
                "write_backlog_bytes": spoke.fetcher.write_backlog_bytes,
            },
            "reads": {
                "opens": counts.opens,
                "hit": counts.hits,
                "late": counts.late,
                "miss": counts.misses,
                "cache_bytes": counts.cache_read_bytes,
                "wan_bytes": counts.wan_read_bytes,
                "stall_s": counts.stall_s,
                "waiting": spoke.reads.waiting,
                "waiting_long": spoke.long_waits.long_count,
                "longest_wait_s": spoke.long_waits.longest_s(),
                "timeouts": spoke.long_waits.timeouts_total,
                "stale": counts.stale_reads,
            },
            "prefetch": {
                "enabled": spoke.planner is not None,
                "asked_bytes": counts.prefetch_asked_bytes,
                "used_bytes": spoke.scorecard.used_bytes,
                "wasted_bytes": spoke.scorecard.wasted_bytes,
                "outstanding_bytes": spoke.fetcher.prefetch_outstanding_bytes,
            },
            **spoke.insight.facts(),
            "memory": {
                "limit_bytes": spoke.memory_limit.limit_bytes,
                "origin": spoke.memory_limit.origin,
                "own_bytes": spoke.memory_watch.own_bytes(),
                "level": spoke.memory.level.name.lower().replace("_", "-"),
                "for_data_bytes": spoke.memory.data_bytes,
                "held_bytes": spoke.memory_watch.held_bytes(),
                "waiting_reads": spoke.reads.admission.waiting,
                "waited_reads": spoke.reads.admission.waited_total,
                "pressed": spoke.memory.pressed_total,
                "open_descriptors": descriptors,
                "most_descriptors": most_descriptors,
            },
            "pins": spoke.pins.facts(),
            "warm": spoke.warming.facts(),
            "plans": spoke.plans.facts(),
            "orders": spoke.ahead.orders(),
            "learned": {
                **spoke.learner.facts(),
                "last_job": spoke.last_job.facts(),
                "shared": spoke.order_exchange.facts(),
            },
            "data_path": {
                "passthrough": passthrough.live if passthrough is not None else False,
                "reason": passthrough.reason if passthrough is not None else "not mounted",
                "passthrough_opens": counts.passthrough_opens,
                "open_files": spoke.reads.open_handles,
                "open_kernel_files": spoke.reads.lent_handles,
                "read_ahead": spoke.ahead.read_ahead.facts(),
            },
            "notes": notes,
            "settings": {
                name: {"value": _plain(value), "source": spoke.loaded.sources[name]}
                for name, value in settings.model_dump().items()
            },
        }

    def supervision(self) -> Mapping[str, Any] | None:
        """Who keeps the mount when this process dies; None: nobody."""
        spoke = self._spoke
        if spoke.line is None:
            return None
        terms = spoke.device.negotiated if spoke.device is not None else None
        told = spoke.line.facts
        return {
            "supervisor_pid": told.get("supervisor_pid"),
            "worker_pid": os.getpid(),
            "restarts": spoke.worker_restarts,
            "upgrades": told.get("upgrades", 0),
            "last_end": told.get("last_end") or None,
            "resend": terms.resend if terms is not None else None,
            "kept_over_restarts": bool(told.get("stored")),
        }


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
