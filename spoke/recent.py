"""What arrived last, still in memory: a reader in step with the link gets it from here, without the way through the disk.

Bounded, and only bytes that matched their digests; a version never changes, so nothing in here can be out of date.
"""

from __future__ import annotations

from collections import OrderedDict

from common.blocks import EXTENT_BYTES
from spoke.hub_client.single_flight import Landed

_EXTENT_SHIFT = EXTENT_BYTES.bit_length() - 1


class Recent:
    """At most ``capacity_bytes``, the longest here forgotten first; of each extent only the piece that came last."""

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
        piece = self._pieces.get((version, offset_bytes >> _EXTENT_SHIFT))
        if piece is None or offset_bytes < piece.offset_bytes or offset_bytes + length_bytes > piece.end_bytes:
            return None
        return piece

    def forget(self) -> None:
        """Give the memory back (for a daemon that has become idle)."""
        self._pieces.clear()
        self.held_bytes = 0
