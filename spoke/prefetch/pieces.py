"""Matches READs with what an order predicted, and keeps the account of it: what was read, and what was fetched in vain. Pure."""

from __future__ import annotations

from collections.abc import Callable

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockRange
from spoke.prefetch.cursor import TOGETHER_STEPS, Cursor, Item, Marks, State
from spoke.prefetch.foretelling import Foretelling
from spoke.prefetch.gate import Gate
from spoke.prefetch.matching import fulfilled, fulfilled_exactly
from spoke.prefetch.next_use import Use, Used, pieces_of
from spoke.prefetch.predictions import Predictions

_PAGE = 4096


class Pieces:
    """Of one order. ``reads``: of its files, so far; ``matched_reads``: those that it had foretold, or that showed where somebody is.

    ``reshaped`` is called when the kernel's READs turn out to have another shape than was foretold.
    """

    def __init__(
        self,
        foretelling: Foretelling,
        unread_bytes: Callable[[bytes, BlockRange], int],
        used: Used,
        reshaped: Callable[[], None],
        *,
        is_learned: bool,
    ) -> None:
        self._foretelling = foretelling
        self._unread_bytes = unread_bytes
        self._used = used
        self._reshaped = reshaped
        self._is_learned = is_learned
        self.predictions = Predictions()
        self.marks = Marks()
        self.gate = Gate(limits.LEARN_GATE_ALLOWANCE_BYTES, limits.LEARN_GATE_WASTE_SHARE) if is_learned else Gate()
        self.reads = 0
        self.matched_reads = 0
        self.used_bytes = 0
        self.wasted_bytes = 0

    def evicted(self, wasted_bytes: int) -> None:
        """So much of what it fetched left the cache before anybody read it."""
        self.wasted_bytes += wasted_bytes
        self.gate.wasted(wasted_bytes)

    def learn_shape(self, file: int, vote: int) -> None:
        if self._foretelling.learn_shape(file, vote):
            self._reshaped()

    def match(self, file: int, start_bytes: int, end_bytes: int, *, is_kernels_own: bool) -> Item | None:
        """The prediction that a READ fulfils, it and its companions now marked as read; None if there is none."""
        hits = self.predictions.touched(file, start_bytes, end_bytes)
        if not hits:
            return None
        if self._is_learned:
            return self._match_recorded(hits, start_bytes, end_bytes)
        is_mapped = self._foretelling.shapes.faults(file)
        match = (
            fulfilled_exactly(hits, start_bytes, end_bytes)
            if is_kernels_own
            else fulfilled(
                hits,
                start_bytes,
                end_bytes,
                fault_bytes=self._foretelling.shapes.fault_bytes(file),
                is_mapped=is_mapped,
                goes_on=self._foretelling.pages.goes_on(file, start_bytes),
            )
        )
        if match is None:
            self._cover(hits, start_bytes, end_bytes, None)
            return None
        if match.vote:
            self.learn_shape(file, match.vote)
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

    def kernel_reads(self, file: int, start_bytes: int, end_bytes: int, seed: Item | None) -> None:
        """Pages of a mapped file came; where somebody will come to the one now marked, the kernel reads on."""
        wanted_bytes = None if seed is None else max(start_bytes, seed.start_bytes)
        fault_bytes = self._foretelling.shapes.fault_bytes(file)
        mark = self._foretelling.kernel.read(file, start_bytes, end_bytes, fault_bytes, wanted_bytes)
        if mark is None:
            return
        mark_bytes = mark * BLOCK_BYTES
        for item in self.predictions.touched(file, mark_bytes, mark_bytes + 1):
            # The READ may hold all that the step needs, so that it counts as read; who will take it has still to come.
            if item.state in (State.ASKED, State.SHADOW) or item.position > item.cursor.front:
                self._foretelling.read_on(file, mark, mark)
                return

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
        item.cursor.used_at_read = self.reads
        self.marks.set(item.cursor.lane, item.position, read=True)
        self._tell_used(item)

    def _tell_used(self, item: Item) -> None:
        version = self._foretelling.facts_of(item.file).version
        if self._foretelling.shapes.faults(item.file):  # READs of neighbours overlap
            for extent in range(item.first_block // EXTENT_BLOCKS, (item.end_block - 1) // EXTENT_BLOCKS + 1):
                self._used(version, BlockRange(extent * EXTENT_BLOCKS, EXTENT_BLOCKS))
        else:
            for blocks in pieces_of(item.start_bytes, item.end_bytes):
                self._used(version, blocks)

    def leave_behind(self, cursor: Cursor, between_bytes: int) -> None:
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
            self.expire(item)
            trail.append(item)
        forgotten_before = cursor.front - 4 * slack
        while trail and (trail[0].position < forgotten_before or len(trail) > limits.ORDER_AHEAD_MAX_STEPS):
            self.predictions.remove(trail.popleft())

    def expire_old(self, cursor: Cursor, places: int) -> None:
        """What should have been read long ago, by the number of reads seen since, will not be."""
        waiting = len(cursor.items) + len(cursor.behind)
        patience = (limits.ORDER_IDLE_READS + 4 * waiting) * places
        for items in (cursor.behind, cursor.items):
            while items and self.reads - items[0].foretold_at_read > patience:
                item = items.popleft()
                self.expire(item)
                cursor.trail.append(item)

    def expire(self, item: Item) -> None:
        """It will not be read, as it seems."""
        if item.state is State.ASKED:
            item.cursor.settle(item)
            # What was cached before costs nothing, and what the kernel had in its own cache it has read from here.
            item.cost_bytes = self._unread_bytes(self._foretelling.facts_of(item.file).version, item.blocks)
            self.wasted_bytes += item.cost_bytes
            self.gate.wasted(item.cost_bytes)
            item.state = State.EXPIRED
            self._tell_used(item)
        elif item.state is State.SHADOW:
            item.cursor.settle(item)
            self.gate.wasted(item.cost_bytes)
            item.state = State.EXPIRED_SHADOW

    def awaited(self, file: int, start_bytes: int, end_bytes: int) -> list[Use]:
        """What it fetched ahead of a reader, or found to be there, and nobody has read since: also of a step that was read in part."""
        uses: list[Use] = []
        start_bytes = max(
            0, start_bytes - self._foretelling.shapes.fault_bytes(file)
        )  # a READ may go on into these bytes
        for item in self.predictions.touched(file, start_bytes, end_bytes):
            if item.state is State.ASKED:
                uses.append(Use(max(0, item.position - item.cursor.front), item.blocks))
        return uses
