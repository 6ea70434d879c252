"""The one table of a hub's metrics: name, kind, labels, meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from common.metrics import Metric
from common.serving.server import SpokeView
from common.tls import Certificates
from hub.counts import Counts
from hub.orders.desk import OrderDeskOfHub
from hub.rate_schedule import RateSchedule
from hub.source import HubSource


class Serving(Protocol):
    """The server, or the pool of processes that stands in its place."""

    @property
    def connections(self) -> int: ...
    def spokes(self) -> list[SpokeView]: ...


class Packed(Protocol):
    """The packer, or that pool."""

    @property
    def raw_bytes(self) -> int: ...
    @property
    def packed_bytes(self) -> int: ...


class Measured(Protocol):
    """What the table reads; the hub is this."""

    @property
    def counts(self) -> Counts: ...
    @property
    def server(self) -> Serving: ...
    @property
    def sources(self) -> Mapping[str, HubSource]: ...
    @property
    def packed(self) -> Packed: ...
    @property
    def worker_restarts(self) -> int: ...
    @property
    def rate_schedule(self) -> RateSchedule: ...
    @property
    def orders(self) -> OrderDeskOfHub | None: ...
    @property
    def certificates(self) -> Certificates | None: ...


METRICS: tuple[Metric[Measured], ...] = (
    Metric(
        "headrace_hub_sent_bytes",
        "counter",
        "Bytes of data and names handed to the sockets, by spoke.",
        lambda hub: {(identity,): sent for identity, sent in hub.counts.sent_bytes.items()},
        ("spoke",),
    ),
    Metric(
        "headrace_hub_raw_bytes",
        "counter",
        "File bytes prepared for sending, before compression.",
        lambda hub: hub.packed.raw_bytes,
    ),
    Metric(
        "headrace_hub_packed_bytes",
        "counter",
        "The same bytes as they were prepared to travel, after compression where it paid.",
        lambda hub: hub.packed.packed_bytes,
    ),
    Metric(
        "headrace_hub_reads",
        "counter",
        "READs answered whole, by priority.",
        lambda hub: {(priority.name.lower(),): count for priority, count in hub.counts.reads_done.items()},
        ("priority",),
    ),
    Metric(
        "headrace_hub_read_seconds",
        "counter",
        "Time from READ to its last byte handed to the socket, summed, by priority.",
        lambda hub: {(priority.name.lower(),): seconds for priority, seconds in hub.counts.read_seconds.items()},
        ("priority",),
    ),
    Metric(
        "headrace_hub_refusals",
        "counter",
        "READs, subscriptions and connections answered with an error, by its code.",
        lambda hub: {(code,): count for code, count in hub.counts.refusals.items()},
        ("code",),
    ),
    Metric(
        "headrace_hub_rate_limit_bytes_per_second",
        "gauge",
        "Total rate limit in force now, 0 for none.",
        lambda hub: hub.rate_schedule.rate_bytes_per_s or 0.0,
    ),
    Metric(
        "headrace_hub_tls_certificate_expiry_seconds",
        "gauge",
        "Seconds until this hub's own certificate expires, negative once it has; NaN without TLS.",
        lambda hub: hub.certificates.left_s if hub.certificates is not None else float("nan"),
    ),
    Metric(
        "headrace_hub_worker_restarts",
        "counter",
        "Serving processes that died and were started again.",
        lambda hub: hub.worker_restarts,
    ),
    Metric(
        "headrace_hub_orders_kept",
        "gauge",
        "Orders of reads that spokes learned and that others are told of, by dataset.",
        lambda hub: {(name,): kept[0] for name, kept in hub.orders.kept().items()} if hub.orders is not None else {},
        ("dataset",),
    ),
    Metric(
        "headrace_hub_orders_kept_bytes",
        "gauge",
        "What they take on disk, packed, by dataset.",
        lambda hub: {(name,): kept[1] for name, kept in hub.orders.kept().items()} if hub.orders is not None else {},
        ("dataset",),
    ),
    Metric(
        "headrace_hub_order_reports",
        "counter",
        "Reports of orders by spokes, by what became of them.",
        lambda hub: (
            {(outcome,): count for outcome, count in hub.orders.reports.items()} if hub.orders is not None else {}
        ),
        ("outcome",),
    ),
    Metric(
        "headrace_hub_orders_given",
        "counter",
        "Orders that spokes were given whole.",
        lambda hub: hub.orders.given_total if hub.orders is not None else 0,
    ),
    Metric("headrace_hub_connections", "gauge", "Connections of spokes now.", lambda hub: hub.server.connections),
    Metric("headrace_hub_spokes", "gauge", "Spokes linked now.", lambda hub: len(hub.server.spokes())),
    Metric(
        "headrace_hub_revision",
        "gauge",
        "Revision of the change log, by dataset.",
        lambda hub: {(name,): source.head_revision for name, source in hub.sources.items()},
        ("dataset",),
    ),
    Metric(
        "headrace_hub_entries",
        "gauge",
        "Names in the catalog, by dataset.",
        lambda hub: {(name,): source.status.entries for name, source in hub.sources.items()},
        ("dataset",),
    ),
    Metric(
        "headrace_hub_catalog_held",
        "gauge",
        "1 while the dataset's directory is not there, or the catalog cannot be written, and names are kept as they were.",
        lambda hub: {(name,): float(source.held is not None) for name, source in hub.sources.items()},
        ("dataset",),
    ),
    Metric(
        "headrace_hub_unreadable_paths",
        "gauge",
        "Paths that could not be looked at in the last scan, by dataset; what is known of them stays.",
        lambda hub: {(name,): source.status.unreadable for name, source in hub.sources.items()},
        ("dataset",),
    ),
    Metric(
        "headrace_hub_skipped_names",
        "gauge",
        "Names that are not served, as of the last scan, by dataset and why.",
        lambda hub: {
            (name, kind): count for name, source in hub.sources.items() for kind, count in source.status.skipped
        },
        ("dataset", "kind"),
    ),
    Metric(
        "headrace_hub_watch_overflows",
        "counter",
        "Overflows of the inotify queue; each is followed by a full scan.",
        lambda hub: {(name,): source.status.overflows_total for name, source in hub.sources.items()},
        ("dataset",),
    ),
    Metric(
        "headrace_hub_unwatched_directories",
        "gauge",
        "Directories without an inotify watch, for want of them (fs.inotify.max_user_watches): seen by rescans only.",
        lambda hub: {(name,): source.status.unwatched for name, source in hub.sources.items()},
        ("dataset",),
    ),
)
