"""Follows one order: finds its readers' places by what they read, fetches ahead of them, and knows what is used next. Pure.

A place is a cursor: it walks ahead of what was read there and predicts the READs the kernel will send. Workers of a lane
read displaced from one another; those close together share a cursor, those far apart have their own, and all of a lane
share the marks of what is predicted or read, so that nothing is predicted twice. READs that fit no prediction are looked up
in the order; enough of them close together make a new cursor: that is how a job is found at its start, after a resume, and
after a jump. What was predicted and not read counts against the order, which then goes on without fetching.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, BlockRange, count_blocks, intersection
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.cursor import PIECE_BYTES, Cursor, State
from spoke.prefetch.foretelling import Foretelling
from spoke.prefetch.lockon import Found
from spoke.prefetch.next_use import NEVER, Use, Used, steps_until, uses_of
from spoke.prefetch.orders import SEEN_ONCE, Order, Reason
from spoke.prefetch.pieces import Pieces
from spoke.prefetch.places import Places
from spoke.prefetch.recording import Recording
from spoke.prefetch.source import FAULT_BYTES, ReadSeen
from spoke.prefetch.window import SLOW_TO_SHRINK

__all__ = ["NEVER", "Ahead", "Follower"]

_PAGE = 4096
_ITEM_MAX_BYTES = (
    PIECE_BYTES + 2 * FAULT_BYTES + _PAGE
)  # more only with the largest readahead: an item then passes the budget once
_SHARE_FADE = 1 / 64
_TRUSTED_SHARE = 0.5
_LANES_STARTED_MAX = 8
_VAIN_EVERY = 8
_FORGET_EVERY = 1024
_JOIN_EVERY = 16
_QUIET_MAX_BYTES = 4 * EXTENT_BYTES


class Ahead(NamedTuple):
    """Blocks of a file to fetch."""

    file: FileFacts
    blocks: BlockRange


class Follower:
    """``latency_s`` and ``cap_bytes`` come in with each read: from asking to having, and how far one place may run ahead.

    ``unread_bytes``: of blocks of a version, those that were fetched ahead, came, and were not read. ``used`` is told what was read of the
    order, or will not be.
    """

    def __init__(
        self,
        order: Order,
        unread_bytes: Callable[[bytes, BlockRange], int],
        used: Used = lambda _version, _blocks: None,
    ) -> None:
        self.order = order
        self._is_learned = is_learned = order.reason in SEEN_ONCE
        self._is_computed = not is_learned and order.reason is not Reason.PLAN
        self._comes_again = is_learned and not isinstance(order, Recording)
        self._foretelling = Foretelling(order, is_learned=is_learned)
        self._pieces = Pieces(self._foretelling, unread_bytes, used, self._reshaped, is_learned=is_learned)
        self._places = Places(
            order, self._foretelling, self._pieces, is_learned=is_learned, is_computed=self._is_computed
        )
        self.gate = self._pieces.gate
        self.recording = order if isinstance(order, Recording) else None
        self.cursors = self._places.cursors
        """Where somebody was found in it: it is at work."""
        self.share = 0.0
        """Of the last reads of the order's files, those it had foretold or could place."""
        self._paused_until_s = 0.0

    def _reshaped(self) -> None:
        self._places.predict_anew()

    # --- events ------------------------------------------------------------------------------------------

    def start(self, now_s: float, cap_bytes: int = limits.ORDER_START_BYTES) -> None:
        """A declared plan may be fetched from its beginning before anybody reads, a recipe's order too if its reader is known, so that
        the READs have the right shape; lanes of other nodes are not guessed at. At most ``cap_bytes`` in all."""
        cap_bytes = min(cap_bytes, limits.ORDER_START_BYTES)
        begins = self.order.reason is Reason.PLAN or self.order.reader is not None
        if begins and self.order.lane_count <= _LANES_STARTED_MAX:
            for lane in range(self.order.lane_count):
                if not any(cursor.lane == lane for cursor in self._places.cursors):
                    window_bytes = cap_bytes // max(1, self.order.lane_count)
                    self._places.add(Cursor(now_s, lane, self.order.first(lane) - 1, window_bytes))

    def grew(self, now_s: float, cap_bytes: int = limits.ORDER_START_BYTES) -> None:
        """The order got longer."""
        self._places.finder.grew()
        self.start(now_s, cap_bytes)
        for cursor in self._places.cursors:
            cursor.is_at_end = False
            self._places.feed(cursor)

    def failed(self, now_s: float, version: bytes) -> None:
        """A fetch failed: the order waits a moment, if it was for one of its files."""
        if self._foretelling.is_known(version):
            self._paused_until_s = now_s + limits.PREFETCH_FAILURE_PAUSE_S

    def take_over(self, order: Order) -> None:
        """Go on along an order with the same steps and files: what was being recorded, now as a whole."""
        self.order = self._foretelling.order = order
        self.recording = None
        self._places.take_over(order)
        self._comes_again = self._is_learned
        self.grew(0.0)

    def evicted(self, wasted_bytes: int) -> None:
        """So much of what it fetched left the cache before anybody read it."""
        self._pieces.evicted(wasted_bytes)

    def read(
        self,
        now_s: float,
        version: bytes,
        start_bytes: int,
        length_bytes: int,
        *,
        late: bool,
        latency_s: float,
        cap_bytes: int,
        fault_bytes: int = FAULT_BYTES,
        missed: bool = False,
        between_bytes: int = 0,
    ) -> int | None:
        """Learn from a READ of a handle whose faults move ``fault_bytes``. ``missed``: it is late because some of it was not asked for.
        ``between_bytes``: what may lie between the readers of a place, where that is more than its window.

        None: the order does not explain it. Else the offset up to which further reads change nothing.
        """
        foretelling, pieces, places = self._foretelling, self._pieces, self._places
        file = foretelling.number_of(version)
        if file is None or length_bytes <= 0:
            return None
        pieces.reads += 1
        places.cap_bytes = cap_bytes
        foretelling.shapes.opened_with(file, fault_bytes)
        end_bytes = start_bytes + length_bytes
        is_kernels_own = foretelling.exact.is_own(file, start_bytes, end_bytes)
        seed = pieces.match(file, start_bytes, end_bytes, is_kernels_own=is_kernels_own)
        if not self._is_learned:
            if foretelling.shapes.faults(file):
                pieces.kernel_reads(file, start_bytes, end_bytes, seed)
            else:
                foretelling.pages.add(file, start_bytes, end_bytes)
        self.share += ((seed is not None) - self.share) * _SHARE_FADE
        if seed is None:
            if is_kernels_own:
                return 0
            finder = places.finder
            found = None
            if not finder.is_in_vain or finder.is_due():
                found = finder.look_up(file, start_bytes, length_bytes)
            if found is not None:
                places.lock(now_s, found, file)
            if not pieces.reads % _VAIN_EVERY:
                places.drop_idle()
            return None if found is None else 0
        foretelling.went_on(seed, start_bytes, end_bytes)
        cursor = seed.cursor
        cursor.seen_at_read = pieces.reads
        cursor.matched_reads += 1
        pieces.matched_reads += 1
        grows, is_exact = late, self._is_computed and not foretelling.shapes.faults(file)
        if self._is_computed and late:
            # Only where it was asked for too late: not what of a longer READ was not foretold, nor what the link had the whole lead for and
            # did not bring. A declared plan may take what room the cache has.
            most_bytes = int(limits.ORDER_LATE_STEPS * cursor.average_bytes)
            in_time = is_exact and now_s - seed.foretold_s >= limits.ORDER_LEAD_S + latency_s
            grows = not (missed or in_time) and cursor.window.window_bytes < most_bytes
            cap_bytes = min(cap_bytes, most_bytes) if grows else cap_bytes
        cursor.window.read(
            now_s,
            length_bytes,
            cursor.matched_reads * places.evidence_bytes(cursor),
            late=grows,
            latency_s=latency_s,
            cap_bytes=cap_bytes,
            eager=not self._is_computed,
            ample=1.0 if is_exact else SLOW_TO_SHRINK,
            least_bytes=self._least_bytes(now_s, length_bytes, cursor),
        )
        if len(places.cursors) > 1 and not cursor.matched_reads % _JOIN_EVERY:
            places.join(cursor)
        pieces.leave_behind(cursor, between_bytes)
        places.feed(cursor)
        if cursor.is_later_pass and places.is_past_middle(cursor):
            places.begin_pass(cursor)
        if cursor.is_at_end and self._comes_again:
            places.wrap(now_s, cursor)
        if not pieces.matched_reads % _FORGET_EVERY and self.order.reason is Reason.PLAN:
            places.forget(cursor.lane)
        if late or cursor.is_at_end or id(cursor) in places.hungry:
            return 0
        # The last read of a run is never passed over, so that nothing stays untold when its reader goes elsewhere.
        return min(seed.run.end_bytes - 1, end_bytes + min(_QUIET_MAX_BYTES, cursor.window.window_bytes // 8))

    def seek(self, seen: ReadSeen) -> Found | None:
        """Instead of :meth:`read` while nobody was found in what is only being recorded: who is, if this READ shows it.

        None: most likely. Few READs go where a step begins, and in an order that nobody repeats few of those are looked up.
        """
        recording, finder = self.recording, self._places.finder
        if recording is None or (number := recording.numbers.get(seen.version)) is None:
            return None
        if self.share:
            self.share -= self.share * _SHARE_FADE
        if (finder.is_in_vain and not finder.is_due()) or not recording.begins_at(number, seen.offset_bytes):
            return None
        self._pieces.reads += 1
        self._foretelling.shapes.opened_with(number, seen.fault_bytes)
        return finder.look_up(number, seen.offset_bytes, seen.length_bytes)

    def begin(self, now_s: float, found: Found, version: bytes, cap_bytes: int) -> None:
        """Somebody is there (:meth:`seek`)."""
        number = self.number_of(version)
        assert number is not None
        self._places.cap_bytes = cap_bytes
        self._places.lock(now_s, found, number)

    def _least_bytes(self, now_s: float, length_bytes: int, cursor: Cursor) -> int:
        """What is ahead of a place however slowly it moves: all its workers may ask for their next batches at once. Of what is known for
        sure, as much as was read of it in the last seconds."""
        least_bytes = min(limits.ORDER_WINDOW_MIN_BYTES, self._places.cap_bytes // 2)
        if self._is_learned:
            return least_bytes
        if self._is_computed:
            least_bytes = min(least_bytes, int(limits.ORDER_START_STEPS * cursor.average_bytes))
        return max(least_bytes, min(self._places.cap_bytes, cursor.pace(now_s, length_bytes)))

    # --- what to fetch ------------------------------------------------------------------------------------

    @property
    def has_plans(self) -> bool:
        return bool(self._places.hungry or self._foretelling.beyond)

    def plan(self, now_s: float, budget_bytes: int) -> Iterator[Ahead]:
        """What to fetch, round the cursors about an extent at a time, never more than the budget, and not too much in one go."""
        if now_s < self._paused_until_s:
            return
        while self._foretelling.beyond and budget_bytes >= _ITEM_MAX_BYTES:
            file, first, end = self._foretelling.beyond.popleft()
            end = min(end, count_blocks(self._foretelling.facts_of(file).size_bytes))
            if self.gate.is_open and first < end:
                budget_bytes -= (end - first) * BLOCK_BYTES
                yield self._ahead(file, first, end)
        pieces_left = limits.ORDER_PLAN_PIECES
        while self._places.hungry and budget_bytes >= _ITEM_MAX_BYTES and pieces_left:
            key, cursor = self._places.hungry.popitem(last=False)
            given_bytes = 0
            pending: tuple[int, int, int] | None = None
            while given_bytes < EXTENT_BYTES and budget_bytes >= _ITEM_MAX_BYTES and pieces_left:
                item = self._places.predict(now_s, cursor)
                if item is None:
                    break
                pieces_left -= 1
                given_bytes += item.cost_bytes
                if item.state is State.SHADOW:
                    continue
                budget_bytes -= item.cost_bytes
                first, end = item.first_block, item.end_block
                if pending is not None and pending[0] == item.file and pending[1] <= first <= pending[2]:
                    pending = (item.file, pending[1], max(pending[2], end))
                    continue
                if pending is not None:
                    yield self._ahead(*pending)
                pending = (item.file, first, end)
            if pending is not None:
                yield self._ahead(*pending)
            if given_bytes and cursor.ahead_bytes < cursor.window.window_bytes:
                self._places.hungry[key] = cursor

    # --- what it knows -----------------------------------------------------------------------------------

    def covers(self, version: bytes) -> bool:
        """The order explains what is read of this file: nobody need guess."""
        if not self.cursors or self.share < _TRUSTED_SHARE or not self.gate.is_open:
            return False
        return self.number_of(version) is not None

    @property
    def is_sure(self) -> bool:
        """Declared; or read so before, and so far now as well: its slowest readers will come, however far behind the first."""
        if not self._comes_again:
            return self.order.reason is Reason.PLAN
        return (
            self._pieces.used_bytes >= limits.LEARN_GATE_ALLOWANCE_BYTES
            and self.share >= _TRUSTED_SHARE
            and self.gate.is_open
            and self._pieces.wasted_bytes <= self._pieces.used_bytes * limits.LEARN_SURE_WASTE_SHARE
        )

    @property
    def active_count(self) -> int:
        """Places that share the windows: one that waits whether the order comes again takes next to nothing, and a share of others'
        windows would give up what lies behind their first readers."""
        count = len(self._places.cursors)
        if self._comes_again:
            for cursor in self._places.cursors:
                count -= cursor.is_later_pass
        return count

    def knows(self, version: bytes) -> bool:
        """It says when bytes of this version are used next."""
        return bool(self._knowing) and self.gate.is_open and self.number_of(version) is not None

    @property
    def _knowing(self) -> list[Cursor]:
        return [cursor for cursor in self._places.cursors if cursor.matched_reads or self.order.reason is Reason.PLAN]

    @property
    def steps_taken(self) -> int:
        """As far as its furthest reader is; what comes again counts from where it ended."""
        return self._places.steps_taken

    def next_use(self, version: bytes, blocks: BlockRange) -> int | None:
        """Steps until one of the blocks is used, over all places followed; NEVER if not again; None: this order says nothing about it."""
        if not self.knows(version):
            return None
        file, start_bytes, end_bytes = self._foretelling.around(version, blocks)
        steps = steps_until(
            self.order, self._knowing, self._pieces.marks, file, start_bytes, end_bytes, again=self._comes_again
        )
        for use in self._pieces.awaited(file, start_bytes, end_bytes):
            if intersection(use.blocks, blocks).block_count:
                steps = min(steps, use.steps)
        return steps

    def uses(self, version: bytes, extent_index: int) -> list[Use] | None:
        """What of an extent is used again, and when: each block in some, or in none; None: this order says nothing about it."""
        if not self.knows(version):
            return None
        extent = BlockRange(extent_index * EXTENT_BLOCKS, EXTENT_BLOCKS)
        file, start_bytes, end_bytes = self._foretelling.around(version, extent)
        found = uses_of(
            self.order, self._knowing, self._pieces.marks, file, start_bytes, end_bytes, again=self._comes_again
        )
        if found is None:
            steps = self.next_use(version, extent)
            return [] if steps is None else [Use(steps, extent)]
        uses = self._pieces.awaited(file, start_bytes, end_bytes)
        for steps, lane, position in found:
            step = self.order.step(lane, position)
            first, end = self._foretelling.blocks_of(file, step.offset_bytes, step.offset_bytes + step.length_bytes)
            uses.append(Use(steps, BlockRange(first, end - first)))
        return uses

    def number_of(self, version: bytes) -> int | None:
        """The order's number for a file."""
        return self._foretelling.number_of(version)

    def facts(self) -> Mapping[str, Any]:
        """For ``status``; sizes in bytes, positions and lengths in steps."""
        lanes: dict[int, int] = {}
        for cursor in self._places.cursors:
            lanes[cursor.lane] = max(lanes.get(cursor.lane, 0), cursor.front + 1)
        return {
            "name": self.order.name,
            "reason": self.order.reason.value,
            "origin": self.order.origin,
            "state": self.state,
            "lane_count": self.order.lane_count,
            "lanes": [
                {"lane": lane, "position": position, "length": self.order.length(lane)}
                for lane, position in sorted(lanes.items())
            ],
            "places": len(self._places.cursors),
            "matched_reads": self._pieces.matched_reads,
            "used_bytes": self._pieces.used_bytes,
            "wasted_bytes": self._pieces.wasted_bytes,
        }

    @property
    def state(self) -> str:
        if not self.gate.is_open:
            return "distrusted"
        locked = [cursor for cursor in self._places.cursors if cursor.matched_reads]
        if not locked:
            return "waiting"
        fronts: dict[int, int] = {}
        for cursor in locked:
            fronts[cursor.lane] = max(fronts.get(cursor.lane, 0), cursor.front)
        over = all(front + 1 >= self.order.length(lane) for lane, front in fronts.items())
        return "done" if over else "locked"

    def _ahead(self, file: int, first_block: int, end_block: int) -> Ahead:
        return Ahead(self._foretelling.facts_of(file), BlockRange(first_block, end_block - first_block))
