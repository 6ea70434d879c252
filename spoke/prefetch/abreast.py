"""Readers abreast: several that began at equal distances in one file, each of whom goes on to where the next one began. Pure.

So do the workers of a loader that reads in order, each a batch: when it starts it asks for all of them at once. Whoever hands out batches
wants the first one first, so what lies between the readers is fetched in the order of its place, and as what is waited for: were it
prefetch, or each reader's READs by themselves, the link would be shared evenly and all batches would be whole at its end.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from common.blocks import BlockRange

_FEWEST = 4
_STARTS_MAX = 256
"""Beginnings remembered; the oldest is forgotten. A loader of 64 workers makes 128 when it starts."""

_STEP_MAX_BLOCKS = 8192
"""32 MiB: what is further apart are lanes, whose readers do not want one another's data in any order."""

_BATCHES_FEWEST = 64
"""A file in fewer equal steps is in parts, each its reader's own: none of them wants another's first."""

_SHARE_READ = 4
"""One of them must have read a quarter of the way to the next in a row: those who only look at equal places do not."""

_AHEAD_OF_NEXT = 2
"""And twice as much as the next one: who goes on with lanes by turns does not want the first one's rest before the others' next."""

_STRAYS = 1.25
"""Beginnings since the first of them, for each of them: among many places some lie at equal distances by chance."""

_BATCHES_EACH = 2
"""Beginnings of one reader: who looks at equal places and then reads on from the first, as of a checkpoint, is alone."""

_FRESH = 16
"""So many beginnings are put in order together while nothing can be seen by them."""

_TOLERANCE = 16
"""Distances differ by a page, and a part of themselves, where records do not end with a page."""


