"""Follows one order: finds its readers' places by what they read, fetches ahead of them, and knows what is used next. Pure.

A place is a cursor: it walks ahead of what was read there and predicts the READs the kernel will send. Workers of a lane
read displaced from one another; those close together share a cursor, those far apart have their own, and all of a lane
share the marks of what is predicted or read, so that nothing is predicted twice. READs that fit no prediction are looked up
in the order; enough of them close together make a new cursor: that is how a job is found at its start, after a resume, and
after a jump. What was predicted and not read counts against the order, which then goes on without fetching.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, BlockRange, count_blocks, intersection
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.cursor import PIECE_BYTES, TOGETHER_STEPS, Cursor, Item, Marks, Run, State
from spoke.prefetch.gate import Gate
from spoke.prefetch.kernel_marks import KernelMarks
from spoke.prefetch.kernel_pages import KernelPages
from spoke.prefetch.kernel_reads import KernelReads
from spoke.prefetch.lockon import Finder, Found
from spoke.prefetch.matching import fulfilled, fulfilled_exactly
from spoke.prefetch.next_use import NEVER, Use, Used, pieces_of, steps_until, uses_of
from spoke.prefetch.orders import SEEN_ONCE, Order, Reader, Reason
from spoke.prefetch.predictions import Predictions
from spoke.prefetch.recording import Recording
from spoke.prefetch.shapes import Shapes, make_room
from spoke.prefetch.source import FAULT_BYTES
from spoke.prefetch.window import SLOW_TO_SHRINK

__all__ = ["NEVER", "Ahead", "Follower"]

_PAGE = 4096
_ITEM_MAX_BYTES = (
    PIECE_BYTES + 2 * FAULT_BYTES + _PAGE
)  # more only with the largest readahead: an item then passes the budget once
_SHARE_FADE = 1 / 64
_TRUSTED_SHARE = 0.5
_EVIDENCE_STEPS = 8
_BEYOND_MAX = 256
_LANES_STARTED_MAX = 8
_VAIN_EVERY = 8
_FORGET_EVERY = 1024
_JOIN_EVERY = 16
_QUIET_MAX_BYTES = 4 * EXTENT_BYTES
_WRAP_SHARE = 4
_GONE_SHARE = 8
_WRAP_BYTES_SHARE = 24
_BEYOND_VOTES_MAX = 8


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
        self._used = used
        self._unread_bytes = unread_bytes
        self._is_learned = order.reason in SEEN_ONCE
        self._is_computed = not self._is_learned and order.reason is not Reason.PLAN
        self._comes_again = self._is_learned and not isinstance(order, Recording)
        self.gate = (
            Gate(limits.LEARN_GATE_ALLOWANCE_BYTES, limits.LEARN_GATE_WASTE_SHARE) if self._is_learned else Gate()
        )
        self.used_bytes = 0
        self.wasted_bytes = 0
        self.matched_reads = 0
        self.share = 0.0
        """Of the last reads of the order's files, those it had foretold or could place."""
        self._came_again = False
        self._paused_until_s = 0.0
        self._cap_bytes = limits.ORDER_START_BYTES
        self._cursors: list[Cursor] = []
        self._hungry: OrderedDict[int, Cursor] = OrderedDict()
        self._predictions = Predictions()
        self._marks = Marks()
        self._shapes = Shapes(as_recorded=self._is_learned, is_mapped=order.reader is Reader.MAPPED)
        self._pages = KernelPages()
        self._kernel = KernelMarks(self._pages)
        self._exact = KernelReads(self._pages)
        self._beyond: deque[tuple[int, int, int]] = deque(maxlen=_BEYOND_MAX)
        """(file, first block, end) of what the kernel will read on by itself."""
        self._beyond_votes = _BEYOND_VOTES_MAX // 2
        """Whether READs go on beyond steps as the model says: not with O_DIRECT or POSIX_FADV_RANDOM. A READ or two may be cut."""
        self._steps_before = 0
        self._finder = Finder(order, self._shapes)
        self._reads = 0
        self._files: dict[int, FileFacts] = {}
        self._numbers: dict[bytes, int | None] = {}

    # --- events ------------------------------------------------------------------------------------------

    def start(self, now_s: float, cap_bytes: int = limits.ORDER_START_BYTES) -> None:
        """A declared plan may be fetched from its beginning before anybody reads, a recipe's order too if its reader is known, so that
        the READs have the right shape; lanes of other nodes are not guessed at. At most ``cap_bytes`` in all."""
        cap_bytes = min(cap_bytes, limits.ORDER_START_BYTES)
        begins = self.order.reason is Reason.PLAN or self.order.reader is not None
        if begins and self.order.lane_count <= _LANES_STARTED_MAX:
            for lane in range(self.order.lane_count):
                if not any(cursor.lane == lane for cursor in self._cursors):
                    window_bytes = cap_bytes // max(1, self.order.lane_count)
                    self._add(Cursor(now_s, lane, self.order.first(lane) - 1, window_bytes))

    def grew(self, now_s: float, cap_bytes: int = limits.ORDER_START_BYTES) -> None:
        """The order got longer."""
        self._finder.grew()
        self.start(now_s, cap_bytes)
        for cursor in self._cursors:
            cursor.is_at_end = False
            self._feed(cursor)

    def failed(self, now_s: float, version: bytes) -> None:
        """A fetch failed: the order waits a moment, if it was for one of its files."""
        if self._numbers.get(version) is not None:
            self._paused_until_s = now_s + limits.PREFETCH_FAILURE_PAUSE_S

    def take_over(self, order: Order) -> None:
        """Go on along an order with the same steps and files: what was being recorded, now as a whole."""
        self.order = self._finder.order = order
        self._comes_again = self._is_learned
        self.grew(0.0)

    def evicted(self, wasted_bytes: int) -> None:
        """So much of what it fetched left the cache before anybody read it."""
        self.wasted_bytes += wasted_bytes
        self.gate.wasted(wasted_bytes)

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

        None: the order does not explain it. Else the offset up to which further reads change nothing.
        """
        file = self.number_of(version)
        if file is None or length_bytes <= 0:
            return None
        self._reads += 1
        self._cap_bytes = cap_bytes
        self._shapes.opened_with(file, fault_bytes)
        end_bytes = start_bytes + length_bytes
        is_kernels_own = self._exact.is_own(file, start_bytes, end_bytes)
        seed = self._match(file, start_bytes, end_bytes, is_kernels_own=is_kernels_own)
        if not self._is_learned:
            if self._shapes.faults(file):
                self._kernel_reads(file, start_bytes, end_bytes, seed)
            else:
                self._pages.add(file, start_bytes, end_bytes)
        self.share += ((seed is not None) - self.share) * _SHARE_FADE
        if seed is None:
            if is_kernels_own:
                return 0
            found = self._finder.look_up(file, start_bytes, length_bytes)
            if found is not None:
                self._lock(now_s, found, file)
            if not self._reads % _VAIN_EVERY:
                self._drop_idle()
            return None if found is None else 0
        if seed.beyond_bytes > seed.end_bytes and start_bytes == seed.start_bytes & ~4095:
            vote = 1 if end_bytes >= seed.beyond_bytes else -1
            self._beyond_votes = max(-_BEYOND_VOTES_MAX, min(_BEYOND_VOTES_MAX, self._beyond_votes + vote))
        cursor = seed.cursor
        cursor.seen_at_read = self._reads
        cursor.matched_reads += 1
        self.matched_reads += 1
        grows, is_exact = late, self._is_computed and not self._shapes.faults(file)
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
            cursor.matched_reads * self._evidence_bytes(cursor),
            late=grows,
            latency_s=latency_s,
            cap_bytes=cap_bytes,
            eager=not self._is_computed,
            ample=1.0 if is_exact else SLOW_TO_SHRINK,
            least_bytes=self._least_bytes(now_s, length_bytes, cursor),
        )
        if len(self._cursors) > 1 and not cursor.matched_reads % _JOIN_EVERY:
            self._join(cursor)
        self._leave_behind(cursor, between_bytes)
        self._feed(cursor)
        if cursor.is_later_pass and self._is_past_middle(cursor):
            self._begin_pass(cursor)
        if cursor.is_at_end and self._comes_again:
            self._wrap(now_s, cursor)
        if not self.matched_reads % _FORGET_EVERY and self.order.reason is Reason.PLAN:
            self._forget(cursor.lane)
        if late or cursor.is_at_end or id(cursor) in self._hungry:
            return 0
        # The last read of a run is never passed over, so that nothing stays untold when its reader goes elsewhere.
        return min(seed.run.end_bytes - 1, end_bytes + min(_QUIET_MAX_BYTES, cursor.window.window_bytes // 8))

    def _evidence_bytes(self, cursor: Cursor) -> int:
        """What one read that was foretold says for those to come: eight like it, though no more than an extent."""
        if not self._is_computed:
            return EXTENT_BYTES
        return min(EXTENT_BYTES, int(_EVIDENCE_STEPS * cursor.average_bytes))

    def _least_bytes(self, now_s: float, length_bytes: int, cursor: Cursor) -> int:
        """What is ahead of a place however slowly it moves: all its workers may ask for their next batches at once. Of what is known for
        sure, as much as was read of it in the last seconds."""
        least_bytes = min(limits.ORDER_WINDOW_MIN_BYTES, self._cap_bytes // 2)
        if self._is_learned:
            return least_bytes
        if self._is_computed:
            least_bytes = min(least_bytes, int(limits.ORDER_START_STEPS * cursor.average_bytes))
        return max(least_bytes, min(self._cap_bytes, cursor.pace(now_s, length_bytes)))

    @property
    def has_plans(self) -> bool:
        return bool(self._hungry or self._beyond)

    def plan(self, now_s: float, budget_bytes: int) -> Iterator[Ahead]:
        """What to fetch, round the cursors about an extent at a time, never more than the budget, and not too much in one go."""
        if now_s < self._paused_until_s:
            return
        while self._beyond and budget_bytes >= _ITEM_MAX_BYTES:
            file, first, end = self._beyond.popleft()
            end = min(end, count_blocks(self._facts_of(file).size_bytes))
            if self.gate.is_open and first < end:
                budget_bytes -= (end - first) * BLOCK_BYTES
                yield self._ahead(file, first, end)
        pieces_left = limits.ORDER_PLAN_PIECES
        while self._hungry and budget_bytes >= _ITEM_MAX_BYTES and pieces_left:
            key, cursor = self._hungry.popitem(last=False)
            given_bytes = 0
            pending: tuple[int, int, int] | None = None
            while given_bytes < EXTENT_BYTES and budget_bytes >= _ITEM_MAX_BYTES and pieces_left:
                item = self._predict(now_s, cursor)
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
                self._hungry[key] = cursor

    # --- what it knows -----------------------------------------------------------------------------------

    def covers(self, version: bytes) -> bool:
        """The order explains what is read of this file: nobody need guess."""
        return (self.share >= _TRUSTED_SHARE and self.gate.is_open and bool(self._cursors)) and self.number_of(
            version
        ) is not None

    @property
    def is_sure(self) -> bool:
        """Declared; or read so before, and so far now as well, so that what it foretells may have a declared plan's share of the cache."""
        if not self._comes_again:
            return self.order.reason is Reason.PLAN
        return (
            self.used_bytes >= limits.LEARN_GATE_ALLOWANCE_BYTES
            and self.share >= _TRUSTED_SHARE
            and self.gate.is_open
            and self.wasted_bytes <= self.used_bytes * limits.LEARN_SURE_WASTE_SHARE
        )

    @property
    def is_at_work(self) -> bool:
        """Somebody was found in it."""
        return bool(self._cursors)

    @property
    def active_count(self) -> int:
        """Places that share the windows: one that waits whether the order comes again takes next to nothing, and a share of others'
        windows would give up what lies behind their first readers."""
        count = len(self._cursors)
        if self._comes_again:
            for cursor in self._cursors:
                count -= cursor.is_later_pass
        return count

    def knows(self, version: bytes) -> bool:
        """It says when bytes of this version are used next."""
        return bool(self._knowing) and self.gate.is_open and self.number_of(version) is not None

    @property
    def _knowing(self) -> list[Cursor]:
        return [cursor for cursor in self._cursors if cursor.matched_reads or self.order.reason is Reason.PLAN]

    @property
    def steps_taken(self) -> int:
        """As far as its furthest reader is; what comes again counts from where it ended."""
        return self._steps_before + max((cursor.front for cursor in self._cursors), default=0)

    def next_use(self, version: bytes, blocks: BlockRange) -> int | None:
        """Steps until one of the blocks is used, over all places followed; NEVER if not again; None: this order says nothing about it."""
        if not self.knows(version):
            return None
        file, start_bytes, end_bytes = self._around(version, blocks)
        steps = steps_until(
            self.order, self._knowing, self._marks, file, start_bytes, end_bytes, again=self._comes_again
        )
        for use in self._awaited(file, start_bytes, end_bytes):
            if intersection(use.blocks, blocks).block_count:
                steps = min(steps, use.steps)
        return steps

    def uses(self, version: bytes, extent_index: int) -> list[Use] | None:
        """What of an extent is used again, and when: each block in some, or in none; None: this order says nothing about it."""
        if not self.knows(version):
            return None
        extent = BlockRange(extent_index * EXTENT_BLOCKS, EXTENT_BLOCKS)
        file, start_bytes, end_bytes = self._around(version, extent)
        found = uses_of(self.order, self._knowing, self._marks, file, start_bytes, end_bytes, again=self._comes_again)
        if found is None:
            steps = self.next_use(version, extent)
            return [] if steps is None else [Use(steps, extent)]
        uses = self._awaited(file, start_bytes, end_bytes)
        for steps, lane, position in found:
            step = self.order.step(lane, position)
            first, end = self._blocks_of(file, step.offset_bytes, step.offset_bytes + step.length_bytes)
            uses.append(Use(steps, BlockRange(first, end - first)))
        return uses

    def _awaited(self, file: int, start_bytes: int, end_bytes: int) -> list[Use]:
        """What it fetched ahead of a reader, or found to be there, and nobody has read since: also of a step that was read in part."""
        uses: list[Use] = []
        start_bytes = max(0, start_bytes - self._shapes.fault_bytes(file))  # a READ may go on into these bytes
        for item in self._predictions.touched(file, start_bytes, end_bytes):
            if item.state is State.ASKED:
                uses.append(Use(max(0, item.position - item.cursor.front), item.blocks))
        return uses

    def _around(self, version: bytes, blocks: BlockRange) -> tuple[int, int, int]:
        """(file, start and end in bytes) of the steps whose READs hold some of the blocks."""
        file = self.number_of(version)
        assert file is not None
        around_bytes = self._shapes.fault_bytes(file) // 2 if self._shapes.faults(file) else 0
        start_bytes = max(0, blocks.first_block * BLOCK_BYTES - around_bytes)
        return file, start_bytes, blocks.end_block * BLOCK_BYTES + around_bytes

    def facts(self) -> Mapping[str, Any]:
        """For ``status``; sizes in bytes, positions and lengths in steps."""
        lanes: dict[int, int] = {}
        for cursor in self._cursors:
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
            "places": len(self._cursors),
            "matched_reads": self.matched_reads,
            "used_bytes": self.used_bytes,
            "wasted_bytes": self.wasted_bytes,
        }

    @property
    def state(self) -> str:
        if not self.gate.is_open:
            return "distrusted"
        locked = [cursor for cursor in self._cursors if cursor.matched_reads]
        if not locked:
            return "waiting"
        fronts: dict[int, int] = {}
        for cursor in locked:
            fronts[cursor.lane] = max(fronts.get(cursor.lane, 0), cursor.front)
        over = all(front + 1 >= self.order.length(lane) for lane, front in fronts.items())
        return "done" if over else "locked"

    def number_of(self, version: bytes) -> int | None:
        """The order's number for a file."""
        try:
            return self._numbers[version]
        except KeyError:
            make_room(self._numbers)
            number = self._numbers[version] = self.order.file_of(version)
            return number

    # --- matching ----------------------------------------------------------------------------------------

    def _match(self, file: int, start_bytes: int, end_bytes: int, *, is_kernels_own: bool) -> Item | None:
        """The prediction that a READ fulfils, it and its companions now marked as read; None if there is none."""
        hits = self._predictions.touched(file, start_bytes, end_bytes)
        if not hits:
            return None
        if self._is_learned:
            return self._match_recorded(hits, start_bytes, end_bytes)
        is_mapped = self._shapes.faults(file)
        match = (
            fulfilled_exactly(hits, start_bytes, end_bytes)
            if is_kernels_own
            else fulfilled(
                hits,
                start_bytes,
                end_bytes,
                fault_bytes=self._shapes.fault_bytes(file),
                is_mapped=is_mapped,
                goes_on=self._pages.goes_on(file, start_bytes),
            )
        )
        if match is None:
            self._cover(hits, start_bytes, end_bytes, None)
            return None
        if match.vote:
            self._learn_shape(file, match.vote)
        seed = match.item
        if seed.state is not State.READ:
            self._consume(seed)
            seed.cursor.moved_to(seed.position, is_sure=match.is_sure)
        self._cover(hits, start_bytes, end_bytes, None if is_mapped else seed)
        return seed

    def _match_recorded(self, hits: list[Item], start_bytes: int, end_bytes: int) -> Item | None:
        """READs that were recorded come again, but not one by one: where the kernel cuts them depends on what it has by then.

        So any that touches what comes about now is that, and one that begins with a prediction is so anywhere.
        """
        seed: Item | None = None
        best = (2, True, 0)
        for item in hits:
            cursor = item.cursor
            distance = abs(item.position - cursor.front - 1)
            is_near = distance <= 2 * cursor.spread + TOGETHER_STEPS
            if not is_near and item.start_bytes & ~4095 != start_bytes:
                continue
            rank = (item.state is State.READ, not is_near, distance)
            if rank < best:
                seed, best = item, rank
        self._cover(hits, start_bytes, end_bytes, seed)
        if seed is not None and seed.state is not State.READ:
            if end_bytes > seed.end_bytes - _PAGE:
                self._consume(seed)
            seed.cursor.moved_to(seed.position)
        return seed

    def _kernel_reads(self, file: int, start_bytes: int, end_bytes: int, seed: Item | None) -> None:
        """Pages of a mapped file came; where somebody will come to the one now marked, the kernel reads on."""
        wanted_bytes = None if seed is None else max(start_bytes, seed.start_bytes)
        fault_bytes = self._shapes.fault_bytes(file)
        mark = self._kernel.read(file, start_bytes, end_bytes, fault_bytes, wanted_bytes)
        if mark is None:
            return
        mark_bytes = mark * BLOCK_BYTES
        for item in self._predictions.touched(file, mark_bytes, mark_bytes + 1):
            # The READ may hold all that the step needs, so that it counts as read; who will take it has still to come.
            if item.state in (State.ASKED, State.SHADOW) or item.position > item.cursor.front:
                self._read_on(file, mark, mark)
                return

    def _read_on(self, file: int, first_page: int, last_page: int) -> None:
        """Somebody will come to these pages, which the kernel has if one of them is marked."""
        beyond = self._kernel.beyond(file, first_page, last_page, self._shapes.fault_bytes(file))
        if beyond is not None and self._kernel.goes_on_as_foretold:
            self._beyond.append((file, *beyond))

    def _cover(self, hits: list[Item], start_bytes: int, end_bytes: int, seed: Item | None) -> None:
        """Predictions that a READ fulfilled as well: the neighbours of ``seed``, and those whose bytes it holds.

        Of steps that read the same bytes again, as of a shard that is drawn twice, only one: the others are still to come.
        """
        nearest: dict[tuple[int, int], Item] = {}
        if len(hits) > 1:
            for item in hits:
                place = item.start_bytes, item.end_bytes
                known = nearest.get(place)
                if known is None or (item is not known and self._is_nearer(item, known, seed)):
                    nearest[place] = item
        for item in hits:
            if item.state is State.READ:
                continue
            if nearest.get((item.start_bytes, item.end_bytes), item) is not item:
                continue
            if self._is_learned and end_bytes <= item.end_bytes - _PAGE:
                continue  # READs joined to a step come one by one: taken for used, what is left of it went before it was read
            is_held = start_bytes <= item.start_bytes & ~4095 and item.end_bytes <= end_bytes
            if not is_held and not self._is_learned and (seed is None or item.run is not seed.run):
                continue  # it shares some pages with the READ, and no more: its own is still to come
            if seed is not None and item.cursor is seed.cursor and abs(item.position - seed.position) <= TOGETHER_STEPS:
                self._consume(item)
                item.cursor.moved_to(item.position)
            elif item.start_bytes >= start_bytes and item.end_bytes <= end_bytes:
                self._consume(item)

    @staticmethod
    def _is_nearer(item: Item, other: Item, seed: Item | None) -> bool:
        if item is seed or other is seed:
            return item is seed
        return abs(item.position - item.cursor.front) < abs(other.position - other.cursor.front)

    def _consume(self, item: Item) -> None:
        cost_bytes = item.cost_bytes
        if item.state is State.ASKED:
            item.cursor.settle(item)
            self.used_bytes += cost_bytes
            self.gate.used(cost_bytes)
        elif item.state is State.SHADOW:
            item.cursor.settle(item)
            self.gate.used(cost_bytes)
        elif item.state is State.EXPIRED:
            self.used_bytes += cost_bytes
            self.wasted_bytes -= cost_bytes
            self.gate.refunded(cost_bytes)
        else:
            self.gate.refunded(cost_bytes)
        item.state = State.READ
        item.cursor.used_at_read = self._reads
        self._marks.set(item.cursor.lane, item.position, read=True)
        self._tell_used(item)

    def _tell_used(self, item: Item) -> None:
        version = self._facts_of(item.file).version
        if self._shapes.faults(item.file):  # READs of neighbours overlap
            for extent in range(item.first_block // EXTENT_BLOCKS, (item.end_block - 1) // EXTENT_BLOCKS + 1):
                self._used(version, BlockRange(extent * EXTENT_BLOCKS, EXTENT_BLOCKS))
        else:
            for blocks in pieces_of(item.start_bytes, item.end_bytes):
                self._used(version, blocks)

    def _leave_behind(self, cursor: Cursor, between_bytes: int) -> None:
        """What lies further behind than readers are spread was not read; a while later it is forgotten.

        So was what is more than a window of it: the kernel has the pages of many steps, who read them asks nobody.
        """
        cursor.pass_by()
        slack = cursor.slack
        expired_before = cursor.front - slack
        behind, trail, most_bytes = cursor.behind, cursor.trail, max(cursor.window.window_bytes, between_bytes)
        while behind and (
            behind[0].position < expired_before or behind[0].state is State.READ or cursor.behind_bytes > most_bytes
        ):
            item = behind.popleft()
            self._expire(item)
            trail.append(item)
        forgotten_before = cursor.front - 4 * slack
        while trail and (trail[0].position < forgotten_before or len(trail) > limits.ORDER_AHEAD_MAX_STEPS):
            self._predictions.remove(trail.popleft())

    def _expire_old(self, cursor: Cursor) -> None:
        """What should have been read long ago, by the number of reads seen since, will not be."""
        waiting = len(cursor.items) + len(cursor.behind)
        patience = (limits.ORDER_IDLE_READS + 4 * waiting) * len(self._cursors)
        for items in (cursor.behind, cursor.items):
            while items and self._reads - items[0].foretold_at_read > patience:
                item = items.popleft()
                self._expire(item)
                cursor.trail.append(item)

    def _expire(self, item: Item) -> None:
        if item.state is State.ASKED:
            item.cursor.settle(item)
            # What was cached before costs nothing, and what the kernel had in its own cache it has read from here.
            item.cost_bytes = self._unread_bytes(self._facts_of(item.file).version, item.blocks)
            self.wasted_bytes += item.cost_bytes
            self.gate.wasted(item.cost_bytes)
            item.state = State.EXPIRED
            self._tell_used(item)
        elif item.state is State.SHADOW:
            item.cursor.settle(item)
            self.gate.wasted(item.cost_bytes)
            item.state = State.EXPIRED_SHADOW

    # --- finding places ----------------------------------------------------------------------------------

    def _lock(self, now_s: float, found: Found, file: int) -> None:
        """Somebody reads at these positions of a lane."""
        self._finder.found()
        lane, positions = found.lane, found.positions
        self._learn_shape(file, 2 if found.fault else -2)
        marks = self._marks
        if 2 * sum(marks.is_read(lane, position) for position in positions) > len(positions):
            self._give_up_lane(lane)
            marks.clear_from(lane, positions[0])
        for position in positions:
            # READs that were joined to a step come one by one, with others' between them: one of them is not all of it. A declared
            # step is one reader's, who is through with it or goes on as guesses see.
            if not self._is_learned or self.order.step(lane, position).length_bytes <= PIECE_BYTES:
                marks.set(lane, position, read=True)
        cursor = Cursor(now_s, lane, positions[-1], 0)
        if self._cursors:
            cursor.average_bytes = self._cursors[-1].average_bytes
        evidence_bytes = len(positions) * (1 if self._is_learned else 8) * self._evidence_bytes(cursor)
        cursor.window.window_bytes = min(evidence_bytes, 2 * limits.PREFETCH_START_BYTES, self._cap_bytes)
        cursor.next_position = positions[0]
        cursor.spread = positions[-1] - positions[0]
        cursor.matched_reads = len(positions)
        self.matched_reads += len(positions)
        self._add(cursor)

    def _add(self, cursor: Cursor) -> None:
        cursor.seen_at_read = cursor.used_at_read = self._reads
        self._cursors.append(cursor)
        if len(self._cursors) > limits.ORDER_CURSORS_MAX:
            self._give_up(min(self._cursors, key=lambda known: known.seen_at_read))
        self._feed(cursor)

    def _drop_idle(self) -> None:
        """Give up places that nobody has been at for many reads of the order's files; a pause in reading ages nothing."""
        patience = limits.ORDER_IDLE_READS + 64 * len(self._cursors)
        for cursor in [cursor for cursor in self._cursors if self._reads - cursor.seen_at_read > patience]:
            self._give_up(cursor)
        for cursor in self._cursors:
            self._expire_old(cursor)

    def _give_up_lane(self, lane: int) -> None:
        for cursor in [cursor for cursor in self._cursors if cursor.lane == lane]:
            self._give_up(cursor)

    def _give_up(self, cursor: Cursor) -> None:
        before = self.steps_taken
        self._cursors.remove(cursor)
        self._steps_before += max(0, before - self.steps_taken)
        self._hungry.pop(id(cursor), None)
        self._hand_over(cursor)
        for item in (*cursor.behind, *cursor.items):
            if item.state is not State.READ:
                self._expire(item)
                self._marks.clear(cursor.lane, item.position)
            self._predictions.remove(item)
        for item in cursor.trail:
            self._predictions.remove(item)

    def _hand_over(self, cursor: Cursor) -> None:
        """What was predicted just ahead of another place in the lane is that one's from now on: it will come there.

        Workers are often found twice at the start, and the place behind predicts what lies beyond all that the other did.
        """
        unread = [item for item in (*cursor.behind, *cursor.items) if item.state is not State.READ]
        if not unread:
            return
        first, lane = unread[0].position, cursor.lane
        behind = [other for other in self._cursors if other.lane == lane and other.front < first]
        heir = max(behind, key=lambda other: other.front, default=None)
        if heir is None or first - heir.front > limits.ORDER_AHEAD_MAX_STEPS:
            return
        for item in unread:
            item.cursor = heir
            item.foretold_at_read = self._reads
            item.is_behind = False
        heir.ahead_bytes += cursor.ahead_bytes + cursor.behind_bytes
        heir.items = deque(sorted([*heir.items, *unread], key=lambda item: (item.position, item.start_bytes)))
        _keep_read(cursor)

    def _join(self, cursor: Cursor) -> None:
        """Places whose readers came among one another are one, with one window: the slowest reader of two half ones was given up."""
        for other in self._cursors:
            if (
                other is not cursor
                and other.lane == cursor.lane
                and abs(other.front - cursor.front) <= max(cursor.spread, other.spread)
                and not (other.next_offset_bytes or other.is_later_pass or cursor.is_later_pass)
            ):
                self._cursors.remove(other)
                self._hungry.pop(id(other), None)
                cursor.take(other)
                return

    def _forget(self, lane: int) -> None:
        """A plan's steps far behind all that read it take room for others."""
        behind = min(cursor.front - 4 * cursor.slack for cursor in self._cursors if cursor.lane == lane)
        self.order.forget(lane, behind)

    # --- predicting --------------------------------------------------------------------------------------

    def _feed(self, cursor: Cursor) -> None:
        if not cursor.is_at_end and cursor.is_hungry:
            self._hungry[id(cursor)] = cursor

    def _predict(self, now_s: float, cursor: Cursor) -> Item | None:
        """The next piece ahead of a cursor, listed as predicted; None at the end, or when enough is ahead."""
        if cursor.ahead_bytes >= cursor.window.window_bytes or cursor.is_full:
            return None
        order, lane = self.order, cursor.lane
        if not cursor.next_offset_bytes:
            cursor.next_position = self._marks.next_free(lane, max(cursor.next_position, order.first(lane)))
        position = cursor.next_position
        if position >= order.length(lane):
            cursor.is_at_end = True
            return None
        step = order.step(lane, position)
        start_bytes = step.offset_bytes + cursor.next_offset_bytes
        step_end_bytes = step.offset_bytes + step.length_bytes
        end_bytes = min(step_end_bytes, (start_bytes // PIECE_BYTES + 1) * PIECE_BYTES)
        if step_end_bytes - start_bytes <= PIECE_BYTES:
            end_bytes = step_end_bytes
        self._marks.set(lane, position, read=False)
        if end_bytes < step_end_bytes:
            cursor.next_offset_bytes = end_bytes - step.offset_bytes
        else:
            cursor.next_position = position + 1
            cursor.next_offset_bytes = 0
        run = cursor.run
        if run.file == step.file and start_bytes & ~4095 <= run.end_bytes <= end_bytes:
            run.end_bytes = end_bytes
        else:
            run = cursor.run = Run(step.file, start_bytes, end_bytes)
        state = State.ASKED if self.gate.is_open else State.SHADOW
        item = Item(cursor, position, step.file, start_bytes, end_bytes, 0, run, state)
        self._read_of(item)
        cursor.average_bytes += (item.cost_bytes - cursor.average_bytes) / 32
        item.foretold_at_read = self._reads
        item.foretold_s = now_s
        cursor.add(item)
        if not self._is_learned and self._shapes.faults(step.file):
            self._read_on(step.file, start_bytes // BLOCK_BYTES, (end_bytes - 1) // BLOCK_BYTES)
        self._predictions.add(item)
        return item

    def _wrap(self, now_s: float, cursor: Cursor) -> None:
        """What was learned comes again: when most of a lane is read, its beginning follows its end."""
        lane, order = cursor.lane, self.order
        first, length = order.first(lane), order.length(lane)
        if (length - cursor.front) * _WRAP_SHARE > length - first:
            return
        if any(other.lane == lane and not self._is_past_middle(other) for other in self._cursors):
            return  # begun already
        self._marks.clear_from(lane, first)
        # It may not come again, unless it did before: what is fetched then is a small part of what was read.
        epoch_bytes = int((length - first) * cursor.average_bytes)
        least_bytes = limits.PREFETCH_START_BYTES if self._came_again else epoch_bytes // _WRAP_BYTES_SHARE
        window_bytes = min(limits.PREFETCH_START_BYTES, self._cap_bytes, least_bytes)
        again = Cursor(now_s, lane, first - 1, window_bytes)
        again.is_later_pass = True
        self._add(again)

    def _is_past_middle(self, cursor: Cursor) -> bool:
        return 2 * cursor.front >= self.order.first(cursor.lane) + self.order.length(cursor.lane)

    def _begin_pass(self, cursor: Cursor) -> None:
        """Half a lane later those who were at its end are gone; what they marked as read is still to come."""
        cursor.is_later_pass = False
        self._came_again = True
        # In a short lane those who were at its end are gone sooner.
        lane_steps = self.order.length(cursor.lane) - self.order.first(cursor.lane)
        patience = min(limits.ORDER_IDLE_READS // 2, lane_steps // _GONE_SHARE)
        for other in [other for other in self._cursors if other.lane == cursor.lane and other is not cursor]:
            if self._is_past_middle(other) and other.used_at_read + patience < self._reads:
                self._give_up(other)
        if not any(other.lane == cursor.lane and other.front > cursor.front for other in self._cursors):
            self._marks.clear_from(cursor.lane, cursor.next_position)

    def _read_of(self, item: Item) -> None:
        """Foretell the READ that the kernel will send for a piece: by what has to be there, and by which pages it has already."""
        file, size_bytes = item.file, self._facts_of(item.file).size_bytes
        first, end = self._blocks_of(file, item.start_bytes, item.end_bytes)
        item.cost_bytes = (end - first) * BLOCK_BYTES
        if self._shapes.faults(file):
            page = item.start_bytes // BLOCK_BYTES
            if (item.end_bytes - 1) // BLOCK_BYTES > page and self._pages.has(file, page):
                end = min(end + 1, count_blocks(size_bytes))  # the next page is the one that will be wanted
        elif not self._is_learned:
            fault_bytes = self._shapes.fault_bytes(file)
            if self._beyond_votes >= 0:
                item.beyond_bytes, beside = self._exact.foretell(
                    file, item.start_bytes, item.end_bytes, fault_bytes, size_bytes
                )
                end = max(end, count_blocks(item.beyond_bytes))
                self._beyond += [(file, *pages) for pages in beside]
            else:
                beyond_bytes = self._pages.read_end_bytes(file, item.start_bytes, item.end_bytes, fault_bytes)
                item.beyond_bytes = min(beyond_bytes, size_bytes)
                self._pages.add(file, item.start_bytes, end * BLOCK_BYTES)
        item.first_block, item.end_block = first, end

    def _blocks_of(self, file: int, start_bytes: int, end_bytes: int) -> tuple[int, int]:
        """Blocks that a READ of these bytes moves where nothing is in the kernel's cache: (first, end)."""
        size_bytes = self._facts_of(file).size_bytes
        page_bytes = start_bytes & ~4095
        if self._shapes.faults(file):
            fault_bytes = self._shapes.fault_bytes(file)
            half = fault_bytes // 2
            last_bytes = end_bytes - 1
            end_bytes = page_bytes + half * (1 + (last_bytes - page_bytes) // half)
            page_bytes = max(0, page_bytes - half)
            end_bytes = max(end_bytes, page_bytes + fault_bytes)
        end_bytes = max(page_bytes, min(end_bytes, size_bytes))
        return page_bytes // BLOCK_BYTES, -(-end_bytes // BLOCK_BYTES)

    def _ahead(self, file: int, first_block: int, end_block: int) -> Ahead:
        return Ahead(self._facts_of(file), BlockRange(first_block, end_block - first_block))

    def _predict_anew(self, cursor: Cursor) -> None:
        """READs turn out to have another shape than was predicted: what is present of them already is not fetched twice."""
        unread = [item for item in (*cursor.behind, *cursor.items) if item.state is not State.READ]
        if not unread:
            return
        for item in unread:
            self._predictions.remove(item)
            self._marks.clear(cursor.lane, item.position)
        _keep_read(cursor)
        cursor.next_position = unread[0].position
        cursor.next_offset_bytes = 0
        cursor.is_at_end = False
        self._feed(cursor)

    # --- the shape of READs, and what is kept at hand ------------------------------------------------------

    def _learn_shape(self, file: int, vote: int) -> None:
        if self._shapes.vote(file, vote):
            self._pages.clear()  # what was foretold of it in another shape is not read so
            self._exact.clear()
            for cursor in self._cursors:
                self._predict_anew(cursor)

    def _facts_of(self, file: int) -> FileFacts:
        facts = self._files.get(file)
        if facts is None:
            make_room(self._files)
            make_room(self._numbers)
            facts = self._files[file] = self.order.files[file]
            self._numbers[facts.version] = file
        return facts


def _keep_read(cursor: Cursor) -> None:
    """All that is ahead of a place and not read is somebody else's now, or nobody's."""
    cursor.items = deque(item for item in cursor.items if item.state is State.READ)
    cursor.behind = deque(item for item in cursor.behind if item.state is State.READ)
    cursor.ahead_bytes = cursor.behind_bytes = 0
