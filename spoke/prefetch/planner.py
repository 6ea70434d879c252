"""Decides what to fetch ahead: reads and arrivals go in, fetches come out. Pure, and the same for the same events.

Three sources of foresight: sequential streams within a file, small files taken whole, and files read in directory order.
A stream gets a window that grows while its reads are late; the planner hands the budget round the streams that have
room, an extent at a time. What goes unread is charged, and whoever wastes too much must show longer runs first.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Literal, NamedTuple

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, BlockRange, count_blocks
from spoke.prefetch.chains import Chain, Chains, FileFacts, NextFile
from spoke.prefetch.scorecard import Ledger, Reason, Scorecard
from spoke.prefetch.streams import Join, Run, RunTable
from spoke.prefetch.strides import StrideTable
from spoke.prefetch.window import Latency, Trust, Window

_WHOLE_EXTENTS_FROM_BYTES = EXTENT_BYTES * 3 // 2

__all__ = ["Fetch", "FileFacts", "Planner", "ReadSeen"]


class ReadSeen(NamedTuple):
    """A READ at the mount. ``result``: ``hit`` (nobody waited for the hub), ``late`` (its data were on the way), ``miss``."""

    handle_id: int
    task_id: int
    version: bytes
    offset_bytes: int
    length_bytes: int
    result: Literal["hit", "late", "miss"]


class Fetch(NamedTuple):
    """Blocks to ask for; those present or in flight are the runner's to leave out. ``size_bytes``: of the file."""

    version: bytes
    blocks: BlockRange
    stream_id: int
    reason: Reason
    size_bytes: int


class _File:
    """What is known of one version: its runs and whether they pay.

    ``whole``: the plan of one that is fetched as a whole. ``following``: beginnings of the files after it, anticipated.
    """

    __slots__ = ("block_count", "chain", "facts", "following", "paused_until_s", "runs", "strides", "trust", "whole")

    def __init__(self, facts: FileFacts) -> None:
        self.facts = facts
        self.block_count = count_blocks(facts.size_bytes)
        self.runs = RunTable(self.block_count)
        self.strides = StrideTable(self.block_count)
        self.trust = Trust()
        self.paused_until_s = 0.0
        self.chain: Chain | None = None
        self.whole: Run | None = None
        self.following: list[_Job] = []


class _Quiet:
    """A reader inside what its stream has planned: until it comes to ``until_bytes``, its reads change no plan.

    They are gathered, and learnt from as one: ``last`` is the latest of them.
    """

    __slots__ = ("from_bytes", "last", "next_bytes", "reads", "until_bytes")

    def __init__(self, seen: ReadSeen, until_bytes: int) -> None:
        self.last = seen
        self.from_bytes = self.next_bytes = seen.offset_bytes + seen.length_bytes
        self.until_bytes = until_bytes
        self.reads = 0


class _Job(NamedTuple):
    """Room to fill: a file's blocks up to the end its stream's window allows."""

    file: _File
    run: Run
    reason: Reason


def _window_end(file: _File, next_block: int, window_bytes: int) -> int:
    """Where a window ends: with the file, or (unless it is small) with a whole extent, so that none is fetched in pieces."""
    end_block = next_block + window_bytes // BLOCK_BYTES
    if end_block >= file.block_count:
        return file.block_count
    return end_block - end_block % EXTENT_BLOCKS if window_bytes >= _WHOLE_EXTENTS_FROM_BYTES else end_block


def _no_next_file(_path: bytes) -> FileFacts | None:
    return None


