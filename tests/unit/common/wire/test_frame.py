"""Headers: what they say, and what is refused before a byte of the body is looked at."""

from __future__ import annotations

import struct

import pytest

from common import limits
from common.errors import ProtocolError
from common.wire.frame import FLAG_LAST, FLAG_OPTIONAL, FrameHeader, FrameType, pack_header, parse_header


def _header(body_bytes: int, map_bytes: int, frame_type: int = FrameType.DATA, flags: int = 0) -> bytes:
    return struct.pack("<IIHHI", body_bytes, map_bytes, frame_type, flags, 7)


def test_a_header_says_what_was_put_in() -> None:
    packed = pack_header(FrameType.DATA, FLAG_LAST, 7, 10, 1000)
    assert packed == _header(1010, 10, FrameType.DATA, FLAG_LAST)
    header = parse_header(b"xx" + packed, 2)
    assert header == FrameHeader(FrameType.DATA, FLAG_LAST, 7, 10, 1000)
    assert header.last


@pytest.mark.parametrize(
    "packed",
    [
        _header(0, 0),
        _header(9, 10),
        _header(10 + limits.FRAME_PAYLOAD_MAX_BYTES + 1, 10),
        _header(0xFFFF_FFFF, 10),
        _header(limits.FRAME_MAP_MAX_BYTES + 1, limits.FRAME_MAP_MAX_BYTES + 1),
        _header(11, 10, FrameType.READ),
        _header(10, 10, FrameType.READ, FLAG_LAST),
        _header(10, 10, FrameType.DATA, 4),
        _header(10, 10, 0),
        _header(10, 10, 200, FLAG_LAST),
        _header(10 + limits.FRAME_PAYLOAD_MAX_BYTES + 1, 10, 200, FLAG_OPTIONAL),
    ],
    ids=lambda packed: packed.hex(),
)
def test_a_header_beyond_its_bounds_is_refused(packed: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_header(packed)


def test_the_bounds_themselves_pass() -> None:
    largest = limits.FRAME_MAP_MAX_BYTES + limits.FRAME_PAYLOAD_MAX_BYTES
    assert parse_header(_header(largest, limits.FRAME_MAP_MAX_BYTES)).payload_bytes == limits.FRAME_PAYLOAD_MAX_BYTES
    assert parse_header(_header(largest, limits.FRAME_MAP_MAX_BYTES, 200, FLAG_OPTIONAL | 0xFF00)).type is None
