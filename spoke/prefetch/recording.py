"""What was read in one epoch so far, as an order that can be followed while it still grows. Pure.

Steps lie in columns (16 bytes each); where each begins is indexed in sorted pieces (8 bytes), which are merged as they
become many, and by a filter (4 bytes) that tells most places never read without looking. A place is a page, counted over all files.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Literal

from common import limits
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.orders import Reader, Reason, Step

PAGE_SHIFT = 12
_PAGE_BYTES = 1 << PAGE_SHIFT
_ROW_BITS = 24
_ROW_MASK = (1 << _ROW_BITS) - 1
_TAIL_STEPS = 4096
_PIECES_MERGED = 8
_WORTH_JUMPS = 16
_FILTER_BITS_PER_STEP = 32
_HASH, _HASH_OTHER, _MASK_64 = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, (1 << 64) - 1

STEP_BYTES = 32
"""In memory, for each step there may be: 16 in columns and 8 in the index, which grow by an eighth, and the filter."""

MAX_STEPS = 1 << _ROW_BITS

Ended = Literal["epoch", "job", "full", "stop"]


class Steps:
    """Columns of steps: file number, offset, length in bytes."""

    __slots__ = ("files", "lengths", "offsets")

    def __init__(self) -> None:
        self.files = array("I")
        self.offsets = array("Q")
        self.lengths = array("I")

    def __len__(self) -> int:
        return len(self.files)

    def append(self, file: int, offset_bytes: int, length_bytes: int) -> int:
        """Returns its row."""
        files = self.files
        files.append(file)
        self.offsets.append(offset_bytes)
        self.lengths.append(length_bytes)
        return len(files) - 1


class PlaceFilter:
    """Places seen: two bits each of ``32 x most`` bits or less, so that one in some hundreds is taken for one seen before."""

    def __init__(self, most: int) -> None:
        bits = (most * _FILTER_BITS_PER_STEP).bit_length() - 1
        self.bits = bytearray(1 << bits - 3)
        self.shift = 64 - bits

    def add(self, place: int) -> bool:
        """False: it was (most likely) in it already."""
        one = (place * _HASH & _MASK_64) >> self.shift
        other = (place * _HASH_OTHER & _MASK_64) >> self.shift
        seen, one_bit, other_bit = self.bits, 1 << (one & 7), 1 << (other & 7)
        one >>= 3
        other >>= 3
        if seen[one] & one_bit and seen[other] & other_bit:
            return False
        seen[one] |= one_bit
        seen[other] |= other_bit
        return True

    def add_new(self, places: range) -> int:
        """Add them in turn up to the first that was (most likely) in it already; returns how many."""
        seen, shift = self.bits, self.shift
        hashed, other_hashed = places.start * _HASH & _MASK_64, places.start * _HASH_OTHER & _MASK_64
        step, other_step = places.step * _HASH & _MASK_64, places.step * _HASH_OTHER & _MASK_64
        for added in range(len(places)):
            one, other = hashed >> shift, other_hashed >> shift
            hashed, other_hashed = hashed + step & _MASK_64, other_hashed + other_step & _MASK_64
            one_bit, other_bit = 1 << (one & 7), 1 << (other & 7)
            one >>= 3
            other >>= 3
            if seen[one] & one_bit and seen[other] & other_bit:
                return added
            seen[one] |= one_bit
            seen[other] |= other_bit
        return len(places)

    def __contains__(self, place: int) -> bool:
        one = (place * _HASH & _MASK_64) >> self.shift
        if not self.bits[one >> 3] & 1 << (one & 7):
            return False
        other = (place * _HASH_OTHER & _MASK_64) >> self.shift
        return bool(self.bits[other >> 3] & 1 << (other & 7))


class Recording:
    """An :class:`~spoke.prefetch.orders.Order` of one lane. Whoever fills it keeps to its bounds, and begins no step where one begins.

    ``jumps``: steps that do not go on where another ended. ``explained_bytes``: read as orders that were followed knew.
    """

    reason = Reason.LEARNED
    reader: Reader | None = None
    origin = ""
    lane_count = 1

    def __init__(self, name: str, max_steps: int) -> None:
        self.name = name
        self.files: list[FileFacts] = []
        self.steps = Steps()
        self.seen = PlaceFilter(max_steps)
        self._seen_bits, self._seen_shift = self.seen.bits, self.seen.shift
        self.jumps = 0
        self.reads = 0
        self.read_bytes = 0
        self.explained_bytes = 0
        self.ended: Ended = "epoch"
        self.numbers: dict[bytes, int] = {}
        """Of files, by version."""
        self.first_pages: list[int] = []
        """The place of each file's beginning."""
        self._next_page = 0
        self._tail: dict[int, int] = {}
        self._pieces: list[list[array[int]]] = []
        self._longest_bytes = 0

    @property
    def is_worth_it(self) -> bool:
        """Long enough, and not just what is found from the reads alone, one file from its beginning to its end."""
        return len(self.steps) >= limits.LEARN_MIN_STEPS and self.jumps >= _WORTH_JUMPS

    @property
    def explained_share(self) -> float:
        return self.explained_bytes / max(1, self.read_bytes)

    # --- filling it --------------------------------------------------------------------------------------

    def add_file(self, file: FileFacts) -> int:
        number = self.numbers[file.version] = len(self.files)
        self.files.append(file)
        self.first_pages.append(self._next_page)
        self._next_page += -(-file.size_bytes >> PAGE_SHIFT) + 1  # one between files: none goes on in the next
        return number

    def place(self, file: int, offset_bytes: int) -> int:
        return self.first_pages[file] + (offset_bytes >> PAGE_SHIFT)

    def append(self, file: int, offset_bytes: int, length_bytes: int, place: int) -> int:
        """``place``: where it begins. Returns its row."""
        steps = self.steps  # each column by itself: each new step comes by here
        row = len(steps.files)
        steps.files.append(file)
        steps.offsets.append(offset_bytes)
        steps.lengths.append(length_bytes)
        tail = self._tail
        tail[place] = row
        self._longest_bytes = max(self._longest_bytes, length_bytes)
        if len(tail) >= _TAIL_STEPS:
            self._seal()
        return row

    def extend(self, file: int, offset_bytes: int, length_bytes: int, places: range) -> int:
        """Steps of this length one behind the other, which begin at ``places``. Returns the last one's row."""
        steps, count = self.steps, len(places)
        row = len(steps)
        steps.files.extend([file] * count)
        steps.offsets.extend(range(offset_bytes, offset_bytes + count * length_bytes, length_bytes))
        steps.lengths.extend([length_bytes] * count)
        self._tail.update(zip(places, range(row, row + count), strict=True))
        self._longest_bytes = max(self._longest_bytes, length_bytes)
        if len(self._tail) >= _TAIL_STEPS:
            self._seal()
        return row + count - 1

    def lengthen(self, row: int, length_bytes: int) -> None:
        """The step goes on for so many bytes more."""
        lengths = self.steps.lengths
        lengths[row] = length_bytes = lengths[row] + length_bytes
        self._longest_bytes = max(self._longest_bytes, length_bytes)

    # --- the Order ---------------------------------------------------------------------------------------

    def length(self, lane: int) -> int:
        return len(self.steps)

    def first(self, lane: int) -> int:
        return 0

    def step(self, lane: int, position: int) -> Step:
        steps = self.steps
        return Step(steps.files[position], steps.offsets[position], steps.lengths[position])

    def file_of(self, version: bytes) -> int | None:
        return self.numbers.get(version)

    def find(self, file: int, start_bytes: int, end_bytes: int, limit: int) -> list[tuple[int, int]]:
        """Asked for one page: only the step that begins there, at the cost of a look into the filter for most."""
        if limit <= 0:
            return []
        if start_bytes >> PAGE_SHIFT == end_bytes - 1 >> PAGE_SHIFT:
            row = self._beginning_at(self.place(file, start_bytes))
            return [] if row is None else [(0, row)]
        rows = sorted(set(self._overlapping(file, start_bytes, end_bytes)))
        return [(0, row) for row in rows[:limit]]

    def begins_at(self, file: int, offset_bytes: int) -> bool:
        """A step begins at this place, at the cost of a look into the filter for most."""
        place = self.first_pages[file] + (offset_bytes >> PAGE_SHIFT)
        # As the filter does: most places end here, each READ comes by.
        one = (place * _HASH & _MASK_64) >> self._seen_shift
        return bool(self._seen_bits[one >> 3] & 1 << (one & 7)) and self._beginning_at(place) is not None

    def next_position(self, lane: int, file: int, start_bytes: int, end_bytes: int, from_position: int) -> int | None:
        rows = (row for row in self._overlapping(file, start_bytes, end_bytes) if row >= from_position)
        return min(rows, default=None)

    def forget(self, lane: int, before_position: int) -> None:
        """Nothing: it goes as a whole."""

    # --- inside ------------------------------------------------------------------------------------------

    def _beginning_at(self, place: int) -> int | None:
        if place not in self.seen:
            return None
        row = self._tail.get(place)
        if row is not None:
            return row
        key = place << _ROW_BITS
        for level in self._pieces:
            for piece in level:
                at = bisect_left(piece, key)
                if at < len(piece) and piece[at] >> _ROW_BITS == place:
                    return piece[at] & _ROW_MASK
        return None

    def _overlapping(self, file: int, start_bytes: int, end_bytes: int) -> Iterator[int]:
        steps = self.steps
        base = self.first_pages[file]
        first = max(base, base + (start_bytes >> PAGE_SHIFT) - (self._longest_bytes >> PAGE_SHIFT) - 2)
        end = base + (end_bytes - 1 >> PAGE_SHIFT) + 1
        for row in self._rows_between(first, end):
            offset_bytes = steps.offsets[row]
            if offset_bytes < end_bytes and offset_bytes + steps.lengths[row] > start_bytes:
                yield row

    def _rows_between(self, first: int, end: int) -> Iterator[int]:
        tail = self._tail
        if len(tail) < end - first:
            yield from (row for place, row in tail.items() if first <= place < end)
        else:
            yield from (tail[place] for place in range(first, end) if place in tail)
        end_key = end << _ROW_BITS
        for level in self._pieces:
            for piece in level:
                at = bisect_left(piece, first << _ROW_BITS)
                while at < len(piece) and piece[at] < end_key:
                    yield piece[at] & _ROW_MASK
                    at += 1

    def _seal(self) -> None:
        """The tail becomes a sorted piece; eight of a size become one, so that there are some 8 for each power of 8."""
        piece = array("Q", sorted(place << _ROW_BITS | row for place, row in self._tail.items()))
        self._tail.clear()
        for level in self._pieces:
            level.append(piece)
            if len(level) < _PIECES_MERGED or len(level[0]) * _PIECES_MERGED > limits.LEARN_PIECE_MAX_STEPS:
                return
            piece = array("Q", sorted(key for one in level for key in one))
            level.clear()
        self._pieces.append([piece])
