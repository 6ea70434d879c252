"""Streams that run ahead of their readers: how wide each one's window is, what is planned in it next, and up to where its reader need
not be heard. Pure.

All streams share the windows' bytes. Room in a window is filled a piece at a time, in turns.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, BlockRange
from spoke.prefetch.accounts import Accounts
from spoke.prefetch.known_file import WHOLE_EXTENTS_FROM_BYTES, Job, KnownFile, piece_blocks, window_end
from spoke.prefetch.quiet import Quiet
from spoke.prefetch.scorecard import Ledger, Reason
from spoke.prefetch.source import Fetch, ReadSeen
from spoke.prefetch.streams import Run
from spoke.prefetch.window import Latency, Window

_UNHEARD_FROM_BYTES = 8 * EXTENT_BYTES
_UNHEARD_SHARE = 2
"""So much of its window a stream alone may be read on, its pieces planned, before it is learnt from: so its order is recorded late, too."""

_QUIET_MAX_S = limits.PREFETCH_ACTIVE_S / 4
_START_BLOCKS = limits.PREFETCH_START_BYTES // BLOCK_BYTES


class StreamWindows:
    """``jobs``: room to fill, whole files included, by stream. ``stream_max_bytes``, ``windows_max_bytes``: as the planner's.

    ``reached_end`` is told of a stream whose file is planned up to its end.
    """

    def __init__(
        self,
        accounts: Accounts,
        ledger: Ledger,
        latency: Latency,
        *,
        stream_max_bytes: int,
        windows_max_bytes: int,
        reached_end: Callable[[float, KnownFile, Run], None],
    ) -> None:
        self._accounts = accounts
        self._ledger = ledger
        self._latency = latency
        self._stream_max_bytes = stream_max_bytes
        self._windows_max_bytes = windows_max_bytes
        self._reached_end = reached_end
        self.jobs: OrderedDict[int, Job] = OrderedDict()
        self.active: OrderedDict[int, Run] = OrderedDict()
        self._all_active_until_s = 0.0
        self._keep_bytes, self._together_bytes = sys.maxsize, windows_max_bytes

    @property
    def active_count(self) -> int:
        return len(self.active)

    def inactive(self, run: Run) -> None:
        """Another goes on for it, or it takes a share for PREFETCH_ACTIVE_S more."""
        self.active.pop(run.stream_id, None)

    def drop(self, run: Run) -> None:
        """Its file forgot it."""
        self.active.pop(run.stream_id, None)
        self.jobs.pop(run.stream_id, None)

    def keep_within(self, most_bytes: int | None) -> None:
        """All windows together are no larger for now, however large they have become; None: that is over."""
        self._keep_bytes = sys.maxsize if most_bytes is None else max(limits.PREFETCH_WINDOW_MIN_BYTES, most_bytes)
        self._together_bytes = min(self._windows_max_bytes, self._keep_bytes)

    def widen(self, now_s: float, file: KnownFile, run: Run, read_bytes: int, *, late: bool) -> int:
        """Returns the block up to which further reads of the run would change nothing here."""
        window = run.window
        assert window is not None
        active = self.active
        if run.stream_id in active:
            active.move_to_end(run.stream_id)
        else:
            active[run.stream_id] = run
        if len(active) > 1 and (now_s > self._all_active_until_s or len(active) > limits.PREFETCH_ACTIVE_MAX_STREAMS):
            self._forget_inactive(now_s)
        cap_bytes = min(self._stream_max_bytes, self._together_bytes // len(active))
        window.read(
            now_s,
            read_bytes,
            run.evidence_blocks * BLOCK_BYTES,
            late=late,
            latency_s=self._latency.latency_s,
            cap_bytes=max(limits.PREFETCH_WINDOW_MIN_BYTES, cap_bytes),
        )
        if run.next_block >= file.block_count:
            active.pop(run.stream_id, None)  # done: it needs no share
        return self._fill(now_s, file, run, run.next_block, window)

    def quiet(self, seen: ReadSeen, file: KnownFile, run: Run, end_block: int, quiet_block: int) -> Quiet:
        """The reader of a stream, which was read up to ``end_block``, if nothing is to be planned up to ``quiet_block``."""
        run.quiet = quiet = Quiet(seen, self._quiet_bytes(file, end_block, quiet_block))
        window = run.window
        if window is None or window.window_bytes < _UNHEARD_FROM_BYTES or len(self.active) != 1:
            return quiet  # of several, each is heard: how many they are tells how wide their windows may be
        # Being late widens a full one no more; where the link is the limit, most READs are late.
        quiet.takes_late = window.is_full and run.planned_block < file.block_count
        if window.is_steady:
            unheard_bytes = min(window.window_bytes // _UNHEARD_SHARE, int(window.rate_bytes_per_s * _QUIET_MAX_S))
            quiet.go_on = partial(self._go_on, file, run, end_block + unheard_bytes // BLOCK_BYTES)
        return quiet

    def plan(self, now_s: float, budget_bytes: int, fetches: list[Fetch]) -> list[Fetch]:
        """What to fetch now beside ``fetches``, round the streams with room an extent at a time."""
        paused: list[tuple[int, Job]] = []
        jobs, keep_bytes = self.jobs, self._keep_bytes
        while jobs and budget_bytes >= BLOCK_BYTES:
            stream_id, job = jobs.popitem(last=False)
            file, run, reason = job
            if run.window is None:
                continue
            if now_s < file.paused_until_s:
                paused.append((stream_id, job))
                continue
            next_block = run.place_block
            first_block = run.planned_block if run.planned_block > next_block else next_block
            window_bytes = run.window.window_bytes
            window_bytes = window_bytes if window_bytes < keep_bytes else keep_bytes
            end_block = window_end(file, next_block, window_bytes)
            # A dozen connections bring a dozen extents at once, the first when the last: where the reader is near, pieces come in order.
            # On a short path the window stays small for good; what ends the start is that much read in a row.
            if (
                first_block - next_block < _START_BLOCKS
                and run.evidence_blocks < _START_BLOCKS
                and reason is Reason.SEQUENTIAL
                and self._latency.rtt_s > limits.PREFETCH_SHORT_RTT_S
            ):
                begun = run.evidence_blocks >= EXTENT_BLOCKS
                cut_blocks = limits.PREFETCH_BEGUN_PIECE_BLOCKS if begun else limits.PREFETCH_START_PIECE_BLOCKS
                stop_block = min(first_block + cut_blocks, (first_block // EXTENT_BLOCKS + 1) * EXTENT_BLOCKS)
            else:
                more_blocks = EXTENT_BLOCKS  # in turns, where others wait too
                if not jobs:
                    more_blocks = max(EXTENT_BLOCKS, min(piece_blocks(window_bytes), budget_bytes // BLOCK_BYTES))
                stop_block = (first_block + more_blocks) // EXTENT_BLOCKS * EXTENT_BLOCKS
            stop_block = min(stop_block, end_block)
            if stop_block <= first_block:
                continue
            if (stop_block - first_block) * BLOCK_BYTES > budget_bytes:
                if fetches:  # the next budget takes it whole
                    paused.append((stream_id, job))
                    break
                stop_block = first_block + budget_bytes // BLOCK_BYTES
            run.planned_block = stop_block
            version = file.facts.version
            blocks = BlockRange(first_block, stop_block - first_block)
            for fresh in self._ledger.plan(now_s, version, blocks, reason):
                fetches.append(Fetch(version, fresh, stream_id, reason, file.facts.size_bytes))
                budget_bytes -= fresh.block_count * BLOCK_BYTES
            if stop_block < end_block:
                jobs[stream_id] = job
                continue
            quiet = run.quiet
            if quiet is not None and file.runs.takes_turns:
                # Its job is done, so it is heard where the next piece is due: the others' turns wait for it.
                due_block = self._due_block(file, run.planned_block, window_bytes)
                quiet.until_bytes = min(quiet.until_bytes, due_block * BLOCK_BYTES)
            if stop_block == file.block_count and reason is Reason.SEQUENTIAL:
                self._reached_end(now_s, file, run)
        if paused:
            jobs.update(paused)
        return fetches

    def _go_on(self, file: KnownFile, run: Run, last_block: int, now_s: float, end_bytes: int) -> int:
        """A stream alone, whose READs were only noted, comes to ``end_bytes``, where its next piece is due: what READs teach can wait.

        Returns the offset up to which further READs change nothing, or 0: up to ``last_block`` at most, in the middle of a file, and
        while nobody else reads.
        """
        window, next_block = run.window, -(-end_bytes // BLOCK_BYTES)
        if window is None or next_block > last_block or run.charged_blocks:
            return 0
        if len(self.active) != 1 or run.stream_id not in self.active:
            return 0
        if window_end(file, next_block, window.window_bytes) >= file.block_count:
            return 0
        if not self._accounts.trusted(file):
            return 0
        quiet_block = self._fill(now_s, file, run, next_block, window)
        return self._quiet_bytes(file, next_block, quiet_block) if quiet_block > next_block else 0

    def _quiet_bytes(self, file: KnownFile, next_block: int, quiet_block: int) -> int:
        """As far as a stream read at ``next_block`` may come without being heard, if nothing is to be planned up to ``quiet_block``."""
        met_block = file.runs.until_another(next_block, quiet_block)
        if met_block < quiet_block:  # the read that comes there makes one of the two
            return met_block * BLOCK_BYTES - 1
        return quiet_block * BLOCK_BYTES

    def _fill(self, now_s: float, file: KnownFile, run: Run, next_block: int, window: Window) -> int:
        """Room in the window of a stream that is read at ``next_block`` becomes a job. Returns the block up to which none comes about."""
        # Whole extents where the window has room for them; the last piece of a file always.
        window_bytes = min(window.window_bytes, self._keep_bytes)
        piece_bytes = piece_blocks(window_bytes) * BLOCK_BYTES
        piece_bytes = min(piece_bytes, window_bytes // 4)
        planned_block = run.planned_block
        end_block = window_end(file, next_block, window_bytes)
        room_bytes = (end_block - (planned_block if planned_block > next_block else next_block)) * BLOCK_BYTES
        if room_bytes >= piece_bytes or (room_bytes > 0 and end_block == file.block_count):
            if run.stream_id not in self.jobs:
                self.jobs[run.stream_id] = Job(file, run, Reason.SEQUENTIAL)
        elif end_block == file.block_count:
            self._reached_end(now_s, file, run)
        if planned_block <= next_block or window.grows_unseen:
            return 0
        quiet_block = self._quiet_block(file, run, next_block, window_bytes, piece_bytes)
        if window.rate_bytes_per_s:  # it is not to be forgotten for a slow reader's silence
            most_bytes = max(EXTENT_BYTES, int(window.rate_bytes_per_s * _QUIET_MAX_S))
            quiet_block = min(quiet_block, next_block + most_bytes // BLOCK_BYTES)
        return quiet_block

    def _quiet_block(self, file: KnownFile, run: Run, next_block: int, window_bytes: int, piece_bytes: int) -> int:
        """The last block that the run, read at ``next_block``, can come to without room for the next piece in its window.

        What it wants already is asked for as soon as the budget has room; in a window of an extent or more it may come a piece further
        meanwhile. One of several by turns, for whom one thread waits, may come further, and is heard sooner once it has what it wants
        (:meth:`plan`). So it may where all of the file is planned, and its end makes room for the file after it; but its last read is
        heard.
        """
        if run.stream_id in self.jobs or run.planned_block >= file.block_count:
            if window_bytes < EXTENT_BYTES:
                return 0
            more_blocks = (window_bytes // 2 if file.runs.takes_turns else piece_bytes) // BLOCK_BYTES
            return min(next_block + more_blocks, run.planned_block, file.block_count - 1)
        return self._due_block(file, run.planned_block, window_bytes)

    def _due_block(self, file: KnownFile, planned_block: int, window_bytes: int) -> int:
        """The last block that a stream can come to before its next piece is due, if it is planned up to ``planned_block``."""
        piece_bytes = min(window_bytes // 4, piece_blocks(window_bytes) * BLOCK_BYTES)
        end_block = planned_block + -(-piece_bytes // BLOCK_BYTES)
        if window_bytes >= WHOLE_EXTENTS_FROM_BYTES:
            end_block = -(-end_block // EXTENT_BLOCKS) * EXTENT_BLOCKS
        return min(end_block, file.block_count) - window_bytes // BLOCK_BYTES - 1

    def _forget_inactive(self, now_s: float) -> None:
        """The longest unread no longer share the windows; there are two at least, and the last one was just read."""
        active = self.active
        idle_before_s = now_s - limits.PREFETCH_ACTIVE_S
        while True:
            oldest_id, oldest = next(iter(active.items()))
            if oldest.last_read_s >= idle_before_s and len(active) <= limits.PREFETCH_ACTIVE_MAX_STREAMS:
                self._all_active_until_s = oldest.last_read_s + limits.PREFETCH_ACTIVE_S
                return
            del active[oldest_id]
