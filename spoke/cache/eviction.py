"""Which extent goes next: plain data and dice, no file, no clock.

Never least-recently-used: a cyclic epoch larger than the cache would hit nothing. Every extent has a fixed
pseudo-random rank; the lowest rank goes first, so that a cyclic scan, or a reshuffled one, keeps the same subset
and hits about capacity / data. What nobody uses any more must still leave: an extent not used for longer than
``stale_after`` goes before all others, oldest first. That age is at least 2 x capacity of traffic, and more when
uses are observed to lie further apart than that (``ReuseDistances``), else data = 4 x capacity would age out its
own kept subset. Extents used a moment ago are spared (the rest of the extent is about to be read), and so are
blocks fetched ahead and not yet read, up to half the capacity: an extent that was read in part gives way as others do, by its
rank, but only what was read of it goes (one record of it read says nothing of the others, when files are read in random order).

When orders tell what will be read (``foresight``), what they will use furthest in the future goes first, and before it what they
will not use again, block by block; files in no order keep the rule above, and give way in proportion to the room they take.

Time is traffic: the larger of bytes read and bytes written so far, in ticks of one extent (1 MiB).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable
from random import Random

from common.blocks import EXTENT_BLOCKS, EXTENT_BYTES, BlockRange
from common.digest import version_seed
from common.extent_bits import WHOLE, blocks_of, mask_in, masks_of
from common.limits import CACHE_EVICT_SAMPLE, CACHE_WANTED_MAX
from spoke.cache.foreseen import Foresight, Parts, Victim
from spoke.cache.reuse import Ghosts, ReuseDistances

_TICK_SHIFT = EXTENT_BYTES.bit_length() - 1
_MASK_32 = (1 << 32) - 1
_MASK_64 = (1 << 64) - 1
_NOWHERE = _MASK_32  # position of an extent that is not in the pool
_STALE_CAPACITIES = 2.0
_YOUNG_SHARE = 32  # 1/32 of the capacity was used "a moment ago"
_PROTECTED_SHARE = 2  # 1/2 of the capacity may be fetched ahead
_SAMPLE_ROUNDS = 8
_CANDIDATES_MAX = (
    64  # the lowest ranks found so far outlive one decision: a sample of 32 then chooses like one of thousands
)
_FRESH_MAX = 8192
_BARREN_SHARE = 256  # after a search of everything in vain: the traffic, as a share of the capacity, until the next
_FRESH_PER_CHOICE = 8
_FORESEEN_SAMPLE = 4
_FORESEEN_LOOKS = 8
_FORESEEN_FEW = 256  # parts noted, below which each choice looks at extents
_FORESEEN_UNHEARD = 16  # choices without word of a use, after which each does
_FORESEEN_FILES_SAMPLE = 16


def extent_rank(seed: int, extent: int) -> int:
    """The fixed rank of an extent, uniform over 64 bits (the finalizer of splitmix64 over seed and index)."""
    mixed = (seed + (extent + 1) * 0x9E3779B97F4A7C15) & _MASK_64
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _MASK_64
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _MASK_64
    return mixed ^ mixed >> 31


class FileExtents:
    """What eviction knows of one file. ``busy``: extents with a write or a punch under way; ``pins``: reasons to keep the file.

    ``unread``: 1 for extents of which something was fetched ahead and not read. ``halves``: of those of which not all is, (blocks fetched
    ahead and not read, blocks that were read and are here), a bit for each.
    """

    __slots__ = ("busy", "halves", "in_pool", "pins", "places", "seed", "ticks", "unread", "version")

    def __init__(self, version: bytes, extent_count: int) -> None:
        self.version = version
        self.seed = version_seed(version)
        self.ticks = array("I", bytes(4 * extent_count))
        self.places = array("I", [_NOWHERE]) * extent_count
        self.unread = bytearray(extent_count)
        self.halves: dict[int, tuple[int, int]] = {}
        self.busy: dict[int, int] = {}
        self.pins = 0
        self.in_pool = 0

    def hold(self, extent: int) -> None:
        self.busy[extent] = self.busy.get(extent, 0) + 1

    def let_go(self, extent: int) -> None:
        left = self.busy[extent] - 1
        if left:
            self.busy[extent] = left
        else:
            del self.busy[extent]


class EvictionPolicy:
    """All cached extents, what is known of their use, and the choice of the next victim.

    ``foresight``: set while orders are followed; None: nothing is known of the future. ``present``: those of some blocks of a file that
    are cached, set by who has them (default: all).
    """

    def __init__(self, dice: Random, capacity_bytes: int) -> None:
        self._dice = dice
        self.foresight: Foresight | None = None
        self.present: Callable[[FileExtents, BlockRange], list[BlockRange]] = lambda _file, blocks: [blocks]
        self._by_version: dict[bytes, FileExtents] = {}
        self._unheard = 0
        self._parts = Parts[FileExtents](
            self._by_version.get,
            self._present_in,
            lambda file, extent: self._is_held(file, extent, False),
        )
        self._pool_files: list[FileExtents] = []
        self._pool_extents = array("I")
        self._reuse = ReuseDistances()
        self._ghosts = Ghosts()
        self._fresh: deque[tuple[FileExtents, int]] = deque(maxlen=_FRESH_MAX)
        self._candidates: list[tuple[FileExtents, int]] = []  # lowest rank first
        self._candidate_ranks: list[int] = []
        self._wanted: OrderedDict[tuple[bytes, int], int] = OrderedDict()
        self._read_bytes = EXTENT_BYTES  # so that tick 0 means "never"
        self._written_bytes = EXTENT_BYTES
        self.protected_blocks = 0
        self._barren_until_tick = 0
        self._young_ticks = 1
        self._capacity_ticks = 1
        self._protected_most_blocks = 0
        self.set_capacity(capacity_bytes)

    def __len__(self) -> int:
        """Extents in the cache."""
        return len(self._pool_extents)

    @property
    def now_tick(self) -> int:
        return max(self._read_bytes, self._written_bytes) >> _TICK_SHIFT

    def set_capacity(self, capacity_bytes: int) -> None:
        """The capacity as it is now: ages are counted in it."""
        self._capacity_ticks = max(1, capacity_bytes >> _TICK_SHIFT)
        self._young_ticks = max(1, self._capacity_ticks // _YOUNG_SHARE)
        self._protected_most_blocks = self._capacity_ticks * EXTENT_BLOCKS // _PROTECTED_SHARE

    def restored(self, file: FileExtents, extent: int) -> None:
        """The extent was found on disk: as if last used when the cache was opened."""
        file.ticks[extent] = 1
        self._enter(file, extent)

    def wrote(self, file: FileExtents, extent: int, length_bytes: int, mask: int = WHOLE) -> None:
        """Bytes of the extent, blocks ``mask``, arrived in the cache: fetched ahead, unless somebody wanted them (``want``) before."""
        self._written_bytes += length_bytes
        now = self.now_tick
        is_new = file.places[extent] == _NOWHERE
        if is_new:
            self._enter(file, extent)
            self._fresh.append((file, extent))
            rank = extent_rank(file.seed, extent)
            if self._ghosts.samples(rank):
                last = self._ghosts.pop(rank)
                self._reuse.seen(None if last is None else max(1, now - last))
        file.ticks[extent] = now & _MASK_32
        wanted = self._wanted.pop((file.version, extent), 0)
        read = wanted & mask
        if wanted:
            if wanted & ~mask:
                self._wanted[file.version, extent] = wanted & ~mask
            self._read_part(file, extent, read)
            mask &= ~read
        count = EXTENT_BLOCKS if len(file.ticks) == 1 else mask.bit_count()
        if mask and self.protected_blocks + count <= self._protected_most_blocks:
            others = read if is_new or file.unread[extent] else self._present_mask(file, extent) & ~mask
            self._protect(file, extent, mask, others)
        elif extent in file.halves:
            self._may_go_with(file, extent, mask)

    def want(self, version: bytes, blocks: BlockRange) -> None:
        """A reader needed these blocks and did not find them: when they arrive they count as read."""
        for extent, mask in masks_of(blocks):
            self._wanted[version, extent] = self._wanted.get((version, extent), 0) | mask
            if len(self._wanted) > CACHE_WANTED_MAX:
                self._wanted.popitem(last=False)

    def touch(
        self, file: FileExtents, first_extent: int, end_extent: int, length_bytes: int, blocks: BlockRange | None = None
    ) -> None:
        """A reader got ``length_bytes`` out of these extents: ``blocks`` of them (None: all)."""
        self._read_bytes += length_bytes
        now = max(self._read_bytes, self._written_bytes) >> _TICK_SHIFT & _MASK_32
        ticks, unread = file.ticks, file.unread
        for extent in range(first_extent, end_extent):
            if unread[extent]:
                self._read_part(file, extent, WHOLE if blocks is None else mask_in(blocks, extent))
            last = ticks[extent]
            if last != now:
                ticks[extent] = now
                if (now - last & _MASK_32) > self._young_ticks and last:
                    self._reuse.seen(now - last & _MASK_32)

    def gone(self, file: FileExtents, extent: int) -> None:
        """The last block of the extent left the cache."""
        place = file.places[extent]
        if place == _NOWHERE:
            return
        self._ghosts.add(extent_rank(file.seed, extent), file.ticks[extent])
        self._set_read(file, extent)
        last_file, last_extent = self._pool_files.pop(), self._pool_extents.pop()
        if place < len(self._pool_extents):
            self._pool_files[place] = last_file
            self._pool_extents[place] = last_extent
            last_file.places[last_extent] = place
        file.places[extent] = _NOWHERE
        file.ticks[extent] = 0
        file.in_pool -= 1
        if not file.in_pool and self._by_version.get(file.version) is file:
            del self._by_version[file.version]

    def parted(self, file: FileExtents, extent: int, mask: int) -> None:
        """Blocks ``mask`` of the extent left the cache, others are still here."""
        if not file.unread[extent]:
            return
        unread, read = file.halves.get(extent) or (WHOLE, 0)
        if not unread & ~mask:
            self._set_read(file, extent)
            return
        self.protected_blocks -= (unread & mask).bit_count()
        file.halves[extent] = unread & ~mask, read & ~mask

    def stale_after_ticks(self) -> float:
        """The age beyond which an extent counts as no longer used by anybody."""
        self._reuse.fade(self.now_tick, self._capacity_ticks)
        return max(_STALE_CAPACITIES * self._capacity_ticks, self._reuse.longest_ticks())

    def choose(self, whole_files: bool = False, nearer_stay: int = -1) -> Victim[FileExtents] | None:
        """The next victim, or None when everything is pinned, busy, fetched ahead, or used sooner than what it would go for.

        ``whole_files``: only extents of files without anything under way (the victim's file goes as a whole). ``nearer_stay``: steps
        until that is used for which room is made: what is used by then stays.
        """
        foresight = self.foresight
        if foresight is not None:
            victim = self._choose_by_next_use(foresight, whole_files, nearer_stay)
            if victim is not None:
                return victim
        found = self._choose_by_past(whole_files)
        if found is None or (foresight is not None and nearer_stay >= 0 and foresight.knows(found[0].version)):
            return None
        return self._what_goes_of(*found, whole_files)

    def _choose_by_past(self, whole_files: bool, avoid: Foresight | None = None) -> tuple[FileExtents, int] | None:
        """``avoid``: only extents of versions that this knows nothing of."""
        if avoid is not None:
            for _ in range(_SAMPLE_ROUNDS):
                victim = self._sampled(self.stale_after_ticks(), whole_files)
                if victim is None or not avoid.knows(victim[0].version):
                    return victim
            return None
        count = len(self._pool_extents)
        stale_after = self.stale_after_ticks()
        self._admit_fresh()
        for _ in range(_SAMPLE_ROUNDS if count > CACHE_EVICT_SAMPLE else 0):
            victim = self._sampled(stale_after, whole_files)
            if victim is not None:
                return victim
        if self._barren_until_tick > self.now_tick:
            return None
        stalest = self._consider(range(count), stale_after, whole_files)
        victim = stalest or self._take_lowest(whole_files) or self._lowest_of_all(whole_files)
        if victim is None and not whole_files:
            self._barren_until_tick = self.now_tick + max(1, self._capacity_ticks // _BARREN_SHARE)
        return victim

    def _sampled(self, stale_after: float, whole_files: bool) -> tuple[FileExtents, int] | None:
        dice, count = self._dice.random, len(self._pool_extents)
        stalest = self._consider([int(dice() * count) for _ in range(CACHE_EVICT_SAMPLE)], stale_after, whole_files)
        return stalest or self._take_lowest(whole_files)

    # --- with foresight ----------------------------------------------------------------------------------

    def _choose_by_next_use(
        self, foresight: Foresight, whole_files: bool, nearer_stay: int
    ) -> Victim[FileExtents] | None:
        """What orders do not use again, or use last; None when nothing in any order may go.

        Files in no order give way as well, as often as one of them is met among some extents looked at by chance.
        """
        count = len(self._pool_extents)
        if not count:
            return None
        places = [int(self._dice.random() * count) for _ in range(min(count, _FORESEEN_SAMPLE))]
        in_no_order = sum(not foresight.knows(self._pool_files[place].version) for place in places)
        if self._dice.random() * len(places) < in_no_order:
            found = self._choose_by_past(whole_files, avoid=foresight)
            if found is not None:
                return self._what_goes_of(*found, whole_files)
        if whole_files:
            return self._choose_file(foresight, nearer_stay)
        victim = self._parts.take_spent(foresight)
        if victim is not None:
            return victim
        self._unheard = 0 if self._parts.heard else self._unheard + 1
        if self._unheard > _FORESEEN_UNHEARD or len(self._parts) < min(count, _FORESEEN_FEW):
            self._look_around(foresight)
        victim = self._parts.take_furthest(foresight, nearer_stay)
        for _ in range(_SAMPLE_ROUNDS):
            if victim is not None:
                break
            self._look_around(foresight)
            victim = self._parts.take_furthest(foresight, nearer_stay)
        return victim

    def _look_around(self, foresight: Foresight) -> None:
        """Note when parts of some extents are used next: of some met by chance, and of the latest."""
        count = len(self._pool_extents)
        met = [int(self._dice.random() * count) for _ in range(min(count, _FORESEEN_LOOKS))]
        found = [(self._pool_files[place], self._pool_extents[place]) for place in met]
        for _ in range(min(_FRESH_PER_CHOICE, len(self._fresh))):
            file, extent = self._fresh.popleft()
            if file.places[extent] != _NOWHERE:
                if foresight.knows(file.version):
                    found.append((file, extent))
                else:
                    self._fresh.append((file, extent))
        for file, extent in found:
            if not self._is_held(file, extent, False):
                self._parts.look(foresight, file, file.version, extent)

    def _choose_file(self, foresight: Foresight, nearer_stay: int) -> Victim[FileExtents] | None:
        """Of some extents met by chance the one whose soonest use is furthest away, where files go as a whole."""
        count = len(self._pool_extents)
        best: Victim[FileExtents] | None = None
        furthest = nearer_stay
        for place in {int(self._dice.random() * count) for _ in range(_FORESEEN_FILES_SAMPLE)}:
            file, extent = self._pool_files[place], self._pool_extents[place]
            steps = foresight.next_use(file.version, BlockRange(extent * EXTENT_BLOCKS, EXTENT_BLOCKS))
            if steps is not None and steps > furthest and not self._is_held(file, extent, True):
                best, furthest = Victim(file, extent), steps
        return best

    def freed(self) -> None:
        """Something pinned or busy no longer is: worth looking everywhere again."""
        self._barren_until_tick = 0

    def _consider(
        self, places: range | list[int], stale_after: float, whole_files: bool
    ) -> tuple[FileExtents, int] | None:
        """The oldest stale extent at these places, if any; the others join the candidates."""
        now = self.now_tick & _MASK_32
        stalest: tuple[FileExtents, int] | None = None
        oldest = stale_after
        for place in places:
            file, extent = self._pool_files[place], self._pool_extents[place]
            age = now - file.ticks[extent] & _MASK_32
            if not self._may_go(file, extent, age, whole_files):
                continue
            if age > oldest:
                stalest, oldest = (file, extent), age
            elif age > self._young_ticks:
                self._add_candidate(file, extent)
        return stalest

    def _admit_fresh(self) -> None:
        """Extents that came in lately and are no longer young join the candidates: most of them are the next to go."""
        now = self.now_tick & _MASK_32
        for _ in range(min(_FRESH_PER_CHOICE, len(self._fresh))):
            file, extent = self._fresh.popleft()
            if file.places[extent] == _NOWHERE or (file.unread[extent] and not self._read_here(file, extent)):
                continue
            if (now - file.ticks[extent] & _MASK_32) > self._young_ticks:
                self._add_candidate(file, extent)
            else:
                self._fresh.append((file, extent))

    def _add_candidate(self, file: FileExtents, extent: int) -> None:
        rank = extent_rank(file.seed, extent)
        place = bisect_left(self._candidate_ranks, rank)
        if place == _CANDIDATES_MAX or self._candidate_ranks[place : place + 1] == [rank]:
            return
        self._candidate_ranks.insert(place, rank)
        self._candidates.insert(place, (file, extent))
        del self._candidate_ranks[_CANDIDATES_MAX:], self._candidates[_CANDIDATES_MAX:]

    def _take_lowest(self, whole_files: bool) -> tuple[FileExtents, int] | None:
        """The lowest-ranked candidate that may go now; those that turned out kept, gone or in use lose their candidacy."""
        now = self.now_tick & _MASK_32
        while self._candidates:
            file, extent = self._candidates.pop(0)
            self._candidate_ranks.pop(0)
            age = now - file.ticks[extent] & _MASK_32
            if file.places[extent] == _NOWHERE or age <= self._young_ticks:
                continue
            if self._may_go(file, extent, age, whole_files):
                return file, extent
        return None

    def _lowest_of_all(self, whole_files: bool) -> tuple[FileExtents, int] | None:
        """When all else failed, young extents go too."""
        now = self.now_tick & _MASK_32
        open_to_choice = (
            (file, extent)
            for file, extent in zip(self._pool_files, self._pool_extents, strict=True)
            if self._may_go(file, extent, now - file.ticks[extent] & _MASK_32, whole_files)
        )
        return min(open_to_choice, key=lambda found: extent_rank(found[0].seed, found[1]), default=None)

    def _may_go(self, file: FileExtents, extent: int, age_ticks: int, whole_files: bool) -> bool:
        if self._is_held(file, extent, whole_files):
            return False
        if not file.unread[extent] or age_ticks > self._capacity_ticks:
            return True
        if self.protected_blocks > self._protected_most_blocks:  # the capacity has shrunk since
            return True
        return not whole_files and bool(self._read_here(file, extent))

    def _what_goes_of(self, file: FileExtents, extent: int, whole_files: bool) -> Victim[FileExtents]:
        """All of an extent, or what was read of it, while the rest was fetched ahead and is waited for."""
        read = self._read_here(file, extent) if file.unread[extent] and not whole_files else 0
        if not read or (self.now_tick - file.ticks[extent] & _MASK_32) > self._capacity_ticks:
            return Victim(file, extent)
        return Victim(file, extent, blocks_of(extent, read))

    def _read_here(self, file: FileExtents, extent: int) -> int:
        """Blocks of an extent in which others are not read yet that were read, and may go; a bit for each."""
        half = file.halves.get(extent)
        return half[1] if half is not None else 0

    def _present_in(self, file: FileExtents, blocks: BlockRange) -> list[BlockRange]:
        return self.present(file, blocks) if file.places[blocks.first_block // EXTENT_BLOCKS] != _NOWHERE else []

    def _is_held(self, file: FileExtents, extent: int, whole_files: bool) -> bool:
        return bool(file.pins or extent in file.busy or (whole_files and file.busy))

    def _enter(self, file: FileExtents, extent: int) -> None:
        file.places[extent] = len(self._pool_extents)
        file.in_pool += 1
        self._by_version[file.version] = file
        self._pool_files.append(file)
        self._pool_extents.append(extent)

    def _protect(self, file: FileExtents, extent: int, mask: int, others: int) -> None:
        """Blocks ``mask`` of an extent were fetched ahead; ``others`` were in it before."""
        if not file.unread[extent]:
            file.unread[extent] = 1
            if len(file.ticks) == 1:  # a small file: read in part, it is read
                mask = WHOLE
            if mask != WHOLE:
                file.halves[extent] = mask, others
            self.protected_blocks += mask.bit_count()
        elif extent in file.halves:
            unread, read = file.halves[extent]
            self.protected_blocks += (mask & ~unread).bit_count()
            file.halves[extent] = unread | mask, read & ~mask

    def _may_go_with(self, file: FileExtents, extent: int, mask: int) -> None:
        """Blocks of an extent in which others are kept unread go as what was read of it does: no more may be kept."""
        unread, read = file.halves[extent]
        if mask & ~unread:
            if not read:
                self._fresh.append((file, extent))
            file.halves[extent] = unread, read | (mask & ~unread)

    def _present_mask(self, file: FileExtents, extent: int) -> int:
        """A bit for each block of the extent that is cached."""
        found = self.present(file, BlockRange(extent * EXTENT_BLOCKS, EXTENT_BLOCKS))
        mask = 0
        for blocks in found:
            mask |= mask_in(blocks, extent)
        return mask

    def _read_part(self, file: FileExtents, extent: int, mask: int) -> None:
        """Blocks of an extent, of which something was fetched ahead, were read."""
        if not file.unread[extent]:
            return
        unread, read = file.halves.get(extent) or (WHOLE, 0)
        left = unread & ~mask
        if not left or len(file.ticks) == 1:
            self._set_read(file, extent)
            return
        self.protected_blocks -= (unread & mask).bit_count()
        if not read:
            self._fresh.append((file, extent))
        file.halves[extent] = left, read | mask

    def _set_read(self, file: FileExtents, extent: int) -> None:
        if file.unread[extent]:
            file.unread[extent] = 0
            half = file.halves.pop(extent, None)
            self.protected_blocks -= half[0].bit_count() if half is not None else EXTENT_BLOCKS
            self._fresh.append((file, extent))
