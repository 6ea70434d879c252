"""Compression of one extent, and whether it is worth trying. Pure: bytes in, bytes out, no threads.

zstd at level 1 is what there is: on token ids it makes 2.5 to 3.4 x (uint32) and 1.5 to 1.9 x (uint16) at some 400 MB/s a
core, where lz4 makes 1.5 to 2.4 x at 560 MB/s. A link that outruns 400 MB/s gets raw bytes either way (packing.py), so
lz4's speed would win nowhere; its number stays reserved in PROTOCOL.md.
"""

from __future__ import annotations

from collections import OrderedDict

import zstandard

from common import limits
from common.errors import CorruptData
from common.wire.messages import Codec

SUPPORTED: tuple[Codec, ...] = (Codec.RAW, Codec.ZSTD)
_LEVEL = 1


def pack(data: bytes | bytearray | memoryview) -> bytes:
    """``data`` as one zstd frame that carries its length. Releases the GIL."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(data)


def unpack(codec: Codec, payload: bytes | bytearray | memoryview, raw_bytes: int) -> bytes | bytearray | memoryview:
    """The ``raw_bytes`` bytes that were packed. Releases the GIL.

    Never makes more than ``raw_bytes``, whatever the payload claims. Raises CorruptData when it does not come out right.
    """
    if codec is Codec.RAW:
        return payload
    if codec is not Codec.ZSTD:
        raise CorruptData(f"data packed with {codec.name}, which this program cannot read")
    try:
        claimed_bytes = zstandard.frame_content_size(payload)
        if claimed_bytes != raw_bytes:
            raise CorruptData(f"a zstd frame of {claimed_bytes} bytes where {raw_bytes} were announced")
        data = zstandard.ZstdDecompressor().decompress(payload, max_output_size=raw_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptData(f"data that zstd cannot read: {error}") from error
    if len(data) != raw_bytes:
        raise CorruptData(f"{len(data)} bytes came out of a zstd frame of {raw_bytes}")
    return data


class Shrinkage:
    """What packing did to the extents of each version lately; bounded, the version seen longest ago is forgotten.

    A version that does not shrink is tried again now and then: the head of a file may differ from its body.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, tuple[float, int]] = OrderedDict()  # ratio, extents passed over since a try

    def worth_trying(self, version: bytes) -> bool:
        """What is known of the version; True of one not seen before."""
        seen = self._seen.get(version)
        if seen is None or seen[0] <= limits.PACK_WORTH_RATIO:
            return True
        ratio, passed_over = seen
        due = passed_over + 1 >= limits.PACK_RETRY_EXTENTS
        self._seen[version] = (ratio, 0 if due else passed_over + 1)
        return due

    def ratio(self, version: bytes) -> float | None:
        """Packed over raw bytes of its extents lately; None when none was packed yet."""
        seen = self._seen.get(version)
        return seen[0] if seen is not None else None

    def saw(self, version: bytes, raw_bytes: int, packed_bytes: int) -> None:
        ratio = packed_bytes / raw_bytes
        old = self._seen.pop(version, None)
        # An average over about four extents: one odd page does not decide for a file.
        self._seen[version] = (ratio if old is None else old[0] + (ratio - old[0]) / 4, 0)
        if len(self._seen) > limits.PACK_VERSIONS_MAX:
            self._seen.popitem(last=False)
