"""What is fetched beside the streams: the steps of progressions, places just begun, and what readers abreast stand before. Pure."""

from __future__ import annotations

from collections import deque

from common.blocks import BLOCK_BYTES, EXTENT_BYTES, BlockRange
from spoke.prefetch.accounts import Accounts
from spoke.prefetch.known_file import KnownFile, first_bytes
from spoke.prefetch.scorecard import Ledger, Reason
from spoke.prefetch.source import NO_STREAM, Fetch
from spoke.prefetch.streams import Join, Run
from spoke.prefetch.strides import Stride
from spoke.prefetch.window import Latency


class Scattered:
    """``pieces``: steps and places, ``waited``: what readers wait for, in order. The bounds are the planner's."""

    def __init__(
        self, accounts: Accounts, ledger: Ledger, latency: Latency, *, stream_max_bytes: int, windows_max_bytes: int
    ) -> None:
        self._accounts = accounts
        self._trust = accounts.trusts[Reason.STRIDED]
        self._ledger = ledger
        self._latency = latency
        self._stream_max_bytes = stream_max_bytes
        self._windows_max_bytes = windows_max_bytes
        self.pieces: deque[tuple[KnownFile, Stride | None, BlockRange]] = deque()
        self.waited: deque[tuple[KnownFile, BlockRange]] = deque()

    def stride(
        self,
        now_s: float,
        file: KnownFile,
        stride: Stride,
        *,
        late: bool,
        active_count: int,
    ) -> None:
        """A read that is the next of a progression. ``active_count``: of streams that share the windows."""
        strides = file.strides
        if not (file.trust.earned and self._trust.earned):
            return
        cap_bytes = min(self._stream_max_bytes, self._windows_max_bytes // (active_count + len(strides)))
        latency_s = self._latency.latency_s
        least_blocks = file.runs.beginnings.blocks  # places of it may be read on at once, as others were
        for blocks in strides.ahead(
            stride, now_s, late=late, latency_s=latency_s, cap_bytes=cap_bytes, least_blocks=least_blocks
        ):
            self.pieces.append((file, stride, blocks))
        if strides.wasted_bytes:
            self._accounts.settle_strides(file)

    def read_on(self, file: KnownFile, start_block: int, end_block: int) -> None:
        """A place was begun that, as the last ones were, will be read on at once."""
        beginnings = file.runs.beginnings
        if beginnings.wasted_blocks:
            wasted_bytes = beginnings.wasted_blocks * BLOCK_BYTES
            beginnings.wasted_blocks = 0
            self._accounts.wasted(file, Reason.SEQUENTIAL, wasted_bytes)
        guessed_block = min(start_block + beginnings.blocks, file.block_count)
        if guessed_block > end_block:
            beginnings.guessed(guessed_block)
            self.pieces.append((file, None, BlockRange(end_block, guessed_block - end_block)))

    def look_abreast(
        self, file: KnownFile, run: Run, join: Join, start_block: int, end_block: int, task_id: int
    ) -> None:
        """Readers abreast show themselves by where runs begin and are read on."""
        abreast = file.runs.abreast
        most_blocks = self._windows_max_bytes // BLOCK_BYTES
        if join is Join.NEW:
            if abreast.begun(start_block, end_block, task_id, file.block_count, most_blocks):
                abreast.began(min(first_bytes(file), self._stream_max_bytes, self._windows_max_bytes) // BLOCK_BYTES)
        elif join is Join.JOINED:
            abreast.read_on(run.start_block, run.next_block, min(file.block_count, run.start_block + most_blocks))
        if abreast.waited:
            self.waited.extend((file, blocks) for blocks in abreast.waited)
            abreast.waited.clear()

    def plan(self, now_s: float, budget_bytes: int) -> list[Fetch]:
        """The steps of progressions, and what is left of places begun, first of all: they are few, and soon read."""
        fetches: list[Fetch] = []
        while self.pieces and budget_bytes >= EXTENT_BYTES:
            file, stride, blocks = self.pieces.popleft()
            if (stride is not None and stride not in file.strides) or now_s < file.paused_until_s:
                continue  # forgotten meanwhile, or failing: whoever wants it reads it
            version, size_bytes = file.facts.version, file.facts.size_bytes
            reason = Reason.SEQUENTIAL if stride is None else Reason.STRIDED
            for fresh in self._ledger.plan(now_s, version, blocks, reason):
                fetches.append(Fetch(version, fresh, NO_STREAM, reason, size_bytes))
                budget_bytes -= fresh.block_count * BLOCK_BYTES
        return fetches

    def plan_waited(self, now_s: float, budget_bytes: int) -> list[Fetch]:
        """What readers abreast stand before, whether it is under way or not; at most ``budget_bytes``, in the order of its place."""
        fetches: list[Fetch] = []
        budget_blocks = budget_bytes // BLOCK_BYTES
        while self.waited and budget_blocks > 0:
            file, blocks = self.waited.popleft()
            if now_s < file.paused_until_s:
                continue
            part = BlockRange(blocks.first_block, min(blocks.block_count, budget_blocks))
            if part != blocks:
                self.waited.appendleft((file, BlockRange(part.end_block, blocks.block_count - part.block_count)))
            budget_blocks -= part.block_count
            version = file.facts.version
            self._ledger.plan(now_s, version, part, Reason.SEQUENTIAL)
            fetches.append(Fetch(version, part, NO_STREAM, Reason.SEQUENTIAL, file.facts.size_bytes))
        return fetches
