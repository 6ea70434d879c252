"""Bytes in, frames out: where received bytes land, and when memory is set aside for them.

Headers and maps land in one small buffer that lives as long as the connection. A payload gets a buffer of its own,
of exactly its announced size, only after its owner has accepted the header and the map; what is refused or not wanted
is skipped without being kept.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from common import limits
from common.blocks import EXTENT_BYTES
from common.buffers import EXTENT_BUFFERS
from common.wire.frame import HEADER_BYTES, FrameHeader, parse_header

_Head = TypeVar("_Head")

_HEAD_READ_BYTES = 8192
"""Read at once before a payload has its memory: the head of one extent, a page with its head, or some hundred READs. What comes beyond
the head is copied."""


class FrameOwner(Protocol[_Head]):
    """Who judges frames as they come; raises ProtocolError to end it all."""

    def wants(self, header: FrameHeader) -> bool:
        """False: skip the body of this frame."""

    def head(self, header: FrameHeader, packed_map: memoryview) -> _Head:
        """The map is here (valid during the call only); the payload has no memory yet."""

    def complete(self, header: FrameHeader, head: _Head, payload: bytearray | memoryview) -> None:
        """The frame is whole; ``payload`` (maybe empty) belongs to the owner."""


class Receiver(Generic[_Head]):
    def __init__(self, owner: FrameOwner[_Head]) -> None:
        self._owner = owner
        self._scratch = memoryview(bytearray(HEADER_BYTES + limits.FRAME_MAP_MAX_BYTES))
        self._start = 0  # unread bytes are scratch[start:end]
        self._end = 0
        self._header: FrameHeader | None = None
        self._head: _Head | None = None
        self._skip_bytes = 0
        self._payload: bytearray | memoryview = bytearray()
        self._payload_view: memoryview | None = None  # set while a payload is being filled
        self._filled = 0

    @property
    def inside_frame(self) -> bool:
        """A frame has begun and is not whole."""
        return self._header is not None or self._start != self._end or self._skip_bytes > 0

    @property
    def payload_missing_bytes(self) -> int:
        """What the payload at hand still lacks; 0 between payloads."""
        return len(self._payload) - self._filled if self._payload_view is not None else 0

    def get_buffer(self) -> memoryview:
        """Where the next bytes go: the rest of the payload at hand, or some of what is free of the small buffer. Never empty."""
        if self._payload_view is not None:
            return self._payload_view[self._filled :]
        return self._scratch[self._end : self._end + _HEAD_READ_BYTES]

    def buffer_updated(self, byte_count: int) -> None:
        """``byte_count`` bytes were put into the buffer that ``get_buffer`` gave last."""
        if self._payload_view is not None:
            self._filled += byte_count
            if self._filled == len(self._payload):
                self._finish()
            return
        self._end += byte_count
        while self._step():
            pass
        left = self._end - self._start
        if left and self._start:
            self._scratch[:left] = bytes(self._scratch[self._start : self._end])
        self._start, self._end = 0, left

    def stop(self) -> None:
        """Forget what was begun; bytes still put into the buffer afterwards must not be reported."""
        self._payload_view = None
        self._payload = bytearray()
        self._header = None
        self._start = self._end = self._skip_bytes = 0

    def _step(self) -> bool:
        """Take one thing from the small buffer; False when it holds too little."""
        available = self._end - self._start
        if self._skip_bytes:
            skipped = min(available, self._skip_bytes)
            self._start += skipped
            self._skip_bytes -= skipped
            return skipped > 0
        if self._payload_view is not None:
            taken = min(available, len(self._payload) - self._filled)
            self._payload_view[self._filled : self._filled + taken] = self._scratch[self._start : self._start + taken]
            self._start += taken
            self._filled += taken
            if self._filled < len(self._payload):
                return False
            self._finish()
            return True
        if self._header is None:
            return available >= HEADER_BYTES and self._take_header()
        return available >= self._header.map_bytes and self._take_map(self._header)

    def _take_header(self) -> bool:
        header = parse_header(self._scratch, self._start)
        self._start += HEADER_BYTES
        if self._owner.wants(header):
            self._header = header
        else:
            self._skip_bytes = header.map_bytes + header.payload_bytes
        return True

    def _take_map(self, header: FrameHeader) -> bool:
        map_end = self._start + header.map_bytes
        self._head = self._owner.head(header, self._scratch[self._start : map_end])
        self._start = map_end
        payload_bytes = header.payload_bytes
        self._payload = EXTENT_BUFFERS.take() if payload_bytes == EXTENT_BYTES else bytearray(payload_bytes)
        if header.payload_bytes:
            self._payload_view = memoryview(self._payload)
            self._filled = 0
        else:
            self._finish()
        return True

    def _finish(self) -> None:
        header, head, payload = self._header, self._head, self._payload
        assert header is not None
        assert head is not None
        if self._payload_view is not None:
            self._payload_view.release()
            self._payload_view = None
        self._header = self._head = None
        self._payload = bytearray()
        self._owner.complete(header, head, payload)
