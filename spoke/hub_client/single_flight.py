"""One fetch a block, however many wait: the table of what is under way. Pure bookkeeping.

A flight is a run of blocks of one extent, asked for once. Whoever needs a block that is in a flight joins it; a
landed flight stays in the table until its bytes are in the cache, so that nobody asks for them again meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.blocks import (
    BLOCK_BYTES,
    EXTENT_BLOCKS,
    BlockRange,
    byte_length,
    intersection,
    split_at_extents,
    subtract,
)
from common.errors import HeadraceError


class Landed:
    """Blocks that arrived and matched their digests: ``data`` from ``offset_bytes`` to ``end_bytes`` of their file.

    ``was_read``: for its readers to keep.
    """

    __slots__ = ("blocks", "data", "digests", "end_bytes", "offset_bytes", "was_read")

    def __init__(self, blocks: BlockRange, data: bytes | bytearray | memoryview, digests: bytes) -> None:
        self.blocks = blocks
        self.data = memoryview(data)
        self.digests = digests
        self.offset_bytes = blocks.first_block * BLOCK_BYTES
        self.end_bytes = self.offset_bytes + len(data)
        self.was_read = False

    def part(self, offset_bytes: int, length_bytes: int) -> memoryview:
        """These bytes of the file, which it holds."""
        start = offset_bytes - self.offset_bytes
        return self.data[start : start + length_bytes]


class Want:
    """The bytes one reader needs, filled piece by piece from the cache and from flights.

    ``buffer`` holds ``length_bytes`` from ``offset_bytes`` on (0: only the arrival matters; None before anything came); where one piece
    has all of them it is that piece's memory, without a copy. ``missing`` is what is still to come; until ``release_hold`` is called
    more may be added, however much has landed. ``done`` is called once, with None or what went wrong.
    """

    __slots__ = ("_held", "blocks", "buffer", "done", "flights", "length_bytes", "missing", "offset_bytes")

    def __init__(
        self, blocks: BlockRange, offset_bytes: int, length_bytes: int, done: Callable[[HeadraceError | None], None]
    ) -> None:
        self.blocks = blocks
        self.offset_bytes = offset_bytes
        self.length_bytes = length_bytes
        self.buffer: bytearray | memoryview | None = None
        self.done = done
        self.missing: list[BlockRange] = []
        self.flights: dict[Flight, None] = {}  # in the order in which it joined them
        self._held = True

    def expect(self, missing: Sequence[BlockRange]) -> None:
        """Wait for these blocks too, which it does not wait for yet."""
        self.missing.extend(missing)

    def fill(self, first_block: int, data: bytes | bytearray | memoryview) -> None:
        """Take what overlaps; ``data`` starts at ``first_block``, and nobody changes it any more."""
        if isinstance(self.buffer, memoryview):
            return  # one piece had all of it
        start_bytes = first_block * BLOCK_BYTES
        from_bytes = max(start_bytes, self.offset_bytes)
        to_bytes = min(start_bytes + len(data), self.offset_bytes + self.length_bytes)
        if to_bytes - from_bytes == self.length_bytes:
            self.buffer = memoryview(data)[from_bytes - start_bytes : to_bytes - start_bytes]
        elif from_bytes < to_bytes:
            if self.buffer is None:
                self.buffer = bytearray(self.length_bytes)
            self.buffer[from_bytes - self.offset_bytes : to_bytes - self.offset_bytes] = memoryview(data)[
                from_bytes - start_bytes : to_bytes - start_bytes
            ]

    def landed(self, landed: Landed) -> None:
        """Take the blocks that were waited for; the last ones end the wait.

        A flight may bring more than was missing here: only that counts.
        """
        if intersection(self.blocks, landed.blocks).block_count:
            self.fill(landed.blocks.first_block, landed.data)
            self.missing = subtract(self.missing, landed.blocks)
            self._end_if_complete()

    def release_hold(self) -> None:
        """No more blocks will be added; call once."""
        self._held = False
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        if not self.missing and not self._held:
            self._held = True  # once only
            self.leave()
            self.done(None)

    def fail(self, error: HeadraceError) -> None:
        self.leave()
        self.done(error)

    def leave(self) -> None:
        """Wait no longer; the flights go on for others, and for the cache."""
        for flight in self.flights:
            flight.wants.pop(self, None)
        self.flights.clear()


@dataclass(slots=True, eq=False)
class Flight:
    """``wants``: who waits. ``prefetched``: it was started before anybody did. ``tries``: times it was asked for. ``to_keep``: it is
    fetched to be in the cache (a warm, a mending), whoever reads it. ``patient``: it waits for its turn among others that are.

    ``ahead_bytes``: what of it counts as prefetch under way (the owner keeps it). ``asked_s``, ``sent_s``, ``landed_s``, ``sends``: when it
    was asked for, last went out, last brought something, and how often it went out (the owner keeps these too, for ``explain``).
    """

    version: bytes
    size_bytes: int
    blocks: BlockRange
    prefetched: bool
    wants: dict[Want, None] = field(default_factory=dict)
    landed: list[Landed] = field(default_factory=list)
    tries: int = 0
    request: Any = None
    ahead_bytes: int = 0
    asked_s: float = 0.0
    sent_s: float = 0.0
    landed_s: float = 0.0
    sends: int = 0
    to_keep: bool = False
    patient: bool = False

    @property
    def extent_index(self) -> int:
        return self.blocks.first_block // EXTENT_BLOCKS

    def join(self, want: Want) -> None:
        """Add a reader and hand it what has landed already. It must ``expect`` its blocks before."""
        self.wants[want] = None
        want.flights[self] = None
        for landed in self.landed:
            want.landed(landed)

    def unlanded(self) -> list[BlockRange]:
        """The blocks still to arrive."""
        left = [self.blocks]
        for landed in self.landed:
            left = subtract(left, landed.blocks)
        return left


class Flights:
    """The table: (version, extent) to the flights in it."""

    def __init__(self) -> None:
        self._by_extent: dict[tuple[bytes, int], list[Flight]] = {}
        self.held_bytes = 0
        """Of all flights here: asked for, or arrived and not let go."""

    def __len__(self) -> int:
        return sum(len(flights) for flights in self._by_extent.values())

    def __iter__(self) -> Iterator[Flight]:
        for flights in list(self._by_extent.values()):
            yield from list(flights)

    def of_extent(self, version: bytes, extent_index: int) -> Sequence[Flight]:
        return self._by_extent.get((version, extent_index), ())

    def plan(self, version: bytes, blocks: BlockRange) -> tuple[list[Flight], list[BlockRange]]:
        """What covers ``blocks``: the flights to join, and the gaps to ask for (cut at extents)."""
        joined: list[Flight] = []
        gaps: list[BlockRange] = []
        for part in split_at_extents(blocks):
            left = [part]
            for flight in self._by_extent.get((version, part.first_block // EXTENT_BLOCKS), ()):
                if intersection(flight.blocks, part).block_count:
                    joined.append(flight)
                    left = subtract(left, flight.blocks)
            gaps.extend(left)
        return joined, gaps

    def add(self, flight: Flight) -> None:
        self._by_extent.setdefault((flight.version, flight.extent_index), []).append(flight)
        self.held_bytes += byte_length(flight.blocks, flight.size_bytes)

    def remove(self, flight: Flight) -> None:
        key = (flight.version, flight.extent_index)
        flights = self._by_extent.get(key)
        if flights is not None and flight in flights:
            flights.remove(flight)
            self.held_bytes -= byte_length(flight.blocks, flight.size_bytes)
            if not flights:
                del self._by_extent[key]
