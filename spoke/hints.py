"""Tell a Headrace mount what a job will read next. One file, standard library only, Python 3.8 or newer: copy it anywhere.

    from headrace import hints          # or wherever the copy lies

    sampler = hints.announce(sampler, hints.records("/data/train.bin", 8192))       # any sampler or batch sampler
    batches = hints.megatron(batch_sampler, gpt_dataset)                            # Megatron's GPTDataset
    order = hints.memmap(order, "/data/tokens.bin", 2, 4097, stride_items=4096)     # windows of an np.memmap
    hints.declare("/data", [("a/b.tar", 0, 1 << 20), ...])                          # byte ranges, once
    for batch in hints.steps(loader): ...                                           # mark training steps, and the wait for data
    hints.step()                                                                    # or so, once in each step

Where a path is on no Headrace mount, all of this does nothing and costs nothing. Nothing here raises into the training
loop (what the caller's own sampler raises passes through); a plan that is refused is one warning in the log, and
:func:`facts` tells what became of all of them. A plan never changes what is read, only how soon it is there.

There is no thread, no lock and no descriptor kept: each announcement opens ``.headrace/plan``, says its part in ioctls
of a few kilobytes, and closes it. A process that was forked announces under a plan of its own. Marks of steps are gathered
and said once a second. What is said, bit by bit: PLAN.md.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import itertools
import logging
import math
import os
import struct
import sys
import time
from array import array
from bisect import bisect_right
from collections import deque
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Callable, Generic, Iterable, Iterator, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]
    Place = tuple[PathLike, int, int]
    Layout = Callable[[int], Sequence[Place]]

ItemT = TypeVar("ItemT")

__all__ = [
    "Announced", "Plan", "Telling", "announce", "concat", "declare", "facts", "find_mount", "megatron", "memmap", "records", "step",
    "steps", "table", "windows",
]  # fmt: skip

MESSAGE_MAX_BYTES = 16383  # what the kernel lets one ioctl carry
MESSAGE_STEPS = 512  # steps in one message: some 2 ms of the spoke's time
STEP_MAX_BYTES = 1 << 20  # longer ranges are told in pieces, so that the spoke sees how far they were read
AHEAD_INDICES = 16384  # how far a sampler is drawn ahead of what it yields

MARKS_INTERVAL_S = 1.0  # between two messages about steps: an ioctl of some 100 us
MARKS_MAX = 64  # steps in one of them
PARTS_LOOKED_AT = 64  # of datasets put together, in search of one on a mount
MOUNTS_MAX = 8  # told of steps
LOOK_INTERVAL_S = 30.0  # between two looks for mounts, while there are none

_MAGIC, _VERSION, _MARKS_VERSION = b"HRPL", 1, 2
_STEPS, _DROP, _MARKS = 1, 2, 4
_LAST = 1
_NEW = 1
_HEADER = struct.Struct("<4sBBBBIQQ")
_COLUMN = struct.Struct("<BQQ")
_ANSWER = struct.Struct("<4sBBHQQQ")
_MARK = struct.Struct("<III")
_UNSAID = 0xFFFFFFFF
_ANSWER_ROOM_BYTES = 512
_WIDTHS = ((0, 0, ""), (1, 0xFF, "B"), (2, 0xFFFF, "H"), (4, 0xFFFFFFFF, "I"), (8, (1 << 64) - 1, "Q"))
_GONE = (errno.ENOENT, errno.ENOTCONN, errno.ENODEV, errno.EACCES)  # of open: there is nobody to tell
_LEFT_OUT = (errno.ENOENT, errno.ERANGE)  # of ioctl: no such file, or past its end, in all steps of a message
_OFF = (errno.ENOTTY, errno.ENOTCONN, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT)  # of ioctl: nobody listens

_log = logging.getLogger("headrace.hints")
_facts: dict[str, Any] = {
    "mounts": 0, "announced_steps": 0, "marked_steps": 0, "refused_messages": 0, "errors": 0, "last_error": "",
}  # fmt: skip
_numbers = itertools.count()
_warned_of: set[str] = set()


def facts() -> Mapping[str, Any]:
    """What became of the announcements of this process: counters, and the last error's text."""
    return dict(_facts)


# --- what lies where -------------------------------------------------------------------------------------
# A layout is a function from an index to (path, offset in bytes, length in bytes) triples. Partial functions, not
# closures: a sampler that holds one can be pickled.


def records(path: PathLike, record_bytes: int, header_bytes: int = 0) -> Layout:
    """Records of one size, one after another behind a header."""
    return partial(_strided, os.fspath(path), header_bytes, record_bytes, record_bytes)


