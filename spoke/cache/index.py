"""The index file beside a cached file: its header, where presence and digests stand, and what makes one unusable.

FORMAT.md is normative. Bytes in, facts out: no file is opened here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from common.blocks import BLOCK_BYTES, count_blocks
from common.digest import DIGEST_BYTES
from common.entries import VERSION_BYTES
from common.errors import HeadraceError

FORMAT_VERSION = 1
MAGIC = b"HRINDEX\n"
HEADER_BYTES = 4096
PRESENT = 1  # the presence byte of a block; every other value means absent

# magic, format version, block bytes, version, size, blocks, offset of presence, offset of digests
_HEADER = struct.Struct("<8sII16sQQQQ")
_CHECKSUM = struct.Struct("<Q")
_PAGE_BYTES = 4096


class DamagedIndex(HeadraceError):
    """An index that cannot be believed; its file is dropped and fetched again."""

    wire_code = "damaged-index"
    retryable = True


@dataclass(frozen=True, slots=True)
class IndexLayout:
    """Where the parts of an index file stand, all in bytes from its start."""

    block_count: int
    presence_offset_bytes: int
    digests_offset_bytes: int
    total_bytes: int

    def presence_at(self, block: int) -> int:
        return self.presence_offset_bytes + block

    def digest_at(self, block: int) -> int:
        return self.digests_offset_bytes + block * DIGEST_BYTES


def layout_of(size_bytes: int) -> IndexLayout:
    """The layout for a file of ``size_bytes``: header page, presence rounded up to pages, digests."""
    block_count = count_blocks(size_bytes)
    digests_offset_bytes = HEADER_BYTES + -(-block_count // _PAGE_BYTES) * _PAGE_BYTES
    return IndexLayout(
        block_count, HEADER_BYTES, digests_offset_bytes, digests_offset_bytes + block_count * DIGEST_BYTES
    )


def encode_header(version: bytes, size_bytes: int) -> bytes:
    """The header page of a new index."""
    assert len(version) == VERSION_BYTES
    layout = layout_of(size_bytes)
    packed = _HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        BLOCK_BYTES,
        version,
        size_bytes,
        layout.block_count,
        layout.presence_offset_bytes,
        layout.digests_offset_bytes,
    )
    return (packed + _CHECKSUM.pack(xxh3_64_intdigest(packed))).ljust(HEADER_BYTES, b"\0")


def check_index(header: bytes | bytearray, index_bytes: int, version: bytes, size_bytes: int) -> IndexLayout:
    """The layout of an index whose first bytes are ``header`` and whose length is ``index_bytes``.

    Raises DamagedIndex when it is torn, of another format, or describes another version or size than expected.
    """
    if len(header) < HEADER_BYTES:
        raise DamagedIndex(f"index ends inside its header: {len(header)} of {HEADER_BYTES} bytes")
    packed = bytes(header[: _HEADER.size])
    magic, format_version, block_bytes, found_version, found_size_bytes, *places = _HEADER.unpack(packed)
    if magic != MAGIC:
        raise DamagedIndex(f"not an index: starts with {magic!r}")
    if _CHECKSUM.unpack_from(header, _HEADER.size)[0] != xxh3_64_intdigest(packed):
        raise DamagedIndex("header checksum does not match")
    if format_version != FORMAT_VERSION or block_bytes != BLOCK_BYTES:
        raise DamagedIndex(
            f"format {format_version} with blocks of {block_bytes} bytes; this program reads {FORMAT_VERSION} with {BLOCK_BYTES}"
        )
    if found_version != version:
        raise DamagedIndex(f"index of another version: {found_version.hex()}")
    if found_size_bytes != size_bytes:
        raise DamagedIndex(f"index of a file of {found_size_bytes} bytes, expected {size_bytes}")
    layout = layout_of(size_bytes)
    if places != [layout.block_count, layout.presence_offset_bytes, layout.digests_offset_bytes]:
        raise DamagedIndex("header contradicts itself")
    if index_bytes != layout.total_bytes:
        raise DamagedIndex(f"index of {index_bytes} bytes, expected {layout.total_bytes}")
    return layout
