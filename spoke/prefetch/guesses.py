"""Guesses what is read next: streams and strides within a file, small files taken whole, files in directory order. Pure.

A stream gets a window that grows while its reads are late. What goes unread is charged to the source that guessed it, and who
wastes too much must show longer runs first. This module knows the files and says to which kind of guess a READ is news; the kinds are
:mod:`~spoke.prefetch.stream_windows`, :mod:`~spoke.prefetch.scattered` and :mod:`~spoke.prefetch.files_in_order`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange
from spoke.prefetch.accounts import Accounts
from spoke.prefetch.alike import Alike
from spoke.prefetch.chains import FileFacts, NextFile
from spoke.prefetch.files_in_order import FilesInOrder
from spoke.prefetch.known_file import KnownFile, first_bytes, reason_of
from spoke.prefetch.quiet import Quiet
from spoke.prefetch.scattered import Scattered
from spoke.prefetch.scorecard import Ledger, Reason
from spoke.prefetch.source import Fetch, ReadSeen
from spoke.prefetch.stream_windows import StreamWindows
from spoke.prefetch.streams import Join, Run
from spoke.prefetch.window import Latency, Window


class Guesses:
    """A :class:`~spoke.prefetch.source.Source`. ``small_file_bytes``, ``stream_max_bytes``, ``windows_max_bytes``: as the planner's.

    ``files``: what is known of versions, by version. ``jobs``, ``scattered``, ``waited``, ``rests``: what is to be planned,
    if any is not empty.
    """

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
        self._accounts = Accounts()
        self.files: OrderedDict[bytes, KnownFile] = OrderedDict()
        self._last_file: KnownFile | None = None
        self._next_id = 1
        self._windows = StreamWindows(
            self._accounts,
            ledger,
            latency,
            stream_max_bytes=stream_max_bytes,
            windows_max_bytes=windows_max_bytes,
            reached_end=self._reached_end,
        )
        self.active = self._windows.active
        """Streams that share the windows."""
        self._beside = Scattered(
            self._accounts, ledger, latency, stream_max_bytes=stream_max_bytes, windows_max_bytes=windows_max_bytes
        )
        self._alike = Alike(self._accounts, ledger, throughout_max_bytes)
        self.rests = self._alike.rests
        self.jobs, self.scattered, self.waited = self._windows.jobs, self._beside.pieces, self._beside.waited
        self._in_order = FilesInOrder(
            next_file,
            self._accounts,
            latency,
            self.files,
            self.jobs,
            remember=self._remember,
            new_id=self._new_id,
            small_file_bytes=small_file_bytes,
            stream_max_bytes=stream_max_bytes,
        )
        self.keep_within = self._windows.keep_within

    @property
    def has_plans(self) -> bool:
        return bool(self.jobs or self.scattered or self.waited or self.rests)

    @property
    def active_count(self) -> int:
        return self._windows.active_count

    def is_stream_at(self, version: bytes, offset_bytes: int) -> bool:
        """A stream of this version reads here next."""
        file = self.files.get(version)
        return file is not None and file.runs.is_stream_at(offset_bytes // BLOCK_BYTES)

    # --- events ------------------------------------------------------------------------------------------

    def closed(self, version: bytes) -> None:
        """The last handle of a file was closed: what was planned in it and not read counts as wasted, until it is read."""
        file = self.files.get(version)
        if file is not None:
            self._accounts.charge_all(file)

    def failed(self, now_s: float, version: bytes) -> None:
        file = self.files.get(version)
        if file is not None:
            file.paused_until_s = now_s + limits.PREFETCH_FAILURE_PAUSE_S

    def evicted(self, version: bytes, blocks: BlockRange, wasted: Mapping[Reason, int]) -> None:
        """Blocks were evicted; ``wasted``: bytes of them that nobody had read, by what they were fetched for."""
        self._accounts.evicted(self.files.get(version), blocks, wasted)
        self._alike.evicted(version, blocks, wasted)

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
    ) -> Quiet | None:
        """Learn from a READ of these blocks (not none) of a file. Returns its reader if further reads change nothing for a while.

        ``file``: as :meth:`known` has it. ``foretold``: an order knows what is read of this file, so only a long run is a stream, and
        nothing else is guessed at.
        """
        late = seen.result != "hit"
        if file is None:
            file = self._remember(facts)
        elif file is not self._last_file:
            self.files.move_to_end(facts.version)
        self._last_file = file
        if file.chain is None and not foretold:
            self._in_order.begin(now_s, file, late=late)
        accounts, beside, read_bytes = self._accounts, self._beside, (end_block - start_block) * BLOCK_BYTES
        file.read.total += read_bytes
        accounts.read.total += read_bytes
        if file.whole is not None:
            self._in_order.read_whole(file, file.whole, missed=seen.result == "miss")
            return None
        if not foretold and self._alike.read(file, seen, start_block, end_block):
            return None
        runs = file.runs
        self._next_id += 1
        run, join = runs.observe(start_block, end_block, now_s, self._next_id)
        if runs.dropped:
            self._settle(file)
        if runs.is_time_to_look:
            for idle in runs.idle():
                accounts.charge(file, idle)
        if (join is Join.NEW or join is Join.EARLIER) and not foretold:
            stride = file.strides.observe(start_block, end_block, now_s, downward_reads=run.downward_reads)
            if stride is not None and stride.planned > stride.due and not late:
                stride.noted_reads += 1  # a few are planned at a time, and none now
            elif stride is not None:
                beside.stride(now_s, file, stride, late=late, active_count=len(self.active))
        trusted = not (file.trust.wasted_bytes or accounts.sequential.wasted_bytes) or accounts.trusted(file)
        if trusted and not foretold:
            beside.look_abreast(file, run, join, start_block, end_block, seen[1])
            if join is Join.NEW:
                beginnings = runs.beginnings
                if beginnings.blocks or beginnings.wasted_blocks:
                    beside.read_on(file, start_block, end_block)
            elif runs.may_be_turns:
                self._take_turns(now_s, file, run, end_block - start_block)
        if run.window is None:
            if run.reads == 1 and start_block:
                return None  # one read alone is a stream at a file's beginning only
            if not runs.is_stream(run, start_block, end_block, trusted=trusted and not foretold):
                return None
            look_bytes = first_bytes(file) if start_block == 0 else 0
            for continued in runs.promote(run, end_block - start_block, Window(now_s, look_bytes)):
                self._windows.inactive(continued)
            self._settle(file)
        elif not trusted and not runs.is_believed(run, start_block, end_block):
            return None
        elif seen.result == "miss" and run.planned_block > run.next_block and join is Join.JOINED:
            run.planned_block = run.next_block  # what was planned here is gone, or never came
        if run.charged_blocks:
            self._accounts.refund(file, run, reason_of(run))
        quiet_block = self._windows.widen(now_s, file, run, read_bytes if join is not Join.ECHO else 0, late=late)
        if quiet_block <= end_block or run.next_block != end_block:
            return None
        return self._windows.quiet(seen, file, run, end_block, quiet_block)

    def waited_for(
        self, now_s: float, seen: ReadSeen, facts: FileFacts, file: KnownFile | None, start_block: int, end_block: int
    ) -> None:
        """A reader waits for what an order foretold: readers abreast want it in the order of its place, which an order does not tell."""
        if file is None:
            file = self._remember(facts)
        self._next_id += 1
        run, join = file.runs.observe(start_block, end_block, now_s, self._next_id)
        if file.runs.dropped:
            self._settle(file)
        if self._accounts.trusted(file):
            self._beside.look_abreast(file, run, join, start_block, end_block, seen.task_id)

    def plan(self, now_s: float, budget_bytes: int) -> list[Fetch]:
        """What to fetch now: first of all what lies scattered, which is little and soon read."""
        if self.waited:  # for who does not ask what readers wait for
            return self.plan_waited(now_s, budget_bytes)
        fetches = self._beside.plan(now_s, budget_bytes) if self.scattered else []
        if self.jobs:
            fetches = self._windows.plan(now_s, budget_bytes - _bytes_of(fetches), fetches)
        if self.rests:
            fetches += self._alike.plan(now_s, budget_bytes - _bytes_of(fetches))
        return fetches

    def plan_waited(self, now_s: float, budget_bytes: int) -> list[Fetch]:
        """What readers abreast stand before, whether it is under way or not; at most ``budget_bytes``, in the order of its place."""
        return self._beside.plan_waited(now_s, budget_bytes)

    # --- inside ------------------------------------------------------------------------------------------

    def _take_turns(self, now_s: float, file: KnownFile, run: Run, read_blocks: int) -> None:
        """Readers by turns: ``run`` was read in its turn, so the next ones will be."""
        for found in file.runs.in_turn(run, read_blocks):
            for continued in file.runs.promote(found, read_blocks, Window(now_s)):
                self._windows.inactive(continued)
            if found is not run:  # that is widened by its own read
                self._windows.widen(now_s, file, found, 0, late=True)
        self._settle(file)

    def _reached_end(self, now_s: float, file: KnownFile, run: Run) -> None:
        self._in_order.reached_end(now_s, file, run)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _remember(self, facts: FileFacts) -> KnownFile:
        file = self.files[facts.version] = KnownFile(facts)
        if len(self.files) > limits.PREFETCH_MAX_FILES:
            _, forgotten = self.files.popitem(last=False)
            self._accounts.charge_all(forgotten)
            for run in forgotten.runs.streams():
                self._windows.drop(run)
            if forgotten.whole is not None:
                self._windows.drop(forgotten.whole)
        return file

    def _settle(self, file: KnownFile) -> None:
        """Streams that the file forgot: what they had planned and nobody read is wasted."""
        for run in file.runs.dropped:
            self._accounts.charge(file, run)
            self._windows.drop(run)
        file.runs.dropped.clear()


def _bytes_of(fetches: list[Fetch]) -> int:
    return sum(fetch.blocks.block_count for fetch in fetches) * BLOCK_BYTES