def windows(
    path: PathLike, item_bytes: int, window_items: int, stride_items: int | None = None, header_bytes: int = 0
) -> Layout:
    """Windows of ``window_items`` items each; window ``i`` begins at item ``i * stride_items`` (default: side by side).

    ``stride_items=1``: the index is the first item itself.
    """
    stride_bytes = item_bytes * (window_items if stride_items is None else stride_items)
    return partial(_strided, os.fspath(path), header_bytes, stride_bytes, item_bytes * window_items)


def table(path: PathLike, offsets: Sequence[Any], lengths: Sequence[Any] | None = None) -> Layout:
    """Records at ``offsets`` (bytes), of ``lengths``; without lengths each ends where the next begins (n + 1 offsets)."""
    return partial(_tabled, os.fspath(path), offsets, lengths)


def concat(parts: Iterable[tuple[int, Layout]]) -> Layout:
    """Datasets one after another, as ``ConcatDataset``: pairs of (number of indices, layout)."""
    parts = list(parts)
    return partial(_concatenated, list(itertools.accumulate(count for count, _ in parts)), [part for _, part in parts])


def _strided(path: Any, header_bytes: int, stride_bytes: int, length_bytes: int, index: int) -> Sequence[Place]:
    return ((path, header_bytes + index * stride_bytes, length_bytes),)


def _tabled(path: Any, offsets: Sequence[Any], lengths: Sequence[Any] | None, index: int) -> Sequence[Place]:
    start = int(offsets[index])
    return ((path, start, int(lengths[index]) if lengths is not None else int(offsets[index + 1]) - start),)


def _concatenated(ends: Sequence[int], layouts: Sequence[Layout], index: int) -> Sequence[Place]:
    part = bisect_right(ends, index)
    return layouts[part](index - (ends[part - 1] if part else 0))


def _blended(
    dataset_index: Sequence[Any], sample_index: Sequence[Any], layouts: Sequence[Layout], index: int
) -> Sequence[Place]:
    """A Megatron BlendedDataset: two arrays say which sample of which dataset an index is."""
    return layouts[int(dataset_index[index])](int(sample_index[index]))


def _some_paths(layout: Layout, index: int) -> Iterator[Any]:
    """Where an index lies, then where others do: of datasets put together only some may lie on a mount."""
    yield layout(index)[0][0]
    if isinstance(layout, partial) and layout.func in (_concatenated, _blended):
        for part in layout.args[-1]:
            try:
                yield from _some_paths(part, 0)
            except (IndexError, TypeError, ValueError):  # an empty one
                continue


def _fragments(dataset: Any, path: Any, item_bytes: int, extra_items: int, sample: int) -> Sequence[Place]:
    """The pieces of documents that a sample of a Megatron GPTDataset is made of, by the index arrays it holds."""
    index = dataset.dataset.index
    place = int(dataset.shuffle_index[sample])
    first, first_item = (int(value) for value in dataset.sample_index[place])
    last, last_item = (int(value) for value in dataset.sample_index[place + 1])
    found: list[Place] = []
    for position in range(first, last + 1):
        document = int(dataset.document_index[position])
        begin = first_item if position == first else 0
        end = last_item + extra_items if position == last else int(index.sequence_lengths[document])
        start_bytes = int(index.sequence_pointers[document]) + begin * item_bytes
        found.append((path, start_bytes, (end - begin) * item_bytes))
    return found


# --- one line each ---------------------------------------------------------------------------------------


def announce(
    sampler: Iterable[ItemT], layout: Layout | None, ahead: int = AHEAD_INDICES, name: str | None = None
) -> Announced[ItemT]:
    """Wrap a sampler, a batch sampler or any other iterable of indices: it yields the same, and the mount hears of it ahead.

    ``layout``: what :func:`records`, :func:`table`, :func:`windows` or :func:`concat` gave, or any function from an index
    to (path, offset in bytes, length in bytes) triples. ``ahead``: at most so many indices are drawn before they are yielded.
    """
    return Announced(sampler, layout, ahead, name)


def memmap(
    order: Iterable[ItemT],
    path: Any,
    item_bytes: int,
    window_items: int,
    stride_items: int | None = None,
    header_bytes: int = 0,
) -> Announced[ItemT]:
    """``order`` again, announcing the windows of a memory-mapped array that its indices mean.

    ``path`` may be the np.memmap, or a slice of it.
    """
    try:
        if hasattr(path, "filename") and hasattr(path, "offset"):
            path, header_bytes = path.filename, _file_offset(path)
        return announce(order, windows(path, item_bytes, window_items, stride_items, header_bytes))
    except Exception as error:  # another library's attributes: without them there is no plan
        _failed("nothing is announced, this is no memory-mapped file: %r", error, warn=bool(_mounts()))
        return announce(order, None)


