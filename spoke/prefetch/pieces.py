"""Readers who read a piece here and a piece there, all pieces alike: how far one that begins is read on, by those before it. Pure.

A chunk of an array, a row group, a record of many pages: each is read from its first block to its last, at a place that chance chose, and
its first READ tells how long it will be, since the pieces of a kind of file that began with such a READ all were that long. Who read on
is told apart by task: several read in one file at once.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from common import limits

_FEWEST = 8
_LATEST = 16
_ALIKE = 1.25
"""So much longer than the shortest of the last ones may the longest be."""
_KINDS_MAX = 256


class _Piece:
    """What a task reads now: blocks up to ``next_block`` of a version. ``guessed_block``: the end of what was fetched ahead of it."""

    __slots__ = ("guessed_block", "key", "next_block", "start_block", "version")

    def __init__(self, version: bytes, start_block: int, next_block: int, key: tuple[object, int]) -> None:
        self.version = version
        self.start_block = start_block
        self.next_block = next_block
        self.key = key
        self.guessed_block = 0


class Pieces:
    """``wasted_blocks``: fetched ahead of a piece and not read by who read it, until taken."""

    def __init__(self) -> None:
        self._reading: OrderedDict[int, _Piece] = OrderedDict()
        self._kinds: OrderedDict[tuple[object, int], deque[int]] = OrderedDict()
        self.wasted_blocks = 0
        self.has_begun = False
        """The last READ began a piece."""

    def __len__(self) -> int:
        """Tasks and kinds remembered."""
        return len(self._reading) + len(self._kinds)

    def read(
        self, task_id: int, version: bytes, kind: object, start_block: int, end_block: int, *, may_fetch: bool = True
    ) -> int:
        """A READ by a task. Returns the block up to which its piece will be read, or 0 where that is not known."""
        piece = self._reading.get(task_id)
        if piece is not None and piece.version == version and piece.next_block - 1 <= start_block <= piece.next_block:
            piece.next_block = max(piece.next_block, end_block)
            self.has_begun = False
            return piece.guessed_block if start_block < piece.guessed_block else 0
        if piece is not None:
            self._over(piece)
        self.has_begun = True
        key = kind, end_block - start_block
        piece = self._reading[task_id] = _Piece(version, start_block, end_block, key)
        self._reading.move_to_end(task_id)
        if len(self._reading) > limits.PREFETCH_ACTIVE_MAX_STREAMS:
            self._reading.popitem(last=False)
        known = self._kinds.get(key)
        if known is None or len(known) < _FEWEST or not may_fetch:
            return 0
        shortest, longest = min(known), max(known)
        guessed_block = start_block + shortest
        if guessed_block <= end_block or longest > min(_ALIKE * shortest, limits.PREFETCH_PIECE_MAX_BLOCKS):
            return 0
        piece.guessed_block = guessed_block
        return guessed_block

    def _over(self, piece: _Piece) -> None:
        if piece.guessed_block > piece.next_block:
            self.wasted_blocks += piece.guessed_block - piece.next_block
        known = self._kinds.get(piece.key)
        if known is None:
            known = self._kinds[piece.key] = deque(maxlen=_LATEST)
            if len(self._kinds) > _KINDS_MAX:
                self._kinds.popitem(last=False)
        else:
            self._kinds.move_to_end(piece.key)
        known.append(piece.next_block - piece.start_block)
