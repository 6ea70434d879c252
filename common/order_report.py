"""An order as one spoke tells it to others: the bytes of a report, and a sketch that says whether two are the same. Pure.

`spoke/orders/ORDERS.md` is normative for the bytes. A report has one lane. It names files by version, so it means something
exactly while they exist; whoever takes one checks it whole and believes nothing in it that its own names do not say too.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from hashlib import sha256
from heapq import heapify, heapreplace
from operator import add, gt
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from common import codec, limits
from common.entries import VERSION_BYTES, is_safe_path
from common.errors import CorruptData, DamagedOrder, OrderTooNew, PlanTooLong
from common.wire.messages import Codec

FORMAT_VERSION = 1
MAGIC = b"HRREPORT"
DIGEST_BYTES = 16
_FACTS = struct.Struct("<8sIIII")  # magic, format, files, steps, bytes of all paths
HEADER_BYTES = _FACTS.size + DIGEST_BYTES
_FILE_BYTES = VERSION_BYTES + 8 + 2
_STEP_BYTES = 4 + 8 + 4
_PATH_MAX_BYTES = 4095
_SLICE_STEPS = 8192  # looked at by one call: some 1 ms during which no other thread gets Python's lock

SKETCH_STEPS = 128
"""Places in a sketch: of two orders that share nine tenths of theirs, 115 of these are in both, give or take 4."""

_SAME_SHARE = 0.9
_SAME_PLACE_SHARE = 0.02
_SAME_PLACE_STEPS = 512  # sixteen workers with batches of 32 are that far apart
_SAME_PLACE_SHARE_MAX = 0.1
_ROW = struct.Struct("<QI16s")  # hash, position, version
_HASH, _MIX, _MASK = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, (1 << 64) - 1


class ReportedFile(NamedTuple):
    version: bytes
    size_bytes: int
    path: bytes


class OrderReport:
    """``steps`` in columns: index into ``files``, offset and length in bytes ('I', 'Q', 'I'), all of one length."""

    __slots__ = ("file_numbers", "files", "lengths", "offsets")

    def __init__(
        self, files: Sequence[ReportedFile], file_numbers: array[int], offsets: array[int], lengths: array[int]
    ) -> None:
        assert len(file_numbers) == len(offsets) == len(lengths)
        self.files = files
        self.file_numbers = file_numbers
        self.offsets = offsets
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.file_numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OrderReport) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]


class PackedReport(NamedTuple):
    """``digest`` names the content: equal orders have equal ones, however they were packed."""

    digest: bytes
    data: bytes


def pack(report: OrderReport) -> PackedReport:
    """The bytes that travel and are kept. Raises PlanTooLong for an order that is too long to be told."""
    files, paths = report.files, b"".join(file.path for file in report.files)
    if len(report) > limits.ORDER_REPORT_MAX_STEPS or len(files) > limits.ORDER_REPORT_MAX_FILES:
        raise PlanTooLong(
            f"an order of {len(report)} steps in {len(files)} files; others are told of at most "
            f"{limits.ORDER_REPORT_MAX_STEPS} in {limits.ORDER_REPORT_MAX_FILES}"
        )
    facts = _FACTS.pack(MAGIC, FORMAT_VERSION, len(files), len(report), len(paths))
    body = b"".join(
        (
            *(file.version for file in files),
            _planes(array("Q", (file.size_bytes for file in files))),
            _planes(array("H", (len(file.path) for file in files))),
            paths,
            _planes(report.file_numbers),
            _planes(report.offsets),
            _planes(report.lengths),
        )
    )
    digest = _digest(facts, body)
    data = facts + digest + codec.pack(body)
    if len(data) > limits.ORDER_REPORT_MAX_BYTES:
        raise PlanTooLong(
            f"an order of {len(data)} bytes when packed; others are told of at most {limits.ORDER_REPORT_MAX_BYTES}"
        )
    return PackedReport(digest, data)


def unpack(data: bytes | bytearray | memoryview, digest: bytes) -> OrderReport:
    """The report of this digest, all of it checked. Never makes more than its header says, which has limits.

    Raises DamagedOrder with what was seen, OrderTooNew. Takes some 0.3 s for a million steps: call it in a thread.
    """
    if not HEADER_BYTES < len(data) <= limits.ORDER_REPORT_MAX_BYTES:
        raise DamagedOrder(
            f"a report of {len(data)} bytes; it has more than {HEADER_BYTES} and at most {limits.ORDER_REPORT_MAX_BYTES}"
        )
    facts = bytes(data[: _FACTS.size])
    magic, version, file_count, step_count, paths_bytes = _FACTS.unpack(facts)
    if magic != MAGIC:
        raise DamagedOrder(f"not a report of an order: it starts with {magic!r}, not {MAGIC!r}")
    if version > FORMAT_VERSION:
        raise OrderTooNew(f"a report of format {version}; this program reads {FORMAT_VERSION}")
    bounds = (
        ("files", file_count, limits.ORDER_REPORT_MAX_FILES),
        ("steps", step_count, limits.ORDER_REPORT_MAX_STEPS),
        ("bytes of paths", paths_bytes, _PATH_MAX_BYTES * file_count),
    )
    for what, found, most in bounds:
        if not 1 <= found <= most:
            raise DamagedOrder(f"the report says it has {found} {what}; 1 to {most} are allowed")
    if version != FORMAT_VERSION or data[_FACTS.size : HEADER_BYTES] != digest:
        raise DamagedOrder("the report's header is not that of the order asked for")
    body_bytes = file_count * _FILE_BYTES + paths_bytes + step_count * _STEP_BYTES
    try:
        body = memoryview(codec.unpack(Codec.ZSTD, memoryview(data)[HEADER_BYTES:], body_bytes))
    except CorruptData as error:
        raise DamagedOrder(f"the report cannot be unpacked: {error}") from None
    if _digest(facts, body) != digest:
        raise DamagedOrder("the report does not match its digest")
    return _checked(body, file_count, step_count, paths_bytes)


def _checked(body: memoryview, file_count: int, step_count: int, paths_bytes: int) -> OrderReport:
    at = VERSION_BYTES * file_count
    versions = bytes(body[:at])
    sizes, at = _numbers("Q", body, at, file_count)
    path_lengths, at = _numbers("H", body, at, file_count)
    paths = bytes(body[at : at + paths_bytes])
    at += paths_bytes
    file_numbers, at = _numbers("I", body, at, step_count)
    offsets, at = _numbers("Q", body, at, step_count)
    lengths, at = _numbers("I", body, at, step_count)
    if sum(path_lengths) != paths_bytes:
        raise DamagedOrder(f"the report's paths have {sum(path_lengths)} bytes where it says {paths_bytes}")
    files: list[ReportedFile] = []
    path_at = 0
    for number, (size_bytes, path_bytes) in enumerate(zip(sizes, path_lengths, strict=True)):
        path = paths[path_at : path_at + path_bytes]
        path_at += path_bytes
        if not path or not is_safe_path(path) or size_bytes > limits.FILE_MAX_BYTES:
            raise DamagedOrder(f"file {number} of the report cannot be: {size_bytes} bytes at {path[:64]!r}")
        files.append(ReportedFile(versions[VERSION_BYTES * number : VERSION_BYTES * (number + 1)], size_bytes, path))
    if len({file.version for file in files}) != file_count:
        raise DamagedOrder("the report names a version twice")
    for start in range(0, step_count, _SLICE_STEPS):
        _check_steps(sizes, *(column[start : start + _SLICE_STEPS] for column in (file_numbers, offsets, lengths)))
    return OrderReport(files, file_numbers, offsets, lengths)


def _check_steps(sizes: array[int], file_numbers: array[int], offsets: array[int], lengths: array[int]) -> None:
    if max(file_numbers) >= len(sizes):
        raise DamagedOrder(f"a step of the report names file {max(file_numbers)} of {len(sizes)}")
    beyond = map(gt, map(add, offsets, lengths), map(sizes.__getitem__, file_numbers))
    if not min(lengths) or any(beyond):
        raise DamagedOrder("a step of the report is empty, or not within its file")


def _digest(facts: bytes, body: bytes | memoryview) -> bytes:
    digest = sha256(facts)
    digest.update(body)
    return digest.digest()[:DIGEST_BYTES]


def _planes(numbers: array[int]) -> bytes:
    """All lowest bytes, then all that are next, and so on: what is small or round then packs to almost nothing."""
    raw, width = numbers.tobytes(), numbers.itemsize
    return b"".join(raw[plane::width] for plane in range(width))


def _numbers(kind: str, body: memoryview, at: int, count: int) -> tuple[array[int], int]:
    """``count`` numbers whose planes begin at ``at``, and where what follows begins."""
    numbers = array(kind)
    width = numbers.itemsize
    raw = bytearray(count * width)
    for plane in range(width):
        raw[plane::width] = body[at : at + count]
        at += count
    numbers.frombytes(raw)
    return numbers, at


# --- whether two are the same ----------------------------------------------------------------------------


class SketchedStep(NamedTuple):
    place: int
    position: int
    version: bytes


class Sketch(NamedTuple):
    """A sample of an order's steps that depends on their places alone: those with the smallest hashes, smallest first."""

    steps: int
    sample: tuple[SketchedStep, ...]


