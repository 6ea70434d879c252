"""Decides what to fetch ahead: reads and arrivals go in, fetches come out. Pure, and the same for the same events.

Three sources of foresight: sequential streams within a file, small files taken whole, and files read in directory order.
A stream gets a window that grows while its reads are late; the planner hands the budget round the streams that have
room, an extent at a time. What goes unread is charged, and whoever wastes too much must show longer runs first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, NamedTuple

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, BlockRange, count_blocks
from spoke.prefetch.chains import Chain, Chains, FileFacts, NextFile
from spoke.prefetch.scorecard import Ledger, Reason, Scorecard
from spoke.prefetch.streams import Join, Run, RunTable
from spoke.prefetch.window import Latency, Trust, Window

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

    __slots__ = ("block_count", "chain", "facts", "following", "paused_until_s", "runs", "trust", "whole")

    def __init__(self, facts: FileFacts) -> None:
        self.facts = facts
        self.block_count = count_blocks(facts.size_bytes)
        self.runs = RunTable(self.block_count)
        self.trust = Trust()
        self.paused_until_s = 0.0
        self.chain: Chain | None = None
        self.whole: Run | None = None
        self.following: list[_Job] = []


class _Job(NamedTuple):
    """Room to fill: a file's blocks up to the end its stream's window allows."""

    file: _File
    run: Run
    reason: Reason


def _no_next_file(_path: bytes) -> FileFacts | None:
    return None


class Planner:
    """``next_file``: the file after a path in its directory's order, a pure look-up (default: none).

    ``small_file_bytes``: files up to this size are fetched whole. ``stream_max_bytes``: how far one stream runs ahead.
    """

    def __init__(
        self,
        next_file: NextFile = _no_next_file,
        *,
        small_file_bytes: int = limits.PREFETCH_SMALL_FILE_BYTES,
        stream_max_bytes: int = limits.PREFETCH_STREAM_MAX_BYTES,
    ) -> None:
        self.scorecard = Scorecard()
        self._small_file_bytes = small_file_bytes
        self._stream_max_bytes = stream_max_bytes
        self._chains = Chains(next_file)
        self._ledger = Ledger(self.scorecard)
        self._latency = Latency()
        self._trust = Trust()
        self._handles: dict[int, FileFacts] = {}
        self._open_counts: dict[bytes, int] = {}
        self._files: OrderedDict[bytes, _File] = OrderedDict()
        self._active: OrderedDict[int, Run] = OrderedDict()
        self._jobs: OrderedDict[int, _Job] = OrderedDict()
        self._next_id = 1

    @property
    def outstanding_limit_bytes(self) -> int:
        """What may usefully be in flight as prefetch, by the link's figures: more would only queue before demand reads."""
        return self._latency.outstanding_limit_bytes

    @property
    def has_plans(self) -> bool:
        """:meth:`plan` may give something; asked after every read, so that most cost no more."""
        return bool(self._jobs)

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
        self._ledger.evicted(version, blocks)

    def read(self, now_s: float, seen: ReadSeen) -> None:
        """Learn from a READ; what follows from it comes out of :meth:`plan`."""
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
        if run.window is None:
            trusted = file.trust.earned and self._trust.earned
            if not file.runs.is_stream(run, start_block, end_block, trusted=trusted):
                return
            file.runs.promote(run, end_block - start_block, Window(now_s))
            self._settle(file)
        elif seen.result == "miss" and run.planned_block > run.next_block and join is Join.JOINED:
            run.planned_block = run.next_block  # what was planned here is gone, or never came
        if run.charged_blocks:
            self._refund(file, run)
        self._widen(now_s, file, run, read_bytes if join is not Join.ECHO else 0, late=late)

    def plan(self, now_s: float, budget_bytes: int) -> list[Fetch]:
        """What to fetch now, at most ``budget_bytes`` in all, round the streams with room an extent at a time."""
        fetches: list[Fetch] = []
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
            end_block = min(file.block_count, run.next_block + run.window.window_bytes // BLOCK_BYTES)
            cut_block = (first_block // EXTENT_BLOCKS + 1) * EXTENT_BLOCKS
            stop_block = min(end_block, cut_block, first_block + budget_bytes // BLOCK_BYTES)
            if stop_block <= first_block:
                continue
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
            _, forgotten = self._files.popitem(last=False)
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
                          latency_s=self._latency.latency_s, cap_bytes=self._stream_max_bytes)  # fmt: skip
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

    def _widen(self, now_s: float, file: _File, run: Run, read_bytes: int, *, late: bool) -> None:
        window = run.window
        assert window is not None
        self._touch(now_s, run)
        share_bytes = limits.PREFETCH_WINDOWS_MAX_BYTES // len(self._active)
        window.read(
            now_s,
            read_bytes,
            run.evidence_blocks * BLOCK_BYTES,
            late=late,
            latency_s=self._latency.latency_s,
            cap_bytes=max(limits.PREFETCH_WINDOW_MIN_BYTES, min(self._stream_max_bytes, share_bytes)),
        )
        end_block = min(file.block_count, run.next_block + window.window_bytes // BLOCK_BYTES)
        room_bytes = (end_block - max(run.planned_block, run.next_block)) * BLOCK_BYTES
        # Whole extents where the window has room for them; the last piece of a file always.
        if room_bytes >= min(EXTENT_BYTES, window.window_bytes // 4) or (
            room_bytes > 0 and end_block == file.block_count
        ):
            self._jobs.setdefault(run.stream_id, _Job(file, run, Reason.SEQUENTIAL))
        elif end_block == file.block_count and room_bytes <= 0:
            self._reached_end(now_s, file, run)

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
