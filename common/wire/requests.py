"""What one connection still owes or is owed: READs (which id stands for which blocks) and PINGs.

Both ends keep the same table from the same frames, so an answer nobody asked for, a block sent twice and an end that
comes too early are seen where they happen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import accumulate

from common import limits
from common.blocks import BlockRange
from common.errors import ProtocolError

ID_LIMIT = 1 << 32
_ABOVE_ANY_COUNT = limits.BLOCK_INDEX_LIMIT + 1


class OpenRead:
    """``owed``: one bit for each block of the READ, in its order, while it has not been sent."""

    __slots__ = ("_positions", "_ranges", "owed", "withdrawn")

    def __init__(self, ranges: tuple[BlockRange, ...]) -> None:
        self._ranges = ranges
        self._positions = (0, *accumulate(blocks.block_count for blocks in ranges))
        self.owed = (1 << self._positions[-1]) - 1
        self.withdrawn = False

    def bits_of(self, blocks: BlockRange) -> int:
        """The bits of blocks that lie in one range of the READ; 0 when they do not."""
        index = bisect_right(self._ranges, (blocks.first_block, _ABOVE_ANY_COUNT)) - 1
        if index < 0 or blocks.end_block > self._ranges[index].end_block:
            return 0
        position = self._positions[index] + blocks.first_block - self._ranges[index].first_block
        return ((1 << blocks.block_count) - 1) << position


class OpenReads:
    def __init__(self) -> None:
        self._reads: dict[int, OpenRead] = {}
        self._withdrawn_count = 0

    def __contains__(self, request_id: int) -> bool:
        """The READ has not been ended (it may have been withdrawn)."""
        return request_id in self._reads

    @property
    def waiting_count(self) -> int:
        """READs that are neither ended nor withdrawn."""
        return len(self._reads) - self._withdrawn_count

    @property
    def is_full(self) -> bool:
        return (
            self.waiting_count >= limits.REQUESTS_MAX_OUTSTANDING or len(self._reads) >= limits.REQUESTS_MAX_UNANSWERED
        )

    def is_waiting(self, request_id: int) -> bool:
        read = self._reads.get(request_id)
        return read is not None and not read.withdrawn

    def is_withdrawn(self, request_id: int) -> bool:
        read = self._reads.get(request_id)
        return read is not None and read.withdrawn

    def check_new(self, request_id: int) -> None:
        if not 0 < request_id < ID_LIMIT or request_id in self._reads:
            raise ProtocolError(f"READ with the id {request_id}, which is open already or no id")

    def open(self, request_id: int, ranges: tuple[BlockRange, ...]) -> None:
        self._reads[request_id] = OpenRead(ranges)

    def withdraw(self, request_id: int) -> None:
        """CANCEL was sent or received; the id stays taken until the hub ends it."""
        self._reads[request_id].withdrawn = True
        self._withdrawn_count += 1

    def check_answer(self, request_id: int, blocks: BlockRange, last: bool) -> tuple[OpenRead, int]:
        """Raises ProtocolError unless these blocks are owed and ``last`` is true exactly when no others are.

        Returns the READ and the bits it would still be owed.
        """
        read = self._reads.get(request_id)
        if read is None:
            raise ProtocolError(f"DATA for the id {request_id}, which is not open")
        bits = read.bits_of(blocks)
        if bits == 0 or read.owed & bits != bits:
            raise ProtocolError(
                f"DATA with blocks {blocks.first_block}+{blocks.block_count}, which request {request_id} is not owed"
            )
        owed = read.owed ^ bits
        if last != (owed == 0):
            raise ProtocolError(
                f"DATA of request {request_id} says LAST={int(last)} with {owed.bit_count()} blocks still owed"
            )
        return read, owed

    def answer(self, request_id: int, blocks: BlockRange, last: bool) -> None:
        """Note a DATA. Raises ProtocolError, and changes nothing, as ``check_answer`` does."""
        self.answered(request_id, *self.check_answer(request_id, blocks, last))

    def answered(self, request_id: int, read: OpenRead, owed: int) -> None:
        """The DATA is whole for which ``check_answer`` gave this."""
        read.owed = owed
        if not owed:
            self.end(request_id)

    def end(self, request_id: int) -> None:
        """The hub's last word on this id: it may be used again. Raises ProtocolError when it is not open."""
        read = self._reads.pop(request_id, None)
        if read is None:
            raise ProtocolError(f"an ERROR for the id {request_id}, which is not open")
        self._withdrawn_count -= read.withdrawn

    def clear(self) -> None:
        self._reads.clear()
        self._withdrawn_count = 0


class OpenPings:
    """PINGs of one side that have no PONG yet, oldest first."""

    def __init__(self) -> None:
        self._tokens: deque[int] = deque()

    def asked(self, token: int) -> None:
        if len(self._tokens) >= limits.PINGS_MAX_OUTSTANDING:
            raise ProtocolError(f"more than {limits.PINGS_MAX_OUTSTANDING} PINGs without a PONG")
        self._tokens.append(token)

    def answered(self, token: int) -> None:
        if not self._tokens or self._tokens[0] != token:
            raise ProtocolError(f"PONG {token} does not answer the oldest open PING")
        self._tokens.popleft()