class Planner:
    """``next_file``: the file after a path in its directory's order, a pure look-up (default: none).

    ``small_file_bytes``: files up to this size are fetched whole. ``stream_max_bytes``: how far one stream runs ahead.
    ``windows_max_bytes``: how far all do together.
    """

    def __init__(
        self,
        next_file: NextFile = _no_next_file,
        *,
        small_file_bytes: int = limits.PREFETCH_SMALL_FILE_BYTES,
        stream_max_bytes: int = limits.PREFETCH_STREAM_MAX_BYTES,
        windows_max_bytes: int = limits.PREFETCH_WINDOWS_MAX_BYTES,
    ) -> None:
        self.scorecard = Scorecard()
        self._small_file_bytes = small_file_bytes
        self._stream_max_bytes = stream_max_bytes
        self._windows_max_bytes = windows_max_bytes
        self._scattered: deque[tuple[_File, int, BlockRange]] = deque()
        self._chains = Chains(next_file)
        self._ledger = Ledger(self.scorecard)
        self._latency = Latency()
        self._trust = Trust()
        self._handles: dict[int, FileFacts] = {}
        self._open_counts: dict[bytes, int] = {}
        self._files: OrderedDict[bytes, _File] = OrderedDict()
        self._quiet: dict[bytes, _Quiet] = {}
        self._active: OrderedDict[int, Run] = OrderedDict()
        self._jobs: OrderedDict[int, _Job] = OrderedDict()
        self._next_id = 1
        self._latest_s = 0.0

    @property
    def outstanding_limit_bytes(self) -> int:
        """What may usefully be in flight as prefetch, by the link's figures: more would only queue before demand reads."""
        return self._latency.outstanding_limit_bytes

    @property
    def has_plans(self) -> bool:
        """:meth:`plan` may give something; asked after every read, so that most cost no more."""
        return bool(self._jobs or self._scattered)

    @property
    def active_streams(self) -> int:
        return len(self._active)

    # --- events ------------------------------------------------------------------------------------------

    def opened(self, now_s: float, handle_id: int, file: FileFacts, task_id: int) -> None:
        """A file was opened. Nothing is fetched before its first read: many opens are only looks."""
        if len(self._handles) < limits.PREFETCH_MAX_HANDLES:
            self._handles[handle_id] = file
            self._open_counts[file.version] = self._open_counts.get(file.version, 0) + 1

    def closed(self, now_s: float, handle_id: int) -> None:
        """A file was closed. With its last handle, what was planned in it and not read counts as wasted, until it is read."""
        facts = self._handles.pop(handle_id, None)
        if facts is None:
            return
        self._catch_up(now_s, facts.version)
        left = self._open_counts[facts.version] - 1
        if left:
            self._open_counts[facts.version] = left
            return
        del self._open_counts[facts.version]
        file = self._files.get(facts.version)
        if file is not None:
            self._charge_all(file)

    def link(self, rtt_s: float, rate_bytes_per_s: float) -> None:
        self._latency.link(rtt_s, rate_bytes_per_s)

    def arrived(self, now_s: float, version: bytes, blocks: BlockRange) -> None:
        self._latest_s = now_s
        took_s = self._ledger.arrived(now_s, version, blocks)
        if took_s is not None:
            self._latency.fetched(took_s)

    def failed(self, now_s: float, version: bytes, blocks: BlockRange) -> None:
        """A fetch failed: its blocks are not outstanding any more, and the file is left alone for a moment."""
        self._ledger.failed(version, blocks)
        file = self._files.get(version)
        if file is not None:
            file.paused_until_s = now_s + limits.PREFETCH_FAILURE_PAUSE_S

    def evicted(self, version: bytes, blocks: BlockRange) -> None:
        """The cache let blocks go (for the scorecard)."""
        self._catch_up(self._latest_s, version)
        wasted_bytes = self._ledger.evicted(version, blocks)
        file = self._files.get(version)
        if wasted_bytes and file is not None:
            file.trust.wasted(wasted_bytes)
            self._trust.wasted(wasted_bytes)
            file.runs.lost(blocks)

    def is_quiet(self, version: bytes, offset_bytes: int, length_bytes: int) -> bool:
        """Take note of a read that was a hit, if it goes on where the last one ended and nothing is to be planned for it yet.

        False: it is for :meth:`read`. Most hits of a stream end here, at the cost of one look-up.
        """
        quiet = self._quiet.get(version)
        if quiet is None or quiet.next_bytes != offset_bytes or offset_bytes + length_bytes > quiet.until_bytes:
            return False
        quiet.next_bytes = offset_bytes + length_bytes
        quiet.reads += 1
        return True

    def read(self, now_s: float, seen: ReadSeen) -> None:
        """Learn from a READ; what follows from it comes out of :meth:`plan`."""
        quiet = self._quiet.get(seen.version)
        if quiet is not None and quiet.reads and seen.result == "hit" and seen.offset_bytes == quiet.next_bytes:
            del self._quiet[seen.version]
            self.scorecard.hits += quiet.reads
            end_bytes = seen.offset_bytes + seen.length_bytes
            seen = seen._replace(offset_bytes=quiet.from_bytes, length_bytes=end_bytes - quiet.from_bytes)
        else:
            self._catch_up(now_s, seen.version)
        self._learn(now_s, seen)

    def _catch_up(self, now_s: float, version: bytes) -> None:
        """Learn from the reads that were only noted."""
        quiet = self._quiet.pop(version, None)
        if quiet is not None and quiet.reads:
            self.scorecard.hits += quiet.reads - 1
            length_bytes = quiet.next_bytes - quiet.from_bytes
            self._learn(
                now_s, quiet.last._replace(offset_bytes=quiet.from_bytes, length_bytes=length_bytes, result="hit")
            )

    def _learn(self, now_s: float, seen: ReadSeen) -> None:
        late = seen.result != "hit"
        self._score(seen)
        file = self._file_of(now_s, seen)
        if file is None or seen.length_bytes <= 0:
            return
        start_block = seen.offset_bytes // BLOCK_BYTES
        end_block = min(-(-(seen.offset_bytes + seen.length_bytes) // BLOCK_BYTES), file.block_count)
        if start_block >= end_block:
            return
        self._ledger.read(now_s, seen.version, BlockRange(start_block, end_block - start_block), late=late)
        read_bytes = (end_block - start_block) * BLOCK_BYTES
        file.trust.read_bytes += read_bytes
        self._trust.read_bytes += read_bytes
        if file.whole is not None:
            self._read_whole(file, file.whole, missed=seen.result == "miss")
            return
        run, join = file.runs.observe(start_block, end_block, now_s, self._new_id())
        if file.runs.dropped:
            self._settle(file)
        if join is Join.NEW or join is Join.EARLIER:
            self._stride(now_s, file, start_block, end_block, run.downward_reads, late=late)
        trusted = file.trust.earned and self._trust.earned
        if run.window is None:
            if not file.runs.is_stream(run, start_block, end_block, trusted=trusted):
                return
            for continued in file.runs.promote(run, end_block - start_block, Window(now_s)):
                self._active.pop(continued.stream_id, None)  # or it would take a share for PREFETCH_ACTIVE_S more
            self._settle(file)
        elif not trusted and not file.runs.is_believed(run, start_block, end_block):
            return
        elif seen.result == "miss" and run.planned_block > run.next_block and join is Join.JOINED:
            run.planned_block = run.next_block  # what was planned here is gone, or never came
        if run.charged_blocks:
            self._refund(file, run)
        quiet_block = self._widen(now_s, file, run, read_bytes if join is not Join.ECHO else 0, late=late)
        if quiet_block > end_block and run.next_block == end_block:
            self._quiet[seen.version] = _Quiet(seen, quiet_block * BLOCK_BYTES)

    def plan(self, now_s: float, budget_bytes: int) -> list[Fetch]:
        """What to fetch now, at most ``budget_bytes`` in all, round the streams with room an extent at a time."""
        fetches: list[Fetch] = []
        while self._scattered and budget_bytes >= EXTENT_BYTES:
            file, stream_id, blocks = self._scattered.popleft()
            for fresh in self._ledger.plan(now_s, file.facts.version, blocks, Reason.STRIDED):
                fetches.append(Fetch(file.facts.version, fresh, stream_id, Reason.STRIDED, file.facts.size_bytes))
                budget_bytes -= fresh.block_count * BLOCK_BYTES
        paused: list[tuple[int, _Job]] = []
        jobs = self._jobs
        while jobs and budget_bytes >= BLOCK_BYTES:
            stream_id, job = jobs.popitem(last=False)
            file, run, reason = job
            if run.window is None:
                continue
            if now_s < file.paused_until_s:
                paused.append((stream_id, job))
                continue
            first_block = max(run.planned_block, run.next_block)
            end_block = _window_end(file, run.next_block, run.window.window_bytes)
            # On a short path the window stays small for good; what ends the start is that much read in a row.
            start_blocks = limits.PREFETCH_START_BYTES // BLOCK_BYTES
            starting = (
                reason is Reason.SEQUENTIAL
                and run.evidence_blocks < start_blocks
                and run.window.window_bytes < limits.PREFETCH_START_BYTES
            )
            piece_blocks = limits.PREFETCH_START_PIECE_BLOCKS if starting else EXTENT_BLOCKS
            cut_block = (first_block // piece_blocks + 1) * piece_blocks
            stop_block = min(end_block, cut_block)
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
            elif stop_block == file.block_count and reason is Reason.SEQUENTIAL:
                self._reached_end(now_s, file, run)
        jobs.update(paused)
        return fetches

    # --- inside ------------------------------------------------------------------------------------------

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _score(self, seen: ReadSeen) -> None:
        score = self.scorecard
        score.read_bytes += seen.length_bytes
        if seen.result == "hit":
            score.hits += 1
        elif seen.result == "late":
            score.late += 1
        else:
            score.misses += 1

    def _stride(
        self, now_s: float, file: _File, start_block: int, end_block: int, downward: int, *, late: bool
    ) -> None:
        """A read that continues no run: the next of a progression perhaps."""
        strides = file.strides
        stride = strides.observe(start_block, end_block, now_s, downward_reads=downward)
        if stride is None or not (file.trust.earned and self._trust.earned):
            return
        cap_bytes = min(self._stream_max_bytes, self._windows_max_bytes // (len(self._active) + len(strides)))
        latency_s = self._latency.latency_s
        for blocks in strides.ahead(stride, now_s, late=late, latency_s=latency_s, cap_bytes=cap_bytes):
            self._scattered.append((file, -stride.stride_id, blocks))
        self._settle_strides(file)

    def _settle_strides(self, file: _File) -> None:
        """Progressions that the file forgot: what they had ahead is wasted."""
        wasted_bytes = file.strides.wasted_bytes
        if wasted_bytes:
            file.strides.wasted_bytes = 0
            file.trust.wasted(wasted_bytes)
            self._trust.wasted(wasted_bytes)

    def _file_of(self, now_s: float, seen: ReadSeen) -> _File | None:
        file = self._files.get(seen.version)
        if file is not None:
            self._files.move_to_end(seen.version)
            if file.chain is None:
                self._begin(now_s, file, seen)
            return file
        facts = self._handles.get(seen.handle_id)
        if facts is None or facts.version != seen.version:
            return None
        file = self._remember(facts)
        self._begin(now_s, file, seen)
        return file

    def _remember(self, facts: FileFacts) -> _File:
        file = self._files[facts.version] = _File(facts)
        if len(self._files) > limits.PREFETCH_MAX_FILES:
            forgotten_version, forgotten = self._files.popitem(last=False)
            self._quiet.pop(forgotten_version, None)
            self._charge_all(forgotten)
            for run in forgotten.runs.streams():
                self._drop(run)
            if forgotten.whole is not None:
                self._drop(forgotten.whole)
        return file

    def _begin(self, now_s: float, file: _File, seen: ReadSeen) -> None:
        """The first read of a file."""
        chain = file.chain = self._chains.begun(now_s, file.facts.path)
        self._trust.wasted(self._chains.forgotten_bytes)
        self._chains.forgotten_bytes = 0
        size_bytes = file.facts.size_bytes
        if size_bytes > self._small_file_bytes or not self._trust.earned:
            return
        self._fetch_whole(now_s, file, Reason.SMALL_FILE)
        chain.read_bytes += size_bytes
        chain.window.read(now_s, size_bytes, chain.read_bytes, late=seen.result != "hit",
                          latency_s=self._latency.latency_s, cap_bytes=self._stream_max_bytes, eager=False)  # fmt: skip
        file.following += self._anticipate(now_s, chain, chain.window.window_bytes)

    def _fetch_whole(self, now_s: float, file: _File, reason: Reason) -> None:
        if file.whole is None:
            run = file.whole = Run(self._new_id(), 0, 0, now_s)
            run.window = Window(now_s)
            run.window.window_bytes = file.block_count * BLOCK_BYTES
            self._jobs[run.stream_id] = _Job(file, run, reason)

    def _read_whole(self, file: _File, run: Run, *, missed: bool) -> None:
        """A read of a file planned as a whole: if all was planned and some is not there, it was evicted: again."""
        if run.charged_blocks:
            self._refund(file, run)
        if missed and run.planned_block >= file.block_count:
            run.planned_block = 0
            self._jobs[run.stream_id] = _Job(file, run, Reason.SMALL_FILE)

    def _widen(self, now_s: float, file: _File, run: Run, read_bytes: int, *, late: bool) -> int:
        """Returns the block up to which further reads of the run would change nothing here."""
        window = run.window
        assert window is not None
        self._touch(now_s, run)
        share_bytes = self._windows_max_bytes // len(self._active)
        window.read(
            now_s,
            read_bytes,
            run.evidence_blocks * BLOCK_BYTES,
            late=late,
            latency_s=self._latency.latency_s,
            cap_bytes=max(limits.PREFETCH_WINDOW_MIN_BYTES, min(self._stream_max_bytes, share_bytes)),
        )
        end_block = _window_end(file, run.next_block, window.window_bytes)
        room_bytes = (end_block - max(run.planned_block, run.next_block)) * BLOCK_BYTES
        # Whole extents where the window has room for them; the last piece of a file always.
        piece_bytes = min(EXTENT_BYTES, window.window_bytes // 4)
        if run.next_block >= file.block_count:
            self._active.pop(run.stream_id, None)  # done: it needs no share
        if room_bytes >= piece_bytes or (room_bytes > 0 and end_block == file.block_count):
            self._jobs.setdefault(run.stream_id, _Job(file, run, Reason.SEQUENTIAL))
        elif end_block == file.block_count:
            if room_bytes <= 0:
                self._reached_end(now_s, file, run)
        elif run.planned_block > run.next_block and run.stream_id not in self._jobs:
            return self._quiet_block(file, run, window.window_bytes, piece_bytes)
        return 0

    def _quiet_block(self, file: _File, run: Run, window_bytes: int, piece_bytes: int) -> int:
        """The last block that the run can come to without room for the next piece in its window."""
        end_block = run.planned_block + -(-piece_bytes // BLOCK_BYTES)
        if window_bytes >= _WHOLE_EXTENTS_FROM_BYTES:
            end_block = -(-end_block // EXTENT_BLOCKS) * EXTENT_BLOCKS
        return min(end_block, file.block_count) - window_bytes // BLOCK_BYTES - 1

    def _reached_end(self, now_s: float, file: _File, run: Run) -> None:
        """All of the file is on its way: what is left of the window goes to the file after it, if files come in order."""
        chain = file.chain
        if chain is None or run.window is None or run.start_block != 0:
            return
        left_bytes = run.window.window_bytes - (file.block_count - run.next_block) * BLOCK_BYTES
        file.following += self._anticipate(now_s, chain, left_bytes, run.evidence_blocks)
        for job in file.following:
            window = job.run.window
            if window is not None and job.run.next_block == 0 and left_bytes > window.window_bytes:
                window.window_bytes = left_bytes
                self._jobs.setdefault(job.run.stream_id, job)
            left_bytes -= job.file.facts.size_bytes

    def _anticipate(self, now_s: float, chain: Chain, window_bytes: int, evidence_blocks: int = 0) -> list[_Job]:
        """Plan small files of the chain as a whole; returns jobs, still without a window, for the beginnings of larger ones."""
        jobs: list[_Job] = []
        if not self._chains.proven(chain) or not self._trust.earned:
            return jobs
        for facts in chain.extend(self._chains.next_file, window_bytes):
            if facts.version in self._files:
                continue  # read already, or the same bytes under another name
            file = self._remember(facts)
            if facts.size_bytes <= self._small_file_bytes:
                self._fetch_whole(now_s, file, Reason.NEXT_FILE)
            else:
                run = file.runs.anticipate(self._new_id(), Window(now_s), evidence_blocks, now_s)
                jobs.append(_Job(file, run, Reason.NEXT_FILE))
        return jobs

    def _touch(self, now_s: float, run: Run) -> None:
        active = self._active
        active[run.stream_id] = run
        active.move_to_end(run.stream_id)
        idle_before_s = now_s - limits.PREFETCH_ACTIVE_S
        while True:
            oldest_id, oldest = next(iter(active.items()))
            if oldest.last_read_s >= idle_before_s and len(active) <= limits.PREFETCH_ACTIVE_MAX_STREAMS:
                return
            del active[oldest_id]

    def _drop(self, run: Run) -> None:
        self._active.pop(run.stream_id, None)
        self._jobs.pop(run.stream_id, None)

    def _settle(self, file: _File) -> None:
        """Streams that the file forgot: what they had planned and nobody read is wasted."""
        for run in file.runs.dropped:
            self._charge(file, run)
            self._drop(run)
        file.runs.dropped.clear()

    def _charge_all(self, file: _File) -> None:
        file.strides.forget()
        self._settle_strides(file)
        for run in file.runs.streams():
            self._charge(file, run)
        if file.whole is not None:
            unread_blocks = file.whole.planned_block - file.trust.read_bytes // BLOCK_BYTES
            self._hold_against(file, file.whole, unread_blocks)

    def _charge(self, file: _File, run: Run) -> None:
        self._hold_against(file, run, run.ahead_blocks)

    def _hold_against(self, file: _File, run: Run, unread_blocks: int) -> None:
        more_blocks = unread_blocks - run.charged_blocks
        if more_blocks > 0:
            run.charged_blocks += more_blocks
            file.trust.wasted(more_blocks * BLOCK_BYTES)
            self._trust.wasted(more_blocks * BLOCK_BYTES)

    def _refund(self, file: _File, run: Run) -> None:
        file.trust.used_after_all(run.charged_blocks * BLOCK_BYTES)
        self._trust.used_after_all(run.charged_blocks * BLOCK_BYTES)
        run.charged_blocks = 0
