"""What a second Operations makes of the first one's ledger, without a kernel: node ids, listings, handles, `.headrace`."""

from __future__ import annotations

import errno
import os
import struct
from typing import Any

import pytest
from fuse_support import Dataset

from common.errors import StaleVersion
from spoke.fuse import kernel
from spoke.fuse.kernel import Opcode
from spoke.fuse.ledger import Ledger
from spoke.fuse.operations import Operations
from spoke.fuse.passthrough import Passthrough
from spoke.fuse.virtual import VirtualFile


class Nobody:
    """Neither backing ids nor notices."""

    def open(self, fd: int) -> int:
        return 7

    def close(self, backing_id: int) -> None: ...
    def entry(self, parent_id: int, name: bytes) -> None: ...
    def deleted(self, parent_id: int, child_id: int, name: bytes) -> None: ...
    def attributes(self, node_id: int) -> None: ...


class Worker:
    """Operations over a ledger, and the calls of a kernel."""

    def __init__(self, dataset: Dataset, ledger: Ledger, files: dict[bytes, VirtualFile] | None = None) -> None:
        self.unique = 0
        self.ledger = ledger
        self.passthrough = Passthrough(Nobody())
        self.operations = Operations(
            dataset.tree, dataset.reader, Nobody(), self.passthrough,
            ledger=ledger, request_id=lambda: self.unique, virtual_files=files or {},
        )  # fmt: skip

    def call(self, opcode: Opcode, node_id: int, body: bytes = b"") -> Any:
        return self.operations.handlers[opcode](node_id, memoryview(body), 1)

    def lookup(self, name: bytes, parent: int = 1) -> int:
        return int(struct.unpack_from("<Q", self.call(Opcode.LOOKUP, parent, name + b"\0"))[0])

    def open(self, node_id: int, unique: int = 0) -> int:
        self.unique = unique
        answer = self.call(Opcode.OPEN, node_id, kernel.OPEN_IN.pack(0, 0))
        assert not isinstance(answer, int), errno.errorcode[answer]
        return int(struct.unpack_from("<Q", answer)[0])

    def read(self, node_id: int, handle: int, at: int = 0, room: int = 4096) -> Any:
        return self.call(Opcode.READ, node_id, kernel.READ_IN.pack(handle, at, room, 0, 0, 0, 0))

    def list(self, node_id: int, handle: int, position: int, room: int = 200) -> tuple[list[bytes], int]:
        reply = self.call(Opcode.READDIR, node_id, kernel.READ_IN.pack(handle, position, room, 0, 0, 0, 0))
        assert not isinstance(reply, int), errno.errorcode[reply]
        names, at = [], 0
        while at < len(reply):
            _, position, length, _ = struct.unpack_from("<QQII", reply, at)
            names.append(bytes(reply[at + 24 : at + 24 + length]))
            at += 24 + length + (-length & 7)
        return names, position

    def next(self, dataset: Dataset, files: dict[bytes, VirtualFile] | None = None) -> Worker:
        return Worker(dataset, Ledger.adopt(os.dup(self.ledger.fd)), files)


def moved_on(dataset: Dataset) -> Dataset:
    """The same names in a tree of another process."""
    other = Dataset()
    other.reader = dataset.reader
    other.tree = type(dataset.tree)(1000)
    for node in list(dataset.tree.walk())[1:]:
        other.tree.upsert(node.path(), node.entry)
    return other


def test_node_ids_mean_the_same_content_and_inode_numbers_stay() -> None:
    dataset = Dataset()
    dataset.mkdir(b"d")
    dataset.put(b"d/same", b"same")
    dataset.put(b"d/changed", b"before")
    dataset.put(b"gone", b"gone")
    first = Worker(dataset, Ledger.create({}))
    directory = first.lookup(b"d")
    ids = {name: first.lookup(name, directory) for name in (b"same", b"changed")} | {b"gone": first.lookup(b"gone")}
    handles = {name: first.open(node_id, 2 * node_id) for name, node_id in ids.items()}
    other = moved_on(dataset)
    other.put(b"d/changed", b"afterwards")
    other.remove(b"gone")
    second = first.next(other)
    assert second.lookup(b"same", directory) == ids[b"same"]
    assert second.lookup(b"changed", directory) not in (ids[b"changed"], 0)
    assert bytes(second.read(ids[b"changed"], handles[b"changed"])) == b"before"
    assert bytes(second.read(ids[b"gone"], handles[b"gone"])) == b"gone"
    assert other.node(b"d/same").serial == dataset.node(b"d/same").serial
    assert other.node(b"d/changed").serial == dataset.node(b"d/changed").serial
    assert second.call(Opcode.OPEN, ids[b"gone"], kernel.OPEN_IN.pack(0, 0)) == errno.ESTALE
    new = second.open(second.lookup(b"changed", directory))
    assert new not in handles.values()
    # Let go of by the kernel, it is gone from the ledger too.
    for name, node_id in ids.items():
        second.call(Opcode.RELEASE, node_id, kernel.RELEASE_IN.pack(handles[name], 0, 0, 0))
    second.call(Opcode.FORGET, ids[b"gone"], kernel.FORGET_IN.pack(1))
    assert ids[b"gone"] not in {node.node_id for node in Ledger.adopt(os.dup(second.ledger.fd)).records()[0]}