class Abreast:
    """In a file of ``block_count`` blocks. ``waited``: blocks that readers stand before, in order, until taken.

    ``filled_block``: the end of what they were given.
    """

    __slots__ = ("_begun", "_count", "_ends", "_fresh", "_from_block", "_hurried", "_members", "_round", "_starts", "_step_blocks",
                 "_step_max_blocks", "_tasks", "filled_block", "waited")  # fmt: skip

    def __init__(self, block_count: int) -> None:
        self._step_max_blocks = min(_STEP_MAX_BLOCKS, block_count // _BATCHES_FEWEST)
        self._begun: dict[int, int] = {}  # start: how many had begun before
        self._ends: dict[int, int] = {}  # start: read up to there
        self._tasks: dict[int, int] = {}  # start: who began
        self._starts: list[int] = []
        self._fresh: dict[int, tuple[int, int, int]] = {}  # start: all three, of those not among the others yet
        self._count = 0
        self._step_blocks = 0
        self._members = 0
        self._from_block = 0
        self._hurried = False
        self._round = 0
        self.filled_block = 0
        self.waited: list[BlockRange] = []

    def begun(self, start_block: int, end_block: int, task_id: int, block_count: int, most_blocks: int = 0) -> bool:
        """A read by ``task_id`` in a file of ``block_count`` blocks went where no run ends. ``most_blocks``: what windows may hold.

        Workers start one after another, and the first goes on to its second batch when few have: how far that is tells how many they are,
        and what lies before it all of them stand before, or soon will. Returns whether :meth:`began` may find something.
        """
        fresh, step = self._fresh, self._step_blocks
        if start_block in fresh:
            del fresh[start_block]
        fresh[start_block] = self._count, end_block, task_id
        self._count += 1
        if not step and start_block and (self._hurried or (self._starts and self._starts[0])):
            if len(fresh) >= _FRESH:
                self._take_fresh()
            return False
        self._take_fresh()
        if step and not self.is_filled(start_block):
            self._began_beside(start_block, task_id, block_count, most_blocks)
        return not (self._starts[0] or self._hurried)

    def _take_fresh(self) -> None:
        """Those that began lately are put among the others."""
        begun, ends, tasks, starts, fresh = self._begun, self._ends, self._tasks, self._starts, self._fresh
        for start_block, (count, end_block, task_id) in fresh.items():
            if begun.pop(start_block, None) is None:
                insort(starts, start_block)
            begun[start_block], ends[start_block], tasks[start_block] = count, end_block, task_id
            if len(begun) > _STARTS_MAX:
                oldest = next(iter(begun))
                del begun[oldest], ends[oldest], tasks[oldest], starts[bisect_left(starts, oldest)]
        fresh.clear()

    def _began_beside(self, start_block: int, task_id: int, block_count: int, most_blocks: int) -> None:
        """A read went beyond what they were given: one of them goes on, or this is somebody else."""
        step = self._step_blocks
        steps, beside = divmod(start_block - self.filled_block + step // _TOLERANCE + 1, step)
        is_in_step = steps >= 0 and beside <= 2 * (step // _TOLERANCE + 1)
        if is_in_step and steps > max(self._members, self._round) and not self._round:
            self._round = self._round_of(start_block, task_id, most_blocks)
        if is_in_step and steps <= max(self._members, self._round):
            self._fill(start_block + step, block_count)
        else:
            self._step_blocks = 0  # something else is read here: they show themselves anew

    def began(self, first_block: int) -> None:
        """Call after :meth:`begun`: ``first_block`` is the end of what is fetched anyway, as the file is read from its first byte on.

        Where several began at equal distances from there at once, each for itself, that is hurried: the first batch is wanted before the
        others' first READs, and none of them has come back yet that could show who reads on. It is fetched anyway, but for a few blocks.
        """
        starts = self._starts
        if self._hurried or len(starts) < _FEWEST or starts[0]:
            return
        step = starts[1]
        if not 0 < step <= self._step_max_blocks or step > first_block:
            return
        if any(abs(starts[at] - at * step) > step // _TOLERANCE + 1 for at in range(2, _FEWEST)):
            return
        self._hurried = True
        if self._count == len(starts) and len({self._tasks[start] for start in starts[:_FEWEST]}) == _FEWEST:
            self.waited.append(BlockRange(self._ends[0], first_block - self._ends[0]))

    def read_on(self, start_block: int, next_block: int, block_count: int) -> None:
        """A run that began at ``start_block`` was read up to ``next_block``; nothing at ``block_count`` and beyond is fetched."""
        if self._step_blocks and self._from_block <= start_block and next_block <= self.filled_block:
            return
        if start_block not in self._begun and start_block not in self._fresh:
            return
        if self._fresh:
            self._take_fresh()
        self._ends[start_block] = next_block
        starts = self._starts
        at = bisect_left(starts, start_block)
        if at + _FEWEST > len(starts):
            return
        step, length = starts[at + 1] - start_block, next_block - start_block
        if not 0 < step <= self._step_max_blocks or _SHARE_READ * length < step:
            return
        if length < _AHEAD_OF_NEXT * (self._ends[starts[at + 1]] - starts[at + 1]):
            return
        first, last, most = at, at + 1, step // _TOLERANCE + 1
        while last + 1 < len(starts) and abs(starts[last + 1] - starts[last] - step) <= most:
            last += 1
        while first and abs(starts[first] - starts[first - 1] - step) <= most:
            first -= 1
        # Who reads on need not be the foremost; but what lies before him may be older, and not of them.
        if not self._are_abreast(starts[first : last + 1]):
            first = at
            if not self._are_abreast(starts[at : last + 1]):
                return
        self._step_blocks, self._members, self._round = step, last - first + 1, 0
        self._from_block, self.filled_block = starts[first], self._ends[starts[first]]
        self._fill(starts[last] + step, block_count)

    def _are_abreast(self, starts: list[int]) -> bool:
        members = len(starts)
        since = self._count - min(self._begun[start] for start in starts)
        return (
            _FEWEST <= members <= _BATCHES_EACH * len({self._tasks[start] for start in starts})
            and since <= _STRAYS * members
        )

    @property
    def is_seen(self) -> bool:
        """There are some, as it seems."""
        return bool(self._step_blocks)

    def is_filled(self, block: int) -> bool:
        """What was given out holds this block: who stands there is not idle, his turn comes."""
        return bool(self._step_blocks) and self._from_block <= block < self.filled_block

    def _round_of(self, start_block: int, task_id: int, most_blocks: int) -> int:
        """How many steps one of them went on by, from where he was given all; 0 if it is none of them, or too far."""
        before = [start for start, task in self._tasks.items() if task == task_id and start < self.filled_block]
        if len(before) != 1 or before[0] < self._from_block or start_block - self.filled_block > most_blocks:
            return 0
        return round((start_block - before[0]) / self._step_blocks)

    def _fill(self, end_block: int, block_count: int) -> None:
        end_block = min(end_block, block_count)
        if end_block > self.filled_block:
            self.waited.append(BlockRange(self.filled_block, end_block - self.filled_block))
            self.filled_block = end_block
