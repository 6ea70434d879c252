"""Files taken whole, and files read one after another in their directory's order. Pure.

A small file is fetched at its first read. Once a few were read in order, those after them are fetched before they are opened, and the
beginnings of larger ones: as far as the window of the chain, or what a stream leaves of its own at its file's end, reaches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from common.blocks import BLOCK_BYTES
from spoke.prefetch.accounts import Accounts
from spoke.prefetch.chains import Chain, Chains, FileFacts, NextFile
from spoke.prefetch.known_file import Job, KnownFile
from spoke.prefetch.scorecard import Reason
from spoke.prefetch.streams import Run
from spoke.prefetch.window import Latency, Window


class FilesInOrder:
    """``files``: those known; ``remember`` makes one known. ``jobs``: room to fill. ``new_id``: for a stream."""

    def __init__(
        self,
        next_file: NextFile,
        accounts: Accounts,
        latency: Latency,
        files: OrderedDict[bytes, KnownFile],
        jobs: OrderedDict[int, Job],
        *,
        remember: Callable[[FileFacts], KnownFile],
        new_id: Callable[[], int],
        small_file_bytes: int,
        stream_max_bytes: int,
    ) -> None:
        self._chains = Chains(next_file)
        self._accounts = accounts
        self._latency = latency
        self._files = files
        self._jobs = jobs
        self._remember = remember
        self._new_id = new_id
        self._small_file_bytes = small_file_bytes
        self._stream_max_bytes = stream_max_bytes

    def begin(self, now_s: float, file: KnownFile, *, late: bool) -> None:
        """The first read of a file."""
        chain = file.chain = self._chains.begun(now_s, file.facts.path)
        self._accounts.trusts[Reason.NEXT_FILE].wasted(self._chains.forgotten_bytes)
        self._chains.forgotten_bytes = 0
        size_bytes = file.facts.size_bytes
        if size_bytes > self._small_file_bytes or not self._accounts.trusts[Reason.SMALL_FILE].earned:
            return
        self._fetch_whole(now_s, file, Reason.SMALL_FILE)
        chain.read_bytes += size_bytes
        chain.window.read(now_s, size_bytes, chain.read_bytes, late=late,
                          latency_s=self._latency.latency_s, cap_bytes=self._stream_max_bytes, eager=False)  # fmt: skip
        file.following += self._anticipate(now_s, chain, chain.window.window_bytes)

    def read_whole(self, file: KnownFile, run: Run, *, missed: bool) -> None:
        """A read of a file planned as a whole: if all was planned and some is not there, it was evicted: again."""
        if run.charged_blocks:
            self._accounts.refund(file, run, file.whole_reason)
        if missed and run.planned_block >= file.block_count:
            run.planned_block = 0
            self._jobs[run.stream_id] = Job(file, run, Reason.SMALL_FILE)

    def reached_end(self, now_s: float, file: KnownFile, run: Run) -> None:
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

    def _fetch_whole(self, now_s: float, file: KnownFile, reason: Reason) -> None:
        if file.whole is None:
            run = file.whole = Run(self._new_id(), 0, 0, now_s)
            run.window = Window(now_s)
            run.window.window_bytes = file.block_count * BLOCK_BYTES
            file.whole_reason = reason
            self._jobs[run.stream_id] = Job(file, run, reason)

    def _anticipate(self, now_s: float, chain: Chain, window_bytes: int, evidence_blocks: int = 0) -> list[Job]:
        """Plan small files of the chain as a whole; returns jobs, still without a window, for the beginnings of larger ones."""
        jobs: list[Job] = []
        if not self._chains.proven(chain) or not self._accounts.trusts[Reason.NEXT_FILE].earned:
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
