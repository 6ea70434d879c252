"""Finds sequential runs among the reads of one file, by place alone.

Handles and threads say little: forked workers share a descriptor, page faults of one reader come from many threads,
and the kernel sends readahead out of order. So a read belongs to the run that ends where it begins, whoever made it,
and runs that come to touch are one. Every lookup is one dict access; a page of overlap (page-rounded reads) is forgiven.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from enum import Enum

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange
from spoke.prefetch.abreast import Abreast
from spoke.prefetch.quiet import Quiet
from spoke.prefetch.turns import Beginnings, Turns
from spoke.prefetch.window import Window

RANDOM_FAULT_BLOCKS = 32
"""A random page fault arrives as a READ of exactly 128 KiB, centred on the page, so seldom aligned to its own size."""

_HISTORY_READS = 32
_RANDOM_SHARE = 0.25
_RUNS_SHARE = 0.5
_IDLE_READS = 48
"""A run that was passed over by so many reads, and two for each other stream, was met by chance: it shows itself anew."""

_LOOK_READS = 16

_READS_NORMAL, _READS_FAULT, _READS_RANDOM, _READS_DISTRUSTED = 2, 3, 4, 8
_CHANCE = math.log(0.01)
"""A run that random reads would bring about less often than this is taken for a stream."""

_DENSE = 0.25
_STREAK = 4
_SOON_READS = 16
_SOON_STREAMS_MAX = 64
"""Where chance joins that often, a stream is what went on four times, each within so many reads (and two for each other stream)."""


_FAITH_SHARE = 4
"""Whose turn comes next gets a window for a part of what it has read: two READs, not a whole extent, until it is read again."""

_TURNS_SHARE = 0.45
"""Of the last visits so many came in their turn: readers at their own pace bring about less, lanes by turns more, uneven ones too."""

_STRAYS = 1.25
"""Candidates for each read of a round, at most: where readers take turns, hardly any place was begun and left."""


class Join(Enum):
    NEW = "new"
    JOINED = "joined"
    EARLIER = "earlier"  # it ends where a young run begins: its reads came out of order, or go backwards
    ECHO = "echo"  # the place a run has just read, read again (a second reader at its heels)


class Run:
    """A contiguous run of reads: blocks from ``start_block`` up to ``next_block``, in ``reads`` reads.

    Once ``window`` is there it is a stream, planned up to ``planned_block``. ``evidence_blocks``: what it has read in a
    row. ``charged_blocks``: what was written off as wasted when the file was closed. ``downward_reads``: its last so many reads each
    came before the one before. ``streak``: of its reads so many came at its end and soon one after another. ``after_id``: the run that
    was visited after it. ``on_faith``: a stream because its turn comes, and not read since. ``quiet``: its reader, while his reads are
    only noted.
    """

    __slots__ = (
        "after_id",
        "charged_blocks",
        "downward_reads",
        "evidence_blocks",
        "last_read",
        "last_read_s",
        "next_block",
        "on_faith",
        "planned_block",
        "quiet",
        "reads",
        "start_block",
        "streak",
        "stream_id",
        "window",
    )  # fmt: skip

    def __init__(self, stream_id: int, start_block: int, next_block: int, now_s: float) -> None:
        self.stream_id = stream_id
        self.start_block = start_block
        self.next_block = next_block
        self.planned_block = next_block
        self.reads = 1
        self.evidence_blocks = next_block - start_block
        self.last_read_s = now_s
        self.last_read = 0
        self.charged_blocks = 0
        self.downward_reads = 1
        self.streak = 1
        self.after_id = 0
        self.on_faith = False
        self.quiet: Quiet | None = None
        self.window: Window | None = None

    @property
    def place_block(self) -> int:
        """Where it is read next, with what was only noted."""
        quiet = self.quiet
        return self.next_block if quiet is None else max(self.next_block, quiet.next_bytes // BLOCK_BYTES)

    @property
    def ahead_blocks(self) -> int:
        """Planned and not yet read."""
        return max(0, self.planned_block - self.next_block)


class RunTable:
    """The runs of one file of ``block_count`` blocks. Bounded: candidates (not yet streams) and streams each forget the longest unread.

    ``dropped`` collects the streams that were forgotten or merged away, until the planner takes them.
    """

    def __init__(self, block_count: int) -> None:
        self._block_count = block_count
        self._by_next: dict[int, Run] = {}
        self._by_start: dict[int, Run] = {}  # candidates only: what a late-coming earlier read joins
        self._stream_by_start: dict[int, Run] = {}  # what the stream before it runs into, once a gap is filled
        self._candidates: OrderedDict[int, Run] = OrderedDict()
        self._streams: OrderedDict[int, Run] = OrderedDict()
        self._join_share = 0.5
        self._reads = 0
        self._away_reads = 0  # since the run read last was read before that
        self._round_reads = 0  # of the readers that took turns, if any did
        self._turns = Turns()
        self.beginnings = Beginnings()
        self.abreast = Abreast(block_count)
        self.dropped: list[Run] = []
        self.is_time_to_look = False
        """Every so many reads: streams may have gone idle."""

    def __len__(self) -> int:
        return len(self._streams)

    def streams(self) -> list[Run]:
        """The longest unread first."""
        return list(self._streams.values())

    def is_stream_at(self, block: int) -> bool:
        """A stream is read here next."""
        run = self._by_next.get(block) or self._by_next.get(block + 1)
        return run is not None and run.window is not None

    def until_another(self, next_block: int, end_block: int) -> int:
        """The first place before ``end_block`` where another run begins, which one at ``next_block`` will come to; or ``end_block``."""
        for starts in (self._stream_by_start, self._by_start):
            if len(starts) > 1 or starts is self._by_start:
                for start_block in starts:
                    if next_block <= start_block < end_block:
                        end_block = start_block
        return end_block

    def idle(self) -> list[Run]:
        """Streams that reads have passed over, with something planned: what was guessed in them was wrong, as it seems."""
        found: list[Run] = []
        for run in self._streams.values():
            if self._reads - run.last_read <= self._soon_reads:
                break  # the longest unread come first
            if run.ahead_blocks > run.charged_blocks and (run.quiet is None or not run.quiet.reads):
                found.append(run)
        return [run for run in found if not self.abreast.is_filled(run.next_block)]

    @property
    def takes_turns(self) -> bool:
        """Streams are visited in the same order again and again: where the next piece of one is due, he is to be heard at once."""
        return self._turns.share >= _TURNS_SHARE and len(self._streams) > 1

    @property
    def looks_random(self) -> bool:
        """Few of the last reads followed another."""
        return self._join_share < _RANDOM_SHARE

    def observe(self, start_block: int, end_block: int, now_s: float, new_id: int) -> tuple[Run, Join]:
        """The run that a read of blocks ``start_block`` to ``end_block`` (not empty) belongs to; ``new_id`` if it begins one."""
        self._reads += 1
        self.is_time_to_look = not self._reads % _LOOK_READS
        by_next, by_start = self._by_next, self._by_start
        run = by_next.get(start_block)
        if run is None and end_block > start_block + 1:
            run = by_next.get(start_block + 1)
        if run is not None:
            self._extend(run, end_block, now_s)
            if end_block in by_next or end_block in by_start or end_block in self._stream_by_start:
                run = self._merge_at_end(run)
            else:
                by_next[end_block] = run
            if self._turns.last is not run:
                self._turns.visited(run)
            self._join_share += (1.0 - self._join_share) / _HISTORY_READS
            return run, Join.JOINED
        echoed = by_next.get(end_block)
        if echoed is not None:
            echoed.last_read_s = now_s
            echoed.last_read = self._reads
            return echoed, Join.ECHO
        later = by_start.pop(end_block, None)
        if later is not None:  # the earlier read came second
            self._extend_down(later, start_block, end_block, now_s)
            return later, Join.EARLIER
        run = Run(new_id, start_block, end_block, now_s)
        run.last_read = self._reads
        # One begun and left, after another such: most reads at random are. Calls would be half of what that costs.
        turns, beginnings = self._turns, self.beginnings
        last = turns.last
        if beginnings.count or beginnings.guessed_block or (last is not None and last.reads > 1):
            beginnings.begun(run, last)
        else:
            beginnings.run = run
        if turns.count or last is None:
            turns.begun(run)
        else:
            last.after_id = new_id
            turns.last = run
        self._join_share -= self._join_share / _HISTORY_READS
        candidates = self._candidates
        if start_block in by_start:
            self._forget_candidate(by_start[start_block])
        candidates[new_id] = run
        by_next[end_block] = run
        by_start[start_block] = run
        if len(candidates) > limits.PREFETCH_CANDIDATES_PER_FILE:
            _, oldest = candidates.popitem(last=False)
            if by_start.get(oldest.start_block) is oldest:
                del by_start[oldest.start_block]
            if by_next.get(oldest.next_block) is oldest:
                del by_next[oldest.next_block]
        return run, Join.NEW

    def is_stream(self, run: Run, start_block: int, end_block: int, *, trusted: bool) -> bool:
        """Whether a candidate, whose latest read this was, has shown enough: the less likely streams are here, the more it takes."""
        if not trusted:
            # Where most places are read sooner or later, runs grow long by chance, but not soon.
            return run.reads >= _READS_DISTRUSTED and run.streak >= _READS_DISTRUSTED
        if run.downward_reads > _READS_NORMAL or (run.downward_reads > 1 and start_block):
            return False  # going backwards, or two reads out of order: the next one tells
        if self.looks_random:
            return run.reads >= _READS_RANDOM and not self._may_be_chance(run, end_block - start_block)
        if start_block == 0:
            return True  # a file read from its first byte on
        if run.reads < _READS_NORMAL:
            return False
        unaligned = start_block % RANDOM_FAULT_BLOCKS != 0
        if unaligned and end_block - start_block == RANDOM_FAULT_BLOCKS and run.reads < _READS_FAULT:
            return False
        return not self._may_be_chance(run, end_block - start_block)

    @property
    def may_be_turns(self) -> bool:
        """:meth:`in_turn` may give something."""
        return self._turns.has_news

    def in_turn(self, run: Run, read_blocks: int) -> list[Run]:
        """Candidates that are streams, as this read of ``run`` shows: those that were read again in their order, and the next ones.

        The next ones (``on_faith``) have shown no more themselves than that they began, and are worth a quarter of it.
        """
        turns = self._turns
        if not turns.are_kept(len(self._by_next) + len(self._by_start), read_blocks, self._block_count):
            return []
        round_reads = max(self._away_reads, self._round_reads)
        if len(self._candidates) > _STRAYS * round_reads:
            return []  # most of what was begun here came to nothing: records, read by several at a time
        self._round_reads = round_reads
        found = {kept.stream_id: kept for kept in turns.kept if self._candidates.get(kept.stream_id) is kept}
        turns.kept.clear()
        most_blocks = run.next_block - run.start_block
        after = run
        for _ in range(turns.ahead):
            following = self._candidates.get(after.after_id) or self._streams.get(after.after_id)
            if following is None or following is run:
                break
            after = following
            read_blocks = after.next_block - after.start_block
            if after.window is None and read_blocks <= most_blocks and after.stream_id not in found:
                after.on_faith = True
                after.last_read = self._reads
                after.evidence_blocks = max(1, after.evidence_blocks // _FAITH_SHARE)
                found[after.stream_id] = after
        return list(found.values())

    def is_believed(self, run: Run, start_block: int, end_block: int) -> bool:
        """Whether a stream may go on in a file that wastes much: it has read enough in a row since it last lost what it had planned."""
        return (
            run.streak >= _READS_DISTRUSTED
            and self._join_share >= _RUNS_SHARE
            and run.evidence_blocks >= _READS_DISTRUSTED * (end_block - start_block)
        )

    def lost(self, blocks: BlockRange) -> None:
        """Blocks were evicted before anybody read them: the streams that had planned them begin again to show themselves."""
        for run in self._streams.values():
            if run.next_block < blocks.end_block and blocks.first_block < run.planned_block:
                run.evidence_blocks = 0

    def _may_be_chance(self, run: Run, read_blocks: int) -> bool:
        """Random reads of this size hit an end of some run so often that one as long as this proves nothing."""
        ends = len(self._by_next) + len(self._by_start)
        probability = ends * read_blocks / self._block_count
        if probability >= _DENSE and run.streak < _STREAK:
            return True  # so many ends that every read meets one: a stream also goes on soon
        if probability >= 1.0:
            return run.reads < _READS_DISTRUSTED
        return run.reads < min(_READS_DISTRUSTED, 1 + _CHANCE / math.log(probability))

    def promote(self, run: Run, read_blocks: int, window: Window) -> list[Run]:
        """Make a candidate a stream, by a read of ``read_blocks``. Inside what another stream has planned, it takes up from there.

        Returns the streams it goes on for, whose readers skipped a little.
        """
        continued: list[Run] = []
        if run.reads > _READS_NORMAL:
            run.evidence_blocks = (
                read_blocks  # a doubtful case: the run that convinced us does not also widen the window
            )
        del self._candidates[run.stream_id]
        if self._by_start.get(run.start_block) is run:
            del self._by_start[run.start_block]
        run.window = window
        run.planned_block = run.next_block
        for other in self._streams.values():
            if other.start_block <= run.next_block <= other.planned_block:
                run.planned_block = max(run.planned_block, other.planned_block)
                if run.start_block >= other.next_block:  # its reader skipped a little: this is the same stream
                    continued.append(other)
                    run.evidence_blocks += other.evidence_blocks
                    other.evidence_blocks = 0
                    other.planned_block = other.next_block
                    if other.window is not None:
                        window.window_bytes = max(window.window_bytes, other.window.window_bytes)
        self._streams[run.stream_id] = run
        self._stream_by_start.setdefault(run.start_block, run)
        if len(self._streams) > limits.PREFETCH_STREAMS_PER_FILE:
            self._forget_stream(next(iter(self._streams.values())))
        return continued

    def anticipate(self, new_id: int, window: Window, evidence_blocks: int, now_s: float) -> Run:
        """A stream at the first block of a file nobody has read yet; it goes on what the one before it has shown."""
        run = Run(new_id, 0, 0, now_s)
        run.window = window
        run.evidence_blocks = evidence_blocks
        self._by_next.setdefault(0, run)
        self._streams[new_id] = run
        return run

    # --- bookkeeping -------------------------------------------------------------------------------------

    def _extend(self, run: Run, end_block: int, now_s: float) -> None:
        del self._by_next[run.next_block]
        if run.window is not None and self._reads - run.last_read > _IDLE_READS and self._is_idle(run):
            run.evidence_blocks = 0
        reads = self._reads
        self._away_reads = away_reads = reads - run.last_read
        soon = away_reads <= _SOON_READS or away_reads <= self._soon_reads
        run.streak = run.streak + 1 if soon else 1
        run.last_read = reads
        run.evidence_blocks += end_block - run.next_block
        run.next_block = end_block
        run.reads += 1
        run.downward_reads = 1
        run.last_read_s = now_s
        run.quiet = None
        (self._candidates if run.window is None else self._streams).move_to_end(run.stream_id)

    def _extend_down(self, run: Run, start_block: int, end_block: int, now_s: float) -> None:
        run.evidence_blocks += end_block - start_block
        run.start_block = start_block
        run.reads += 1
        run.downward_reads += 1
        run.last_read_s = now_s
        self._by_start[start_block] = run
        self._candidates.move_to_end(run.stream_id)
        self._turns.visited(run)
        self._join_share += (1.0 - self._join_share) / _HISTORY_READS

    def _merge_at_end(self, run: Run) -> Run:
        """Join what begins where ``run`` ends (it came early) and what ends there too; returns the one that stays."""
        early = self._by_start.get(run.next_block)
        while early is not None and early is not run:
            self._forget_candidate(early)
            run.evidence_blocks += early.evidence_blocks
            run.next_block = early.next_block
            run.reads += early.reads
            early = self._by_start.get(run.next_block)
        ahead = self._stream_by_start.get(run.next_block)
        if ahead is not None and ahead is not run and ahead.next_block > run.next_block and not self._is_idle(ahead):
            return self._absorb(ahead, run)
        other = self._by_next.get(run.next_block)
        if other is not None and other is not run:
            if other.window is not None and (run.window is None or other.evidence_blocks >= run.evidence_blocks):
                run, other = other, run
            run.last_read_s = max(run.last_read_s, other.last_read_s)
            run.planned_block = max(run.planned_block, other.planned_block)
            other.planned_block = other.next_block
            if other.window is None:
                self._forget_candidate(other)
            else:
                self._forget_stream(other)
        self._by_next[run.next_block] = run
        return run

    @property
    def _soon_reads(self) -> int:
        return _SOON_READS + 2 * min(max(len(self._streams), self._round_reads), _SOON_STREAMS_MAX)

    def _is_idle(self, run: Run) -> bool:
        is_left = self._reads - run.last_read > _IDLE_READS + 2 * len(self._streams)
        return is_left and not self.abreast.is_filled(run.next_block)

    def _absorb(self, ahead: Run, run: Run) -> Run:
        """``run`` came to where the stream ``ahead`` begins: its reader is there already, so they are one from here on."""
        del self._stream_by_start[ahead.start_block]
        ahead.start_block = run.start_block
        ahead.evidence_blocks = max(ahead.evidence_blocks, run.evidence_blocks)
        ahead.planned_block = max(ahead.planned_block, run.planned_block)
        ahead.last_read_s, ahead.last_read = run.last_read_s, run.last_read
        ahead.charged_blocks += run.charged_blocks
        run.planned_block = run.next_block
        if run.window is None:
            self._forget_candidate(run)
        else:
            if ahead.window is not None:
                ahead.window.window_bytes = max(ahead.window.window_bytes, run.window.window_bytes)
            self._forget_stream(run)
        self._stream_by_start.setdefault(ahead.start_block, ahead)
        self._streams.move_to_end(ahead.stream_id)
        return ahead

    def _forget_candidate(self, run: Run | None) -> None:
        if run is None:
            return
        self._candidates.pop(run.stream_id, None)
        if self._by_start.get(run.start_block) is run:
            del self._by_start[run.start_block]
        if self._by_next.get(run.next_block) is run:
            del self._by_next[run.next_block]

    def _forget_stream(self, run: Run) -> None:
        self._streams.pop(run.stream_id, None)
        if self._stream_by_start.get(run.start_block) is run:
            del self._stream_by_start[run.start_block]
        if self._by_next.get(run.next_block) is run:
            del self._by_next[run.next_block]
        self.dropped.append(run)
