"""Guesses what is read next: streams and strides within a file, small files taken whole, files in directory order. Pure.

A stream gets a window that grows while its reads are late. What goes unread is charged to the source that guessed it, and who
wastes too much must show longer runs first.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, BlockRange
from spoke.prefetch.chains import Chain, Chains, FileFacts, NextFile
from spoke.prefetch.gate import ReadBytes, Trust
from spoke.prefetch.known_file import (
    WHOLE_EXTENTS_FROM_BYTES,
    Job,
    KnownFile,
    first_bytes,
    piece_blocks,
    reason_of,
    window_end,
)
from spoke.prefetch.pieces import Pieces
from spoke.prefetch.quiet import Quiet
from spoke.prefetch.scorecard import Ledger, Reason
from spoke.prefetch.source import Fetch, ReadSeen
from spoke.prefetch.streams import Join, Run
from spoke.prefetch.strides import Stride
from spoke.prefetch.throughout import Throughout
from spoke.prefetch.window import Latency, Window

_REASONS = (Reason.SEQUENTIAL, Reason.STRIDED, Reason.SMALL_FILE, Reason.NEXT_FILE, Reason.THROUGHOUT)
_QUIET_WAITING_BYTES = 8 * EXTENT_BYTES
_QUIET_MAX_S = limits.PREFETCH_ACTIVE_S / 4
_NO_STREAM = 0  # streams count up from it, orders down


class Guesses:
    """A :class:`~spoke.prefetch.source.Source`. ``small_file_bytes``, ``stream_max_bytes``, ``windows_max_bytes``: as the planner's."""

    def __init__(
        self,
        next_file: NextFile,
        ledger: Ledger,
        latency: Latency,
        *,
        small_file_bytes: int,
        stream_max_bytes: int,
        windows_max_bytes: int,
        throughout_max_bytes: int = limits.PREFETCH_THROUGHOUT_MAX_BYTES,
    ) -> None:
        self._small_file_bytes = small_file_bytes
        self._stream_max_bytes = stream_max_bytes
        self._windows_max_bytes = windows_max_bytes
        self._scattered: deque[tuple[KnownFile, Stride | None, BlockRange]] = deque()
        self._waited: deque[tuple[KnownFile, BlockRange]] = deque()
        self._chains = Chains(next_file)
        self._throughout = Throughout(throughout_max_bytes)
        self._pieces = Pieces()
        self._rests: deque[tuple[KnownFile, BlockRange]] = deque()
        self._ledger = ledger
        self._latency = latency
        self._read = ReadBytes()
        self._trusts = {reason: Trust(self._read) for reason in _REASONS}
        self._sequential = self._trusts[Reason.SEQUENTIAL]
        self._files: OrderedDict[bytes, KnownFile] = OrderedDict()
        self._active: OrderedDict[int, Run] = OrderedDict()
        self._jobs: OrderedDict[int, Job] = OrderedDict()
        self._next_id = 1

    @property
    def has_plans(self) -> bool:
        return bool(self._jobs or self._scattered or self._waited or self._rests)

    @property
    def has_waited(self) -> bool:
        """:meth:`plan_waited` may give something."""
        return bool(self._waited)

    @property
    def active_count(self) -> int:
        return len(self._active)

    def known(self, version: bytes) -> KnownFile | None:
        """What is known of this version, if it is remembered."""
        return self._files.get(version)

    def is_stream_at(self, version: bytes, offset_bytes: int) -> bool:
        """A stream of this version reads here next."""
        file = self._files.get(version)
        return file is not None and file.runs.is_stream_at(offset_bytes // BLOCK_BYTES)

    # --- events ------------------------------------------------------------------------------------------

    def closed(self, version: bytes) -> None:
        """The last handle of a file was closed: what was planned in it and not read counts as wasted, until it is read."""
        file = self._files.get(version)
        if file is not None:
            self._charge_all(file)

    def failed(self, now_s: float, version: bytes) -> None:
        file = self._files.get(version)
        if file is not None:
            file.paused_until_s = now_s + limits.PREFETCH_FAILURE_PAUSE_S

    def evicted(self, version: bytes, blocks: BlockRange, wasted: Mapping[Reason, int]) -> None:
        """Blocks were evicted; ``wasted``: bytes of them that nobody had read, by what they were fetched for."""
        file = self._files.get(version)
        self._throughout.evicted(version, blocks)
        guessed_bytes = 0
        for reason, trust in self._trusts.items():
            wasted_bytes = wasted.get(reason, 0)
            if wasted_bytes:
                trust.wasted(wasted_bytes)
                guessed_bytes += wasted_bytes
        if file is not None and guessed_bytes:
            file.trust.wasted(guessed_bytes)
            file.runs.lost(blocks)

    def read(
        self,
        now_s: float,
        seen: ReadSeen,
        facts: FileFacts,
        file: KnownFile | None,
        start_block: int,
        end_block: int,
        *,
        foretold: bool,
        ordered: bool,
    ) -> Quiet | None:
        """Learn from a READ of these blocks (not none) of a file. Returns its reader if further reads change nothing for a while.

        ``file``: as :meth:`known` has it. ``foretold``: an order knows what is read of this file, so only a long run is a stream, and
        nothing else is guessed at. ``ordered``: an order has reads of it, and tells what readers abreast want first.
        """
        late = seen.result != "hit"
        if file is None:
            file = self._remember(facts)
        else:
            self._files.move_to_end(facts.version)
        if file.chain is None and not foretold:
            self._begin(now_s, file, late=late)
        read_bytes = (end_block - start_block) * BLOCK_BYTES
        file.read.total += read_bytes
        self._read.total += read_bytes
        if file.whole is not None:
            self._read_whole(file, file.whole, missed=seen.result == "miss")
            return None
        if self._look_alike(file, seen, start_block, end_block, foretold=foretold):
            return None
        runs = file.runs
        self._next_id += 1
        run, join = runs.observe(start_block, end_block, now_s, self._next_id)
        if runs.dropped:
            self._settle(file)
        if runs.is_time_to_look:
            for idle in runs.idle():
                self._charge(file, idle)
        if (join is Join.NEW or join is Join.EARLIER) and not foretold:
            self._stride(now_s, file, start_block, end_block, run.downward_reads, late=late)
        trusted = file.trust.earned and self._sequential.earned
        if trusted and not foretold:
            if not ordered:
                self._look_abreast(file, run, join, start_block, end_block, seen.task_id)
            if join is Join.NEW:
                if runs.beginnings.blocks or runs.beginnings.wasted_blocks:
                    self._read_on(file, start_block, end_block)
            elif runs.may_be_turns:
                self._take_turns(now_s, file, run, end_block - start_block)
        if run.window is None:
            if run.reads == 1 and start_block:
                return None  # one read alone is a stream at a file's beginning only
            if not runs.is_stream(run, start_block, end_block, trusted=trusted and not foretold):
                return None
            look_bytes = first_bytes(file) if start_block == 0 else 0
            for continued in runs.promote(run, end_block - start_block, Window(now_s, look_bytes)):
                self._active.pop(continued.stream_id, None)  # or it would take a share for PREFETCH_ACTIVE_S more
            self._settle(file)
        elif not trusted and not runs.is_believed(run, start_block, end_block):
            return None
        elif seen.result == "miss" and run.planned_block > run.next_block and join is Join.JOINED:
            run.planned_block = run.next_block  # what was planned here is gone, or never came
        if run.charged_blocks:
            self._refund(file, run, reason_of(run))
        quiet_block = self._widen(now_s, file, run, read_bytes if join is not Join.ECHO else 0, late=late)
        if quiet_block <= end_block or run.next_block != end_block:
            return None
        until_bytes = quiet_block * BLOCK_BYTES
        met_block = runs.until_another(run, quiet_block)
        if met_block < quiet_block:  # the read that comes there makes one of the two
            until_bytes = met_block * BLOCK_BYTES - 1
        run.quiet = Quiet(seen, until_bytes)
        return run.quiet

    def plan(self, now_s: float, budget_bytes: int) -> list[Fetch]:
        """What to fetch now, round the streams with room an extent at a time."""
        if self._waited:  # for who does not ask what readers wait for
            return self.plan_waited(now_s, budget_bytes)
        fetches = self._plan_scattered(now_s, budget_bytes)
        budget_bytes -= sum(fetch.blocks.block_count for fetch in fetches) * BLOCK_BYTES
        paused: list[tuple[int, Job]] = []
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
            end_block = window_end(file, run.next_block, run.window.window_bytes)
            # On a short path the window stays small for good; what ends the start is that much read in a row.
            start_blocks = limits.PREFETCH_START_BYTES // BLOCK_BYTES
            starting = (
                reason is Reason.SEQUENTIAL
                and run.evidence_blocks < start_blocks
                and run.window.window_bytes < limits.PREFETCH_START_BYTES
            )
            if starting:
                begun = run.evidence_blocks >= EXTENT_BLOCKS
                cut_blocks = limits.PREFETCH_BEGUN_PIECE_BLOCKS if begun else limits.PREFETCH_START_PIECE_BLOCKS
                stop_block = min(first_block + cut_blocks, (first_block // EXTENT_BLOCKS + 1) * EXTENT_BLOCKS)
            else:
                more_blocks = EXTENT_BLOCKS  # in turns, where others wait too
                if not jobs:
                    more_blocks = max(
                        EXTENT_BLOCKS, min(piece_blocks(run.window.window_bytes), budget_bytes // BLOCK_BYTES)
                    )
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
            elif stop_block == file.block_count and reason is Reason.SEQUENTIAL:
                self._reached_end(now_s, file, run)
        jobs.update(paused)
        return fetches + self._plan_rests(now_s, budget_bytes) if self._rests else fetches

    def plan_waited(self, now_s: float, budget_bytes: int) -> list[Fetch]:
        """What readers abreast stand before, whether it is under way or not; at most ``budget_bytes``, in the order of its place."""
        fetches: list[Fetch] = []
        budget_blocks = budget_bytes // BLOCK_BYTES
        while self._waited and budget_blocks > 0:
            file, blocks = self._waited.popleft()
            if now_s < file.paused_until_s:
                continue
            part = BlockRange(blocks.first_block, min(blocks.block_count, budget_blocks))
            if part != blocks:
                self._waited.appendleft((file, BlockRange(part.end_block, blocks.block_count - part.block_count)))
            budget_blocks -= part.block_count
            version = file.facts.version
            self._ledger.plan(now_s, version, part, Reason.SEQUENTIAL)
            fetches.append(Fetch(version, part, _NO_STREAM, Reason.SEQUENTIAL, file.facts.size_bytes))
        return fetches

    # --- inside ------------------------------------------------------------------------------------------

    def _stride(
        self, now_s: float, file: KnownFile, start_block: int, end_block: int, downward: int, *, late: bool
    ) -> None:
        """A read that continues no run: the next of a progression perhaps."""
        strides = file.strides
        stride = strides.observe(start_block, end_block, now_s, downward_reads=downward)
        if stride is None or not (file.trust.earned and self._trusts[Reason.STRIDED].earned):
            return
        cap_bytes = min(self._stream_max_bytes, self._windows_max_bytes // (len(self._active) + len(strides)))
        latency_s = self._latency.latency_s
        least_blocks = file.runs.beginnings.blocks  # places of it may be read on at once, as others were
        for blocks in strides.ahead(
            stride, now_s, late=late, latency_s=latency_s, cap_bytes=cap_bytes, least_blocks=least_blocks
        ):
            self._scattered.append((file, stride, blocks))
        self._settle_strides(file)

    def _read_on(self, file: KnownFile, start_block: int, end_block: int) -> None:
        """A place was begun that, as the last ones were, will be read on at once."""
        beginnings = file.runs.beginnings
        if beginnings.wasted_blocks:
            wasted_bytes = beginnings.wasted_blocks * BLOCK_BYTES
            beginnings.wasted_blocks = 0
            file.trust.wasted(wasted_bytes)
            self._trusts[Reason.SEQUENTIAL].wasted(wasted_bytes)
        guessed_block = min(start_block + beginnings.blocks, file.block_count)
        if guessed_block > end_block:
            beginnings.guessed(guessed_block)
            self._scattered.append((file, None, BlockRange(end_block, guessed_block - end_block)))

    def _look_alike(self, file: KnownFile, seen: ReadSeen, start_block: int, end_block: int, *, foretold: bool) -> bool:
        """What is left of a file, or of a piece that was begun, if others of its kind were read on. True: a piece whose end is known."""
        if foretold:
            return False
        facts, trust = file.facts, self._trusts[Reason.THROUGHOUT]
        if self._throughout.may_be(facts.size_bytes):
            rest = self._throughout.read(facts, start_block, end_block, self._read.total, may_fetch=trust.earned)
            self._rests.extend((file, blocks) for blocks in rest)
        pieces = self._pieces
        if pieces.wasted_blocks:
            trust.wasted(pieces.wasted_blocks * BLOCK_BYTES)
            pieces.wasted_blocks = 0
        may_fetch = file.trust.earned and trust.earned
        until_block = pieces.read(seen.task_id, seen.version, file.kind, start_block, end_block, may_fetch=may_fetch)
        until_block = min(until_block, file.block_count)
        if pieces.has_begun and until_block > end_block:
            self._rests.appendleft((file, BlockRange(end_block, until_block - end_block)))
        return until_block > 0

    def _look_abreast(
        self, file: KnownFile, run: Run, join: Join, start_block: int, end_block: int, task_id: int
    ) -> None:
        abreast = file.runs.abreast
        if join is Join.NEW:
            abreast.begun(start_block, end_block, task_id, file.block_count)
        elif join is Join.JOINED:
            most_blocks = self._windows_max_bytes // BLOCK_BYTES
            abreast.read_on(run.start_block, run.next_block, min(file.block_count, run.start_block + most_blocks))
        if abreast.waited:
            self._waited.extend((file, blocks) for blocks in abreast.waited)
            abreast.waited.clear()

    def _take_turns(self, now_s: float, file: KnownFile, run: Run, read_blocks: int) -> None:
        """Readers by turns: ``run`` was read in its turn, so the next ones will be."""
        for found in file.runs.in_turn(run, read_blocks):
            for continued in file.runs.promote(found, read_blocks, Window(now_s)):
                self._active.pop(continued.stream_id, None)
            if found is not run:  # that is widened by its own read
                self._widen(now_s, file, found, 0, late=True)
        self._settle(file)

    def _settle_strides(self, file: KnownFile) -> None:
        """Progressions that the file forgot: what they had ahead is wasted."""
        wasted_bytes = file.strides.wasted_bytes
        if wasted_bytes:
            file.strides.wasted_bytes = 0
            file.trust.wasted(wasted_bytes)
            self._trusts[Reason.STRIDED].wasted(wasted_bytes)

    def _plan_scattered(self, now_s: float, budget_bytes: int) -> list[Fetch]:
        """The steps of progressions, and what is left of places begun, first of all: they are few, and soon read."""
        fetches: list[Fetch] = []
        while self._scattered and budget_bytes >= EXTENT_BYTES:
            file, stride, blocks = self._scattered.popleft()
            if (stride is not None and stride not in file.strides) or now_s < file.paused_until_s:
                continue  # forgotten meanwhile, or failing: whoever wants it reads it
            version, size_bytes = file.facts.version, file.facts.size_bytes
            reason = Reason.SEQUENTIAL if stride is None else Reason.STRIDED
            for fresh in self._ledger.plan(now_s, version, blocks, reason):
                fetches.append(Fetch(version, fresh, _NO_STREAM, reason, size_bytes))
                budget_bytes -= fresh.block_count * BLOCK_BYTES
        return fetches

    def _plan_rests(self, now_s: float, budget_bytes: int) -> list[Fetch]:
        """What is left of files that are read throughout, when all else was planned."""
        fetches: list[Fetch] = []
        while self._rests and budget_bytes >= EXTENT_BYTES:
            file, blocks = self._rests.popleft()
            if now_s < file.paused_until_s:
                continue
            version, size_bytes = file.facts.version, file.facts.size_bytes
            for fresh in self._ledger.plan(now_s, version, blocks, Reason.THROUGHOUT):
                fetches.append(Fetch(version, fresh, _NO_STREAM, Reason.THROUGHOUT, size_bytes))
                budget_bytes -= fresh.block_count * BLOCK_BYTES
        return fetches

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _remember(self, facts: FileFacts) -> KnownFile:
        file = self._files[facts.version] = KnownFile(facts)
        if len(self._files) > limits.PREFETCH_MAX_FILES:
            _, forgotten = self._files.popitem(last=False)
            self._charge_all(forgotten)
            for run in forgotten.runs.streams():
                self._drop(run)
            if forgotten.whole is not None:
                self._drop(forgotten.whole)
        return file

    def _begin(self, now_s: float, file: KnownFile, *, late: bool) -> None:
        """The first read of a file."""
        chain = file.chain = self._chains.begun(now_s, file.facts.path)
        self._trusts[Reason.NEXT_FILE].wasted(self._chains.forgotten_bytes)
        self._chains.forgotten_bytes = 0
        size_bytes = file.facts.size_bytes
        if size_bytes > self._small_file_bytes or not self._trusts[Reason.SMALL_FILE].earned:
            return
        self._fetch_whole(now_s, file, Reason.SMALL_FILE)
        chain.read_bytes += size_bytes
        chain.window.read(now_s, size_bytes, chain.read_bytes, late=late,
                          latency_s=self._latency.latency_s, cap_bytes=self._stream_max_bytes, eager=False)  # fmt: skip
        file.following += self._anticipate(now_s, chain, chain.window.window_bytes)

    def _fetch_whole(self, now_s: float, file: KnownFile, reason: Reason) -> None:
        if file.whole is None:
            run = file.whole = Run(self._new_id(), 0, 0, now_s)
            run.window = Window(now_s)
            run.window.window_bytes = file.block_count * BLOCK_BYTES
            file.whole_reason = reason
            self._jobs[run.stream_id] = Job(file, run, reason)

    def _read_whole(self, file: KnownFile, run: Run, *, missed: bool) -> None:
        """A read of a file planned as a whole: if all was planned and some is not there, it was evicted: again."""
        if run.charged_blocks:
            self._refund(file, run, file.whole_reason)
        if missed and run.planned_block >= file.block_count:
            run.planned_block = 0
            self._jobs[run.stream_id] = Job(file, run, Reason.SMALL_FILE)

    def _widen(self, now_s: float, file: KnownFile, run: Run, read_bytes: int, *, late: bool) -> int:
        """Returns the block up to which further reads of the run would change nothing here."""
        window = run.window
        assert window is not None
        active = self._active
        if run.stream_id in active:
            active.move_to_end(run.stream_id)
        else:
            active[run.stream_id] = run
        if len(active) > 1:
            self._forget_inactive(now_s)
        cap_bytes = min(self._stream_max_bytes, self._windows_max_bytes // len(active))
        window.read(
            now_s,
            read_bytes,
            run.evidence_blocks * BLOCK_BYTES,
            late=late,
            latency_s=self._latency.latency_s,
            cap_bytes=max(limits.PREFETCH_WINDOW_MIN_BYTES, cap_bytes),
        )
        # Whole extents where the window has room for them; the last piece of a file always.
        window_bytes = window.window_bytes
        piece_bytes = min(window_bytes // 4, piece_blocks(window_bytes) * BLOCK_BYTES)
        next_block, planned_block = run.next_block, run.planned_block
        end_block = window_end(file, next_block, window_bytes)
        room_bytes = (end_block - (planned_block if planned_block > next_block else next_block)) * BLOCK_BYTES
        if next_block >= file.block_count:
            active.pop(run.stream_id, None)  # done: it needs no share
        if room_bytes >= piece_bytes or (room_bytes > 0 and end_block == file.block_count):
            if run.stream_id not in self._jobs:
                self._jobs[run.stream_id] = Job(file, run, Reason.SEQUENTIAL)
        elif end_block == file.block_count:
            self._reached_end(now_s, file, run)
        if planned_block <= next_block or window.grows_unseen:
            return 0
        quiet_block = self._quiet_block(file, run, window_bytes, piece_bytes)
        if window.rate_bytes_per_s:  # it is not to be forgotten for a slow reader's silence
            most_bytes = max(EXTENT_BYTES, int(window.rate_bytes_per_s * _QUIET_MAX_S))
            quiet_block = min(quiet_block, next_block + most_bytes // BLOCK_BYTES)
        return quiet_block

    def _quiet_block(self, file: KnownFile, run: Run, window_bytes: int, piece_bytes: int) -> int:
        """The last block that the run can come to without room for the next piece in its window.

        What it wants already is asked for as soon as the budget has room; in a large window it may come a piece further meanwhile.
        So it may where all of the file is planned, and its end makes room for the file after it; but its last read is heard.
        """
        if run.stream_id in self._jobs or run.planned_block >= file.block_count:
            if window_bytes < _QUIET_WAITING_BYTES:
                return 0
            return min(run.next_block + piece_bytes // BLOCK_BYTES, run.planned_block, file.block_count - 1)
        end_block = run.planned_block + -(-piece_bytes // BLOCK_BYTES)
        if window_bytes >= WHOLE_EXTENTS_FROM_BYTES:
            end_block = -(-end_block // EXTENT_BLOCKS) * EXTENT_BLOCKS
        return min(end_block, file.block_count) - window_bytes // BLOCK_BYTES - 1

    def _reached_end(self, now_s: float, file: KnownFile, run: Run) -> None:
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

    def _anticipate(self, now_s: float, chain: Chain, window_bytes: int, evidence_blocks: int = 0) -> list[Job]:
        """Plan small files of the chain as a whole; returns jobs, still without a window, for the beginnings of larger ones."""
        jobs: list[Job] = []
        if not self._chains.proven(chain) or not self._trusts[Reason.NEXT_FILE].earned:
            return jobs
        for facts in chain.extend(self._chains.next_file, window_bytes):
            if facts.version in self._files:
                continue  # read already, or the same bytes under another name
            file = self._remember(facts)
            if facts.size_bytes <= self._small_file_bytes:
                self._fetch_whole(now_s, file, Reason.NEXT_FILE)
            else:
                run = file.runs.anticipate(self._new_id(), Window(now_s), evidence_blocks, now_s)
                jobs.append(Job(file, run, Reason.NEXT_FILE))
        return jobs

    def _forget_inactive(self, now_s: float) -> None:
        """The longest unread no longer share the windows; there are two at least, and the last one was just read."""
        active = self._active
        idle_before_s = now_s - limits.PREFETCH_ACTIVE_S
        while True:
            oldest_id, oldest = next(iter(active.items()))
            if oldest.last_read_s >= idle_before_s and len(active) <= limits.PREFETCH_ACTIVE_MAX_STREAMS:
                return
            del active[oldest_id]

    def _drop(self, run: Run) -> None:
        self._active.pop(run.stream_id, None)
        self._jobs.pop(run.stream_id, None)

    def _settle(self, file: KnownFile) -> None:
        """Streams that the file forgot: what they had planned and nobody read is wasted."""
        for run in file.runs.dropped:
            self._charge(file, run)
            self._drop(run)
        file.runs.dropped.clear()

    def _charge_all(self, file: KnownFile) -> None:
        file.strides.forget()
        self._settle_strides(file)
        for run in file.runs.streams():
            self._charge(file, run)
        if file.whole is not None:
            unread_blocks = file.whole.planned_block - file.read.total // BLOCK_BYTES
            self._hold_against(file, file.whole, unread_blocks, file.whole_reason)

    def _charge(self, file: KnownFile, run: Run) -> None:
        self._hold_against(file, run, run.ahead_blocks, reason_of(run))

    def _hold_against(self, file: KnownFile, run: Run, unread_blocks: int, reason: Reason) -> None:
        more_blocks = unread_blocks - run.charged_blocks
        if more_blocks > 0:
            run.charged_blocks += more_blocks
            file.trust.wasted(more_blocks * BLOCK_BYTES)
            self._trusts[reason].wasted(more_blocks * BLOCK_BYTES)

    def _refund(self, file: KnownFile, run: Run, reason: Reason) -> None:
        file.trust.used_after_all(run.charged_blocks * BLOCK_BYTES)
        self._trusts[reason].used_after_all(run.charged_blocks * BLOCK_BYTES)
        run.charged_blocks = 0
