"""What the order of visits tells about the runs of one file: readers that take turns, and places that are read on at once. Pure.

One thread that reads many places by turns waits a round trip for each of them again until each has shown itself alone. Together they
show themselves sooner: that random reads go on two runs in the order in which these were last visited is next to impossible. And where
each of the last places was read on as soon as it was begun, so, most likely, will be the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spoke.prefetch.streams import Run

_CHANCE = 1e-4
"""Of ten thousand random reads one may be taken for a turn that is kept: it fetches 12 times 256 KiB, where 128 KiB are read."""

_FEWEST = 3
"""Two workers that each read a record in several READs come in the same order by and by; three in a row hardly."""

_VISITS = 16

_AHEAD = 4
_KEPT_MAX = 64

_BURSTS = 3
_BURSTS_MOST = 64
"""So many places in a row must have been read on before the next is fetched ahead; twice as many after each that was not."""

_BURST_MAX_BLOCKS = 256


class Turns:
    """``kept``: the runs, no streams yet when they were visited, that lately came in the same order as the time before.

    Each run knows which was visited after it (``after_id``), so a visit costs a comparison, however many there are. ``has_news``: one
    more came in its turn, ``count`` in a row. ``share``: of the last visits those that came in their turn.
    """

    __slots__ = ("count", "has_news", "kept", "last", "share")

    def __init__(self) -> None:
        self.last: Run | None = None
        self.kept: list[Run] = []
        self.has_news = False
        self.share = 1.0
        self.count = 0

    def begun(self, run: Run) -> None:
        """A read went where no run ends."""
        if self.last is not None:
            self.last.after_id = run.stream_id
        self.last = run
        if self.count:
            self._break()

    def visited(self, run: Run) -> None:
        """A read went on with a run."""
        last = self.last
        if last is run:
            return
        if last is not None:
            if last.after_id == run.stream_id:
                self.share += (1.0 - self.share) / _VISITS
            else:
                self.share -= self.share / _VISITS
                last.after_id = run.stream_id
                if self.count:
                    self._break()
        self.last = run
        if run.window is None or run.on_faith:
            if run.on_faith:
                run.on_faith = False
                run.evidence_blocks = run.next_block - run.start_block
            self.count += 1
            self.has_news = self.count >= _FEWEST
            if run.window is None and len(self.kept) < _KEPT_MAX:
                self.kept.append(run)

    def are_kept(self, ends: int, read_blocks: int, block_count: int) -> bool:
        """No chance: one of ``ends`` was met, and each time after that just the one whose turn it was."""
        self.has_news = False
        probability = max(2, read_blocks) / block_count
        return probability < 1.0 and ends * probability ** min(self.count, _KEPT_MAX) < _CHANCE

    @property
    def ahead(self) -> int:
        """How many of those whose turn comes next are believed: the more, the more have kept theirs."""
        return _AHEAD * self.count

    def _break(self) -> None:
        self.count = 0
        self.has_news = False
        self.kept.clear()


class Beginnings:
    """Whether places of a file, once begun, are read on at once, and how far; of the shortest among the last ones in a row.

    ``blocks``: what a place that begins now is worth from its beginning on; 0: nothing is known. ``wasted_blocks``: guessed and not
    read, until taken.

    ``run``: the place begun last, of which ``guessed_block`` was fetched (0: nothing); ``count`` before it were read on in a row.
    """

    __slots__ = ("_needed", "_shortest_blocks", "blocks", "count", "guessed_block", "run", "wasted_blocks")

    def __init__(self) -> None:
        self.run: Run | None = None
        self._shortest_blocks = 0
        self.count = 0
        self._needed = _BURSTS
        self.guessed_block = 0
        self.blocks = 0
        self.wasted_blocks = 0

    def begun(self, run: Run, last: Run | None) -> None:
        """A place was begun; ``last`` was read before."""
        before = self.run
        self.run = run
        if before is None:
            return
        if self.guessed_block:
            self.wasted_blocks += max(0, self.guessed_block - before.next_block)
            self.guessed_block = 0
        if before is last and before.reads > 1:
            blocks = before.next_block - before.start_block
            self._shortest_blocks = min(self._shortest_blocks, blocks) if self.count else blocks
            if self.blocks:
                self._needed = max(_BURSTS, self._needed - 1)
            self.count += 1
            if self.count >= self._needed:
                self.blocks = min(self._shortest_blocks, _BURST_MAX_BLOCKS)
        elif self.count:
            if self.blocks:
                self._needed = min(2 * self._needed, _BURSTS_MOST)
            self.count = self.blocks = 0

    def guessed(self, end_block: int) -> None:
        """Of the place begun last so much was fetched."""
        self.guessed_block = end_block
