"""Which of the orders that spokes told of are worth keeping, and in which order others are told of them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from common import limits


class KeptRow(NamedTuple):
    """``first_s``, ``last_s``: when somebody told of it, seconds since 1970. ``teller``: who did first. ``tellers``: how many have.

    ``followed``: somebody read along it. ``sketch``: packed (common.order_report).
    """

    digest: bytes
    packed_bytes: int
    steps: int
    files: int
    first_s: float
    last_s: float
    teller: str
    tellers: int
    followed: bool
    sketch: bytes

    @property
    def is_proven(self) -> bool:
        return self.followed or self.tellers > 1


def most_useful_first(rows: Iterable[KeptRow]) -> list[KeptRow]:
    """The proven ones, then the others, the newest first."""
    return sorted(rows, key=lambda row: (not row.is_proven, -row.last_s, row.digest))


def to_drop(rows: Iterable[KeptRow]) -> list[KeptRow]:
    """What goes, so that the rest keeps to limits.py."""
    gone: list[KeptRow] = []
    counts: Counter[bool] = Counter()
    unproven_of: Counter[str] = Counter()
    total_bytes = 0
    for row in most_useful_first(rows):
        proven = row.is_proven
        most = limits.ORDERS_KEPT_PROVEN if proven else limits.ORDERS_KEPT_UNPROVEN
        too_many = counts[proven] >= most
        too_many_of_one = not proven and unproven_of[row.teller] >= limits.ORDERS_KEPT_PER_SPOKE
        if too_many or too_many_of_one or total_bytes + row.packed_bytes > limits.ORDERS_KEPT_MAX_BYTES:
            gone.append(row)
            continue
        counts[proven] += 1
        unproven_of[row.teller] += not proven
        total_bytes += row.packed_bytes
    return gone