def sketch(report: OrderReport) -> Sketch:
    """Takes some 0.3 s for a million steps: call it in a thread."""
    hashes = [xxh3_64_intdigest(file.version) for file in report.files]
    worst: list[tuple[int, int]] = []  # of those kept: (-hash, position), a heap
    bound = 1 << 64
    for position, (file, offset_bytes) in enumerate(zip(report.file_numbers, report.offsets, strict=True)):
        place = hashes[file] + (offset_bytes >> 12) * _HASH & _MASK
        place = (place ^ place >> 32) * _MIX & _MASK
        if place >= bound:
            continue
        if len(worst) < SKETCH_STEPS:
            worst.append((-place, position))
            if len(worst) == SKETCH_STEPS:
                heapify(worst)
                bound = -worst[0][0]
        else:
            heapreplace(worst, (-place, position))
            bound = -worst[0][0]
    sample = sorted((-place, position) for place, position in worst)
    return Sketch(
        len(report),
        tuple(
            SketchedStep(place, position, report.files[report.file_numbers[position]].version)
            for place, position in sample
        ),
    )


def is_same(one: Sketch, other: Sketch) -> bool:
    """Nine tenths of the same places, and nine tenths of those at about the same time: what workers that drift make of one order."""
    ones = {step.place: step.position for step in one.sample}
    others = {step.place: step.position for step in other.sample}
    sample = sorted(ones.keys() | others.keys())[:SKETCH_STEPS]
    both = [place for place in sample if place in ones and place in others]
    if not both or len(both) < _SAME_SHARE * len(sample):
        return False
    slack = max(_SAME_PLACE_SHARE, min(_SAME_PLACE_SHARE_MAX, _SAME_PLACE_STEPS / min(one.steps, other.steps)))
    near = sum(abs(ones[place] / one.steps - others[place] / other.steps) <= slack for place in both)
    return near >= _SAME_SHARE * len(both)


def encode_sketch(found: Sketch) -> bytes:
    return struct.pack("<I", found.steps) + b"".join(_ROW.pack(*step) for step in found.sample)


def decode_sketch(packed: bytes) -> Sketch:
    """Raises ValueError for what :func:`encode_sketch` did not make."""
    if len(packed) < 4 or (len(packed) - 4) % _ROW.size:
        raise ValueError(f"a sketch of {len(packed)} bytes")
    (steps,) = struct.unpack_from("<I", packed)
    return Sketch(steps, tuple(SketchedStep(*row) for row in _ROW.iter_unpack(packed[4:])))
