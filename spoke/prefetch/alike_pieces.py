"""Readers who read a piece here and a piece there, all pieces alike: how far one that begins is read on, by those before it. Pure.

A chunk of an array, a row group, a record of many pages: each is read from its first block to its last, at a place that chance chose, and
its first READ tells how long it will be, since the pieces of a kind of file that began with such a READ all were that long. Who read on
is told apart by task: several read in one file at once.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from common import limits

_FEWEST, _FEWEST_MOST = 24, 256
"""So many in a row must have been alike; twice as many after each that was fetched and was shorter."""

_ALIKE = 1.25
"""So much longer than the shortest in the row may one be."""

_BESIDE_LATEST, _BESIDE_MEMORY, _BESIDE_SHARE = 16, 16, 0.25
"""Where a quarter of the last pieces, about, began at the end of one of the 16 before, readers go abreast, which `abreast` knows better."""

_KINDS_MAX = 256

_NOTED_READS = 16
"""So many READs are looked at together while no kind is so near to be known that they could make it so."""


class _Piece:
    """What a task reads now: blocks up to ``next_block`` of a version. ``guessed_block``: the end of what was fetched ahead of it.

    ``file_kind``, ``read_blocks``: what it is known by, and ``known`` what is known by that. A task has one, ever anew.
    """

    __slots__ = ("file_kind", "guessed_block", "known", "next_block", "read_blocks", "start_block", "version")

    def __init__(self) -> None:
        self.version = b""
        self.file_kind: object = None
        self.start_block = self.next_block = self.read_blocks = self.guessed_block = 0
        self.known: _Kind | None = None


class _Kind:
    """Pieces of one kind of file that began with a READ of one length: the last ``count`` were alike, the shortest of ``blocks``.

    ``is_forgotten``: another took its place.
    """

    __slots__ = ("beside", "blocks", "count", "is_forgotten", "latest", "needed")

    def __init__(self) -> None:
        self.is_forgotten = False
        self.latest: deque[tuple[bytes, int]] = deque(maxlen=_BESIDE_LATEST)
        self.beside = 0.0
        self.blocks = self.count = 0
        self.needed = _FEWEST

    def begun(self, version: bytes, start_block: int) -> None:
        """One begins here: where one of the latest will end, if it is a sweep that many read together."""
        is_beside = (version, start_block - self.blocks) in self.latest
        self.beside += (is_beside - self.beside) / _BESIDE_MEMORY
        self.latest.append((version, start_block))

    def over(self, blocks: int, guessed_blocks: int) -> None:
        """One was so long, and ``guessed_blocks`` had been fetched of it (0: nothing)."""
        if guessed_blocks:
            is_short = blocks < guessed_blocks
            self.needed = min(2 * self.needed, _FEWEST_MOST) if is_short else max(_FEWEST, self.needed - 1)
        if self.count and self.blocks <= blocks * _ALIKE and blocks <= self.blocks * _ALIKE:
            self.count += 1
            self.blocks = min(self.blocks, blocks)
        else:
            self.count, self.blocks = 1, blocks


class AlikePieces:
    """``wasted_blocks``: fetched ahead of a piece and not read by who read it, until taken."""

    def __init__(self) -> None:
        self._reading: OrderedDict[int, _Piece] = OrderedDict()
        self._kinds: OrderedDict[tuple[object, int], _Kind] = OrderedDict()
        self._last: _Piece | None = None
        self._last_kind: _Kind | None = None  # the latest of them all
        self._noted: list[tuple[int, bytes, object, int, int]] = []
        self.is_far = True
        """From knowing how far any piece will be read: nothing is fetched of any, and the next few READs change nothing in that."""
        self._heard = 0
        self.wasted_blocks = 0
        self.has_begun = False
        """The last READ began a piece, if its end is known."""

    def __len__(self) -> int:
        """Tasks and kinds remembered."""
        return len(self._reading) + len(self._kinds)

    def read(
        self, task_id: int, version: bytes, kind: object, start_block: int, end_block: int, *, may_fetch: bool = True
    ) -> int:
        """A READ by a task. Returns the block up to which its piece will be read, or 0 where that is not known."""
        if self.is_far:
            self.note(task_id, version, kind, start_block, end_block)
            return 0
        self._heard += 1
        if not self._heard % _NOTED_READS:
            self.is_far = self._look()
        return self._hear(task_id, version, kind, start_block, end_block, may_fetch=may_fetch)

    def note(self, task_id: int, version: bytes, kind: object, start_block: int, end_block: int) -> None:
        """A READ while it ``is_far``."""
        noted = self._noted
        noted.append((task_id, version, kind, start_block, end_block))
        if len(noted) >= _NOTED_READS:
            self._noted = []
            for each in noted:
                self._hear(*each, may_fetch=False)
            self.is_far = self._look()

    def _look(self) -> bool:
        """Whether no kind can come to be known with the next few READs, and nothing is fetched ahead of any piece."""
        for (_, read_blocks), known in self._kinds.items():
            if known.blocks > read_blocks and known.count + _NOTED_READS >= known.needed:
                return False
        return not any(piece.guessed_block for piece in self._reading.values())

    def _hear(
        self, task_id: int, version: bytes, kind: object, start_block: int, end_block: int, *, may_fetch: bool
    ) -> int:
        piece = self._reading.get(task_id)
        if piece is None:
            piece = self._reading[task_id] = _Piece()
            if len(self._reading) > limits.PREFETCH_ACTIVE_MAX_STREAMS:
                self._reading.popitem(last=False)
            known = None
        else:
            next_block = piece.next_block
            if next_block - 1 <= start_block <= next_block and piece.version == version:
                piece.next_block = max(next_block, end_block)
                self.has_begun = False
                return piece.guessed_block if start_block < piece.guessed_block else 0
            known = self._over(piece)
            if self._last is not piece:
                self._reading.move_to_end(task_id)
        self.has_begun = True
        self._last = piece
        read_blocks = end_block - start_block
        if known is None or piece.read_blocks != read_blocks or piece.file_kind != kind:
            known = self._kinds.get((kind, read_blocks))
        piece.version, piece.start_block, piece.next_block = version, start_block, end_block
        piece.file_kind, piece.read_blocks, piece.known, piece.guessed_block = kind, read_blocks, known, 0
        if known is None:
            return 0
        known.begun(version, start_block)
        if (
            known.beside >= _BESIDE_SHARE
            or known.count < known.needed
            or known.blocks > limits.PREFETCH_PIECE_MAX_BLOCKS
            or not may_fetch
        ):
            return 0
        guessed_block = start_block + known.blocks
        if guessed_block <= end_block:
            return 0
        piece.guessed_block = guessed_block
        return guessed_block

    def _over(self, piece: _Piece) -> _Kind:
        """It is read no further. Returns what is known of its kind now."""
        guessed_block = piece.guessed_block
        if guessed_block > piece.next_block:
            self.wasted_blocks += guessed_block - piece.next_block
        known = piece.known
        if known is None or known.is_forgotten:
            key = piece.file_kind, piece.read_blocks
            known = self._kinds.get(key)
            if known is None:
                known = self._kinds[key] = self._last_kind = _Kind()
                if len(self._kinds) > _KINDS_MAX:
                    self._kinds.popitem(last=False)[1].is_forgotten = True
        if known is not self._last_kind:
            self._kinds.move_to_end((piece.file_kind, piece.read_blocks))
            self._last_kind = known
        known.over(piece.next_block - piece.start_block, guessed_block - piece.start_block if guessed_block else 0)
        return known
