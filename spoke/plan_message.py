"""Messages of the plan channel to values and back, as PLAN.md says it. Pure; every number is checked before it is believed.

The sender's half is ``hints.py``, which stands alone in training images and so cannot use this.
"""

from __future__ import annotations

import errno as errno_codes
import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from common import limits
from common.errors import UsageError
from spoke.insight.training import Mark

MAGIC = b"HRPL"
VERSION = 1
MARKS_VERSION = 2
"""The version that brought MARKS; the other kinds are said in version 1, so that older spokes take them."""
COMMAND_BASE = 0xC0000000 | ord("H") << 8 | 1  # _IOC(_IOC_READ | _IOC_WRITE, 'H', 1, size), without the size
_SIZE_BITS = 0x3FFF << 16

_HEADER = struct.Struct("<4sBBBBIQQ")
_COUNTS = struct.Struct("<II")
_MARK = struct.Struct("<III")
_UNSAID = 0xFFFFFFFF
_PATH = struct.Struct("<HH")
_COLUMN = struct.Struct("<BQQ")
_ANSWER = struct.Struct("<4sBBHQQQ")
_LAST, _NEW = 1, 1
_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
_NAME_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:=+-")
_VALUE_LIMIT = 1 << 63


class BadPlan(UsageError):
    """Bytes on the plan channel that PLAN.md does not allow."""

    wire_code = "bad-plan"
    errno = errno_codes.EINVAL


class PlanTooNew(BadPlan):
    """A plan message of a later format than this program reads."""

    wire_code = "plan-too-new"
    errno = errno_codes.EPROTONOSUPPORT


class PlanMessageTooLarge(BadPlan):
    """More in one plan message than one may have (limits.py): send several."""

    wire_code = "plan-message-too-large"
    errno = errno_codes.E2BIG


class Kind(IntEnum):
    STEPS = 1
    DROP = 2
    LOOK = 3
    MARKS = 4


@dataclass(frozen=True, slots=True)
class PlanMessage:
    """``files`` index ``paths``; the three columns are equally long. ``from_step``: steps said before this message (of MARKS: marked)."""

    kind: Kind
    name: str
    token: int
    from_step: int = 0
    last: bool = False
    paths: Sequence[bytes] = ()
    files: Sequence[int] = ()
    offsets_bytes: Sequence[int] = ()
    lengths_bytes: Sequence[int] = ()
    rank: int | None = None
    marks: Sequence[Mark] = ()


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """What the sender is told: steps said so far, those kept and not read yet, those there is room for, and a text.

    ``left_out_steps``: places in the message; told on the control socket alone.
    """

    said_steps: int = 0
    waiting_steps: int = 0
    room_steps: int = 0
    new: bool = False
    text: str = ""
    left_out_steps: Sequence[int] = ()


def is_plan_command(command: int) -> bool:
    """Whether an ioctl's number is ours, whatever its size."""
    return command & ~_SIZE_BITS == COMMAND_BASE


def decode(data: bytes) -> PlanMessage:
    """The message at the start of ``data``. Raises BadPlan, PlanTooNew or PlanMessageTooLarge."""
    if len(data) < _HEADER.size or data[:4] != MAGIC:
        raise BadPlan(f"{len(data)} bytes that do not begin with {MAGIC!r} and a header of {_HEADER.size}: not a plan")
    _, version, kind, flags, name_size, size, token, from_step = _HEADER.unpack_from(data)
    if version not in (VERSION, MARKS_VERSION):
        raise PlanTooNew(
            f"a plan message of version {version}; this spoke reads versions {VERSION} and {MARKS_VERSION}"
        )
    if size > limits.PLAN_MESSAGE_MAX_BYTES:
        raise PlanMessageTooLarge(f"a message of {size} bytes; at most {limits.PLAN_MESSAGE_MAX_BYTES}: send several")
    if not _HEADER.size <= size <= len(data):
        raise BadPlan(f"a message of {size} bytes, by its header, in {len(data)}")
    most = Kind.LOOK if version == VERSION else Kind.MARKS
    if not Kind.STEPS <= kind <= most:
        raise BadPlan(f"a message of kind {kind}; there are 1 to {most} in version {version}")
    if flags & ~_LAST:
        raise BadPlan(f"flags {flags:#x}; version {version} has only bit 0")
    if from_step >= _VALUE_LIMIT:
        raise BadPlan(f"a message that begins at step {from_step}")
    reader = _Reader(data, _HEADER.size, size)
    name = reader.take(name_size)
    if not 1 <= name_size <= limits.PLAN_NAME_MAX_BYTES or not _NAME_BYTES.issuperset(name):
        raise BadPlan(
            f"a plan named {name[:80]!r}; names are 1 to {limits.PLAN_NAME_MAX_BYTES} ASCII letters, digits and ._:=+-"
        )
    head = Kind(kind), name.decode(), token, from_step, bool(flags & _LAST)
    if kind == Kind.MARKS:
        rank, marks = _marks(reader)
        reader.finish()
        return PlanMessage(*head, rank=rank, marks=marks)
    if kind != Kind.STEPS:
        reader.finish()
        return PlanMessage(*head)
    step_count, path_count = reader.unpack(_COUNTS)
    if step_count > limits.PLAN_MESSAGE_MAX_STEPS:
        raise PlanMessageTooLarge(f"{step_count} steps in one message; at most {limits.PLAN_MESSAGE_MAX_STEPS}")
    paths = _paths(reader, path_count)
    files, offsets, lengths = (_column(reader, step_count) for _ in range(3))
    reader.finish()
    if step_count and max(files) >= path_count:
        raise BadPlan(f"a step in file {max(files)} of {path_count}")
    return PlanMessage(*head, paths, files, offsets, lengths)


