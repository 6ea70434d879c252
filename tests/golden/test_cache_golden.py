"""The index header's bytes are fixed: a cache written by one release is read by the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from spoke.cache.index import HEADER_BYTES, check_index, encode_header, layout_of

GOLDEN = Path(__file__).parent / "cache"
VERSION = bytes(range(16))
CASES = {
    "one-byte": (1, 4096 + 4096 + 8),
    "300-mib-and-7": (300 * 1024 * 1024 + 7, 4096 + 19 * 4096 + 76801 * 8),
}


@pytest.mark.parametrize("name", CASES)
def test_header_bytes(name: str) -> None:
    size_bytes, index_bytes = CASES[name]
    golden = bytes.fromhex((GOLDEN / f"index-v1-{name}.hex").read_text())
    header = encode_header(VERSION, size_bytes)
    assert header[: len(golden)] == golden
    assert header[len(golden) :] == bytes(HEADER_BYTES - len(golden))
    assert check_index(header, index_bytes, VERSION, size_bytes) == layout_of(size_bytes)
