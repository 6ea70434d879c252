"""What arrived last, still in memory: a reader in step with the link gets it from here, without the way through the disk.

Bounded, and only bytes that matched their digests; a version never changes, so nothing in here can be out of date.
"""

from __future__ import annotations

from collections import OrderedDict

from common.blocks import EXTENT_BYTES
from spoke.hub_client.single_flight import Landed

_EXTENT_SHIFT = EXTENT_BYTES.bit_length() - 1


class Recent:
    """At most ``capacity_bytes``; forgotten first is what was read to its end, then the longest here. Of each extent only the piece that
    came last."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.held_bytes = 0
        self._pieces: OrderedDict[tuple[bytes, int], Landed] = OrderedDict()

    def add(self, version: bytes, landed: Landed) -> None:
        key = (version, landed.offset_bytes >> _EXTENT_SHIFT)
        replaced = self._pieces.pop(key, None)
        if replaced is not None:
            self.held_bytes -= len(replaced.data)
        self._pieces[key] = landed
        self.held_bytes += len(landed.data)
        while self.held_bytes > self.capacity_bytes:
            self.held_bytes -= len(self._pieces.popitem(last=False)[1].data)

    def find(self, version: bytes, offset_bytes: int, length_bytes: int) -> Landed | None:
        """The piece that holds all these bytes."""
        key = (version, offset_bytes >> _EXTENT_SHIFT)
        piece, end_bytes = self._pieces.get(key), offset_bytes + length_bytes
        if piece is None or offset_bytes < piece.offset_bytes or end_bytes > piece.end_bytes:
            return None
        if end_bytes == piece.end_bytes:  # its reader goes on: room for what he has not come to
            self._pieces.move_to_end(key, last=False)
        return piece

    def forget(self) -> None:
        """Give the memory back (for a daemon that has become idle)."""
        self._pieces.clear()
        self.held_bytes = 0
