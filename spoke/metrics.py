"""What a spoke counts, and the one table of its metrics: name, kind, labels, meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from common import runtime
from common.metrics import Metric
from spoke.cache.health import TROUBLE_KINDS
from spoke.cache.scrub import Scrub
from spoke.cache.store import Store
from spoke.fetcher import Fetcher
from spoke.hub_client.client import HubClient
from spoke.memory import MemoryLimit
from spoke.mending import Mending
from spoke.namespace.suspicion import Suspicion
from spoke.namespace.tree import Tree
from spoke.orders.exchange import OrderExchange
from spoke.orders.learner import Learner
from spoke.plans import Plans
from spoke.prefetch.scorecard import Scorecard
from spoke.reads import ReadResult, Reads
from spoke.retention import Retention

if TYPE_CHECKING:
    from spoke.insight.watch import Insight


def _nothing_noted() -> None: ...


@dataclass(slots=True)
class Counts:
    """Plain numbers for the hot path; bytes, seconds or counts as named.

    ``tally`` adds to ``heard_hits`` and ``heard_cache_bytes`` what was noted of hits since: it is called before they are told.
    """

    opens: int = 0
    passthrough_opens: int = 0
    heard_hits: int = 0
    heard_cache_bytes: int = 0
    late: int = 0
    misses: int = 0
    wan_read_bytes: int = 0
    stall_s: float = 0.0
    stale_reads: int = 0
    fetched_bytes: int = 0
    prefetch_asked_bytes: int = 0
    corrupt_on_wire: int = 0
    tally: Callable[[], None] = field(default=_nothing_noted, repr=False)

    @property
    def hits(self) -> int:
        self.tally()
        return self.heard_hits

    @property
    def cache_read_bytes(self) -> int:
        self.tally()
        return self.heard_cache_bytes

    @property
    def served(self) -> int:
        """Reads at the mount, of any kind."""
        return self.hits + self.late + self.misses

    def waited(self, length_bytes: int, result: ReadResult) -> None:
        """A read that was no hit."""
        self.wan_read_bytes += length_bytes
        if result == "late":
            self.late += 1
        else:
            self.misses += 1


class Measured(Protocol):
    """What the table reads; the spoke is this."""

    @property
    def counts(self) -> Counts: ...
    @property
    def reads(self) -> Reads: ...
    @property
    def worker_restarts(self) -> int: ...
    @property
    def client(self) -> HubClient: ...
    @property
    def fetcher(self) -> Fetcher: ...
    @property
    def store(self) -> Store: ...
    @property
    def scrub(self) -> Scrub: ...
    @property
    def mending(self) -> Mending: ...
    @property
    def tree(self) -> Tree: ...
    @property
    def scorecard(self) -> Scorecard: ...
    @property
    def plans(self) -> Plans: ...
    @property
    def learner(self) -> Learner: ...
    @property
    def order_exchange(self) -> OrderExchange: ...
    @property
    def retention(self) -> Retention: ...
    @property
    def suspicious(self) -> Suspicion | None: ...
    @property
    def insight(self) -> Insight: ...
    @property
    def memory_limit(self) -> MemoryLimit: ...
    def staleness_s(self) -> float: ...
    def certificate_left_s(self) -> float: ...
    def memory_bytes(self) -> dict[str, int]: ...


METRICS: tuple[Metric[Measured], ...] = (
    Metric(
        "headrace_spoke_read_bytes",
        "counter",
        "Bytes that reads at the mount were given, by where they came from. Passthrough reads are the kernel's own and not in it.",
        lambda spoke: {("cache",): spoke.counts.cache_read_bytes, ("wan",): spoke.counts.wan_read_bytes},
        ("source",),
    ),
    Metric(
        "headrace_spoke_reads",
        "counter",
        "Reads at the mount: hit = no wait for the hub, late = prefetch was on its way, miss = had to be asked for.",
        lambda spoke: {("hit",): spoke.counts.hits, ("late",): spoke.counts.late, ("miss",): spoke.counts.misses},
        ("result",),
    ),
    Metric(
        "headrace_spoke_read_stall_seconds",
        "counter",
        "Time readers waited for the hub, summed over readers.",
        lambda spoke: spoke.counts.stall_s,
    ),
    Metric(
        "headrace_spoke_slow_reads",
        "counter",
        "Reads that waited for the hub for 5 s or longer, counted at the fifth second; with --consistency strict opens too.",
        lambda spoke: spoke.reads.long_waits.long_total,
    ),
    Metric(
        "headrace_spoke_reads_waiting_long",
        "gauge",
        "Reads that wait for the hub now, and have for 5 s or longer.",
        lambda spoke: spoke.reads.long_waits.long_count,
    ),
    Metric(
        "headrace_spoke_longest_wait_seconds",
        "gauge",
        "How long the oldest of them has waited; 0 when there is none.",
        lambda spoke: spoke.reads.long_waits.longest_s(),
    ),
    Metric(
        "headrace_spoke_read_timeouts",
        "counter",
        "Reads that ended in EIO because the read timeout passed without their bytes.",
        lambda spoke: spoke.reads.long_waits.timeouts_total,
    ),
    Metric(
        "headrace_spoke_waiting_reads",
        "gauge",
        "Reads that wait for the hub now.",
        lambda spoke: spoke.reads.waiting,
    ),
    Metric(
        "headrace_spoke_stale_reads",
        "counter",
        "Reads of an open file that ended in ESTALE: it changed at the hub and its old bytes were not cached.",
        lambda spoke: spoke.counts.stale_reads,
    ),
    Metric("headrace_spoke_opens", "counter", "Files opened at the mount.", lambda spoke: spoke.counts.opens),
    Metric(
        "headrace_spoke_passthrough_opens",
        "counter",
        "Opens whose reads the kernel serves from the cache file by itself.",
        lambda spoke: spoke.counts.passthrough_opens,
    ),
    Metric(
        "headrace_spoke_wan_received_bytes",
        "counter",
        "All bytes received from the hub: data, names, framing.",
        lambda spoke: spoke.client.links.wire_bytes_total,
    ),
    Metric(
        "headrace_spoke_fetched_bytes",
        "counter",
        "File bytes received from the hub, after decoding.",
        lambda spoke: spoke.counts.fetched_bytes,
    ),
    Metric(
        "headrace_spoke_prefetch_bytes",
        "counter",
        "Prefetched bytes by what became of them: used = read at the mount, wasted = evicted or given up unread.",
        lambda spoke: {("used",): spoke.scorecard.used_bytes, ("wasted",): spoke.scorecard.wasted_bytes},
        ("outcome",),
    ),
    Metric(
        "headrace_spoke_prefetch_outstanding_bytes",
        "gauge",
        "Prefetch asked for and not arrived.",
        lambda spoke: spoke.fetcher.prefetch_outstanding_bytes,
    ),
    Metric("headrace_spoke_plans", "gauge", "Declared plans that are followed.", lambda spoke: spoke.plans.active),
    Metric(
        "headrace_spoke_plan_steps",
        "counter",
        "Steps of declared plans: taken, or left out because no such file is there, or they lie past its end or are empty.",
        lambda spoke: {
            ("taken",): spoke.plans.taken_steps_total,
            **{(why,): count for why, count in spoke.plans.left_out_total.items()},
        },
        ("outcome",),
    ),
    Metric(
        "headrace_spoke_plan_refusals",
        "counter",
        "Messages of the plan channel that were refused, by the reason.",
        lambda spoke: {(why,): count for why, count in spoke.plans.refused_total.items()},
        ("reason",),
    ),
    Metric(
        "headrace_spoke_plan_ends",
        "counter",
        "Plans that ended, by the reason; unused = nobody read or said anything of it for long.",
        lambda spoke: {(why,): count for why, count in spoke.plans.ended_total.items()},
        ("reason",),
    ),
    Metric(
        "headrace_spoke_learned_orders",
        "gauge",
        "Learned orders that are followed: own = learned here, hub = told by other spokes.",
        lambda spoke: {
            ("own",): float(spoke.learner.own_count),
            ("hub",): float(len(spoke.order_exchange.names())),
        },
        ("origin",),
    ),
    Metric(
        "headrace_spoke_orders_told",
        "counter",
        "Learned orders told to the hub: told = it has them, refused = it does not take them, failed = tried again later.",
        lambda spoke: {(outcome,): count for outcome, count in spoke.order_exchange.told.items()},
        ("outcome",),
    ),
    Metric(
        "headrace_spoke_orders_received",
        "counter",
        "Orders of other spokes, by what became of them: taken, or known here, of other files, damaged, failed, or let go of since.",
        lambda spoke: {(outcome,): count for outcome, count in spoke.order_exchange.received.items()},
        ("outcome",),
    ),
    Metric(
        "headrace_spoke_corrupt_blocks",
        "counter",
        "Blocks that did not match their digest, by where it was seen; never handed to a reader.",
        lambda spoke: {
            ("cache",): spoke.store.usage().corrupt_blocks_total,
            ("wire",): spoke.counts.corrupt_on_wire,
        },
        ("place",),
    ),
    Metric(
        "headrace_spoke_scrub_bytes",
        "counter",
        "Cached bytes that the scrub compared with their digests again.",
        lambda spoke: spoke.scrub.checked_bytes_total,
    ),
    Metric(
        "headrace_spoke_scrub_bad_blocks",
        "counter",
        "Blocks the scrub found bad; they are in corrupt_blocks too.",
        lambda spoke: spoke.scrub.bad_blocks_total,
    ),
    Metric(
        "headrace_spoke_scrub_passes",
        "counter",
        "Times the scrub went through all that is cached.",
        lambda spoke: spoke.scrub.passes_total,
    ),
    Metric(
        "headrace_spoke_scrub_progress_ratio",
        "gauge",
        "How much of its present pass the scrub has done, 0 to 1.",
        lambda spoke: spoke.scrub.progress,
    ),
    Metric(
        "headrace_spoke_mending_files",
        "gauge",
        "Files open by passthrough that hold bad blocks which the hub has not given again yet.",
        lambda spoke: spoke.mending.mending_files,
    ),
    Metric(
        "headrace_spoke_cache_used_bytes",
        "gauge",
        "Bytes the cache holds.",
        lambda spoke: spoke.store.usage().used_bytes,
    ),
    Metric(
        "headrace_spoke_cache_capacity_bytes",
        "gauge",
        "Bytes the cache may hold now.",
        lambda spoke: spoke.store.usage().capacity_bytes,
    ),
    Metric(
        "headrace_spoke_cache_evicted_bytes",
        "counter",
        "Bytes evicted from the cache.",
        lambda spoke: spoke.store.usage().evicted_bytes_total,
    ),
    Metric(
        "headrace_spoke_cache_erased_bytes",
        "counter",
        "Bytes erased because the hub has their files no more, or gives the dataset no longer.",
        lambda spoke: spoke.retention.erased_bytes_total,
    ),
    Metric(
        "headrace_spoke_cache_write_errors",
        "counter",
        "Writes the cache disk refused.",
        lambda spoke: spoke.store.usage().write_errors_total,
    ),
    Metric(
        "headrace_spoke_cache_read_errors",
        "counter",
        "Reads the cache disk failed; each was served from the hub.",
        lambda spoke: spoke.store.usage().read_errors_total,
    ),
    Metric(
        "headrace_spoke_cache_trouble",
        "gauge",
        "1 while something is the matter with the cache disk, by what; reads are served from the hub meanwhile.",
        lambda spoke: {
            (kind,): float(spoke.store.trouble is not None and spoke.store.trouble.kind == kind)
            for kind in TROUBLE_KINDS
        },
        ("trouble",),
    ),
    Metric(
        "headrace_spoke_cache_skipped_bytes",
        "counter",
        "Bytes served and not cached, because the cache disk was too far behind the link.",
        lambda spoke: spoke.fetcher.skipped_bytes_total,
    ),
    Metric(
        "headrace_spoke_memory_bytes",
        "gauge",
        "Anonymous memory of the spoke, by what holds it; names and index grow with the dataset and are not under the limit.",
        lambda spoke: {(owner,): float(held) for owner, held in spoke.memory_bytes().items()},
        ("owner",),
    ),
    Metric(
        "headrace_spoke_memory_limit_bytes",
        "gauge",
        "Limit on the spoke's own memory.",
        lambda spoke: spoke.memory_limit.limit_bytes,
    ),
    Metric(
        "headrace_spoke_memory_waits",
        "counter",
        "Reads that waited for others to end because memory was short, before the hub was asked.",
        lambda spoke: spoke.reads.admission.waited_total,
    ),
    Metric(
        "headrace_spoke_open_descriptors",
        "gauge",
        "File descriptors the spoke has open.",
        lambda spoke: runtime.open_descriptors()[0],
    ),
    Metric(
        "headrace_spoke_replica_staleness_seconds",
        "gauge",
        "Seconds since the hub last vouched for the names shown.",
        lambda spoke: spoke.staleness_s(),
    ),
    Metric(
        "headrace_spoke_replica_revision",
        "gauge",
        "Revision of the hub's change log that the names shown stand at.",
        lambda spoke: spoke.tree.revision,
    ),
    Metric(
        "headrace_spoke_replica_entries", "gauge", "Names in the mirrored tree.", lambda spoke: spoke.tree.entry_count
    ),
    Metric(
        "headrace_spoke_answering",
        "gauge",
        "1 while the spoke of this mount answers; 0, shown by another at the same port, while it hangs or nobody serves the mount.",
        lambda _spoke: 1.0,
    ),
    Metric(
        "headrace_spoke_lost_seconds",
        "counter",
        "Seconds in which at least one reader waited for the hub, each counted once; up to 5 s behind.",
        lambda spoke: spoke.insight.stalls.lost_s,
    ),
    Metric(
        "headrace_spoke_rank_lost_seconds",
        "counter",
        "The same by rank of the job, for the ranks that lost most on this host; processes and files are in top and status.",
        lambda spoke: spoke.insight.stalls.lost_by_rank(),
        ("rank",),
    ),
    Metric(
        "headrace_spoke_hub_connected",
        "gauge",
        "1 while the control link to the hub is up.",
        lambda spoke: float(spoke.client.links.connected),
    ),
    Metric(
        "headrace_spoke_hub_suspicious",
        "gauge",
        "1 while the hub's announcement of a large loss is held back.",
        lambda spoke: float(spoke.suspicious is not None),
    ),
    Metric(
        "headrace_spoke_tls_certificate_expiry_seconds",
        "gauge",
        "Seconds until this spoke's own certificate expires, negative once it has; NaN without TLS.",
        lambda spoke: spoke.certificate_left_s(),
    ),
    Metric(
        "headrace_spoke_worker_restarts",
        "counter",
        "Workers of this mount that died and were replaced while it went on.",
        lambda spoke: spoke.worker_restarts,
    ),
    Metric(
        "headrace_spoke_hub_rtt_seconds",
        "gauge",
        "Round trip to the hub without queues; NaN before the first.",
        lambda spoke: spoke.client.links.rtt_s if spoke.client.links.rtt_s is not None else float("nan"),
    ),
)
