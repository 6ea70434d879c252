"""One place in a lane that is followed: what was fetched ahead of it, how far readers are spread around it, and what was read.

Steps are followed in pieces of at most 128 KiB, so that a long one is fetched and used up bit by bit.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import IntEnum

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BYTES, BlockRange, count_blocks
from spoke.prefetch.window import Window

PIECE_BYTES = 128 * 1024
PIECE_SHIFT = PIECE_BYTES.bit_length() - 1
_CHUNK_SHIFT = 12
_CHUNK = 1 << _CHUNK_SHIFT
_SPREAD_FADE = 1 / 1024
TOGETHER_STEPS = 32
"""Readers of a place are this near to one another, besides what its spread says."""


class State(IntEnum):
    """Of a piece: ``SHADOW`` was predicted and not fetched, ``EXPIRED`` is written off as wasted, until it is read after all."""

    ASKED = 0
    SHADOW = 1
    READ = 2
    EXPIRED = 3
    EXPIRED_SHADOW = 4


class Run:
    """Bytes of a file that an order reads one after another, from ``start_bytes`` up to ``end_bytes`` as far as planned."""

    __slots__ = ("end_bytes", "file", "start_bytes")

    def __init__(self, file: int, start_bytes: int, end_bytes: int) -> None:
        self.file = file
        self.start_bytes = start_bytes
        self.end_bytes = end_bytes


class Item:
    """A piece of a step, ``start_bytes`` to ``end_bytes``; of these, ``cost_bytes`` are fetched for it (whole blocks).

    ``first_block`` to ``end_block``: what is fetched for it. ``beyond_bytes``: where a model of the kernel says that its READ ends.
    ``is_behind``: readers are past it, and it counts among what its cursor has behind.
    """

    __slots__ = (
        "beyond_bytes",
        "cost_bytes",
        "cursor",
        "end_block",
        "end_bytes",
        "file",
        "first_block",
        "foretold_at_read",
        "foretold_s",
        "is_behind",
        "position",
        "run",
        "start_bytes",
        "state",
    )

    def __init__(
        self, cursor: Cursor, position: int, file: int, start_bytes: int, end_bytes: int, cost_bytes: int, run: Run,
        state: State,
    ) -> None:  # fmt: skip
        self.cursor = cursor
        self.position = position
        self.file = file
        self.start_bytes = start_bytes
        self.end_bytes = end_bytes
        self.cost_bytes = cost_bytes
        self.run = run
        self.state = state
        self.foretold_at_read = 0
        self.foretold_s = 0.0
        self.first_block = start_bytes // BLOCK_BYTES
        self.end_block = count_blocks(end_bytes)
        self.beyond_bytes = end_bytes
        self.is_behind = False

    @property
    def is_waited(self) -> bool:
        """It was predicted, and may still be read."""
        return self.state is State.ASKED or self.state is State.SHADOW

    @property
    def blocks(self) -> BlockRange:
        """Of the READ that the kernel will send."""
        return BlockRange(self.first_block, self.end_block - self.first_block)


class Cursor:
    """``front``: the furthest position read. ``spread``: how far behind it, or ahead of it at once, others read.

    ``is_at_end``: nothing was left to predict. ``is_later_pass``: it began at the start of a lane while others were at its end, whose
    marks lie before it. ``used_at_read``: the read that last fulfilled one of its predictions, which an echo of an earlier one does not.
    """

    __slots__ = (
        "_pace_bytes", "_span_bytes", "_span_start_s", "ahead_bytes", "average_bytes", "behind", "behind_bytes", "front", "is_at_end",
        "is_later_pass", "items", "lane", "matched_reads", "next_offset_bytes", "next_position", "run", "seen_at_read", "spread", "trail",
        "used_at_read", "window",
    )  # fmt: skip

    def __init__(self, now_s: float, lane: int, front: int, window_bytes: int) -> None:
        self.lane = lane
        self.front = front
        self.is_at_end = False
        self.is_later_pass = False
        self.next_position = front + 1
        self.next_offset_bytes = 0
        self.spread = 0.0
        self.window = Window(now_s)
        self.window.window_bytes = window_bytes
        self.items: deque[Item] = deque()
        """Predicted, and readers are not past them."""
        self.behind: deque[Item] = deque()
        """Predicted, and the furthest reader is past them: others may come, or the kernel has the pages and nobody will ask."""
        self.trail: deque[Item] = deque()
        """Fallen behind; kept for who comes late."""
        self.ahead_bytes = 0
        self.behind_bytes = 0
        self._span_start_s = now_s
        self._span_bytes = self._pace_bytes = 0
        self.average_bytes = float(PIECE_BYTES)
        self.matched_reads = 0
        self.seen_at_read = 0
        self.used_at_read = 0
        self.run = Run(-1, 0, 0)

    def pace(self, now_s: float, length_bytes: int) -> int:
        """So much was read; what was in the last whole span of ORDER_LEAD_S, the rush at a start included."""
        self._span_bytes += length_bytes
        if now_s - self._span_start_s >= limits.ORDER_LEAD_S:
            self._pace_bytes = int(self._span_bytes * limits.ORDER_LEAD_S / (now_s - self._span_start_s))
            self._span_start_s, self._span_bytes = now_s, 0
        return self._pace_bytes

    @property
    def is_hungry(self) -> bool:
        window_bytes = self.window.window_bytes
        room_bytes = window_bytes - self.ahead_bytes
        if self.is_full:
            return False
        return room_bytes > 0 and room_bytes >= min(EXTENT_BYTES, window_bytes // 8)

    @property
    def is_full(self) -> bool:
        """As many steps are predicted and not read as may be; before anybody was seen here, as many as may be asked for at once."""
        is_begun = self.matched_reads or self.is_later_pass
        most = limits.ORDER_AHEAD_MAX_STEPS if is_begun else limits.ORDER_START_STEPS
        return len(self.items) + len(self.behind) >= most

    def add(self, item: Item) -> None:
        """A piece was predicted."""
        item.is_behind = item.position < self.front
        (self.behind if item.is_behind else self.items).append(item)
        if item.is_waited:
            self._wait_for(item)

    def settle(self, item: Item) -> None:
        """A piece that was waited for is read, or written off: it takes no room any more."""
        if item.is_behind:
            self.behind_bytes -= item.cost_bytes
        else:
            self.ahead_bytes -= item.cost_bytes

    def _wait_for(self, item: Item) -> None:
        if item.is_behind:
            self.behind_bytes += item.cost_bytes
        else:
            self.ahead_bytes += item.cost_bytes

    def pass_by(self) -> None:
        """What readers have passed, or read, is not ahead any more."""
        items, front = self.items, self.front
        while items and (items[0].position < front or items[0].state is State.READ):
            item = items.popleft()
            if item.is_waited:
                self.ahead_bytes -= item.cost_bytes
                self.behind_bytes += item.cost_bytes
            item.is_behind = True
            self.behind.append(item)

    def take(self, other: Cursor) -> None:
        """What was foretold at another place of the lane, which is given up, is this one's; its readers are among this one's."""
        self.spread = max(self.spread, other.spread, abs(self.front - other.front))
        self.front = max(self.front, other.front)
        self.window.window_bytes += other.window.window_bytes
        if not self.next_offset_bytes:
            self.next_position = min(self.next_position, other.next_position)
        self.is_at_end = False
        self.matched_reads += other.matched_reads
        self.seen_at_read = max(self.seen_at_read, other.seen_at_read)
        self.used_at_read = max(self.used_at_read, other.used_at_read)
        listed = sorted((*self.behind, *self.items, *other.behind, *other.items), key=_place)
        self.trail = deque(sorted((*self.trail, *other.trail), key=_place))
        self.behind, self.items = deque(), deque()
        self.behind_bytes = self.ahead_bytes = 0
        for item in self.trail:
            item.cursor = self
        for item in listed:
            item.cursor = self
            self.add(item)

    def moved_to(self, position: int, *, is_sure: bool = True) -> None:
        """A step was read. What may have been read by chance shows nobody far away, or readers would be found ever further apart."""
        distance = abs(position - self.front)
        self.spread -= self.spread * _SPREAD_FADE
        if not is_sure:
            if distance <= TOGETHER_STEPS:
                self.front = max(self.front, position)
            return
        if distance > 1:
            self.spread = max(self.spread, min(distance, limits.ORDER_SPREAD_MAX_STEPS))
        self.front = max(self.front, position)

    @property
    def slack(self) -> int:
        return max(limits.ORDER_TRAIL_MIN_STEPS, int(2 * self.spread))


def _place(item: Item) -> tuple[int, int]:
    return item.position, item.start_bytes


class Marks:
    """Which positions of the lanes were predicted or read lately: one byte each, in chunks, a bounded number of them."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[tuple[int, int], bytearray] = OrderedDict()

    def set(self, lane: int, position: int, *, read: bool) -> None:
        self._chunk(lane, position >> _CHUNK_SHIFT)[position & _CHUNK - 1] = 2 if read else 1

    def clear(self, lane: int, position: int) -> None:
        self._chunk(lane, position >> _CHUNK_SHIFT)[position & _CHUNK - 1] = 0

    def is_read(self, lane: int, position: int) -> bool:
        chunk = self._chunks.get((lane, position >> _CHUNK_SHIFT))
        return chunk is not None and chunk[position & _CHUNK - 1] == 2

    def next_free(self, lane: int, position: int) -> int:
        """The first position from this one on that is neither predicted nor read."""
        while True:
            chunk = self._chunks.get((lane, position >> _CHUNK_SHIFT))
            if chunk is None:
                return position
            at = chunk.find(0, position & _CHUNK - 1)
            if at >= 0:
                return (position & ~(_CHUNK - 1)) + at
            position = (position | _CHUNK - 1) + 1

    def clear_from(self, lane: int, position: int) -> None:
        """The lane is read again from here on."""
        number = position >> _CHUNK_SHIFT
        for key in [key for key in self._chunks if key[0] == lane and key[1] > number]:
            del self._chunks[key]
        chunk = self._chunks.get((lane, number))
        if chunk is not None:
            at = position & _CHUNK - 1
            chunk[at:] = bytes(_CHUNK - at)

    def _chunk(self, lane: int, number: int) -> bytearray:
        key = lane, number
        chunk = self._chunks.get(key)
        if chunk is None:
            chunk = self._chunks[key] = bytearray(_CHUNK)
            if len(self._chunks) > limits.ORDER_MARK_CHUNKS_MAX:
                self._chunks.popitem(last=False)
        return chunk
