"""Order files with bytes changed, cut or added, also under checksums that are right: only an OrderError escapes."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from common.errors import DamagedOrder, OrderError
from spoke.orders.layout import HEADER_BYTES, decode_header
from spoke.orders.mapped import MappedOrder, open_order
from spoke.orders.writer import OrderWriter
from spoke.prefetch.orders import Reason
from tests.contract.order_suite import FILES, random_lanes

MEANING_BYTES = 88  # of the header; the rest of its page is padding


def good() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "o"
        with OrderWriter(path, name="fuzz", reason=Reason.PLAN, files=FILES, lane_count=3) as writer:
            for lane, steps in enumerate(random_lanes(4, 3, 80, 9000)):
                for step in steps:
                    writer.add(lane, *step)
            writer.finish()
        return path.read_bytes()


GOOD = good()
TABLES_AT = decode_header(GOOD[:HEADER_BYTES], len(GOOD)).tables_offset_bytes


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def opened(folder: Path, data: bytes) -> MappedOrder:
    path = folder / "o"
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return open_order(path)


def signed(data: bytearray) -> bytes:
    """With the digests of tables and header made right again."""
    struct.pack_into("<Q", data, 72, xxh3_64_intdigest(data[TABLES_AT:]))
    struct.pack_into("<Q", data, 80, xxh3_64_intdigest(data[:80]))
    return bytes(data)


@settings(max_examples=200)
@given(data=st.binary(max_size=6000))
def test_random_bytes_are_no_order(folder: Path, data: bytes) -> None:
    with pytest.raises(DamagedOrder):
        opened(folder, data)


@settings(max_examples=300)
@given(place=st.integers(0, len(GOOD) - 1) | st.integers(0, MEANING_BYTES - 1), change=st.integers(1, 255))
def test_a_changed_byte_is_noticed_where_it_means_something(folder: Path, place: int, change: int) -> None:
    data = bytearray(GOOD)
    data[place] ^= change
    if MEANING_BYTES <= place < HEADER_BYTES:
        assert opened(folder, bytes(data)).name == "fuzz"
    else:
        with pytest.raises(OrderError):
            opened(folder, bytes(data))


@settings(max_examples=80)
@given(cut=st.integers(0, len(GOOD) - 1), tail=st.binary(min_size=1, max_size=64))
def test_a_cut_or_longer_order_never_opens(folder: Path, cut: int, tail: bytes) -> None:
    for data in (GOOD[:cut], GOOD + tail):
        with pytest.raises(OrderError):
            opened(folder, data)


@settings(max_examples=300)
@given(
    changes=st.lists(st.tuples(st.integers(0, len(GOOD) - TABLES_AT + 63), st.integers(1, 255)), min_size=1, max_size=3)
)
def test_a_lying_writer_is_refused_or_does_no_harm(folder: Path, changes: list[tuple[int, int]]) -> None:
    """Header fields and tables of any content, under right checksums."""
    data = bytearray(GOOD)
    for place, change in changes:
        data[8 + place if place < 64 else TABLES_AT + place - 64] ^= change
    try:
        order = opened(folder, signed(data))
    except OrderError:
        return
    for lane in range(order.lane_count):
        for position in range(order.length(lane)):
            step = order.step(lane, position)
            assert order.files[step.file].size_bytes >= 0
    for number, file in enumerate(order.files):
        assert order.file_of(file.version) in (None, *range(len(order.files)))
        for lane, position in order.find(number, 0, 1 << 40, 100):
            assert 0 <= position < order.length(lane)
        order.next_position(0, number, 0, 1 << 40, 5)