def _file_offset(array_: Any) -> int:
    """Where in its file an np.memmap begins; a slice keeps the offset of what it was cut from, and has it as its base."""
    whole = array_
    while hasattr(getattr(whole, "base", None), "filename"):
        whole = whole.base
    if whole is array_:
        return int(whole.offset)
    if not array_.flags.c_contiguous:
        raise ValueError("a slice that is not in one piece")
    begins = [a.__array_interface__["data"][0] for a in (whole, array_)]
    return int(whole.offset + begins[1] - begins[0])


def megatron(sampler: Iterable[ItemT], dataset: Any) -> Announced[ItemT]:
    """Wrap the (batch) sampler of a Megatron-style GPTDataset, or of a BlendedDataset of such."""
    try:
        return announce(sampler, _megatron_layout(dataset))
    except Exception as error:  # another library's attributes: without them there is no plan
        _failed("nothing is announced, this is no Megatron dataset: %r", error, warn=bool(_mounts()))
        return announce(sampler, None)


def _megatron_layout(dataset: Any) -> Layout:
    parts = getattr(dataset, "datasets", None)
    if parts is not None:
        return partial(
            _blended, dataset.dataset_index, dataset.dataset_sample_index, [_megatron_layout(part) for part in parts]
        )
    index = dataset.dataset.index
    item_bytes = int(index.dtype_size) if hasattr(index, "dtype_size") else int(index.dtype().itemsize)
    extra_items = int(getattr(getattr(dataset, "config", None), "add_extra_token_to_sequence", True))
    path = os.fspath(dataset.dataset.path_prefix) + ".bin"
    return partial(_fragments, dataset, path, item_bytes, extra_items)


def declare(
    where: PathLike,
    ranges: Iterable[Any] | None = None,
    *,
    indices: Iterable[int] = (),
    record_bytes: int = 0,
    header_bytes: int = 0,
    offsets: Sequence[Any] | None = None,
    lengths: Sequence[Any] | None = None,
    name: str | None = None,
) -> int:
    """Declare reads once; returns how many of them were heard: 0 where ``where`` is on no Headrace mount, or it failed.

    ``ranges``: (path, offset, length), paths absolute or below the directory ``where``; or (offset, length) of the file
    ``where``. Else ``indices`` of records of that file: with ``record_bytes``, or with ``offsets`` and perhaps ``lengths``.
    What there is no room for is left out: declare it later, or use :func:`announce`, which waits by itself.
    """
    try:
        if ranges is None:
            layout = records(where, record_bytes, header_bytes) if offsets is None else table(where, offsets, lengths)
            found: Iterable[Any] = (place for index in indices for place in layout(int(index)))
        else:
            found = ((where, *item) if len(item) == 2 else (_below(where, item[0]), *item[1:]) for item in ranges)
        return Plan(where, name).add(found, last=True)
    except Exception as error:  # never into the training loop
        _failed("nothing was declared: %r", error)
        return 0


def _below(where: PathLike, path: PathLike) -> bytes:
    return os.path.join(os.fsencode(where), os.fsencode(path))


# --- where the mount is ----------------------------------------------------------------------------------


def find_mount(path: PathLike) -> tuple[bytes, bytes] | None:
    """(root of the Headrace mount, path below it) as bytes, or None. Follows symlinks; touches no data."""
    try:
        real = os.path.realpath(os.fsencode(path))
        device = os.stat(real).st_dev
        root = real
        while root != b"/" and os.stat(os.path.dirname(root)).st_dev == device:
            root = os.path.dirname(root)
        if os.stat(os.path.join(root, b".headrace/plan")).st_dev != device:
            return None
    except (OSError, ValueError, TypeError):
        return None
    return root, real[len(root) :].lstrip(b"/")


def _failed(text: str, *values: object, warn: bool = False) -> None:
    """``warn``: there is a mount, so that somebody expects a plan of this: one warning in a process for each text."""
    _facts["errors"] += 1
    _facts["last_error"] = text % values
    warn = warn and text not in _warned_of
    if warn:
        _warned_of.add(text)
    _log.log(logging.WARNING if warn else logging.DEBUG, text, *values)


# --- a plan: what is said --------------------------------------------------------------------------------


