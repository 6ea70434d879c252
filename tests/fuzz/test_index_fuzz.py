"""Index files with bytes changed, cut or added: only DamagedIndex escapes, and a header that passes is the one expected."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spoke.cache.cached_file import load_blocks
from spoke.cache.disk import Disk
from spoke.cache.index import HEADER_BYTES, DamagedIndex, check_index, encode_header, layout_of

VERSION = b"0123456789abcdef"
SIZE_BYTES = 5 * 4096 + 1
GOOD = encode_header(VERSION, SIZE_BYTES)
TOTAL = layout_of(SIZE_BYTES).total_bytes


@settings(max_examples=200)
@given(header=st.binary(max_size=5000), index_bytes=st.integers(0, 1 << 40))
def test_random_bytes_are_no_index(header: bytes, index_bytes: int) -> None:
    with pytest.raises(DamagedIndex):
        check_index(header, index_bytes, VERSION, SIZE_BYTES)


@settings(max_examples=200)
@given(place=st.integers(0, HEADER_BYTES - 1), change=st.integers(1, 255))
def test_a_changed_byte_is_noticed_where_it_means_something(place: int, change: int) -> None:
    header = bytearray(GOOD)
    header[place] ^= change
    if place < 72:
        with pytest.raises(DamagedIndex):
            check_index(header, TOTAL, VERSION, SIZE_BYTES)
    else:
        assert check_index(header, TOTAL, VERSION, SIZE_BYTES) == layout_of(SIZE_BYTES)


@settings(max_examples=100)
@given(version=st.binary(min_size=16, max_size=16), size_bytes=st.integers(1, 1 << 50), delta=st.integers(-9, 9))
def test_a_header_describes_one_file_only(version: bytes, size_bytes: int, delta: int) -> None:
    header = encode_header(version, size_bytes)
    total_bytes = layout_of(size_bytes).total_bytes
    if delta == 0:
        assert check_index(header, total_bytes, version, size_bytes) == layout_of(size_bytes)
        return
    with pytest.raises(DamagedIndex):
        check_index(header, total_bytes, version, size_bytes + abs(delta))
    with pytest.raises(DamagedIndex):
        check_index(header, total_bytes + delta, version, size_bytes)
    with pytest.raises(DamagedIndex):
        check_index(header, total_bytes, bytes([version[0] ^ 1]) + version[1:], size_bytes)


@settings(max_examples=60)
@given(cut=st.integers(0, TOTAL), tail=st.binary(max_size=64), presence=st.binary(min_size=6, max_size=6))
def test_a_cut_or_longer_index_never_loads(cut: int, tail: bytes, presence: bytes) -> None:
    whole = GOOD + presence.ljust(4096, b"\0") + bytes(6 * 8)
    assert len(whole) == TOTAL
    content = whole[:cut] + tail
    with tempfile.TemporaryFile() as index, tempfile.TemporaryFile() as data:
        index.write(content)
        index.flush()
        os.ftruncate(data.fileno(), SIZE_BYTES)
        if len(content) == TOTAL and content[:72] == whole[:72]:
            blocks = load_blocks(Disk(), (data.fileno(), index.fileno()), VERSION, SIZE_BYTES)
            assert blocks.present_count == content[4096:4102].count(1)
            assert blocks.verified_count == 0
        else:
            with pytest.raises(DamagedIndex):
                load_blocks(Disk(), (data.fileno(), index.fileno()), VERSION, SIZE_BYTES)
