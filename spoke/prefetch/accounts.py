"""What the guesses are worth: whose bytes went unread, held against the file and the kind of guess that fetched them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from common.blocks import BLOCK_BYTES, BlockRange
from spoke.prefetch.gate import ReadBytes, Trust
from spoke.prefetch.known_file import KnownFile, reason_of
from spoke.prefetch.scorecard import Reason
from spoke.prefetch.streams import Run

_REASONS = (Reason.SEQUENTIAL, Reason.STRIDED, Reason.SMALL_FILE, Reason.NEXT_FILE, Reason.THROUGHOUT)


class Accounts:
    """``read``: bytes of all files. ``trusts``: by kind of guess; ``sequential`` is the one that most READs ask for."""

    def __init__(self) -> None:
        self.read = ReadBytes()
        self.trusts = {reason: Trust(self.read) for reason in _REASONS}
        self.sequential = self.trusts[Reason.SEQUENTIAL]

    def trusted(self, file: KnownFile) -> bool:
        """Streams may be guessed at in this file."""
        own, all_files = file.trust, self.sequential
        return (not own.wasted_bytes or own.earned) and (not all_files.wasted_bytes or all_files.earned)

    def wasted(self, file: KnownFile, reason: Reason, wasted_bytes: int) -> None:
        """Fetched for this reason, and nobody will read it."""
        file.trust.wasted(wasted_bytes)
        self.trusts[reason].wasted(wasted_bytes)

    def evicted(self, file: KnownFile | None, blocks: BlockRange, wasted: Mapping[Reason, int]) -> None:
        """Blocks were evicted; ``wasted``: bytes of them that nobody had read, by what they were fetched for."""
        guessed_bytes = 0
        for reason, trust in self.trusts.items():
            wasted_bytes = wasted.get(reason, 0)
            if wasted_bytes:
                trust.wasted(wasted_bytes)
                guessed_bytes += wasted_bytes
        if file is not None and guessed_bytes:
            file.trust.wasted(guessed_bytes)
            file.runs.lost(blocks)

    def charge_all(self, file: KnownFile) -> None:
        """The file was closed or forgotten: what was planned in it and not read counts as wasted, until it is read."""
        file.strides.forget()
        self.settle_strides(file)
        for run in file.runs.streams():
            self.charge(file, run)
        if file.whole is not None:
            unread_blocks = file.whole.planned_block - file.read.total // BLOCK_BYTES
            self._hold_against(file, file.whole, unread_blocks, file.whole_reason)

    def settle_strides(self, file: KnownFile) -> None:
        """Progressions that the file forgot: what they had ahead is wasted."""
        wasted_bytes = file.strides.wasted_bytes
        if wasted_bytes:
            file.strides.wasted_bytes = 0
            self.wasted(file, Reason.STRIDED, wasted_bytes)

    def charge(self, file: KnownFile, run: Run) -> None:
        """What a stream has planned and not read."""
        self._hold_against(file, run, run.ahead_blocks, reason_of(run))

    def _hold_against(self, file: KnownFile, run: Run, unread_blocks: int, reason: Reason) -> None:
        more_blocks = unread_blocks - run.charged_blocks
        if more_blocks > 0:
            run.charged_blocks += more_blocks
            self.wasted(file, reason, more_blocks * BLOCK_BYTES)

    def refund(self, file: KnownFile, run: Run, reason: Reason) -> None:
        """It is read after all."""
        file.trust.used_after_all(run.charged_blocks * BLOCK_BYTES)
        self.trusts[reason].used_after_all(run.charged_blocks * BLOCK_BYTES)
        run.charged_blocks = 0
