"""Runs the prefetcher: tells the planner what was read and what arrived, and asks the hub for what it plans.

The planner is pure and decides; this module is its hands: it gives it the time, a budget and the link's figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from common import limits
from common.blocks import EXTENT_BYTES, BlockRange
from spoke.fetcher import Fetcher
from spoke.hub_client.client import HubClient
from spoke.metrics import Counts
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.orders import Order
from spoke.prefetch.planner import Planner, ReadSeen
from spoke.reads import Handle, ReadResult


class Ahead:
    """Observer of reads and of arrivals. ``planner`` None: only counts (``--no-prefetch``)."""

    def __init__(self, planner: Planner | None, counts: Counts, clock: Callable[[], float]) -> None:
        self._planner = planner
        self._counts = counts
        self._clock = clock
        self._fetcher: Fetcher | None = None
        self._client: HubClient | None = None

    def attach(self, fetcher: Fetcher, client: HubClient) -> None:
        """Both report to us, so they come after us."""
        self._fetcher = fetcher
        self._client = client

    # --- reads -------------------------------------------------------------------------------------------

    def opened(self, handle: Handle, task_id: int) -> None:
        self._counts.opens += 1
        if self._planner is not None:
            facts = FileFacts(handle.path, handle.version, handle.size_bytes)
            self._planner.opened(self._clock(), handle.handle_id, facts, task_id)
            self._pump()

    def closed(self, handle: Handle) -> None:
        if self._planner is not None:
            self._planner.closed(self._clock(), handle.handle_id)

    def lent(self, handle: Handle) -> None:
        self._counts.passthrough_opens += 1

    def read(self, handle: Handle, task_id: int, offset_bytes: int, length_bytes: int, result: ReadResult) -> None:
        self._counts.read(length_bytes, result)
        planner = self._planner
        if planner is None or (result == "hit" and planner.is_quiet(handle.version, offset_bytes, length_bytes)):
            return
        planner.read(
            self._clock(),
            ReadSeen(handle.handle_id, task_id, handle.version, offset_bytes, length_bytes, result),
        )
        self._pump()

    def stalled(self, handle: Handle, task_id: int, stall_s: float) -> None:
        self._counts.stall_s += stall_s

    def slow(self, handle: Handle) -> None:
        self._counts.slow_reads += 1

    def gone(self, handle: Handle) -> None:
        self._counts.stale_reads += 1

    # --- arrivals ----------------------------------------------------------------------------------------

    def arrived(self, version: bytes, blocks: BlockRange, raw_bytes: int) -> None:
        self._counts.fetched_bytes += raw_bytes
        if self._planner is not None:
            self._planner.arrived(self._clock(), version, blocks)
            self._pump()

    def failed(self, version: bytes, blocks: BlockRange) -> None:
        if self._planner is not None:
            self._planner.failed(self._clock(), version, blocks)

    def evicted(self, version: bytes, blocks: BlockRange) -> None:
        """The cache let go of blocks: prefetched ones that nobody read were wasted."""
        if self._planner is not None:
            self._planner.evicted(version, blocks)

    def corrupt_on_wire(self, version: bytes, block: int) -> None:
        self._counts.corrupt_on_wire += 1

    # --- orders ------------------------------------------------------------------------------------------

    def add_order(self, order: Order) -> None:
        """Follow an order from now on. Raises OrderError when its name is taken, PlanTooLong when too many are followed."""
        if self._planner is not None:
            self._planner.add_order(self._clock(), order)
            self._pump()

    def drop_order(self, name: str) -> bool:
        return self._planner is not None and self._planner.drop_order(name)

    def orders(self) -> Sequence[Mapping[str, Any]]:
        """Facts on each order followed."""
        return self._planner.orders() if self._planner is not None else []

    # --- doing -------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Ask for what is planned, within what may be under way at once."""
        planner, fetcher, client = self._planner, self._fetcher, self._client
        if planner is None or not planner.has_plans or fetcher is None or client is None or client.link_count == 0:
            return
        if client.rtt_s is not None:
            planner.link(client.rtt_s, client.rate_bytes_per_s)
        limit_bytes = min(limits.PREFETCH_MAX_OUTSTANDING_BYTES, planner.outstanding_limit_bytes)
        budget_bytes = limit_bytes - fetcher.prefetch_outstanding_bytes - fetcher.write_backlog_bytes
        if budget_bytes < EXTENT_BYTES:
            return  # what arrives makes room for a whole one
        for fetch in planner.plan(self._clock(), budget_bytes):
            self._counts.prefetch_asked_bytes += fetcher.prefetch(fetch.version, fetch.size_bytes, fetch.blocks)
