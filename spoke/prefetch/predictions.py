"""What an order predicts, by the place where it will be read: which predictions a READ touches is a look-up or two. Pure."""

from __future__ import annotations

from spoke.prefetch.cursor import PIECE_SHIFT, Item

_FILE_SHIFT = 40
_PIECES_MAX = 64


class Predictions:
    """Items by the pieces of 128 KiB that they begin and end in: a step is followed in pieces no longer than that."""

    def __init__(self) -> None:
        self._by_place: dict[int, list[Item]] = {}

    def items(self) -> list[Item]:
        """All that are listed, each as often as it is."""
        return [item for items in self._by_place.values() for item in items]

    def add(self, item: Item) -> None:
        for key in _places(item):
            self._by_place.setdefault(key, []).append(item)

    def remove(self, item: Item) -> None:
        for key in _places(item):
            found = self._by_place.get(key)
            if found is not None and item in found:
                found.remove(item)
                if not found:
                    del self._by_place[key]

    def touched(self, file: int, start_bytes: int, end_bytes: int) -> list[Item]:
        """Those of whose pages a READ holds some; of a very long READ, of its first 8 MiB."""
        by_place, base = self._by_place, file << _FILE_SHIFT
        first = start_bytes >> PIECE_SHIFT
        hits: list[Item] = []
        for place in range(first, min((end_bytes - 1 >> PIECE_SHIFT) + 1, first + _PIECES_MAX)):
            for item in by_place.get(base | place, ()):
                item_bytes = item.start_bytes
                # Listed where it begins and where it ends: it counts in the first of these that the READ touches.
                if (
                    (place == first or item_bytes >> PIECE_SHIFT == place)
                    and item_bytes & ~4095 < end_bytes
                    and item.end_bytes > start_bytes
                ):
                    hits.append(item)
        return hits


def _places(item: Item) -> tuple[int, ...]:
    base = item.file << _FILE_SHIFT
    first, last = item.start_bytes >> PIECE_SHIFT, item.end_bytes - 1 >> PIECE_SHIFT
    return (base | first,) if first == last else (base | first, base | last)
