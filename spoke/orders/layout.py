"""The parts of an order file, as structs (ORDERS.md is normative). Bytes and numbers only: no file is opened here."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from common import limits
from common.errors import DamagedOrder, OrderError, OrderTooNew
from spoke.prefetch.scorecard import Reason

FORMAT_VERSION = 1
MAGIC = b"HRORDER\n"
HEADER_BYTES = 4096
ROW_BYTES = 24

# magic, format, lanes, files, steps, segments, runs, offset of the tables, bytes of paths, bytes of about, file's length, tables' digest
_HEADER = struct.Struct("<8sIIQQIIQQIIQQ")
_CHECKSUM = struct.Struct("<Q")
SEGMENT = struct.Struct("<QIIQ")  # offset, rows, 0, digest
RUN = struct.Struct("<IIQII")  # lane, segment, first position, first row, rows
FILE = struct.Struct("<16sQQQII")  # version, size, first page, offset in paths, bytes of path, longest step


class Header(NamedTuple):
    lanes: int
    files: int
    steps: int
    segments: int
    runs: int
    tables_offset_bytes: int
    paths_bytes: int
    about_bytes: int
    total_bytes: int
    tables_digest: int

    @property
    def segments_at(self) -> int:
        return self.tables_offset_bytes

    @property
    def runs_at(self) -> int:
        return self.segments_at + self.segments * SEGMENT.size

    @property
    def files_at(self) -> int:
        return self.runs_at + self.runs * RUN.size

    @property
    def by_version_at(self) -> int:
        return self.files_at + self.files * FILE.size

    @property
    def paths_at(self) -> int:
        return self.by_version_at + -(-self.files // 2) * 8

    @property
    def about_at(self) -> int:
        return self.paths_at + self.paths_bytes


def encode_header(header: Header) -> bytes:
    """The header page."""
    lanes, files, steps, segments, runs, tables_offset_bytes, paths_bytes, about_bytes, total_bytes, digest = header
    packed = _HEADER.pack(
        MAGIC, FORMAT_VERSION, lanes, files, steps, segments, runs,
        tables_offset_bytes, paths_bytes, about_bytes, 0, total_bytes, digest,
    )  # fmt: skip
    return (packed + _CHECKSUM.pack(xxh3_64_intdigest(packed))).ljust(HEADER_BYTES, b"\0")


def decode_header(page: bytes, file_bytes: int) -> Header:
    """The header of a file of ``file_bytes``, its limits and its sums checked. Raises DamagedOrder, OrderTooNew."""
    if len(page) < HEADER_BYTES:
        raise DamagedOrder(f"the order ends inside its header: {len(page)} of {HEADER_BYTES} bytes")
    packed = page[: _HEADER.size]
    magic, version, lanes, files, steps, segments, runs, tables_at, paths, about, _, total, digest = _HEADER.unpack(
        packed
    )
    if magic != MAGIC:
        raise DamagedOrder(f"not an order: it starts with {magic!r}, not {MAGIC!r}")
    if version > FORMAT_VERSION:
        raise OrderTooNew(
            f"an order of format {version}; this program reads {FORMAT_VERSION}: make it with this program"
        )
    if version != FORMAT_VERSION or _CHECKSUM.unpack_from(page, _HEADER.size)[0] != xxh3_64_intdigest(packed):
        raise DamagedOrder("the order's header does not match its checksum")
    header = Header(lanes, files, steps, segments, runs, tables_at, paths, about, total, digest)
    bounds = (
        ("lanes", lanes, limits.ORDER_MAX_LANES),
        ("files", files, limits.ORDER_MAX_FILES),
        ("steps", steps, limits.ORDER_MAX_STEPS),
        ("segments", segments, runs),
        ("pieces of lanes", runs, limits.ORDER_MAX_RUNS),
        ("bytes about it", about, limits.ORDER_ABOUT_MAX_BYTES),
    )
    for what, found, most in bounds:
        if found > most:
            raise DamagedOrder(f"the order says it has {found} {what}; at most {most} are allowed")
    if tables_at != HEADER_BYTES + steps * ROW_BYTES or header.about_at + about != total:
        raise DamagedOrder("the order's header contradicts itself")
    if total != file_bytes:
        raise DamagedOrder(f"the order has {file_bytes} bytes where its header says {total}: it was cut or added to")
    return header


class About(NamedTuple):
    name: str
    reason: Reason
    meta: Mapping[str, str]


def encode_about(about: About) -> bytes:
    """Raises OrderError when the name or the notes are too long."""
    if not 0 < len(about.name.encode()) <= limits.ORDER_NAME_MAX_BYTES:
        size = len(about.name.encode())
        raise OrderError(f"an order's name has 1 to {limits.ORDER_NAME_MAX_BYTES} bytes in UTF-8, not {size}")
    facts = {"name": about.name, "reason": about.reason.value, "meta": dict(about.meta)}
    packed = json.dumps(facts, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    if len(packed) > limits.ORDER_ABOUT_MAX_BYTES:
        raise OrderError(
            f"the notes on an order take {len(packed)} bytes; at most {limits.ORDER_ABOUT_MAX_BYTES} are kept"
        )
    return packed


def decode_about(packed: bytes) -> About:
    """Raises DamagedOrder."""
    try:
        facts = json.loads(packed)
        name, reason, meta = facts["name"], Reason(facts["reason"]), facts["meta"]
        if not (isinstance(name, str) and name and all(isinstance(note, str) for note in meta.values())):
            raise TypeError("name and notes are text")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedOrder(f"what the order says about itself cannot be read: {error}") from None
    return About(name, reason, meta)
