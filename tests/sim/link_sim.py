"""A link, a hub and a cache in simulated time, around a real planner: what a reader would get.

The hub sends demand before prefetch, one extent at a time, at the link's rate; a request takes half a round trip, the
answer the other half. Readers are scripts of (offset, length) with a number of READs in flight, as kernel readahead has.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange, byte_length, count_blocks, covering, split_at_extents
from spoke.prefetch.planner import FileFacts, Planner, ReadSeen

_ABSENT, _COMING, _PRESENT = 0, 1, 2
_Extent = tuple[bytes, BlockRange]


@dataclass(eq=False)
class Reader:
    """``depth``: READs in flight at once. ``rate_bytes_per_s``: how fast it consumes what it has (0: at once)."""

    handle_id: int
    facts: FileFacts
    reads: Iterator[tuple[int, int]]
    depth: int = 2
    rate_bytes_per_s: float = 0.0
    free_at_s: float = 0.0
    done_at_s: float | None = None
    read_bytes: int = 0
    open_reads: int = 0
    progress: list[tuple[float, int]] = field(default_factory=list)

    def rate_after(self, start_s: float) -> float:
        """Bytes per second from ``start_s`` to its end."""
        before = max((size for at_s, size in self.progress if at_s <= start_s), default=0)
        end_s, end_bytes = self.progress[-1]
        return (end_bytes - before) / (end_s - start_s)


@dataclass(eq=False)
class _Waiting:
    reader: Reader
    length_bytes: int
    missing: int


class LinkSim:
    def __init__(self, planner: Planner | None, rtt_s: float, rate_bytes_per_s: float) -> None:
        self.planner = planner
        self.rtt_s = rtt_s
        self.rate_bytes_per_s = rate_bytes_per_s
        self.now_s = 0.0
        self.sent_bytes = 0
        self.asked_bytes = 0
        self.prefetch_outstanding_bytes = 0
        self.state: dict[bytes, bytearray] = {}
        self.asked: dict[bytes, bytearray] = {}
        self._sizes: dict[bytes, int] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._demand: deque[_Extent] = deque()
        self._prefetch: deque[_Extent] = deque()
        self._sending = False
        self._waiting: dict[tuple[bytes, int], list[_Waiting]] = {}
        self._measured_from_s = 0.0
        self._measured_bytes = 0

    def run(self, readers: Iterable[Reader], until_s: float = 1e9) -> None:
        for reader in readers:
            self._add_file(reader.facts)
            if self.planner is not None:
                self.planner.opened(self.now_s, reader.handle_id, reader.facts, reader.handle_id)
            for _ in range(reader.depth):
                self._at(self.now_s, lambda reader=reader: self._next_read(reader))
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()

    @property
    def amplification(self) -> float:
        """Bytes sent over the unique bytes (in whole blocks) asked for."""
        return self.sent_bytes / max(1, self.asked_bytes)

    # --- readers -----------------------------------------------------------------------------------------

    def _next_read(self, reader: Reader) -> None:
        step = next(reader.reads, None)
        if step is None:
            reader.done_at_s = self.now_s
            return
        offset_bytes, length_bytes = step
        version, size_bytes = reader.facts.version, reader.facts.size_bytes
        blocks = covering(offset_bytes, length_bytes, size_bytes)
        state = self.state[version]
        span = slice(blocks.first_block, blocks.end_block)
        missing = blocks.block_count - state.count(_PRESENT, blocks.first_block, blocks.end_block)
        absent = state.count(_ABSENT, blocks.first_block, blocks.end_block)
        self.asked_bytes += self.asked[version].count(0, blocks.first_block, blocks.end_block) * BLOCK_BYTES
        self.asked[version][span] = b"\1" * blocks.block_count
        result = "hit" if not missing else "late" if not absent else "miss"
        waiting = _Waiting(reader, length_bytes, missing)
        for block in range(blocks.first_block, blocks.end_block):
            if state[block] != _PRESENT:
                self._waiting.setdefault((version, block), []).append(waiting)
        if absent:
            self._ask(version, blocks, demand=True)
        elif missing:
            self._promote(version, blocks)
        if self.planner is not None:
            seen = ReadSeen(reader.handle_id, reader.handle_id, version, offset_bytes, length_bytes, result)
            self.planner.read(self.now_s, seen)
        self._pump()
        if not missing:
            self._finish(waiting)

    def _finish(self, waiting: _Waiting) -> None:
        reader = waiting.reader
        reader.read_bytes += waiting.length_bytes
        spend_s = waiting.length_bytes / reader.rate_bytes_per_s if reader.rate_bytes_per_s else 2e-5
        reader.free_at_s = max(reader.free_at_s, self.now_s) + spend_s
        reader.progress.append((self.now_s, reader.read_bytes))
        self._at(reader.free_at_s, lambda: self._next_read(reader))

    # --- spoke -------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        planner = self.planner
        if planner is None:
            return
        if self.now_s - self._measured_from_s > 0.2:
            elapsed_s = self.now_s - self._measured_from_s
            planner.link(self.rtt_s, self._measured_bytes / elapsed_s)
            self._measured_from_s, self._measured_bytes = self.now_s, 0
        limit_bytes = min(limits.PREFETCH_MAX_OUTSTANDING_BYTES, planner.outstanding_limit_bytes)
        budget_bytes = limit_bytes - self.prefetch_outstanding_bytes
        if budget_bytes <= 0:
            return
        for fetch in planner.plan(self.now_s, budget_bytes):
            self._add_file(FileFacts(b"", fetch.version, fetch.size_bytes))
            self._ask(fetch.version, fetch.blocks, demand=False)

    def _ask(self, version: bytes, blocks: BlockRange, *, demand: bool) -> None:
        state = self.state[version]
        for extent in split_at_extents(blocks):
            block = extent.first_block
            while (block := state.find(_ABSENT, block, extent.end_block)) >= 0:
                end_block = block
                while end_block < extent.end_block and state[end_block] == _ABSENT:
                    end_block += 1
                part = BlockRange(block, end_block - block)
                state[block:end_block] = bytes([_COMING]) * part.block_count
                if not demand:
                    self.prefetch_outstanding_bytes += part.block_count * BLOCK_BYTES
                self._at(self.now_s + self.rtt_s / 2, lambda part=part: self._queue(version, part, demand))
                block = end_block

    # --- hub and link ------------------------------------------------------------------------------------

    def _queue(self, version: bytes, part: BlockRange, demand: bool) -> None:
        (self._demand if demand else self._prefetch).append((version, part))
        self._send()

    def _promote(self, version: bytes, blocks: BlockRange) -> None:
        def overlaps(extent: _Extent) -> bool:
            return extent[0] == version and extent[1].first_block < blocks.end_block > 0 < (
                extent[1].end_block - blocks.first_block
            )

        def promote() -> None:
            for extent in [extent for extent in self._prefetch if overlaps(extent)]:
                self._prefetch.remove(extent)
                self._demand.append(extent)

        self._at(self.now_s + self.rtt_s / 2, promote)

    def _send(self) -> None:
        if self._sending or not (self._demand or self._prefetch):
            return
        self._sending = True
        version, part = (self._demand or self._prefetch).popleft()
        size_bytes = byte_length(part, self._sizes[version])
        self._at(self.now_s + size_bytes / self.rate_bytes_per_s, lambda: self._sent(version, part, size_bytes))

    def _sent(self, version: bytes, part: BlockRange, size_bytes: int) -> None:
        self._sending = False
        self.sent_bytes += part.block_count * BLOCK_BYTES
        self._at(self.now_s + self.rtt_s / 2, lambda: self._arrive(version, part, size_bytes))
        self._send()

    def _arrive(self, version: bytes, part: BlockRange, size_bytes: int) -> None:
        self._measured_bytes += size_bytes
        self.prefetch_outstanding_bytes = max(0, self.prefetch_outstanding_bytes - part.block_count * BLOCK_BYTES)
        self.state[version][part.first_block : part.end_block] = bytes([_PRESENT]) * part.block_count
        if self.planner is not None:
            self.planner.arrived(self.now_s, version, part)
        for block in range(part.first_block, part.end_block):
            for waiting in self._waiting.pop((version, block), ()):
                waiting.missing -= 1
                if not waiting.missing:
                    self._finish(waiting)
        self._pump()

    def _add_file(self, facts: FileFacts) -> None:
        if facts.version not in self.state:
            self.state[facts.version] = bytearray(count_blocks(facts.size_bytes))
            self.asked[facts.version] = bytearray(count_blocks(facts.size_bytes))
            self._sizes[facts.version] = facts.size_bytes

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), act))


def sequential(start_bytes: int, end_bytes: int, length_bytes: int = 128 * 1024) -> Iterator[tuple[int, int]]:
    """READs of one pass over a stretch."""
    for offset_bytes in range(start_bytes, end_bytes, length_bytes):
        yield offset_bytes, min(length_bytes, end_bytes - offset_bytes)
