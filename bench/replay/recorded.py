"""Turns a file that ``headrace-spoke mount --record`` wrote (spoke/TRACE.md) into a trace.

Each task becomes a process of one worker that makes its READs one by one, each when as much time has passed as its task took
after the one before was answered. What tasks waited for each other is not in the file, and not in the trace.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.replay.trace import CLOSE, OPEN, Process, Trace, TraceFile
from common.errors import HeadraceError
from spoke.recorder import CLOSE as CLOSED
from spoke.recorder import FILE, FORMAT, HEADER, MAGIC, RECORD, STALL
from spoke.recorder import OPEN as OPENED
from spoke.recorder import READ as WAS_READ


class DamagedTrace(HeadraceError):
    """The file is no trace, or of a later format."""


class Record(NamedTuple):
    """``at_us``: since the beginning."""

    kind: int
    result: int
    at_us: int
    handle: int
    task: int
    length: int
    offset: int
    text: bytes


def records(path: Path) -> Iterator[Record]:
    """All records up to the end, or to where it is cut off. Raises DamagedTrace; OSError."""
    data = memoryview(path.read_bytes())
    if len(data) < HEADER.size or bytes(data[: len(MAGIC)]) != MAGIC:
        raise DamagedTrace(f"{path} does not begin like a trace; name a file that mount --record wrote")
    _, form, record_bytes, _ = HEADER.unpack_from(data)
    if form > FORMAT or record_bytes < RECORD.size:
        raise DamagedTrace(
            f"{path} has format {form} with records of {record_bytes} bytes; this program reads format {FORMAT}"
        )
    at, at_us = HEADER.size, 0
    while at + record_bytes <= len(data):
        kind, result, text_bytes, gap_us, handle, task, length, offset = RECORD.unpack_from(data, at)
        at += record_bytes
        if at + text_bytes > len(data):
            return
        at_us += gap_us
        yield Record(kind, result, at_us, handle, task, length, offset, bytes(data[at : at + text_bytes]))
        at += text_bytes


class _Task:
    """``free_us``: when its last READ was answered, as far as is known."""

    def __init__(self) -> None:
        self.process = Process(workers=1, prefetch_batches=1, read_s=0.0, thinks_us=array("I"))
        self.free_us = 0
        self.fresh: set[int] = set()
        self.last_by_handle: dict[int, int] = {}


def read_trace(path: Path) -> Trace:
    """Raises DamagedTrace; OSError."""
    files: dict[int, TraceFile] = {}
    tasks: dict[int, _Task] = {}
    by_handle: dict[int, int] = {}
    readers: dict[int, _Task] = {}
    for record in records(path):
        if record.kind == FILE:
            name = record.text.split(b"\0", 1)[0]
            files[record.handle] = TraceFile(name, record.offset)
        elif record.kind == OPENED:
            by_handle[record.handle] = record.length
            task = tasks.setdefault(record.task, _Task())
            task.fresh.add(record.handle)
        elif record.kind == WAS_READ and record.handle in by_handle and record.length:
            task = tasks.setdefault(record.task, _Task())
            process = task.process
            assert process.thinks_us is not None
            # The time before a READ is what the task did with the one before.
            think_us = min(max(0, record.at_us - task.free_us), (1 << 32) - 1)
            if process.read_count:
                process.thinks_us[-1] = think_us
            flags = OPEN if record.handle in task.fresh else 0
            task.fresh.discard(record.handle)
            process.add(by_handle[record.handle], record.offset, record.length, flags)
            process.thinks_us.append(0)
            process.batch_ends.append(process.read_count)
            task.free_us = record.at_us
            readers[record.handle] = task
            task.last_by_handle[record.handle] = process.read_count - 1
        elif record.kind == STALL and record.task in tasks:
            tasks[record.task].free_us = record.at_us
        elif record.kind == CLOSED:
            by_handle.pop(record.handle, None)
            reader = readers.pop(record.handle, None)
            if reader is not None:
                reader.process.flags[reader.last_by_handle.pop(record.handle)] |= CLOSE
    processes = [task.process for task in tasks.values() if task.process.read_count]
    if not processes:
        raise DamagedTrace(
            f"{path} holds no READ; whole files are read by the kernel itself unless mounted with --no-passthrough"
        )
    numbers = sorted(files)
    places = {number: place for place, number in enumerate(numbers)}
    for process in processes:
        process.files = array("I", [places[file] for file in process.files])
    trace = Trace(path.name, [files[number] for number in numbers], processes)
    try:
        trace.check()
    except ValueError as error:
        raise DamagedTrace(f"{path}: {error}") from None
    return trace