def test_an_open_that_is_sent_again_replaces_the_one_that_was_never_answered() -> None:
    dataset = Dataset()
    dataset.put(b"f", b"data")
    first = Worker(dataset, Ledger.create({}))
    node_id = first.lookup(b"f")
    first.open(node_id, unique=40)
    second = first.next(dataset)
    assert second.operations.open_files == 1
    second.open(node_id, unique=40 | kernel.UNIQUE_RESEND)
    assert second.operations.open_files == 1
    second.open(node_id, unique=42 | kernel.UNIQUE_RESEND)
    assert second.operations.open_files == 2


def test_a_listing_goes_on_where_it_was_whatever_was_added_or_removed() -> None:
    dataset = Dataset()
    dataset.mkdir(b"d")
    for number in range(30):
        dataset.put(b"d/%02d" % number, b"")
    first = Worker(dataset, Ledger.create({}))
    directory = first.lookup(b"d")
    handle = int(struct.unpack_from("<Q", first.call(Opcode.OPENDIR, directory))[0])
    begun, position = first.list(directory, handle, 0)
    assert begun[:2] == [b".", b".."]
    assert 2 < len(begun) < 30
    other = moved_on(dataset)
    other.remove(b"d/00")
    other.remove(b"d/29")
    other.put(b"d/new", b"")
    second = first.next(other)
    found = list(begun)
    while True:
        names, position = second.list(directory, handle, position)
        if not names:
            break
        found += names
    assert sorted(found) == sorted([b".", b"..", b"new", *(b"%02d" % number for number in range(29))])
    third = first.next(moved_on(dataset))
    third_names, _ = third.list(directory, handle, 0)  # rewound
    assert third_names == begun
    other.remove(b"d/" + begun[-1])
    _, lost_at = first.list(directory, handle, 0)
    with pytest.raises(StaleVersion, match="list it again"):
        first.next(other).list(directory, handle, lost_at)


def test_a_handle_that_nobody_gave_out_is_refused() -> None:
    dataset = Dataset()
    dataset.put(b"f", b"data")
    dataset.mkdir(b"d")
    worker = Worker(dataset, Ledger.create({}))
    directory = worker.lookup(b"d")
    assert worker.read(worker.lookup(b"f"), 99) == errno.EBADF
    assert worker.call(Opcode.READDIR, directory, kernel.READ_IN.pack(99, 0, 4096, 0, 0, 0, 0)) == errno.EBADF


def test_files_of_headrace_keep_their_node_ids_and_are_never_of_two_contents() -> None:
    dataset = Dataset()
    dataset.put(b"f", b"data")
    first = Worker(dataset, Ledger.create({}), {b"status": VirtualFile(lambda: b"one" * 2000)})
    file_id = first.lookup(b"status", first.lookup(b".headrace"))
    handle = first.open(file_id)
    assert bytes(first.read(file_id, handle, 0, 3)) == b"one"
    files = {b"explain": VirtualFile(bytes), b"plan": VirtualFile(bytes), b"status": VirtualFile(lambda: b"two" * 2000)}
    second = first.next(dataset, files)
    assert second.lookup(b"status", second.lookup(b".headrace")) == file_id
    assert second.read(file_id, handle, 3, 3) == errno.ESTALE
    assert bytes(second.read(file_id, handle, 0, 3)) == b"two"
    assert bytes(second.read(file_id, handle, 3, 3)) == b"two"
