"""Which orders a hub keeps when there are too many: proven before others, new before old, no spoke more than its share."""

from __future__ import annotations

import pytest

from common import limits
from hub.orders.ranks import KeptRow, most_useful_first, to_drop


def row(
    number: int, *, teller: str = "", tellers: int = 1, followed: bool = False, packed_bytes: int = 1000
) -> KeptRow:
    digest = number.to_bytes(16, "big")
    return KeptRow(digest, packed_bytes, 100, 1, 0.0, float(number), teller or f"gpu-{number}", tellers, followed, b"")


def test_the_proven_come_first_and_then_the_newest() -> None:
    rows = [row(1), row(2, followed=True), row(3, tellers=2), row(4)]
    assert [found.last_s for found in most_useful_first(rows)] == [3, 2, 4, 1]


def test_of_too_many_the_oldest_of_their_kind_go() -> None:
    proven = [row(number, followed=True) for number in range(limits.ORDERS_KEPT_PROVEN + 2)]
    others = [row(100 + number) for number in range(limits.ORDERS_KEPT_UNPROVEN + 3)]
    assert {found.last_s for found in to_drop([*others, *proven])} == {0, 1, 100, 101, 102}


def test_a_spoke_that_tells_of_a_million_pushes_out_its_own() -> None:
    mad = [row(1000 + number, teller="mad") for number in range(50)]
    others = [row(number) for number in range(limits.ORDERS_KEPT_UNPROVEN - limits.ORDERS_KEPT_PER_SPOKE)]
    gone = to_drop([*mad, *others])
    assert {found.teller for found in gone} == {"mad"}
    assert len(gone) == 50 - limits.ORDERS_KEPT_PER_SPOKE


def test_bytes_are_bounded_and_what_is_proven_stays_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ORDERS_KEPT_MAX_BYTES", 3000)
    rows = [row(1, followed=True, packed_bytes=2000), row(2, packed_bytes=900), row(3, packed_bytes=900)]
    assert [found.last_s for found in to_drop(rows)] == [2]
