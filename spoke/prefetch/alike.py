"""What files of one kind have in common, read throughout or in pieces of one length: what is left of either is fetched. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from common.blocks import BLOCK_BYTES, EXTENT_BYTES, BlockRange
from spoke.prefetch.accounts import Accounts
from spoke.prefetch.alike_pieces import AlikePieces
from spoke.prefetch.known_file import KnownFile
from spoke.prefetch.scorecard import Ledger, Reason
from spoke.prefetch.source import NO_STREAM, Fetch, ReadSeen
from spoke.prefetch.throughout import Throughout


class Alike:
    """``rests``: what is to be fetched, in order. ``throughout_max_bytes``: as the planner's."""

    def __init__(self, accounts: Accounts, ledger: Ledger, throughout_max_bytes: int) -> None:
        self._accounts = accounts
        self._trust = accounts.trusts[Reason.THROUGHOUT]
        self._ledger = ledger
        self._throughout = Throughout(throughout_max_bytes)
        self._pieces = AlikePieces()
        self.rests: deque[tuple[KnownFile, BlockRange]] = deque()

    def read(self, file: KnownFile, seen: ReadSeen, start_block: int, end_block: int) -> bool:
        """A READ of these blocks. True: it is in a piece whose end is known, so that nothing need be guessed."""
        facts, trust, pieces = file.facts, self._trust, self._pieces
        may_fetch = not trust.wasted_bytes or trust.earned
        if facts.size_bytes <= self._throughout.file_max_bytes:
            read_bytes = self._accounts.read.total
            rest = self._throughout.read(facts, start_block, end_block, read_bytes, may_fetch=may_fetch)
            if rest:
                self.rests.extend((file, blocks) for blocks in rest)
        if pieces.wasted_blocks:
            trust.wasted(pieces.wasted_blocks * BLOCK_BYTES)
            pieces.wasted_blocks = 0
            may_fetch = trust.earned
        if pieces.is_far:
            pieces.note(seen[1], seen[2], file.kind, start_block, end_block)
            return False
        may_fetch = may_fetch and (not file.trust.wasted_bytes or file.trust.earned)
        until_block = pieces.read(seen[1], seen[2], file.kind, start_block, end_block, may_fetch=may_fetch)
        if not until_block:  # most READs
            return False
        until_block = min(until_block, file.block_count)
        if pieces.has_begun and until_block > end_block:
            self.rests.appendleft((file, BlockRange(end_block, until_block - end_block)))
        return True

    def evicted(self, version: bytes, blocks: BlockRange, wasted: Mapping[Reason, int]) -> None:
        """Blocks were evicted; ``wasted``: bytes of them that nobody had read, by what they were fetched for."""
        if Reason.THROUGHOUT in wasted:
            self._throughout.evicted(version, blocks)

    def plan(self, now_s: float, budget_bytes: int) -> list[Fetch]:
        """What is left of files and pieces, when all else was planned."""
        fetches: list[Fetch] = []
        while self.rests and budget_bytes >= EXTENT_BYTES:
            file, blocks = self.rests.popleft()
            if now_s < file.paused_until_s:
                continue
            version, size_bytes = file.facts.version, file.facts.size_bytes
            for fresh in self._ledger.plan(now_s, version, blocks, Reason.THROUGHOUT):
                fetches.append(Fetch(version, fresh, NO_STREAM, Reason.THROUGHOUT, size_bytes))
                budget_bytes -= fresh.block_count * BLOCK_BYTES
        return fetches
