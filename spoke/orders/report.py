"""Between order files and reports (common.order_report): what this spoke learned, told; what another told, as a file of ours.

Everything here blocks for some 0.5 s a million steps: call it in a thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import NamedTuple

from common import limits
from common.errors import OrderError
from common.order_report import OrderReport, PackedReport, ReportedFile, Sketch, pack, sketch, unpack
from spoke.orders.mapped import ORIGIN, MappedOrder, open_order
from spoke.orders.writer import OrderWriter
from spoke.prefetch.orders import FileFacts, Reason


class Prepared(NamedTuple):
    """An order of ours as others are told of it. ``packed`` None: it is too long to be told."""

    packed: PackedReport | None
    sketch: Sketch | None


def prepare(path: Path) -> Prepared:
    """Of an order file with one lane. Raises OrderError, DiskError."""
    order = open_order(path)
    if order.step_count > limits.ORDER_REPORT_MAX_STEPS or len(order.files) > limits.ORDER_REPORT_MAX_FILES:
        return Prepared(None, None)
    report = report_of(order)
    try:
        return Prepared(pack(report), sketch(report))
    except OrderError:
        return Prepared(None, None)


def sketch_of(order: MappedOrder) -> Sketch:
    return sketch(report_of(order))


def report_of(order: MappedOrder) -> OrderReport:
    """The first lane; files that none of its steps names are left out."""
    file_numbers, offsets, lengths = array("I"), array("Q"), array("I")
    numbers: dict[int, int] = {}  # as they first occur
    for files, starts, sizes in order.columns(0):
        for start in range(0, len(files), limits.LEARN_SLICE_STEPS):
            part = slice(start, start + limits.LEARN_SLICE_STEPS)
            for file in dict.fromkeys(files[part]):
                numbers.setdefault(file, len(numbers))
            file_numbers.extend(map(numbers.__getitem__, files[part]))
            offsets.extend(starts[part])
            lengths.extend(sizes[part])
    facts = (order.files[file] for file in numbers)
    return OrderReport(
        [ReportedFile(file.version, file.size_bytes, file.path) for file in facts], file_numbers, offsets, lengths
    )


def examine(data: bytes | bytearray, digest: bytes) -> tuple[OrderReport, Sketch]:
    """Raises DamagedOrder, OrderTooNew."""
    report = unpack(data, digest)
    return report, sketch(report)


def share_of(report: OrderReport, live: Sequence[int]) -> float:
    """Of its steps, those in files that are ``live`` (1 or 0 for each)."""
    steps, slice_steps = report.file_numbers, limits.LEARN_SLICE_STEPS
    return sum(
        sum(map(live.__getitem__, steps[start : start + slice_steps])) for start in range(0, len(steps), slice_steps)
    ) / len(report)


def write(path: Path, name: str, dataset: str, origin: str, report: OrderReport, live: Sequence[int]) -> None:
    """An order file of the steps in files that are ``live``; no other file is named in it. Raises OrderError, OSError."""
    numbers = array("I", bytes(4 * len(live)))
    files: list[FileFacts] = []
    for number, file in enumerate(report.files):
        if live[number]:
            numbers[number] = len(files)
            files.append(FileFacts(file.path, file.version, file.size_bytes))
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with OrderWriter(
        path,
        name=name,
        reason=Reason.REPORTED,
        files=files,
        lane_count=1,
        meta={"dataset": dataset, ORIGIN: origin},
        segment_steps=limits.LEARN_SEGMENT_STEPS,
        gently=True,
    ) as writer:
        for start in range(0, len(report), limits.LEARN_SLICE_STEPS):
            part = slice(start, start + limits.LEARN_SLICE_STEPS)
            chosen = bytes(map(live.__getitem__, report.file_numbers[part]))
            writer.extend(
                0,
                array("I", map(numbers.__getitem__, compress(report.file_numbers[part], chosen))),
                array("Q", compress(report.offsets[part], chosen)),
                array("I", compress(report.lengths[part], chosen)),
            )
        writer.finish()
