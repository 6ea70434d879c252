"""What the kernel was told and holds on to: node ids, open files, the terms of the connection, requests in hand.

It lies in a memfd that outlives the worker, so that the next worker means the same by every number the kernel may say. The
one rule: **a number is written down before the reply that reveals it leaves.** A worker killed between the two leaves an
entry that nobody asks for, never a number that nobody knows. Everything here is a store into shared memory: what a killed
process had stored stays, in the order in which it was stored.

Layout, little-endian. A fixed part: the terms and reserved numbers, the identity of the mount (JSON), the requests in hand,
the buffer into which requests are read, so that also the one just taken is known,
and since when those in hand wait. Then segments of 1 MiB with
records: ``length u32, state u32, body``; the length is stored last and ends a torn record. ``state``: bit 31 while it is alive, and
below it a node's lookups, changed in place. A segment without live records is given back to the system; when most of the
space is dead, the sparsest segment's live records are copied to the end, a few milliseconds at a time.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from common.errors import HeadraceError
from common.limits import FUSE_LEDGER_NUMBERS_RESERVED, FUSE_LEDGER_SEGMENT_BYTES, FUSE_REQUESTS_IN_HAND_MAX
from spoke.fuse.kernel import REQUEST_BUFFER_BYTES, Negotiated

MAGIC = int.from_bytes(b"HRLEDGR1", "little")
_MAGIC_AT, _AGREED_AT, _FLAGS_AT, _MINOR_AT, _READAHEAD_AT, _BACKGROUND_AT, _NODE_IDS_AT, _HANDLE_IDS_AT = range(8)
_IDENTITY_LENGTH_AT, _SERIALS_AT = 8, 9
_IDENTITY_BYTES, _IN_HAND_BYTES = 512, 4096
_BUFFER_BYTES = _IN_HAND_BYTES + FUSE_REQUESTS_IN_HAND_MAX * 8
_SINCE_BYTES = _BUFFER_BYTES + REQUEST_BUFFER_BYTES
_FIXED_BYTES = -(-_SINCE_BYTES // 65536) * 65536
# Of the slots, the first; those beyond count as just begun when a worker takes over.
_SINCE_MAX = (_FIXED_BYTES - _SINCE_BYTES) // 4
_TICKS_A_SECOND = 10

_SEGMENT_WORDS = FUSE_LEDGER_SEGMENT_BYTES // 4
_ALIVE = 1 << 31
_COUNT_MASK = _ALIVE - 1
_NODE, _HANDLE = 1, 2
_NODE_BODY = struct.Struct("<BxHIQQ")  # kind, bytes of the packed entry, bytes of the path, node id, serial
_HANDLE_BODY = struct.Struct("<BxxxIQQQ")  # kind, backing id, handle id, node id, unique of the OPEN
_HEAD_BYTES = 8
_USED_SEGMENTS_TIDIED_FROM = 4


class LedgerUnusable(HeadraceError):
    """A descriptor that holds no ledger of a version we read."""

    wire_code = "ledger-unusable"


class NodeRecord(NamedTuple):
    """``packed``: the entry the node id stands for, in the form of spoke.namespace.packing."""

    slot: int
    node_id: int
    serial: int
    lookups: int
    path: bytes
    packed: bytes


class HandleRecord(NamedTuple):
    """``unique``: of the OPEN request. ``backing_id``: 0 for a file that is open the plain way."""

    slot: int
    handle_id: int
    node_id: int
    unique: int
    backing_id: int


class _Segment:
    """``torn``: an earlier worker wrote in it, and may have left half a record behind the last whole one."""

    __slots__ = ("live_bytes", "live_records", "memory", "torn", "used_bytes", "words")

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory
        self.words = memoryview(memory).cast("I")
        self.torn = False
        self.used_bytes = 0
        self.live_bytes = 0
        self.live_records = 0


class Ledger:
    """``moved(is_handle, number, slot)`` is called when a record's slot changes. The descriptor is this object's to close."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.moved: Callable[[bool, int, int], None] = lambda _is_handle, _number, _slot: None
        self._fixed = mmap.mmap(fd, _FIXED_BYTES)
        self._numbers = memoryview(self._fixed)[:_IDENTITY_BYTES].cast("Q")
        self._in_hand = memoryview(self._fixed)[_IN_HAND_BYTES:_BUFFER_BYTES].cast("Q")
        self._since_ticks = memoryview(self._fixed)[_SINCE_BYTES:_FIXED_BYTES].cast("I")
        self._free_slots = list(range(FUSE_REQUESTS_IN_HAND_MAX - 1, -1, -1))
        self._segments: list[_Segment] = []
        self._empty: list[int] = []
        self._current = -1
        self._live_bytes = 0

    @classmethod
    def create(cls, identity: Mapping[str, Any]) -> Ledger:
        """A new one. ``identity``: what mount it belongs to. Raises OSError (no memory), LedgerUnusable (identity too long)."""
        fd = os.memfd_create("headrace-ledger", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, _FIXED_BYTES)
            ledger = cls(fd)
            ledger._write_identity(identity)
        except BaseException:
            os.close(fd)
            raise
        ledger._numbers[_MAGIC_AT] = MAGIC
        return ledger

    @classmethod
    def adopt(cls, fd: int) -> Ledger:
        """The one an earlier worker left. Raises LedgerUnusable; then the descriptor stays the caller's."""
        size_bytes = os.fstat(fd).st_size
        if size_bytes < _FIXED_BYTES:
            raise LedgerUnusable(f"the ledger of the mount has {size_bytes} bytes")
        ledger = cls(fd)
        if ledger._numbers[_MAGIC_AT] != MAGIC:
            raise LedgerUnusable("the ledger of the mount was written by a version that this one does not know")
        for _ in range((size_bytes - _FIXED_BYTES) // FUSE_LEDGER_SEGMENT_BYTES):
            ledger._map_next()
        for index, segment in enumerate(ledger._segments):
            segment.torn = True
            for slot, length_bytes in ledger._scan(index):
                if segment.words[(slot & (_SEGMENT_WORDS - 1)) + 1] & _ALIVE:
                    ledger._account(segment, +length_bytes)
                segment.used_bytes += length_bytes
        for index, segment in enumerate(ledger._segments):
            if not segment.live_records:
                ledger._give_back(index)
            else:
                ledger._current = index
        return ledger

    def close(self) -> None:
        os.close(self.fd)

    # --- the fixed part ----------------------------------------------------------------------------------

    @property
    def request_buffer(self) -> memoryview:
        """Where requests are to be read into."""
        return memoryview(self._fixed)[_BUFFER_BYTES : _BUFFER_BYTES + REQUEST_BUFFER_BYTES]

    def identity(self) -> dict[str, Any]:
        length_bytes = self._numbers[_IDENTITY_LENGTH_AT]
        try:
            found = json.loads(self._fixed[_IDENTITY_BYTES : _IDENTITY_BYTES + length_bytes])
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise LedgerUnusable("the ledger of the mount does not say whose it is")
        return found

    def _write_identity(self, identity: Mapping[str, Any]) -> None:
        data = json.dumps(dict(identity)).encode()
        if len(data) > _IN_HAND_BYTES - _IDENTITY_BYTES:
            raise LedgerUnusable(f"the mount's identity takes {len(data)} bytes, more than the ledger has room for")
        self._fixed[_IDENTITY_BYTES : _IDENTITY_BYTES + len(data)] = data
        self._numbers[_IDENTITY_LENGTH_AT] = len(data)

    def agree(self, terms: Negotiated) -> None:
        """The terms of the connection: before INIT is answered."""
        numbers = self._numbers
        numbers[_FLAGS_AT], numbers[_MINOR_AT] = terms.flags, terms.minor
        numbers[_READAHEAD_AT], numbers[_BACKGROUND_AT] = terms.max_readahead_bytes, terms.max_background
        numbers[_AGREED_AT] = 1

    @property
    def terms(self) -> Negotiated | None:
        """None: the kernel's INIT was not answered yet."""
        numbers = self._numbers
        if not numbers[_AGREED_AT]:
            return None
        return Negotiated(numbers[_MINOR_AT], numbers[_FLAGS_AT], numbers[_READAHEAD_AT], numbers[_BACKGROUND_AT])

    def node_ids_from(self, first: int) -> int:
        """The first node id, at least ``first``, that no earlier worker can have given out."""
        return max(first, self._numbers[_NODE_IDS_AT])

    def handle_ids_from(self, first: int) -> int:
        return max(first, self._numbers[_HANDLE_IDS_AT])

    def serials_from(self, first: int) -> int:
        """Inode numbers from here on stand for nothing that was written down."""
        return max(first, self._numbers[_SERIALS_AT])

    def giving_out(self, handle_id: int) -> None:
        """Before a handle id is told to the kernel, of a directory too: no later worker uses it for another."""
        self._reserve(_HANDLE_IDS_AT, handle_id)

    def _reserve(self, at: int, number: int) -> None:
        if number >= self._numbers[at]:
            self._numbers[at] = number + FUSE_LEDGER_NUMBERS_RESERVED

    # --- requests in hand --------------------------------------------------------------------------------

    def began(self, unique: int, since_s: float = 0.0) -> int:
        """A request will be answered later. Returns what ``ended`` wants; -1 when there is no more room to note one.

        ``since_s``: when it came to an earlier worker, by this host's monotonic clock.
        """
        if not self._free_slots:
            return -1
        slot = self._free_slots.pop()
        if slot < _SINCE_MAX:
            self._since_ticks[slot] = int((since_s or time.monotonic()) * _TICKS_A_SECOND)
        self._in_hand[slot] = unique
        return slot

    def ended(self, slot: int) -> None:
        if slot >= 0:
            self._in_hand[slot] = 0
            if slot < _SINCE_MAX:  # a worker that writes no times may use it next
                self._since_ticks[slot] = 0
            self._free_slots.append(slot)

    def left_in_hand(self) -> dict[int, float]:
        """Uniques of the requests an earlier worker may have left unanswered, and forgets them; some may be answered. Of each since when
        it waits, by this host's monotonic clock; 0 if that is not known."""
        found = {int.from_bytes(self.request_buffer[8:16], "little"): 0.0}
        for slot, unique in enumerate(self._in_hand):
            if unique:
                found[unique] = self._since_ticks[slot] / _TICKS_A_SECOND if slot < _SINCE_MAX else 0.0
        found.pop(0, None)
        self._fixed[_IN_HAND_BYTES : _BUFFER_BYTES + 16] = bytes(_BUFFER_BYTES + 16 - _IN_HAND_BYTES)
        self._fixed[_SINCE_BYTES:] = bytes(_FIXED_BYTES - _SINCE_BYTES)
        return dict(sorted(found.items()))

    # --- records -----------------------------------------------------------------------------------------

    def add_node(self, node_id: int, serial: int, path: bytes, packed: bytes, lookups: int = 0) -> int:
        """Write down a new node id. Returns its slot. Raises OSError when there is no memory."""
        if node_id >= self._numbers[_NODE_IDS_AT]:
            self._reserve(_NODE_IDS_AT, node_id)
        if serial >= self._numbers[_SERIALS_AT]:
            self._reserve(_SERIALS_AT, serial)
        return self._append(_NODE_BODY.pack(_NODE, len(packed), len(path), node_id, serial) + packed + path, lookups)

    def set_lookups(self, slot: int, lookups: int) -> None:
        self._segments[slot // _SEGMENT_WORDS].words[slot % _SEGMENT_WORDS + 1] = _ALIVE | lookups

    def add_handle(self, handle_id: int, node_id: int, unique: int, backing_id: int) -> int:
        """Write down an open file."""
        return self._append(_HANDLE_BODY.pack(_HANDLE, backing_id, handle_id, node_id, unique), 0)

    def drop(self, slot: int) -> None:
        """The kernel has let go of this number."""
        index, word = divmod(slot, _SEGMENT_WORDS)
        segment = self._segments[index]
        segment.words[word + 1] = 0
        self._account(segment, -segment.words[word])
        if not segment.live_records and index != self._current:
            self._give_back(index)
        else:
            self._tidy()

    def records(self) -> tuple[list[NodeRecord], list[HandleRecord]]:
        """All that is alive, in the order of their numbers. Of a record that was being moved when the worker died, one copy."""
        nodes: dict[int, NodeRecord] = {}
        handles: dict[int, HandleRecord] = {}
        twice: list[int] = []
        for index, segment in enumerate(self._segments):
            for slot, _ in self._scan(index):
                word = slot % _SEGMENT_WORDS
                state = segment.words[word + 1]
                if not state & _ALIVE:
                    continue
                at = word * 4 + _HEAD_BYTES
                if segment.memory[at] == _NODE:
                    _, packed_bytes, path_bytes, node_id, serial = _NODE_BODY.unpack_from(segment.memory, at)
                    at += _NODE_BODY.size
                    packed = segment.memory[at : at + packed_bytes]
                    path = segment.memory[at + packed_bytes : at + packed_bytes + path_bytes]
                    if node_id in nodes:
                        twice.append(slot)
                    else:
                        nodes[node_id] = NodeRecord(slot, node_id, serial, state & _COUNT_MASK, path, packed)
                else:
                    _, backing_id, handle_id, node_id, unique = _HANDLE_BODY.unpack_from(segment.memory, at)
                    if handle_id in handles:
                        twice.append(slot)
                    else:
                        handles[handle_id] = HandleRecord(slot, handle_id, node_id, unique, backing_id)
        for slot in twice:
            segment = self._segments[slot // _SEGMENT_WORDS]
            segment.words[slot % _SEGMENT_WORDS + 1] = 0
            self._account(segment, -segment.words[slot % _SEGMENT_WORDS])
        return sorted(nodes.values(), key=lambda node: node.node_id), sorted(
            handles.values(), key=lambda handle: handle.handle_id
        )

    @property
    def used_bytes(self) -> int:
        """Memory it takes, about."""
        return _FIXED_BYTES + (len(self._segments) - len(self._empty)) * FUSE_LEDGER_SEGMENT_BYTES

    # --- segments ----------------------------------------------------------------------------------------

    def _append(self, body: bytes, count: int) -> int:
        body_bytes = len(body)
        length_bytes = _HEAD_BYTES + body_bytes + (-body_bytes & 7)
        current = self._current
        if current < 0 or self._segments[current].used_bytes + length_bytes > FUSE_LEDGER_SEGMENT_BYTES:
            current = self._current = self._next_segment()
        segment = self._segments[current]
        at = segment.used_bytes
        word, words = at >> 2, segment.words
        if segment.torn and at + length_bytes < FUSE_LEDGER_SEGMENT_BYTES:
            words[at + length_bytes >> 2] = 0
        at += _HEAD_BYTES
        segment.memory[at : at + body_bytes] = body
        words[word + 1] = _ALIVE | count
        words[word] = length_bytes
        segment.used_bytes += length_bytes
        segment.live_bytes += length_bytes
        segment.live_records += 1
        self._live_bytes += length_bytes
        return current * _SEGMENT_WORDS + word

    def _account(self, segment: _Segment, bytes_: int) -> None:
        segment.live_bytes += bytes_
        segment.live_records += 1 if bytes_ > 0 else -1
        self._live_bytes += bytes_

    def _scan(self, index: int) -> Iterator[tuple[int, int]]:
        """(slot, length in bytes) of each whole record."""
        words, word = self._segments[index].words, 0
        while word < _SEGMENT_WORDS:
            length_bytes = words[word]
            if length_bytes < _HEAD_BYTES or length_bytes % 8 or word * 4 + length_bytes > FUSE_LEDGER_SEGMENT_BYTES:
                return
            yield index * _SEGMENT_WORDS + word, length_bytes
            word += length_bytes >> 2

    def _next_segment(self) -> int:
        if self._empty:
            return self._empty.pop()
        os.ftruncate(self.fd, _FIXED_BYTES + (len(self._segments) + 1) * FUSE_LEDGER_SEGMENT_BYTES)
        return self._map_next()

    def _map_next(self) -> int:
        offset_bytes = _FIXED_BYTES + len(self._segments) * FUSE_LEDGER_SEGMENT_BYTES
        self._segments.append(_Segment(mmap.mmap(self.fd, FUSE_LEDGER_SEGMENT_BYTES, offset=offset_bytes)))
        return len(self._segments) - 1

    def _give_back(self, index: int) -> None:
        """All is dead in it. A kill in mid-way leaves dead records before the zeros, or none: both read as nothing."""
        segment = self._segments[index]
        segment.words[0] = 0
        segment.memory.madvise(mmap.MADV_REMOVE)
        segment.used_bytes = 0
        segment.torn = False
        self._empty.append(index)

    def _tidy(self) -> None:
        used = len(self._segments) - len(self._empty)
        if used <= _USED_SEGMENTS_TIDIED_FROM or used * FUSE_LEDGER_SEGMENT_BYTES < 4 * self._live_bytes:
            return
        others = [
            index for index in range(len(self._segments)) if index != self._current and self._segments[index].used_bytes
        ]
        index = min(others, key=lambda other: self._segments[other].live_bytes)
        segment = self._segments[index]
        for slot, length_bytes in list(self._scan(index)):
            word = slot % _SEGMENT_WORDS
            state = segment.words[word + 1]
            if not state & _ALIVE:
                continue
            at = word * 4 + _HEAD_BYTES
            body = segment.memory[at : at + length_bytes - _HEAD_BYTES]
            new_slot = self._append(body, state & _COUNT_MASK)
            segment.words[word + 1] = 0
            self._account(segment, -length_bytes)
            is_handle = body[0] == _HANDLE
            number = (_HANDLE_BODY if is_handle else _NODE_BODY).unpack_from(body)[2 if is_handle else 3]
            self.moved(is_handle, number, new_slot)
        self._give_back(index)
