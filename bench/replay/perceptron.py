"""An online filter of guesses, as CPU prefetchers have (Bhatia and others, Perceptron-Based Prefetch Filtering, 2019): an experiment.

After every READ it looks at pieces of 128 KiB up to 4 MiB ahead, adds up what each feature of a piece has been worth so far, and fetches
those above a threshold. A piece that is read soon was right, and the weights of its features grow; one that falls out of the memory unread
was wrong, and they shrink. Pieces that were turned down are remembered too, and teach when they are read after all.
"""

from __future__ import annotations

from collections import OrderedDict

from bench.replay.simulator import Read, Simulation
from common.blocks import BLOCK_BYTES

_PIECE_BYTES = 128 * 1024
_DISTANCES = (1, 2, 4, 8, 16, 32)
"""Pieces ahead: a fetch reaches from one of these to the next."""

_TAKEN_AT = 0
_SURE = 24
_WEIGHT_MAX = 31
_REMEMBERED = 2048
_TABLE = 4096

Features = tuple[int, ...]


class Perceptron:
    """A predictor of the simulator's; it begins with a little confidence in what lies just ahead."""

    name = "perceptron"

    def __init__(self) -> None:
        self.sim: Simulation
        self._weights = [[0] * _TABLE for _ in range(6)]
        self._taken: OrderedDict[tuple[int, int], Features] = OrderedDict()
        self._refused: OrderedDict[tuple[int, int], Features] = OrderedDict()
        self._last: dict[
            int, tuple[int, int]
        ] = {}  # handle: where its last READ ended, how many in a row went on there

    def start(self, sim: Simulation) -> None:
        self.sim = sim

    def opened(self, now_s: float, handle: int, task: int, file: int) -> None: ...
    def arrived(self, now_s: float, file: int, blocks: object) -> None: ...
    def evicted(self, file: int, blocks: object) -> None: ...
    def pump(self, now_s: float) -> None: ...

    def closed(self, now_s: float, handle: int) -> None:
        self._last.pop(handle, None)

    def read(self, now_s: float, read: Read, result: int) -> None:
        end_bytes = read.offset_bytes + read.length_bytes
        first, last = read.offset_bytes // _PIECE_BYTES, (end_bytes - 1) // _PIECE_BYTES
        for piece in range(first, last + 1):
            self._used((read.file, piece))
        last_end_bytes, run = self._last.get(read.handle, (0, 0))
        run = run + 1 if abs(read.offset_bytes - last_end_bytes) < _PIECE_BYTES else 0
        self._last[read.handle] = end_bytes, run
        near = sum((read.file, first - back) in self._taken for back in (1, 2, 3))
        for number, (begin, end) in enumerate(zip((0, *_DISTANCES), _DISTANCES, strict=False)):
            features: Features = (
                number,
                number << 8 | min(run, 8),
                number << 8 | min(read.length_bytes // 4096, 63),
                hash((read.file, number)) % _TABLE,
                number << 8 | (read.offset_bytes % _PIECE_BYTES == 0) << 4 | near,
                number << 8 | min(read.offset_bytes.bit_length(), 40),
            )
            value = sum(weights[at] for weights, at in zip(self._weights, features, strict=True))
            known = self._taken if value >= _TAKEN_AT else self._refused
            place = read.file, last + 1 + begin
            if place in self._taken or place in self._refused:
                continue
            known[place] = features
            if known is self._taken:
                self.sim.prefetch(
                    read.file, place[1] * _PIECE_BYTES // BLOCK_BYTES, (end - begin) * _PIECE_BYTES // BLOCK_BYTES
                )
        while len(self._taken) > _REMEMBERED:
            _, features = self._taken.popitem(last=False)
            self._teach(features, -1)
        while len(self._refused) > _REMEMBERED:
            self._refused.popitem(last=False)

    def _used(self, place: tuple[int, int]) -> None:
        features = self._taken.pop(place, None) or self._refused.pop(place, None)
        if features is not None:
            self._teach(features, 1)

    def _teach(self, features: Features, by: int) -> None:
        value = sum(weights[at] for weights, at in zip(self._weights, features, strict=True))
        if abs(value) > _SURE and (value > 0) == (by > 0):
            return  # sure of it already
        for weights, at in zip(self._weights, features, strict=True):
            weights[at] = max(-_WEIGHT_MAX, min(_WEIGHT_MAX, weights[at] + by))
