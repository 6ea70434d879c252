"""The places in an order at which somebody reads: found, joined, given up; and what is predicted ahead of each. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BYTES
from spoke.prefetch.cursor import PIECE_BYTES, Cursor, Item, Run, State
from spoke.prefetch.foretelling import Foretelling
from spoke.prefetch.lockon import Finder, Found
from spoke.prefetch.orders import Order
from spoke.prefetch.pieces import Pieces

_EVIDENCE_STEPS = 8
_WRAP_SHARE = 4
_GONE_SHARE = 8
_WRAP_BYTES_SHARE = 24


class Places:
    """Of one order. ``cap_bytes``: how far one may run ahead now. ``hungry``: those with room for more, by ``id``."""

    def __init__(
        self, order: Order, foretelling: Foretelling, pieces: Pieces, *, is_learned: bool, is_computed: bool
    ) -> None:
        self.order = order
        self._foretelling = foretelling
        self._pieces = pieces
        self._is_learned = is_learned
        self._is_computed = is_computed
        self.cap_bytes = limits.ORDER_START_BYTES
        self.cursors: list[Cursor] = []
        self.hungry: OrderedDict[int, Cursor] = OrderedDict()
        self.finder = Finder(order, foretelling.shapes)
        self._came_again = False
        self._steps_before = 0

    @property
    def steps_taken(self) -> int:
        """As far as its furthest reader is; what comes again counts from where it ended."""
        return self._steps_before + max((cursor.front for cursor in self.cursors), default=0)

    def take_over(self, order: Order) -> None:
        """Go on along an order with the same steps and files."""
        self.order = self.finder.order = order

    def evidence_bytes(self, cursor: Cursor) -> int:
        """What one read that was foretold says for those to come: eight like it, though no more than an extent."""
        if not self._is_computed:
            return EXTENT_BYTES
        return min(EXTENT_BYTES, int(_EVIDENCE_STEPS * cursor.average_bytes))

    def lock(self, now_s: float, found: Found, file: int) -> None:
        """Somebody reads at these positions of a lane."""
        self.finder.found()
        lane, positions = found.lane, found.positions
        self._pieces.learn_shape(file, 2 if found.fault else -2)
        marks = self._pieces.marks
        if 2 * sum(marks.is_read(lane, position) for position in positions) > len(positions):
            self._give_up_lane(lane)
            marks.clear_from(lane, positions[0])
        for position in positions:
            # READs that were joined to a step come one by one, with others' between them: one of them is not all of it. A declared
            # step is one reader's, who is through with it or goes on as guesses see.
            if not self._is_learned or self.order.step(lane, position).length_bytes <= PIECE_BYTES:
                marks.set(lane, position, read=True)
        cursor = Cursor(now_s, lane, positions[-1], 0)
        if self.cursors:
            cursor.average_bytes = self.cursors[-1].average_bytes
        evidence_bytes = len(positions) * (1 if self._is_learned else 8) * self.evidence_bytes(cursor)
        cursor.window.window_bytes = min(evidence_bytes, 2 * limits.PREFETCH_START_BYTES, self.cap_bytes)
        cursor.next_position = positions[0]
        cursor.spread = positions[-1] - positions[0]
        cursor.matched_reads = len(positions)
        self._pieces.matched_reads += len(positions)
        self.add(cursor)

    def add(self, cursor: Cursor) -> None:
        """Somebody is there, or will be."""
        cursor.seen_at_read = cursor.used_at_read = self._pieces.reads
        self.cursors.append(cursor)
        if len(self.cursors) > limits.ORDER_CURSORS_MAX:
            self._give_up(min(self.cursors, key=lambda known: known.seen_at_read))
        self.feed(cursor)

    def drop_idle(self) -> None:
        """Give up places that nobody has been at for many reads of the order's files; a pause in reading ages nothing."""
        patience = limits.ORDER_IDLE_READS + 64 * len(self.cursors)
        for cursor in [cursor for cursor in self.cursors if self._pieces.reads - cursor.seen_at_read > patience]:
            self._give_up(cursor)
        for cursor in self.cursors:
            self._pieces.expire_old(cursor, len(self.cursors))

    def _give_up_lane(self, lane: int) -> None:
        for cursor in [cursor for cursor in self.cursors if cursor.lane == lane]:
            self._give_up(cursor)

    def _give_up(self, cursor: Cursor) -> None:
        before = self.steps_taken
        self.cursors.remove(cursor)
        self._steps_before += max(0, before - self.steps_taken)
        self.hungry.pop(id(cursor), None)
        self._hand_over(cursor)
        for item in (*cursor.behind, *cursor.items):
            if item.state is not State.READ:
                self._pieces.expire(item)
                self._pieces.marks.clear(cursor.lane, item.position)
            self._pieces.predictions.remove(item)
        for item in cursor.trail:
            self._pieces.predictions.remove(item)

    def _hand_over(self, cursor: Cursor) -> None:
        """What was predicted just ahead of another place in the lane is that one's from now on: it will come there.

        Workers are often found twice at the start, and the place behind predicts what lies beyond all that the other did.
        """
        unread = [item for item in (*cursor.behind, *cursor.items) if item.state is not State.READ]
        if not unread:
            return
        first, lane = unread[0].position, cursor.lane
        behind = [other for other in self.cursors if other.lane == lane and other.front < first]
        heir = max(behind, key=lambda other: other.front, default=None)
        if heir is None or first - heir.front > limits.ORDER_AHEAD_MAX_STEPS:
            return
        for item in unread:
            item.cursor = heir
            item.foretold_at_read = self._pieces.reads
            item.is_behind = False
        heir.ahead_bytes += cursor.ahead_bytes + cursor.behind_bytes
        heir.items = deque(sorted([*heir.items, *unread], key=lambda item: (item.position, item.start_bytes)))
        _keep_read(cursor)

    def join(self, cursor: Cursor) -> None:
        """Places whose readers came among one another are one, with one window: the slowest reader of two half ones was given up.

        Not in the middle of a step, whose rest only its own place foretells.
        """
        for other in self.cursors:
            if (
                other is not cursor
                and other.lane == cursor.lane
                and abs(other.front - cursor.front) <= max(cursor.spread, other.spread)
                and not (other.next_offset_bytes or other.is_later_pass or cursor.is_later_pass)
                and (not cursor.next_offset_bytes or cursor.next_position <= other.next_position)
            ):
                self.cursors.remove(other)
                self.hungry.pop(id(other), None)
                cursor.take(other)
                return

    def forget(self, lane: int) -> None:
        """A plan's steps far behind all that read it take room for others."""
        behind = min(cursor.front - 4 * cursor.slack for cursor in self.cursors if cursor.lane == lane)
        self.order.forget(lane, behind)

    def feed(self, cursor: Cursor) -> None:
        """It may have room for more."""
        if not cursor.is_at_end and cursor.is_hungry:
            self.hungry[id(cursor)] = cursor

    def predict(self, now_s: float, cursor: Cursor) -> Item | None:
        """The next piece ahead of a cursor, listed as predicted; None at the end, or when enough is ahead."""
        if cursor.ahead_bytes >= cursor.window.window_bytes or cursor.is_full:
            return None
        order, lane = self.order, cursor.lane
        if not cursor.next_offset_bytes:
            cursor.next_position = self._pieces.marks.next_free(lane, max(cursor.next_position, order.first(lane)))
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
        self._pieces.marks.set(lane, position, read=False)
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
        state = State.ASKED if self._pieces.gate.is_open else State.SHADOW
        item = Item(cursor, position, step.file, start_bytes, end_bytes, 0, run, state)
        self._foretelling.foretell(item)
        cursor.average_bytes += (item.cost_bytes - cursor.average_bytes) / 32
        item.foretold_at_read = self._pieces.reads
        item.foretold_s = now_s
        cursor.add(item)
        if not self._is_learned and self._foretelling.shapes.faults(step.file):
            self._foretelling.read_on(step.file, start_bytes // BLOCK_BYTES, (end_bytes - 1) // BLOCK_BYTES)
        self._pieces.predictions.add(item)
        return item

    def wrap(self, now_s: float, cursor: Cursor) -> None:
        """What was learned comes again: when most of a lane is read, its beginning follows its end."""
        lane, order = cursor.lane, self.order
        first, length = order.first(lane), order.length(lane)
        if (length - cursor.front) * _WRAP_SHARE > length - first:
            return
        if any(other.lane == lane and not self.is_past_middle(other) for other in self.cursors):
            return  # begun already
        self._pieces.marks.clear_from(lane, first)
        # It may not come again, unless it did before: what is fetched then is a small part of what was read.
        epoch_bytes = int((length - first) * cursor.average_bytes)
        least_bytes = limits.PREFETCH_START_BYTES if self._came_again else epoch_bytes // _WRAP_BYTES_SHARE
        window_bytes = min(limits.PREFETCH_START_BYTES, self.cap_bytes, least_bytes)
        again = Cursor(now_s, lane, first - 1, window_bytes)
        again.is_later_pass = True
        self.add(again)

    def is_past_middle(self, cursor: Cursor) -> bool:
        """Of its lane."""
        return 2 * cursor.front >= self.order.first(cursor.lane) + self.order.length(cursor.lane)

    def begin_pass(self, cursor: Cursor) -> None:
        """Half a lane later those who were at its end are gone; what they marked as read is still to come."""
        cursor.is_later_pass = False
        self._came_again = True
        # In a short lane those who were at its end are gone sooner.
        lane_steps = self.order.length(cursor.lane) - self.order.first(cursor.lane)
        patience = min(limits.ORDER_IDLE_READS // 2, lane_steps // _GONE_SHARE)
        for other in [other for other in self.cursors if other.lane == cursor.lane and other is not cursor]:
            if self.is_past_middle(other) and other.used_at_read + patience < self._pieces.reads:
                self._give_up(other)
        if not any(other.lane == cursor.lane and other.front > cursor.front for other in self.cursors):
            self._pieces.marks.clear_from(cursor.lane, cursor.next_position)

    def predict_anew(self) -> None:
        for cursor in self.cursors:
            self._predict_anew(cursor)

    def _predict_anew(self, cursor: Cursor) -> None:
        """READs turn out to have another shape than was predicted: what is present of them already is not fetched twice."""
        unread = [item for item in (*cursor.behind, *cursor.items) if item.state is not State.READ]
        if not unread:
            return
        for item in unread:
            self._pieces.predictions.remove(item)
            self._pieces.marks.clear(cursor.lane, item.position)
        _keep_read(cursor)
        cursor.next_position = unread[0].position
        cursor.next_offset_bytes = 0
        cursor.is_at_end = False
        self.feed(cursor)


def _keep_read(cursor: Cursor) -> None:
    """All that is ahead of a place and not read is somebody else's now, or nobody's."""
    cursor.items = deque(item for item in cursor.items if item.state is State.READ)
    cursor.behind = deque(item for item in cursor.behind if item.state is State.READ)
    cursor.ahead_bytes = cursor.behind_bytes = 0
