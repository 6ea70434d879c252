"""Finds where in an order a reader is: reads vote for the places they may stand for, and neighbours confirm each other. Pure.

One read proves little: a place may be read by chance, or by somebody who does not follow the order. How many neighbours it
takes depends on how often chance would bring as many together.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from common import limits
from spoke.prefetch.orders import Order
from spoke.prefetch.shapes import Shapes

_BAND_MAX = 64
_BAND_MIN = 2
_CHANCE = 1e-3
_FIRST_READS = 16
_NEIGHBOURS_MAX = 64
_FEW_STEPS = 1024
_NEIGHBOURS_OF_FEW = 2
_HEAD_STEPS = 64
_HEAD_VOTES = 4
_PAGE = 4096
_VAIN_EVERY = 8
_TOTAL_EVERY = 4096


class Candidate(NamedTuple):
    """A step that a read may be. ``fault``: if the read was a page fault, centred on the page wanted."""

    lane: int
    position: int
    fault: bool


class Found(NamedTuple):
    """A lane, and the positions (rising) of the reads that show somebody is there."""

    lane: int
    positions: list[int]
    fault: bool


class Votes:
    """The votes of the last reads that have no place yet."""

    def __init__(self) -> None:
        self._order: deque[tuple[int, int]] = deque()
        self._votes: dict[tuple[int, int], list[Candidate]] = {}
        self._band = _BAND_MAX
        self._reads = 0

    def __len__(self) -> int:
        return len(self._order)

    def add(self, candidates: list[Candidate], total_steps: int, *, may_err: bool = True) -> Found | None:
        """Take a read's candidates; a place, if they and earlier ones now make one. ``total_steps``: of all lanes.

        ``may_err``: in a short order a place may be found by chance.
        """
        self._reads += 1
        band = min(_BAND_MAX, max(_BAND_MIN, total_steps // 64))
        if band != self._band:
            self.clear()
            self._band = band
        needed = self._needed(len(candidates), total_steps, may_err)
        # Whoever begins, begins at the beginning: there, and first of all, two will do.
        beginning = 1 if len(self._order) <= _HEAD_VOTES else needed
        best: list[Candidate] = []
        for candidate in candidates:
            near = self._near(candidate)
            at_head = candidate.position < _HEAD_STEPS
            if len(near) >= (beginning if at_head else needed) and len(near) + 1 > len(best):
                best = [*near, candidate]
        for candidate in candidates:
            key = candidate.lane, candidate.position // band
            votes = self._votes.setdefault(key, [])
            if all(vote.position != candidate.position for vote in votes):  # a long step is read many times over
                votes.append(candidate)
                self._order.append(key)
        while len(self._order) > limits.ORDER_VOTES_MAX:
            self._forget_first(self._order.popleft())
        if not best:
            return None
        self._forget_near(best[0].lane, best[0].position)
        self._reads = 0
        faults = sum(candidate.fault for candidate in best)
        return Found(best[0].lane, sorted({vote.position for vote in best}), 2 * faults > len(best))

    def clear(self) -> None:
        self._order.clear()
        self._votes.clear()

    def _near(self, candidate: Candidate) -> list[Candidate]:
        """The votes for other positions near a candidate's."""
        found: list[Candidate] = []
        bucket = candidate.position // self._band
        for number in (bucket - 1, bucket, bucket + 1):
            for vote in self._votes.get((candidate.lane, number), ()):
                if vote.position != candidate.position and abs(vote.position - candidate.position) <= self._band:
                    found.append(vote)
        return found

    def _needed(self, candidate_count: int, total_steps: int, may_err: bool) -> int:
        """So many neighbours seldom come together by chance; the more reads had no place, the more seldom it must be."""
        expected = candidate_count * len(self._order) * (2 * self._band + 1) / max(1, total_steps)
        if (
            may_err and total_steps < _FEW_STEPS
        ):  # chance is likely here, and a mistake soon over: the order is charged for it
            return _NEIGHBOURS_OF_FEW
        allowed = _CHANCE / max(1, self._reads - _FIRST_READS)
        probability = 1.0
        for neighbours in range(1, _NEIGHBOURS_MAX):
            probability *= expected / neighbours
            if probability <= allowed:
                return neighbours
        return _NEIGHBOURS_MAX

    def _forget_near(self, lane: int, position: int) -> None:
        """The votes that made a place are spent; those for other places still count."""
        bucket = position // self._band
        spent = {(lane, bucket + step) for step in (-2, -1, 0, 1, 2)}
        for key in spent:
            self._votes.pop(key, None)
        self._order = deque(key for key in self._order if key not in spent)

    def _forget_first(self, key: tuple[int, int]) -> None:
        votes = self._votes[key]
        del votes[0]
        if not votes:
            del self._votes[key]


class Finder:
    """Looks READs without a place up in an order. One that reads are in and do not follow is asked each eighth time."""

    def __init__(self, order: Order, shapes: Shapes) -> None:
        self.order = order
        self._shapes = shapes
        self.votes = Votes()
        self._vain = 0
        self.is_in_vain = False
        """So many look-ups found nobody that few READs are worth one."""
        self._reads = 0
        self._total_steps = 0

    def grew(self) -> None:
        """The order has other lengths now."""
        self._total_steps = 0

    def found(self) -> None:
        """What was looked up was not in vain."""
        self._vain = 0
        self.is_in_vain = False

    def is_due(self) -> bool:
        """While it ``is_in_vain``: whether a READ without a place is to be looked up, to be asked once for each."""
        self._reads += 1
        return not self._reads % _VAIN_EVERY

    def look_up(self, file: int, start_bytes: int, length_bytes: int) -> Found | None:
        """A place that this READ, together with some before it, shows; None if there is none yet."""
        order, most = self.order, limits.ORDER_CANDIDATES_MAX
        candidates = [
            Candidate(lane, position, fault=False)
            for lane, position in order.find(file, start_bytes, start_bytes + _PAGE, most)
        ]
        fault_bytes = self._shapes.fault_bytes(file)
        if length_bytes == fault_bytes and start_bytes % fault_bytes and not self._shapes.as_recorded:
            anchor_bytes = start_bytes + fault_bytes // 2
            known = {(lane, position) for lane, position, _ in candidates}
            candidates += [
                Candidate(lane, position, fault=True)
                for lane, position in order.find(file, anchor_bytes, anchor_bytes + _PAGE, most)
                if (lane, position) not in known
            ]
        if candidates or not self._shapes.as_recorded:
            self._vain += 1
            self.is_in_vain = self._vain > limits.ORDER_LOOKUPS_IN_VAIN
        if not candidates:
            return None
        candidates.sort()
        if not self._total_steps or not self._vain % _TOTAL_EVERY:
            self._total_steps = sum(order.length(lane) - order.first(lane) for lane in range(order.lane_count))
        return self.votes.add(candidates, self._total_steps, may_err=not self._shapes.as_recorded)
