"""Frames: the 16-byte header, the frame types and flags, and how large a frame of each type may be.

Nothing here knows what a message means; a header is refused before a byte of its body is believed or buffered.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from common import limits
from common.errors import ProtocolError

WIRE_VERSIONS: tuple[int, ...] = (1,)
"""Protocol versions this code speaks. A release that adds N keeps N-1."""

_HEADER = struct.Struct("<IIHHI")
HEADER_BYTES = _HEADER.size

FLAG_LAST = 1
"""The frame ends the answer to its request."""

FLAG_OPTIONAL = 2
"""A receiver that does not know the frame's type skips it."""

_KNOWN_FLAGS = FLAG_LAST | FLAG_OPTIONAL


class FrameType(IntEnum):
    HELLO = 1
    WELCOME = 2
    SUBSCRIBE = 3
    SNAPSHOT = 4
    CHANGES = 5
    HEARTBEAT = 6
    READ = 7
    DATA = 8
    CANCEL = 9
    PROMOTE = 10
    PING = 11
    PONG = 12
    STATS = 13
    ERROR = 14
    GOODBYE = 15
    CHECK = 16
    CHECKED = 17
    CHALLENGE = 18
    PROOF = 19
    REPORT = 20
    REPORTED = 21
    ORDERS = 22
    KEPT = 23
    FETCH = 24
    PIECE = 25


KNOWN_TYPES: Mapping[int, FrameType] = {int(frame_type): frame_type for frame_type in FrameType}

PAYLOAD_MAX_BYTES: Mapping[FrameType, int] = {
    FrameType.SNAPSHOT: limits.FRAME_PAYLOAD_MAX_BYTES,
    FrameType.CHANGES: limits.FRAME_PAYLOAD_MAX_BYTES,
    FrameType.DATA: limits.FRAME_PAYLOAD_MAX_BYTES,
    FrameType.REPORT: limits.ORDER_PIECE_BYTES,
    FrameType.PIECE: limits.ORDER_PIECE_BYTES,
}
"""Types that are not listed carry no payload."""

OPTIONAL_TYPES = frozenset(
    {
        FrameType.CHECK,
        FrameType.CHECKED,
        FrameType.REPORT,
        FrameType.REPORTED,
        FrameType.ORDERS,
        FrameType.KEPT,
        FrameType.FETCH,
        FrameType.PIECE,
    }
)
"""Added since the version's first release: sent with the flag OPTIONAL."""

_LAST_ALLOWED = frozenset({FrameType.DATA, FrameType.ERROR})


class FrameHeader(NamedTuple):
    """``type`` is None when it is unknown and the frame may be skipped."""

    type: FrameType | None
    flags: int
    request_id: int
    map_bytes: int
    payload_bytes: int

    @property
    def last(self) -> bool:
        return bool(self.flags & FLAG_LAST)


def pack_header(frame_type: FrameType, flags: int, request_id: int, map_bytes: int, payload_bytes: int) -> bytes:
    return _HEADER.pack(map_bytes + payload_bytes, map_bytes, frame_type, flags, request_id)


def parse_header(buffer: bytes | bytearray | memoryview, start: int = 0) -> FrameHeader:
    """The header at ``buffer[start:start + HEADER_BYTES]``.

    Raises ProtocolError for an unknown type that is not optional, a flag that means nothing there, and a length above
    what the type may have.
    """
    body_bytes, map_bytes, type_code, flags, request_id = _HEADER.unpack_from(buffer, start)
    frame_type = KNOWN_TYPES.get(type_code)
    if frame_type is None and not flags & FLAG_OPTIONAL:
        raise ProtocolError(f"frame type {type_code} is unknown and not marked optional")
    if frame_type is not None and (flags & ~_KNOWN_FLAGS or (flags & FLAG_LAST and frame_type not in _LAST_ALLOWED)):
        raise ProtocolError(f"flags {flags:#06x} are not allowed in {frame_type.name}")
    if not 0 < map_bytes <= limits.FRAME_MAP_MAX_BYTES:
        raise ProtocolError(f"a map of {map_bytes} bytes; 1 to {limits.FRAME_MAP_MAX_BYTES} are allowed")
    payload_max_bytes = limits.FRAME_PAYLOAD_MAX_BYTES if frame_type is None else PAYLOAD_MAX_BYTES.get(frame_type, 0)
    payload_bytes = body_bytes - map_bytes
    if not 0 <= payload_bytes <= payload_max_bytes:
        name = frame_type.name if frame_type is not None else f"type {type_code}"
        raise ProtocolError(f"a payload of {payload_bytes} bytes in {name}; 0 to {payload_max_bytes} are allowed")
    return FrameHeader(frame_type, flags, request_id, map_bytes, payload_bytes)
