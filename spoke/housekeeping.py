"""What a spoke does every few seconds, for as long as it runs: gives memory back while nobody reads, tells the hub how it fares, has
each room look after its own, and tells the cache which versions no name has any more.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from common import limits, runtime
from spoke.cache.store import Store
from spoke.fetcher import Fetcher
from spoke.hub_client.client import HubClient
from spoke.insight.watch import Insight
from spoke.last_job import LastJob
from spoke.mending import Mending
from spoke.metrics import Counts
from spoke.namespace.tree import Tree
from spoke.pins import Pins
from spoke.plans import Plans
from spoke.prefetch.planner import Planner
from spoke.prefetch.succession import OrderRecorder
from spoke.reads import Reads
from spoke.recorder import Recorder
from spoke.retention import Retention


class Kept(Protocol):
    """What is looked after; the spoke is this."""

    @property
    def client(self) -> HubClient: ...
    @property
    def counts(self) -> Counts: ...
    @property
    def fetcher(self) -> Fetcher: ...
    @property
    def insight(self) -> Insight: ...
    @property
    def last_job(self) -> LastJob: ...
    @property
    def mending(self) -> Mending: ...
    @property
    def order_recorder(self) -> OrderRecorder | None: ...
    @property
    def pins(self) -> Pins: ...
    @property
    def planner(self) -> Planner | None: ...
    @property
    def plans(self) -> Plans: ...
    @property
    def reads(self) -> Reads: ...
    @property
    def recorder(self) -> Recorder | None: ...
    @property
    def retention(self) -> Retention: ...
    @property
    def store(self) -> Store: ...
    @property
    def tree(self) -> Tree: ...


class Housekeeping:
    """``run`` is a task of the spoke's; what goes wrong in it ends the spoke."""

    def __init__(self, spoke: Kept) -> None:
        self._spoke = spoke

    async def run(self) -> None:
        spoke = self._spoke
        fetched_bytes = 0
        served = 0
        while True:
            await asyncio.sleep(limits.HOUSEKEEPING_INTERVAL_S)
            if fetched_bytes != spoke.counts.fetched_bytes:
                fetched_bytes = spoke.counts.fetched_bytes
            else:
                spoke.fetcher.recent.forget()
                if served == spoke.counts.served:
                    spoke.fetcher.drop_idle()
                runtime.give_back_memory()
            served = spoke.counts.served
            usage = spoke.store.usage()
            spoke.client.send_stats(
                {
                    "hits": float(spoke.counts.hits),
                    "late": float(spoke.counts.late),
                    "misses": float(spoke.counts.misses),
                    "stall_seconds": spoke.counts.stall_s,
                    "cache_used_bytes": float(usage.used_bytes),
                    "cache_capacity_bytes": float(usage.capacity_bytes),
                    "rtt_seconds": spoke.client.links.rtt_s or 0.0,
                    "revision": float(spoke.tree.revision),
                    **spoke.insight.stats(),
                }
            )
            spoke.plans.tend()
            if spoke.order_recorder is not None and spoke.planner is not None:
                spoke.order_recorder.tend(runtime.now_s(), spoke.planner.open_handles)
            await spoke.last_job.tend(spoke.reads.open_handles)
            spoke.pins.tend()
            if spoke.tree.epoch % 2 == 0:
                spoke.store.forget_unreferenced(spoke.tree.is_live)
                await spoke.retention.tend(
                    spoke.tree.is_live, spoke.reads.is_open, spoke.client.links.refusal, spoke.client.links.connected
                )
            spoke.mending.tend()
            await spoke.store.tend()
            if spoke.recorder is not None:
                spoke.recorder.flush()
