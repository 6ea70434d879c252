"""Files of middling size that are read throughout, each of its bytes once, in an order of their own: what is left of one is fetched. Pure.

So chunks and shards are read whose samples are shuffled inside them (LitData, MosaicML): no stream shows, and each READ costs a round
trip. That the rest will be read is told by the files before it: of the same directory and kind, most of the last ones were read whole, in
scattered places, before much else was. Chance makes no such visit: who draws at random reads some places twice long before he has
read all. Nothing is fetched of a kind of which more than a quarter of the last files was read otherwise (two epochs that overlap read a
chunk twice at once), nor of any while what was evicted unread is more than trust allows.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockRange, count_blocks
from common.extent_bits import LOWEST, blocks_of, masks_of
from spoke.prefetch.chains import FileFacts

_HISTORY_VISITS, _PROOF_VISITS = 8, 2
_PROOF_SHARE = 0.75
"""Of the last 8 files of a kind so many, and two at least, were read whole."""

_QUICK_SHARE = 4
"""A visit during which more was read than so many times what may lie ahead (twice the cache) is none: the rest would not stay so long."""

_WHOLE_SHARE = 0.95
"""So much of a file read ends a visit: a table at its beginning or end may never be read."""

_AGAIN_SHARE = 1 / 8
"""So much of what was read, read again, ends a visit as well: this is a file that is read in part, or again and again."""

_SCATTERED_SHARE = 0.25
"""So many READs of a visit begin where the last one did not end, else it is for streams."""

_FEWEST_PLACES = 3
"""Places read before the rest is fetched: a look at the header, or a hint at the beginning, is no visit."""

_KINDS_MAX = 64

_NOTED_READS = 16
"""So many READs of a file are looked at together while none of them can end a visit, and nothing is to be fetched of its kind."""


class _Visit:
    """What was read of a file since it was begun. ``covered``, ``planned``: bits of each extent. ``noted``: READs to be looked at, and
    ``left_blocks`` after them before the file may be read whole."""

    __slots__ = ("again_blocks", "began_bytes", "block_count", "covered", "extent_count", "is_over", "kind", "left_blocks", "next_block",
                 "next_index", "noted", "places", "planned", "read_blocks", "reads")  # fmt: skip

    def __init__(self, block_count: int, kind: tuple[bytes, bytes]) -> None:
        self.block_count = block_count
        self.kind = kind
        self.extent_count = -(-block_count // EXTENT_BLOCKS)
        self.next_index = 0
        self.is_over = False
        self.began_bytes = 0
        self.covered: dict[int, int] = {}
        self.planned: dict[int, int] = {}
        self.read_blocks = self.again_blocks = 0
        self.reads = self.places = 0
        self.next_block = -1
        self.noted: list[tuple[int, int, int]] = []
        self.left_blocks = 0

    def has_most_of(self, blocks: BlockRange) -> bool:
        """Most of these blocks were read before."""
        again = sum((mask & self.covered.get(index, 0)).bit_count() for index, mask in masks_of(blocks))
        return 2 * again >= blocks.block_count


class Throughout:
    """``max_bytes``: what may lie ahead, fetched and not read, in all such files together; ``file_max_bytes``, half of it at most:
    larger ones are none."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.file_max_bytes = min(limits.PREFETCH_THROUGHOUT_FILE_MAX_BYTES, max_bytes // 2)
        self._visits: OrderedDict[bytes, _Visit] = OrderedDict()
        self._kinds: OrderedDict[tuple[bytes, bytes], deque[bool]] = OrderedDict()
        self._proven: set[tuple[bytes, bytes]] = set()
        self._ahead_blocks = 0

    @property
    def ahead_bytes(self) -> int:
        """Planned, and neither read nor evicted."""
        return self._ahead_blocks * BLOCK_BYTES

    def read(
        self, facts: FileFacts, start_block: int, end_block: int, read_bytes: int, *, may_fetch: bool
    ) -> list[BlockRange]:
        """A READ of these blocks; ``read_bytes``: of all files so far. Returns what of the rest of the file is to be fetched now.

        ``may_fetch``: what was fetched before was of use; else it only learns.
        """
        visit = self._visits.get(facts.version)
        if visit is not None and visit.left_blocks > 0:
            noted = visit.noted
            noted.append((start_block, end_block, read_bytes))
            visit.left_blocks -= end_block - start_block
            is_proven = self._proven and visit.kind in self._proven
            if visit.left_blocks > 0 and len(noted) < _NOTED_READS and not is_proven:
                return []
            visit.noted = []
            *before, _ = noted
            for each_start, each_end, each_bytes in before:
                self._hear(facts, each_start, each_end, each_bytes, may_fetch=False)
        return self._hear(facts, start_block, end_block, read_bytes, may_fetch=may_fetch)

    def _hear(
        self, facts: FileFacts, start_block: int, end_block: int, read_bytes: int, *, may_fetch: bool
    ) -> list[BlockRange]:
        visit = self._visits.get(facts.version)
        if visit is None or (visit.is_over and visit.has_most_of(BlockRange(start_block, end_block - start_block))):
            visit = self._begin(facts)
        visit.reads += 1
        visit.places += start_block != visit.next_block
        visit.next_block = end_block
        if visit.places <= _FEWEST_PLACES:
            visit.began_bytes = read_bytes
        covered, planned = visit.covered, visit.planned
        for index, mask in masks_of((start_block, end_block - start_block)):
            before = covered.get(index, 0)
            new = mask & ~before
            if new != mask:
                visit.again_blocks += (mask & before).bit_count()
            if new:
                covered[index] = before | new
                visit.read_blocks += new.bit_count()
                if planned and (used := planned.get(index, 0) & new):
                    planned[index] &= ~used
                    self._ahead_blocks -= used.bit_count()
        visit.left_blocks = 0
        if visit.is_over:
            return []
        if not visit.planned and visit.kind not in self._proven:
            visit.left_blocks = int(_WHOLE_SHARE * visit.block_count) - visit.read_blocks
        if visit.read_blocks >= _WHOLE_SHARE * visit.block_count:
            visit.is_over = True
            is_quick = read_bytes - visit.began_bytes <= _QUICK_SHARE * self._max_bytes
            self._judge(visit.kind, was_whole=is_quick and visit.places >= _SCATTERED_SHARE * visit.reads)
            return []
        if visit.again_blocks > EXTENT_BLOCKS and visit.again_blocks > _AGAIN_SHARE * visit.read_blocks:
            visit.is_over = True
            self._judge(visit.kind, was_whole=False)
            return []
        if not may_fetch or visit.places < _FEWEST_PLACES or visit.next_index >= visit.extent_count:
            return []
        if visit.kind not in self._proven:
            return []
        return list(self._plan(visit))

    def evicted(self, version: bytes, blocks: BlockRange) -> None:
        """Blocks left the cache."""
        visit = self._visits.get(version)
        if visit is None:
            return
        for index, mask in masks_of(blocks):
            gone = visit.planned.get(index, 0) & mask
            if gone:
                visit.planned[index] &= ~gone
                self._ahead_blocks -= gone.bit_count()

    def _plan(self, visit: _Visit) -> Iterator[BlockRange]:
        """Some extents more of it, while there is room."""
        for index in range(visit.next_index, min(visit.next_index + 1 + visit.extent_count // 8, visit.extent_count)):
            if (self._ahead_blocks + EXTENT_BLOCKS) * BLOCK_BYTES > self._max_bytes:
                return
            visit.next_index = index + 1
            count = min(EXTENT_BLOCKS, visit.block_count - index * EXTENT_BLOCKS)
            mask = LOWEST[count] & ~visit.covered.get(index, 0)
            visit.planned[index] = mask
            self._ahead_blocks += mask.bit_count()
            yield from blocks_of(index, mask)

    def _begin(self, facts: FileFacts) -> _Visit:
        former = self._visits.pop(facts.version, None)
        if former is not None:
            self._give_up(former)
        visit = self._visits[facts.version] = _Visit(count_blocks(facts.size_bytes), kind_of(facts))
        if len(self._visits) > limits.PREFETCH_MAX_FILES:
            version, forgotten = next(iter(self._visits.items()))
            del self._visits[version]
            self._give_up(forgotten)
        return visit

    def _judge(self, kind: tuple[bytes, bytes], *, was_whole: bool) -> None:
        history = self._kinds.get(kind)
        if history is None:
            history = self._kinds[kind] = deque(maxlen=_HISTORY_VISITS)
            if len(self._kinds) > _KINDS_MAX:
                forgotten, _ = self._kinds.popitem(last=False)
                self._proven.discard(forgotten)
        else:
            self._kinds.move_to_end(kind)
        history.append(was_whole)
        if sum(history) >= max(_PROOF_VISITS, _PROOF_SHARE * len(history)):
            self._proven.add(kind)
        else:
            self._proven.discard(kind)

    def _give_up(self, visit: _Visit) -> None:
        left = sum(mask.bit_count() for mask in visit.planned.values())
        self._ahead_blocks -= left


def kind_of(facts: FileFacts) -> tuple[bytes, bytes]:
    """Directory and ending: files that are read alike, as it seems."""
    directory, _, name = facts.path.rpartition(b"/")
    _, dot, ending = name.rpartition(b".")
    return directory, ending if dot else b""