class Telling:
    """Ranges to messages, whatever carries them: subclasses give ``_path`` and ``_send``."""

    def __init__(self, name: str | None) -> None:
        self.restarted = False
        self._left_out = 0  # the errno of a message that was heard, and of which nothing could be kept
        self._goes_on = False  # a message continues a range that the one before began
        self._name = name
        self._begin()

    def _begin(self) -> None:
        """A new beginning: another token tells the spoke to forget what it knows under this name."""
        self._pid = os.getpid()
        self._token = int.from_bytes(os.urandom(8), "little") or 1
        self._said_steps = 0
        name = self._name
        if name is None:
            name = "rank%s-%d-%d" % (os.environ.get("RANK", "0"), self._pid, next(_numbers))
        self._wire_name = _wire_name(name)

    def _path(self, path: Any) -> bytes | None:
        """A path as the spoke knows it, in bytes; None: it lies elsewhere, and what is read of it is not told."""
        raise NotImplementedError

    def _send(self, message: bytes, steps: int) -> bool:
        """Send one message that has so many steps; True if it was taken."""
        raise NotImplementedError

    def _say_all(self, ranges: Iterable[Place], last: bool) -> int:
        """Chunk by chunk, until one is refused; returns how many ranges were taken."""
        taken = 0
        ranges = iter(ranges)
        chunk = list(itertools.islice(ranges, MESSAGE_STEPS))
        while chunk:
            following = list(itertools.islice(ranges, MESSAGE_STEPS))
            count = self._say(chunk, last and not following)
            taken += count
            if count < len(chunk):
                break
            chunk = following
        return taken

    def _say(self, chunk: Sequence[Place], last: bool) -> int:
        """One chunk, in halves if it is too large for a message; returns how many of its ranges were taken."""
        if sum(1 + max(0, int(length)) // STEP_MAX_BYTES for _, _, length in chunk) <= 2 * MESSAGE_STEPS:
            columns = self._columns(chunk)
            message = pack_steps(self._token, self._wire_name, self._said_steps, *columns, last=last)
            steps = len(columns[1])
        else:
            message, steps = b"", 2 * MESSAGE_STEPS + 1
        if len(message) > MESSAGE_MAX_BYTES or steps > 2 * MESSAGE_STEPS:
            if len(chunk) == 1:
                return self._say_long(chunk[0], last)
            middle = len(chunk) // 2
            taken = self._say(chunk[:middle], False)
            return taken + self._say(chunk[middle:], last) if taken == middle else taken
        if chunk and not steps and not last:
            return len(chunk)  # nothing of it lies on this mount
        if not self._send(message, steps):
            return 0
        self._said_steps += steps
        if last and self._left_out:  # that this was the end was not heard with it
            self._send(pack_steps(self._token, self._wire_name, self._said_steps, (), (), (), (), last=True), 0)
        return len(chunk)

    def _say_long(self, triple: Place, last: bool) -> int:
        """One range of more steps than a message may have."""
        path, start, length = triple
        limit = MESSAGE_STEPS * STEP_MAX_BYTES
        if length <= limit:
            raise ValueError("a path of %d bytes" % len(os.fsencode(path)))
        end = start + length
        try:
            for at in range(start, end, limit):
                if not self._say([(path, at, min(limit, end - at))], last and at + limit >= end):
                    return 0
                if self._left_out:  # no such file, or past its end: so is what follows
                    if last and at + limit < end:
                        self._say((), True)
                    break
                self._goes_on = True
        finally:
            self._goes_on = False
        return 1

    def _columns(self, chunk: Sequence[Place]) -> tuple[list[bytes], list[int], list[int], list[int]]:
        """(paths, files, offsets, lengths): ranges longer than a step in pieces, paths as the spoke knows them."""
        paths: list[bytes] = []
        numbers: dict[Any, int] = {}  # -1: elsewhere
        files: list[int] = []
        offsets: list[int] = []
        lengths: list[int] = []
        for path, start, length in chunk:
            number = numbers.get(path)
            if number is None:
                known = self._path(path)
                number = numbers[path] = len(paths) if known is not None else -1
                if known is not None:
                    paths.append(known)
            if number < 0:
                continue
            for offset, piece in _pieces(int(start), int(length)):
                files.append(number)
                offsets.append(offset)
                lengths.append(piece)
        return paths, files, offsets, lengths


def _pieces(start: int, length: int) -> Iterator[tuple[int, int]]:
    """A range cut at multiples of a step's size, if it is longer than one."""
    while length > STEP_MAX_BYTES:
        piece = STEP_MAX_BYTES - start % STEP_MAX_BYTES
        yield start, piece
        start, length = start + piece, length - piece
    if length > 0:
        yield start, length


class Plan(Telling):
    """One growing list of reads, for one process (rank). ``where``: any path on the mount. Nothing of it raises.

    ``active``: the mount is there and listens. ``restarted``: with the last :meth:`add`, the spoke knew nothing of what
    was said before.
    """

    def __init__(self, where: PathLike, name: str | None = None) -> None:
        found = find_mount(where)
        self.active = found is not None
        self._root = found[0] if found is not None else b""
        self._control = -1
        self._paths: dict[Any, bytes | None] = {}
        self._warned = False
        _facts["mounts"] += self.active
        Telling.__init__(self, name)

    def add(self, ranges: Iterable[Place], last: bool = False) -> int:
        """Say (path, offset, length) triples, in the order of the reads; returns how many of them were heard.

        ``last``: nothing follows; once this is read the plan may be forgotten. Stops where there is no room; steps that
        cannot be (no such file, past its end) are left out, and the first such is warned of.
        """
        self.restarted = False
        if not self.active:
            return 0
        if self._pid != os.getpid():
            self._begin()
        try:
            self._open()
            try:
                return self._say_all(ranges, last)
            finally:
                self._close()
        except OSError as error:
            self.active = error.errno not in _GONE
            _failed("the mount does not take plans: %s", error)
        except Exception as error:  # never into the training loop
            self.active = False
            _failed("a plan cannot be told to the Headrace mount: %r", error, warn=True)
        return 0

    def drop(self) -> None:
        """Have the spoke forget this plan."""
        try:
            if self.active and self._pid == os.getpid() and self._said_steps:
                self._open()
                try:
                    self._send(_message(_DROP, 0, self._token, 0, self._wire_name), 0)
                finally:
                    self._close()
            self._begin()
        except Exception as error:  # also when the interpreter ends around us
            _failed("the plan cannot be dropped: %r", error)

    def _open(self) -> None:
        self._control = os.open(os.path.join(self._root, b".headrace/plan"), os.O_RDONLY | os.O_CLOEXEC)

    def _close(self) -> None:
        os.close(self._control)
        self._control = -1

    def _path(self, path: Any) -> bytes | None:
        if path in self._paths:
            return self._paths[path]
        if len(self._paths) > 65536:
            self._paths.clear()
        found = find_mount(path)
        if found is not None and found[0] == self._root:
            known: bytes | None = found[1]
        elif os.path.exists(path):
            known = None
            _failed("%r does not lie on the mount of its plan: its reads are not told", path)
        else:
            real = os.path.realpath(os.fsencode(path))  # told all the same: the spoke refuses it and counts it
            below = real.startswith(self._root.rstrip(b"/") + b"/")
            known = real[len(self._root) :].strip(b"/") if below else real.strip(b"/")
        self._paths[path] = known
        return known

    def _send(self, message: bytes, steps: int) -> bool:
        """One ioctl."""
        buffer = bytearray(message)
        buffer.extend(bytes(max(0, _ANSWER_ROOM_BYTES - len(buffer))))
        try:
            fcntl.ioctl(self._control, _command(len(buffer)), buffer, True)
        except OSError as error:
            self._left_out = error.errno if error.errno in _LEFT_OUT else 0
            if self._left_out and self._goes_on:
                return True  # a range longer than its file is cut
            reason = _text(buffer) or str(error.strerror)
            _facts["refused_messages"] += 1
            _failed("the spoke refused a plan: %s", reason)
            if not self._warned and error.errno != errno.ENOSPC:
                self._warned = True
                _log.warning("the Headrace spoke refused a plan: %s", reason)
            if error.errno in _OFF:
                self.active = False
            return bool(self._left_out)  # those were heard; what follows may still be good
        self._left_out = 0
        self.restarted = self.restarted or bool(_ANSWER.unpack_from(buffer)[2] & _NEW and self._said_steps)
        _facts["announced_steps"] += steps
        return True


# --- the format (PLAN.md) --------------------------------------------------------------------------------


def _command(size_bytes: int) -> int:
    return 3 << 30 | size_bytes << 16 | ord("H") << 8 | 1


def _message(
    kind: int, flags: int, token: int, from_step: int, name: bytes, body: bytes = b"", version: int = _VERSION
) -> bytes:
    length = _HEADER.size + len(name) + len(body)
    return _HEADER.pack(_MAGIC, version, kind, flags, len(name), length, token, from_step) + name + body


def _wire_name(name: str) -> bytes:
    return "".join(c if (c.isalnum() and c.isascii()) or c in "._:=+-" else "-" for c in name[:64]).encode() or b"-"


def pack_marks(name: bytes, first: int, rank: int | None, marks: Sequence[tuple[float, float, float | None]]) -> bytes:
    """A MARKS message: (seconds ago, seconds it took, seconds without data or None) of each step; ``first``: steps marked before."""
    body = struct.pack("<II", len(marks), _UNSAID if rank is None else rank)
    body += b"".join(_MARK.pack(*(_microseconds(value) for value in mark)) for mark in marks)
    return _message(_MARKS, 0, 0, first, name, body, _MARKS_VERSION)


def _microseconds(seconds: float | None) -> int:
    return _UNSAID if seconds is None else min(_UNSAID - 1, max(0, round(seconds * 1e6)))


def pack_steps(
    token: int,
    name: bytes,
    from_step: int,
    paths: Sequence[bytes],
    files: Sequence[int],
    offsets: Sequence[int],
    lengths: Sequence[int],
    last: bool = False,
) -> bytes:
    """A STEPS message. ``files`` are indices into ``paths``; the three columns are equally long lists."""
    parts = [struct.pack("<II", len(files), len(paths))]
    before = b""
    for path in paths:
        shared = next((i for i, (a, b) in enumerate(zip(before, path)) if a != b), min(len(before), len(path)))
        parts.append(struct.pack("<HH", shared, len(path) - shared) + path[shared:])
        before = path
    parts.extend(_pack_column(values) for values in (files, offsets, lengths))
    return _message(_STEPS, _LAST if last else 0, token, from_step, name, b"".join(parts))


def _pack_column(values: Sequence[int]) -> bytes:
    """base + scale x (0, or an unsigned number of 1, 2, 4 or 8 bytes each)."""
    if not values:
        return _COLUMN.pack(0, 0, 1)
    base = min(values)
    above = [value - base for value in values]
    scale = reduce(math.gcd, above) or 1
    largest = max(above) // scale
    width, _, code = next(entry for entry in _WIDTHS if largest <= entry[1])
    if not width:
        return _COLUMN.pack(0, base, scale)
    packed: array[int] = array(code, above if scale == 1 else [value // scale for value in above])
    if sys.byteorder == "big":
        packed.byteswap()
    return _COLUMN.pack(width, base, scale) + packed.tobytes()


def _text(buffer: bytearray) -> str:
    """The reason in an answer, if there is one."""
    if bytes(buffer[:4]) != _MAGIC:
        return ""
    length = _ANSWER.unpack_from(buffer)[3]
    return bytes(buffer[_ANSWER.size : _ANSWER.size + length]).decode("utf-8", "replace")


# --- steps of training -----------------------------------------------------------------------------------


def step(
    where: PathLike | None = None, *, rank: int | None = None, wait_s: float | None = None, name: str | None = None
) -> None:
    """Mark that a training step ends here and the next begins; the spoke shows step time, data wait and its cache side by side.

    Call it once in each step, at the same place. ``where``: a path on the mount (default: all Headrace mounts there are).
    ``rank``: default the environment's ``RANK``. ``wait_s``: how long the step waited for its batch, if you measure it;
    :func:`steps` does. Costs a microsecond, and once a second an ioctl; where there is no mount it does nothing.
    """
    try:
        _marker_here(where, rank, name).mark(wait_s)
    except Exception as error:  # never into the training loop
        _failed("the step is not marked: %r", error)


def steps(
    loader: Iterable[ItemT], where: PathLike | None = None, *, rank: int | None = None, name: str | None = None
) -> Iterator[ItemT]:
    """A loader's batches, each marked as a step, with how long it had to be waited for. Time before the loop is in no step."""
    source = iter(loader)
    try:
        _marker_here(where, rank, name).last = time.monotonic()
    except Exception as error:  # never into the training loop
        _failed("the steps are not marked: %r", error)
    while True:
        began = time.monotonic()
        try:
            item = next(source)
        except StopIteration:
            return
        waited = time.monotonic() - began
        yield item
        step(where, rank=rank, wait_s=waited, name=name)


def _marker_here(where: Any, rank: int | None, name: str | None) -> _Marker:
    """This process's own; a fork begins anew."""
    pid = os.getpid()
    if pid not in _markers:
        _markers.clear()
        _markers[pid] = _Marker(where, rank, name)
    return _markers[pid]


class _Marker:
    """Gathers marks and says them, in one process. ``last``: when the step under way began, 0 for none."""

    def __init__(self, where: Any, rank: int | None, name: str | None) -> None:
        self.pid = os.getpid()
        self.last = 0.0
        text = os.environ.get("RANK", "")
        self._rank = rank if rank is not None else int(text) if text.isdigit() else None
        label = "job" if self._rank is None else "rank%d" % self._rank
        self._name = _wire_name(name if name is not None else "%s-%d" % (label, self.pid))
        self._where = where
        self._marks: list[tuple[float, float, float | None]] = []
        self._said_at = self._look_at = time.monotonic()
        self._roots: list[bytes] = []
        self._told: dict[bytes, int] = {}
        atexit.register(self.say)

    def mark(self, wait_s: float | None) -> None:
        now = time.monotonic()
        if self.last:
            self._marks.append((now, now - self.last, wait_s))
        self.last = now
        if len(self._marks) >= MARKS_MAX or now - self._said_at >= MARKS_INTERVAL_S:
            self.say()

    def say(self) -> None:
        """Tell the mounts; also when the process ends."""
        try:
            if self._marks and self.pid == os.getpid():
                self._say(time.monotonic())
        except Exception as error:
            _failed("the steps cannot be told: %r", error)

    def _say(self, now: float) -> None:
        marks, self._marks, self._said_at = self._marks, [], now
        if not self._roots and now >= self._look_at:
            self._look_at = now + LOOK_INTERVAL_S
            found = find_mount(self._where) if self._where is not None else None
            self._roots = [found[0]] if found is not None else _mounts() if self._where is None else []
        ages = [(now - ended, took, wait) for ended, took, wait in marks]
        for root in list(self._roots):
            try:
                first = self._told.get(root, 0)
                buffer = bytearray(pack_marks(self._name, first, self._rank, ages)) + bytearray(_ANSWER_ROOM_BYTES)
                control = os.open(os.path.join(root, b".headrace/plan"), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.ioctl(control, _command(len(buffer)), buffer, True)
                finally:
                    os.close(control)
                self._told[root] = first + len(ages)
                _facts["marked_steps"] += len(ages)
            except OSError as error:
                self._roots.remove(root)  # gone, or it takes no marks: looked for again later
                self._look_at = now + LOOK_INTERVAL_S
                _failed("the mount does not take marks: %s", error)


_markers: dict[int, _Marker] = {}


def _mounts() -> list[bytes]:
    """The Headrace mounts this process sees, by /proc alone: none of them is touched."""
    found = []
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            head, _, tail = line.partition(b" - ")
            if tail.startswith(b"fuse.headrace "):
                path = head.split()[4]
                for code, plain in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
                    path = path.replace(code, plain)
                found.append(path)
    return found[:MOUNTS_MAX]


# --- samplers --------------------------------------------------------------------------------------------


_OWN = frozenset(("_wrapped", "_layout", "_ahead", "_name", "_plan", "_busy", "__orig_class__"))


class Announced(Generic[ItemT]):
    """A sampler (of indices or of lists of them) that tells the mount what it will yield, an epoch at a time.

    It yields what the wrapped one yields, in its order, with its length; all its other attributes (``set_epoch``,
    ``batch_size``, a batch sampler's ``sampler``) are the wrapped one's, read and set. The wrapped one is drawn at most
    ``ahead`` indices further than the job has come; so its ``state_dict`` would be ahead of the job, and one that has such is
    passed through without announcing.
    """

    def __init__(
        self, sampler: Iterable[ItemT], layout: Layout | None, ahead: int = AHEAD_INDICES, name: str | None = None
    ) -> None:
        self._wrapped = sampler
        self._layout = layout
        self._ahead = max(1, int(ahead))
        self._name = name
        self._plan: Plan | None = None
        self._busy = False

    def __len__(self) -> int:
        return len(self._wrapped)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._wrapped)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in _OWN:
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._wrapped, name, value)

    def __iter__(self) -> Iterator[ItemT]:
        # iter() now and the first draw later: at the points where a loader would do both with the wrapped sampler,
        # so that one that takes its seed from PyTorch's global generator gets the same.
        source = iter(self._wrapped)
        if self._layout is None:
            return source
        # A batch sampler's own sampler counts as well: it is drawn through it.
        if any(hasattr(inner, "state_dict") for inner in (self._wrapped, getattr(self._wrapped, "sampler", None))):
            _failed(
                "%s keeps its own place, which drawing ahead would change: nothing is announced",
                type(self._wrapped),
                warn=bool(_mounts()),
            )
            return source
        return self._run(source, self._layout)

    def _run(self, source: Iterator[ItemT], layout: Layout) -> Iterator[ItemT]:
        try:
            first = next(source)
        except StopIteration:
            return
        plan = self._plan_for(first, layout)
        if plan is None:
            yield first
            yield from source
            return
        outer, self._busy = not self._busy, True
        teller = _Teller(itertools.chain((first,), source), plan, layout, self._ahead)
        try:
            yield from teller
        finally:
            if outer:
                self._busy = False
            if not teller.finished:
                self._plan = None  # what was announced and never drawn must not stand before the next epoch
                plan.drop()

    def _plan_for(self, item: Any, layout: Layout) -> Plan | None:
        """The plan to go on with, if the data lie on a mount of ours."""
        try:
            index = int(_indices(item)[0])
            paths = list(itertools.islice(_some_paths(layout, index), PARTS_LOOKED_AT))
            path = next((path for path in paths if find_mount(path) is not None), paths[0])
            if self._busy:  # two loops over one sampler at once: each has its own order
                plan = Plan(path)
            else:
                plan = self._plan = self._plan or Plan(path, self._name)
        except Exception as error:  # never into the training loop
            _failed("nothing is announced: %r", error)
            return None
        if not plan.active:
            self._plan = None  # looked for again in the next epoch
            return None
        return plan


class _Teller(Generic[ItemT]):
    """Draws from a source ahead of what it yields, and tells a plan what it drew."""

    def __init__(self, source: Iterator[ItemT], plan: Plan, layout: Layout, ahead: int) -> None:
        self.finished = False
        self._source = source
        self._plan = plan
        self._layout = layout
        self._ahead = ahead
        self._chunk = max(1, min(MESSAGE_STEPS, ahead // 4))
        self._waiting: deque[tuple[ItemT, int]] = deque()  # items drawn and not yielded, each with its indices
        self._held = 0  # indices in them
        self._untold: deque[tuple[int, Any]] = deque()  # (number, index) drawn and not told
        self._drawn = 0
        self._yielded = 0
        self._try_again_at = 0
        self._ended = False
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[ItemT]:
        while True:
            # A chunk for each item until the depth is reached: the first item of an epoch waits for one chunk alone.
            if not self._ended and (self._held + self._chunk <= self._ahead or not self._waiting):
                self._draw()
                self._tell()
            if not self._waiting:
                break
            item, count = self._waiting.popleft()
            self._held -= count
            self._yielded += count
            if not self._waiting and self._ended and self._error is None:
                self.finished = True
            yield item
        self.finished = True
        if self._error is not None:
            raise self._error

    def _draw(self) -> None:
        end = self._held + self._chunk
        while self._held < end:
            try:
                item = next(self._source)
            except StopIteration:
                self._ended = True
                return
            except Exception as error:  # the sampler's own: raised where it would have been
                self._ended, self._error = True, error
                return
            item = _kept(item)
            indices = _indices(item)
            self._waiting.append((item, len(indices)))
            self._held += len(indices)
            if self._plan.active:
                self._untold.extend(enumerate(indices, self._drawn))
            self._drawn += len(indices)
            if not len(indices) and len(self._waiting) >= self._chunk:
                return  # empty batches must not make this endless

    def _tell(self) -> None:
        untold = self._untold
        while untold and untold[0][0] < self._yielded:
            untold.popleft()  # read by now
        if not untold or not self._plan.active or self._yielded < self._try_again_at:
            return
        try:
            self._tell_all()
            if self._plan.restarted:  # a spoke that was started anew has forgotten what it was told
                indices = [index for item, _ in self._waiting for index in _indices(item)]
                untold.clear()
                untold.extend(enumerate(indices, self._yielded))
                self._tell_all()
        except Exception as error:  # never into the training loop
            self._plan.active = False
            _failed("no more is announced to the Headrace mount: %r", error, warn=True)

    def _tell_all(self) -> None:
        untold = self._untold
        while untold:
            numbered = list(itertools.islice(untold, self._chunk))
            places = [self._layout(int(index)) for _, index in numbered]
            taken = self._plan.add(itertools.chain.from_iterable(places))
            for found in places:
                if taken < len(found):
                    # No room, or refused: what the job passes meanwhile is let go, the rest is told a chunk later.
                    self._try_again_at = self._yielded + self._chunk
                    break
                taken -= len(found)
                untold.popleft()
            if not self._plan.active:
                untold.clear()
            elif self._try_again_at > self._yielded:
                return


def _kept(item: Any) -> Any:
    """Some samplers fill one batch again and again."""
    if type(item) is list:
        return list(item)
    if _is_vector(item):
        return item.clone() if hasattr(item, "clone") else item.copy()
    return item


def _indices(item: Any) -> Sequence[Any]:
    if isinstance(item, (list, tuple, range, array)):
        return item
    return item.tolist() if _is_vector(item) else (item,)


def _is_vector(item: Any) -> bool:
    """An array or tensor of indices; neither of their libraries is needed to see that."""
    return getattr(item, "ndim", None) == 1 and hasattr(item, "tolist")