class _Reader:
    """Bytes taken one after another up to ``end``."""

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self._data = data
        self._position = position
        self._end = end

    def take(self, size: int) -> bytes:
        start = self._position
        if size > self._end - start:
            raise BadPlan(f"cut off: {size} bytes wanted at {start}, the message ends at {self._end}")
        self._position = start + size
        return self._data[start : start + size]

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.take(form.size))

    def finish(self) -> None:
        if self._position != self._end:
            raise BadPlan(f"{self._end - self._position} bytes left over after the message")


def _marks(reader: _Reader) -> tuple[int | None, list[Mark]]:
    count, rank = reader.unpack(_COUNTS)
    if count > limits.PLAN_MARKS_MAX:
        raise PlanMessageTooLarge(f"{count} marks in one message; at most {limits.PLAN_MARKS_MAX}")
    marks = [reader.unpack(_MARK) for _ in range(count)]
    return None if rank == _UNSAID else rank, [
        Mark(ago_us / 1e6, took_us / 1e6, None if wait_us == _UNSAID else wait_us / 1e6)
        for ago_us, took_us, wait_us in marks
    ]


def _paths(reader: _Reader, count: int) -> list[bytes]:
    paths: list[bytes] = []
    before, total_bytes = b"", 0
    for _ in range(count):
        shared, more = reader.unpack(_PATH)
        if shared > len(before) or shared + more > limits.PLAN_PATH_MAX_BYTES:
            raise BadPlan(f"a path that shares {shared} of {len(before)} bytes and has {more} more")
        before = before[:shared] + reader.take(more)
        total_bytes += len(before)
        if total_bytes > limits.PLAN_MESSAGE_MAX_PATH_BYTES:
            raise PlanMessageTooLarge(f"paths of over {limits.PLAN_MESSAGE_MAX_PATH_BYTES} bytes in one message")
        paths.append(before)
    return paths


def _column(reader: _Reader, count: int) -> Sequence[int]:
    width, base, scale = reader.unpack(_COLUMN)
    if width == 0:
        if base >= _VALUE_LIMIT:
            raise BadPlan(f"a number of {base}; they are below 2^63")
        return [base] * count
    code = _CODES.get(width)
    if code is None:
        raise BadPlan(f"numbers of {width} bytes; there are 0, 1, 2, 4 and 8")
    numbers = array(code)
    numbers.frombytes(reader.take(width * count))
    if sys.byteorder == "big":
        numbers.byteswap()
    if count and base + scale * max(numbers) >= _VALUE_LIMIT:
        raise BadPlan(f"a number of {base + scale * max(numbers)}; they are below 2^63")
    return numbers if base == 0 and scale == 1 else [base + scale * number for number in numbers]


def encode_answer(answer: PlanAnswer, room_bytes: int) -> bytes:
    """At most ``room_bytes``; the text is cut to fit. Empty where not even the numbers fit."""
    if room_bytes < _ANSWER.size:
        return b""
    text = answer.text.encode()[: min(room_bytes - _ANSWER.size, limits.PLAN_TEXT_MAX_BYTES)]
    flags = _NEW if answer.new else 0
    numbers = answer.said_steps, answer.waiting_steps, answer.room_steps
    return _ANSWER.pack(MAGIC, VERSION, flags, len(text), *numbers) + text


def encode_short(kind: Kind, name: str, token: int = 0) -> bytes:
    """A DROP or LOOK message."""
    size = _HEADER.size + len(name.encode())
    return _HEADER.pack(MAGIC, VERSION, kind, 0, len(name.encode()), size, token, 0) + name.encode()
