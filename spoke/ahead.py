"""Runs the prefetcher: tells the planner what was read and what arrived, and asks the hub for what it plans.

The planner is pure and decides; this module is its hands: it gives it the time, a budget and the link's figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from common.blocks import BLOCK_BYTES, EXTENT_BYTES, BlockRange, count_blocks
from common.errors import OrderError
from spoke.cache.foreseen import Foresight
from spoke.fetcher import Fetcher
from spoke.hub_client.client import HubClient
from spoke.last_job import LastJob
from spoke.metrics import Counts
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.orders import Order
from spoke.prefetch.planner import Planner, ReadSeen
from spoke.prefetch.quiet import Quiet, QuietReads
from spoke.prefetch.scorecard import Reason
from spoke.prefetch.source import FAULT_BYTES, Fetch
from spoke.read_ahead import ReadAhead
from spoke.reads import Handle, ReadResult

_tuple_new = tuple.__new__  # a named tuple's own is a function more for each READ

REASON_NUMBERS = {reason: number for number, reason in enumerate(Reason, start=1)}
"""As the history of an extent keeps why it was fetched ahead; 0 is not said."""

_ROOM_BYTES = 2 * EXTENT_BYTES
_MUCH_ASKED_BYTES = 8 * EXTENT_BYTES
"""With so much under way what is planned next is looked for once for several extents: it takes as long for one."""

_ASK_AT_ONCE = 8
"""Of what was planned, in one step of the loop: 0.1 to 0.3 ms each. Eight streams that begin have 64 pieces in a budget, and what
readers ask and what arrives for them waited 12 ms."""


class Ahead:
    """Observer of reads and of arrivals. ``planner`` None: only counts (``--no-prefetch``).

    ``read_ahead_kib``: the kernel's readahead, None to choose it by what is read.
    """

    def __init__(
        self,
        planner: Planner | None,
        counts: Counts,
        clock: Callable[[], float],
        read_ahead_kib: int | None = FAULT_BYTES // 1024,
    ) -> None:
        self._planner = planner
        self._counts = counts
        self._clock = clock
        self._planned: Sequence[Fetch] = ()
        """Not asked for yet: a part in each step of the loop, so that readers come in between."""
        self._fetcher: Fetcher | None = None
        self._client: HubClient | None = None
        self._last_job: LastJob | None = None
        self._keep_bytes: int | None = None
        self.foresee: Callable[[Foresight | None], None] | None = None
        """Told whom to ask for what is used next, while orders are followed (for eviction)."""
        self.read_ahead = ReadAhead(
            read_ahead_kib, planner.is_foretold if planner is not None else lambda _version: False
        )
        self._quiet = QuietReads() if planner is None else planner.quiet
        self._quiet.tally = self._tally
        counts.tally = lambda: self._tally(self._quiet.current)
        if planner is not None and self.read_ahead.is_chosen:
            planner.on_noted = self.read_ahead.noted

    def attach(self, fetcher: Fetcher, client: HubClient) -> None:
        """Both report to us, so they come after us."""
        self._fetcher = fetcher
        self._client = client

    @property
    def last_job(self) -> LastJob | None:
        """Told of what is read, if it is there: as the planner learns of it, READs that go on in one piece."""
        return self._last_job

    @last_job.setter
    def last_job(self, last_job: LastJob | None) -> None:
        self._last_job = last_job
        if self._planner is not None:
            self._planner.on_read = None if last_job is None else last_job.note
            if last_job is not None:
                last_job.on_look = self._planner.teach

    def settle(self) -> None:
        """Learn now from reads that were only noted: what was learned is written down next."""
        if self._planner is not None:
            self._planner.settle(self._clock())

    # --- reads -------------------------------------------------------------------------------------------

    def opened(self, handle: Handle, task_id: int) -> None:
        self._counts.opens += 1
        self.read_ahead.opened(handle)
        if self._planner is not None:
            facts = FileFacts(handle.path, handle.version, handle.size_bytes)
            self._planner.opened(self._clock(), handle.handle_id, facts, task_id)
            self._pump()

    def closed(self, handle: Handle) -> None:
        if self._planner is not None:
            self._planner.closed(self._clock(), handle.handle_id)

    def lent(self, handle: Handle) -> None:
        self._counts.passthrough_opens += 1
        if self._last_job is not None:
            self._last_job.lent(handle.path, handle.version, handle.size_bytes)

    def read(self, handle: Handle, task_id: int, offset_bytes: int, length_bytes: int, result: ReadResult) -> None:
        quiet = self._quiet.current
        if offset_bytes == quiet.next_bytes and handle.handle_id == quiet.handle_id and result == "hit":
            end_bytes = offset_bytes + length_bytes
            if end_bytes <= quiet.until_bytes:  # most READs of a stream: this is all that they cost
                quiet.next_bytes = end_bytes
                quiet.reads += 1
                return
        counts, noted = self._counts, None
        if result == "hit":
            noted = self._quiet.note(handle.version, offset_bytes, length_bytes)
        else:
            counts.waited(length_bytes, result)
            if result == "late":
                noted = self._quiet.note(handle.version, offset_bytes, length_bytes, late=True)
                if noted is not None:
                    noted.came_late(length_bytes)
        if noted is not None:
            if noted.handle_id != handle.handle_id:
                self.read_ahead.handed_over(noted, handle, offset_bytes, length_bytes)
            self._tally(noted)
            return
        if result == "hit":
            counts.heard_hits += 1
            counts.heard_cache_bytes += length_bytes
        planner = self._planner
        if planner is not None:
            seen = handle.handle_id, task_id, handle.version, offset_bytes, length_bytes, result, handle.fault_bytes
            planner.read(self._clock(), _tuple_new(ReadSeen, seen))
        elif self._last_job is not None:
            self._last_job.read(handle.path, handle.version, handle.size_bytes, offset_bytes, length_bytes)
        self.read_ahead.read(handle, offset_bytes, length_bytes)
        if planner is not None and planner.has_plans:
            self._pump()

    def _tally(self, quiet: Quiet) -> None:
        """Count what was noted of a reader's READs since the last time."""
        counts = self._counts
        counts.heard_hits += quiet.reads - quiet.told_reads
        counts.heard_cache_bytes += quiet.next_bytes - quiet.told_bytes
        quiet.told_reads, quiet.told_bytes = quiet.reads, quiet.next_bytes

    def stalled(self, handle: Handle, task_id: int, stall_s: float) -> None:
        self._counts.stall_s += stall_s

    def gone(self, handle: Handle) -> None:
        self._counts.stale_reads += 1

    # --- orders ------------------------------------------------------------------------------------------

    def add_order(self, order: Order) -> None:
        """Follow an order. Raises OrderError: its name is taken, too many are followed, or prefetch is off."""
        if self._planner is None:
            raise OrderError("nothing is fetched ahead on this mount (prefetch is off), so no order is followed")
        self._planner.add_order(self._clock(), order)
        self._orders_changed()

    def replace_order(self, former: str, order: Order) -> None:
        """Follow an order in the place of one that has the same steps. Raises OrderError, as ``add_order``."""
        if self._planner is not None:
            self._planner.replace_order(self._clock(), former, order)
            self._orders_changed()

    def order_grew(self, name: str) -> None:
        """Steps were added to an order that is followed."""
        if self._planner is not None:
            self._planner.order_grew(self._clock(), name)
            self._pump()

    def drop_order(self, name: str) -> bool:
        """Follow it no longer; False if it was not followed."""
        dropped = self._planner is not None and self._planner.drop_order(name)
        self._orders_changed()
        return dropped

    def order(self, name: str) -> Order | None:
        """The order followed under this name."""
        return self._planner.order(name) if self._planner is not None else None

    def orders(self) -> list[Mapping[str, Any]]:
        """Facts on each order followed: name, reason, state, lanes with position and length, used and wasted bytes."""
        return self._planner.orders() if self._planner is not None else []

    def orders_of(self, version: bytes, extent_index: int | None) -> list[Mapping[str, Any]]:
        """Orders that have reads of a file: declared, computed, learned, and what is recorded now; how soon an extent is next."""
        return self._planner.orders_of(version, extent_index) if self._planner is not None else []

    def _orders_changed(self) -> None:
        if self.foresee is not None and self._planner is not None:
            self.foresee(self._planner if self._planner.has_orders else None)
        self._pump()

    # --- arrivals ----------------------------------------------------------------------------------------

    def arrived(self, version: bytes, blocks: BlockRange, raw_bytes: int) -> None:
        self._counts.fetched_bytes += raw_bytes
        planner = self._planner
        if planner is not None:
            planner.arrived(self._clock(), version, blocks)
            if planner.has_plans:
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

    # --- doing -------------------------------------------------------------------------------------------

    def look_again(self) -> None:
        """Something that held prefetch back is over."""
        self._pump()

    def _pump(self) -> None:
        """Ask for what is planned, within what may be under way at once."""
        planner, fetcher, client = self._planner, self._fetcher, self._client
        if planner is None or not planner.has_plans or fetcher is None or client is None or len(client.links.up) == 0:
            return
        if client.links.rtt_s is not None:
            planner.link(client.links.rtt_s, client.links.rate_bytes_per_s)
        if planner.has_waited:
            self._hurry(planner, fetcher)
        if self._planned:
            return  # first that
        # What the link needs in flight is one thing, what waits for the disk another: scattered pieces are written slowly,
        # and would else leave nothing to ask for on a link that wants little.
        asked_bytes = fetcher.prefetch_outstanding_bytes
        unwritten_bytes = asked_bytes + fetcher.write_backlog_bytes
        budget_bytes = min(
            planner.outstanding_limit_bytes - asked_bytes,
            fetcher.memory.prefetch_bytes - unwritten_bytes,
            fetcher.memory.prefetch_room_bytes(fetcher.held_bytes),
        )
        if budget_bytes < EXTENT_BYTES or (budget_bytes < _ROOM_BYTES and asked_bytes >= _MUCH_ASKED_BYTES):
            return  # what arrives makes room: for a whole one, and for some together where much is on its way
        keep_bytes = self._keep_within(fetcher, 2 * planner.outstanding_limit_bytes)
        if keep_bytes != self._keep_bytes:
            self._keep_bytes = keep_bytes
            planner.keep_within(keep_bytes)
        self._planned = planner.plan(self._clock(), budget_bytes)
        if not self._planned:
            return
        budget_bytes -= self._ask(planner, fetcher)
        if not self._planned and budget_bytes >= EXTENT_BYTES and planner.has_plans:  # it plans a little at a time
            asyncio.get_running_loop().call_soon(self._pump)

    def _ask_more(self) -> None:
        if self._planner is not None and self._fetcher is not None:
            self._ask(self._planner, self._fetcher)
        if not self._planned:
            asyncio.get_running_loop().call_soon(self._pump)

    def _ask(self, planner: Planner, fetcher: Fetcher) -> int:
        """For the next few of what was planned, and for the rest in steps to come; returns the bytes asked for."""
        fetches, self._planned = self._planned[:_ASK_AT_ONCE], self._planned[_ASK_AT_ONCE:]
        if self._planned:  # first of all: whatever comes of these, nothing else is planned before the rest is asked for
            asyncio.get_running_loop().call_soon(self._ask_more)
        all_bytes = 0
        for fetch in fetches:
            why = REASON_NUMBERS[fetch.reason]
            asked_bytes = fetcher.prefetch(fetch.version, fetch.size_bytes, fetch.blocks, why, to_keep=False)
            # In whole blocks, as what is used: at the end of small files they are not the same.
            self._counts.prefetch_asked_bytes += count_blocks(asked_bytes) * BLOCK_BYTES
            planner.asked(fetch, asked_bytes)
            all_bytes += asked_bytes
        return all_bytes

    def _keep_within(self, fetcher: Fetcher, ample_bytes: int) -> int | None:
        """How far streams may run ahead, all together, for what the disk does now; None: as their windows reach."""
        if fetcher.is_behind:
            # What it does not take in time is lost before it is read, further ahead than memory keeps in its stead.
            return fetcher.memory.bypass_bytes
        # Memory for what waits is made anew where all buffers are in use, which costs as much as the bytes' way through it.
        return ample_bytes if fetcher.write_backlog_bytes > ample_bytes else None

    def _hurry(self, planner: Planner, fetcher: Fetcher) -> None:
        """Ask for what readers stand before: not prefetch, so only memory bounds it."""
        room_bytes = min(fetcher.memory.prefetch_bytes, fetcher.memory.prefetch_room_bytes(fetcher.held_bytes))
        for fetch in planner.plan_waited(self._clock(), room_bytes):
            fetcher.expedite(fetch.version, fetch.size_bytes, fetch.blocks, REASON_NUMBERS[fetch.reason])
