"""For all orders: a report comes back as it was, its digest names its content, and a sketch tells the same from the other."""

from __future__ import annotations

from array import array
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from common import limits
from common.order_report import (
    OrderReport,
    ReportedFile,
    decode_sketch,
    encode_sketch,
    is_same,
    pack,
    sketch,
    unpack,
)
from tests import strategies

_sizes = st.one_of(st.integers(1, 1 << 20), st.integers(1, limits.FILE_MAX_BYTES))


@st.composite
def order_reports(draw: st.DrawFn) -> OrderReport:
    versions = draw(st.lists(strategies.ids, min_size=1, max_size=5, unique=True))
    files = [ReportedFile(version, draw(_sizes), draw(strategies.paths)) for version in versions]
    numbers, offsets, lengths = array("I"), array("Q"), array("I")
    for number in draw(st.lists(st.integers(0, len(files) - 1), min_size=1, max_size=40)):
        size_bytes = files[number].size_bytes
        offset_bytes = draw(st.integers(0, size_bytes - 1))
        numbers.append(number)
        offsets.append(offset_bytes)
        lengths.append(draw(st.integers(1, min(size_bytes - offset_bytes, (1 << 32) - 1))))
    return OrderReport(files, numbers, offsets, lengths)


@settings(max_examples=200)
@given(order_reports())
def test_round_trip(report: OrderReport) -> None:
    packed = pack(report)
    assert unpack(packed.data, packed.digest) == report
    assert pack(unpack(packed.data, packed.digest)) == packed
    found = sketch(report)
    assert decode_sketch(encode_sketch(found)) == found
    assert is_same(found, found)


@settings(max_examples=100)
@given(order_reports(), order_reports())
def test_other_content_has_another_digest(one: OrderReport, other: OrderReport) -> None:
    assert (pack(one).digest == pack(other).digest) == (one == other)


def shuffled(seed: int, records: int = 3000, first: int = 0) -> list[int]:
    order = list(range(first, first + records))
    Random(seed).shuffle(order)
    return order


def report_of(records: list[int]) -> OrderReport:
    files = [ReportedFile(bytes([number] * 16), 1 << 34, b"shard-%d" % number) for number in range(7)]
    return OrderReport(
        files,
        array("I", (record % 7 for record in records)),
        array("Q", (record // 7 * 65536 for record in records)),
        array("I", [65536]) * len(records),
    )


def drifted(records: list[int], dice: Random, workers: int = 8, batch: int = 32) -> list[int]:
    """As workers share it out: batches change places with those near them."""
    batches = [records[at : at + batch] for at in range(0, len(records), batch)]
    places = sorted(range(len(batches)), key=lambda place: place + dice.random() * workers)
    return [record for place in places for record in batches[place]]


@settings(max_examples=25)
@given(st.integers(0, 1 << 30))
def test_what_drifting_workers_make_of_one_order_is_the_same_and_another_shuffle_is_not(seed: int) -> None:
    dice = Random(seed)
    records = shuffled(seed)
    order = sketch(report_of(records))
    assert is_same(order, sketch(report_of(drifted(records, dice))))
    assert is_same(order, sketch(report_of([record for record in records if dice.random() < 0.97])))
    assert not is_same(order, sketch(report_of(shuffled(seed + 1))))
    assert not is_same(order, sketch(report_of(shuffled(seed, first=3000))))
    assert not is_same(order, sketch(report_of(records[: len(records) // 2])))
