"""Requests to meaning without a kernel: what the answers hold, what is queued for the kernel, what is released."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import Any

import pytest
from fuse_support import Dataset, OpenVersion

from common.entries import Entry, Kind
from common.errors import HeadraceError
from spoke.fuse import kernel
from spoke.fuse.attributes import Ownership, blksize_bytes
from spoke.fuse.kernel import ROOT_NODE_ID, Opcode
from spoke.fuse.operations import Operations
from spoke.fuse.passthrough import Passthrough


class Heard:
    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def entry(self, parent_id: int, name: bytes) -> None:
        self.said.append(("entry", parent_id, name))

    def deleted(self, parent_id: int, child_id: int, name: bytes) -> None:
        self.said.append(("deleted", parent_id, child_id, name))

    def attributes(self, node_id: int) -> None:
        self.said.append(("attributes", node_id))


class Backing:
    def __init__(self) -> None:
        self.next_id = 0
        self.open_ids: set[int] = set()

    def open(self, fd: int) -> int:
        self.next_id += 1
        self.open_ids.add(self.next_id)
        return self.next_id

    def close(self, backing_id: int) -> None:
        self.open_ids.remove(backing_id)


class Kernel:
    """Speaks to Operations as the kernel does."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.heard = Heard()
        self.backing = Backing()
        self.passthrough = Passthrough(self.backing)
        self.operations: Operations[OpenVersion] = Operations(
            dataset.tree, dataset.reader, self.heard, self.passthrough, ownership=Ownership(0, 0)
        )

    def ask(self, opcode: Opcode, node_id: int, body: bytes = b"") -> Any:
        return self.operations.handlers[opcode](node_id, memoryview(body), 77)

    def lookup(self, name: bytes, parent: int = ROOT_NODE_ID) -> int:
        reply = self.ask(Opcode.LOOKUP, parent, name + b"\0")
        return reply if reply is int else struct.unpack_from("<Q", reply)[0]

    def open(self, node_id: int) -> tuple[int, int, int]:
        reply = self.ask(Opcode.OPEN, node_id, struct.pack("<II", 0, 0))
        assert isinstance(reply, bytes), reply
        return struct.unpack("<QIi", reply)

    def release(self, node_id: int, handle_id: int) -> None:
        assert self.ask(Opcode.RELEASE, node_id, struct.pack("<QIIQ", handle_id, 0, 0, 0)) == b""

    def read(self, handle_id: int, offset: int, size: int) -> Any:
        return self.ask(Opcode.READ, 0, struct.pack("<QQIIQII", handle_id, offset, size, 0, 0, 0, 0))


@pytest.fixture
def dataset() -> Dataset:
    dataset = Dataset()
    dataset.mkdir(b"d")
    dataset.put(b"f", b"0123456789")
    dataset.put(b"d/g", b"g")
    dataset.link(b"l", b"f")
    return dataset


def test_reads_end_at_the_size_of_the_version(dataset: Dataset) -> None:
    kernel_side = Kernel(dataset)
    handle, flags, _ = kernel_side.open(kernel_side.lookup(b"f"))
    assert flags == kernel.FOPEN_KEEP_CACHE | kernel.FOPEN_NOFLUSH
    assert kernel_side.read(handle, 0, 4096) == b"0123456789"
    assert kernel_side.read(handle, 8, 1) == b"8"
    assert kernel_side.read(handle, 10, 100) == b""
    assert kernel_side.read(handle, 1 << 40, 100) == b""
    assert kernel_side.read(handle + 1, 0, 1) == errno.EBADF


async def test_a_reader_that_is_short_is_an_error_on_both_roads(dataset: Dataset) -> None:
    kernel_side = Kernel(dataset)
    handle, _, _ = kernel_side.open(kernel_side.lookup(b"f"))
    dataset.reader.short_by_bytes = 1
    with pytest.raises(Exception, match="9 bytes for 10") as caught:
        kernel_side.read(handle, 0, 4096)
    assert caught.value.errno == errno.EIO  # type: ignore[attr-defined]
    version = dataset.version(b"f")
    dataset.reader.later.add(version)
    answer = kernel_side.read(handle, 2, 4096)
    dataset.reader.data.clear()
    assert await answer == b"23456789"


def test_unknown_node_ids_are_stale_and_odd_requests_are_refused(dataset: Dataset) -> None:
    kernel_side = Kernel(dataset)
    for opcode, body in ((Opcode.GETATTR, b""), (Opcode.LOOKUP, b"x\0"), (Opcode.READLINK, b""), (Opcode.OPENDIR, b"")):
        assert kernel_side.ask(opcode, 99_999, body) == errno.ESTALE
    assert kernel_side.ask(Opcode.OPEN, 99_999, bytes(8)) == errno.ESTALE
    assert kernel_side.ask(Opcode.LOOKUP, ROOT_NODE_ID, b"n" * 256 + b"\0") == errno.ENAMETOOLONG
    assert kernel_side.ask(Opcode.OPEN, ROOT_NODE_ID, bytes(8)) == errno.EISDIR
    assert kernel_side.ask(Opcode.OPEN, kernel_side.lookup(b"f"), struct.pack("<II", 1, 0)) == errno.EROFS
    assert kernel_side.ask(Opcode.OPENDIR, kernel_side.lookup(b"f"), bytes(8)) == errno.ENOTDIR
    assert kernel_side.ask(Opcode.READLINK, kernel_side.lookup(b"f")) == errno.EINVAL
    assert kernel_side.ask(Opcode.READLINK, kernel_side.lookup(b"l")) == b"f"
    for opcode in kernel.WRITING:
        assert kernel_side.ask(opcode, ROOT_NODE_ID) == errno.EROFS
    assert kernel_side.ask(Opcode.ACCESS, ROOT_NODE_ID, struct.pack("<II", 2, 0)) == errno.EROFS
    assert kernel_side.ask(Opcode.ACCESS, ROOT_NODE_ID, struct.pack("<II", 5, 0)) == b""
    assert (
        kernel_side.ask(Opcode.IOCTL, ROOT_NODE_ID, struct.pack("<QIIQII", 0, 0, kernel.TCGETS, 0, 0, 0))
        == errno.ENOTTY
    )


def test_what_the_kernel_is_told(dataset: Dataset) -> None:
    kernel_side = Kernel(dataset)
    operations, heard = kernel_side.operations, kernel_side.heard
    operations.changed(dataset.put(b"d/unseen", b""))  # nothing below d is known to the kernel
    assert heard.said == []
    directory = kernel_side.lookup(b"d")
    file = kernel_side.lookup(b"g", directory)
    operations.changed(dataset.put(b"d/new", b""))
    operations.changed(dataset.put(b"d/g", b"gg"))
    operations.changed(dataset.chmod(b"d", 0o700))
    second = kernel_side.lookup(b"g", directory)
    operations.changed(dataset.chmod(b"d/g", 0o600))
    operations.changed(dataset.remove(b"d/g"))
    operations.changed(dataset.put(b"d", b"now a file"))
    assert heard.said == [
        ("entry", directory, b"new"),
        ("entry", directory, b"g"),
        ("attributes", directory),
        ("attributes", second),
        ("deleted", directory, second, b"g"),
        ("entry", ROOT_NODE_ID, b"d"),
    ]
    assert len({directory, file, second, kernel_side.lookup(b"d")}) == 4


def test_an_outdated_node_cannot_be_opened_but_answers(dataset: Dataset) -> None:
    kernel_side = Kernel(dataset)
    old = kernel_side.lookup(b"f")
    handle, _, _ = kernel_side.open(old)
    dataset.put(b"f", b"longer than before")
    assert kernel_side.ask(Opcode.OPEN, old, bytes(8)) == errno.ESTALE
    assert struct.unpack_from("<QIIQQ", kernel_side.ask(Opcode.GETATTR, old))[4] == 10
    assert kernel_side.read(handle, 0, 4096) == b"0123456789"
    new_handle, _, _ = kernel_side.open(kernel_side.lookup(b"f"))
    assert kernel_side.read(new_handle, 0, 4096) == b"longer than before"


def test_passthrough_shares_one_backing_id_and_never_mixes(dataset: Dataset, tmp_path: Any) -> None:
    kernel_side = Kernel(dataset)
    kernel_side.passthrough.probe(True, 0)
    operations, version = kernel_side.operations, dataset.version(b"f")
    plain_id = kernel_side.lookup(b"f")
    plain, flags, _ = kernel_side.open(plain_id)
    assert not flags & kernel.FOPEN_PASSTHROUGH
    (tmp_path / "whole").write_bytes(b"0123456789")
    dataset.reader.whole[version] = tmp_path / "whole"
    second, flags, _ = kernel_side.open(plain_id)  # open the plain way: stays so
    assert not flags & kernel.FOPEN_PASSTHROUGH
    operations.became_whole(version)
    operations.became_whole(version)
    assert kernel_side.heard.said == [("entry", ROOT_NODE_ID, b"f")]
    fast_id = kernel_side.lookup(b"f")
    assert fast_id != plain_id
    opened = [kernel_side.open(fast_id) for _ in range(3)]
    assert {(flags & kernel.FOPEN_PASSTHROUGH, backing) for _, flags, backing in opened} == {
        (kernel.FOPEN_PASSTHROUGH, 2)
    }
    # Evicted meanwhile: this node id cannot be opened the plain way now, so the name gets another.
    dataset.reader.whole.clear()
    assert kernel_side.ask(Opcode.OPEN, fast_id, bytes(8)) == errno.ESTALE
    third_id = kernel_side.lookup(b"f")
    third, flags, _ = kernel_side.open(third_id)
    assert not flags & kernel.FOPEN_PASSTHROUGH
    for handle, _, _ in opened:
        kernel_side.release(fast_id, handle)
    assert not kernel_side.backing.open_ids
    for node_id, handle in ((plain_id, plain), (plain_id, second), (third_id, third)):
        kernel_side.release(node_id, handle)
    assert dataset.reader.opens == dataset.reader.releases
    for node_id, lookups in ((plain_id, 1), (fast_id, 1), (third_id, 1)):
        kernel_side.ask(Opcode.FORGET, node_id, struct.pack("<Q", lookups))
    assert operations.known_nodes == 1


def test_listing_in_pieces_with_lookups_counted(dataset: Dataset) -> None:
    kernel_side = Kernel(dataset)
    for number in range(100):
        dataset.put(b"d/%03d" % number, b"")
    directory = kernel_side.lookup(b"d")
    handle = struct.unpack_from("<Q", kernel_side.ask(Opcode.OPENDIR, directory, bytes(8)))[0]
    names, position, pieces = [], 0, 0
    while True:
        body = struct.pack("<QQIIQII", handle, position, 1000, 0, 0, 0, 0)
        reply = kernel_side.ask(Opcode.READDIRPLUS, directory, body)
        assert len(reply) <= 1000
        if not reply:
            break
        pieces += 1
        at = 0
        while at < len(reply):
            _, position, length, _ = struct.unpack_from("<QQII", reply, at + 128)
            names.append(reply[at + 152 : at + 152 + length])
            at += 152 + (length + 7) // 8 * 8
    assert pieces > 10
    assert names == [b".", b"..", b"g", *(b"%03d" % number for number in range(100))]
    assert kernel_side.operations.known_nodes == 2 + 101


def test_modes_and_block_sizes() -> None:
    entry = Entry(Kind.FILE, 0o640, 10, 0)
    assert Ownership(1, 2).fields(5, b"x", entry)[9:13] == (0o100440, 1, 1, 2)
    assert Ownership(1, 2, 0o027).mode(Kind.FILE, 0o600) == 0o100440
    assert Ownership(1, 2, 0o000).mode(Kind.FILE, 0o700) == 0o100544
    assert Ownership(1, 2, 0o022).mode(Kind.DIRECTORY, 0o700) == 0o040555
    assert [blksize_bytes(name) for name in (b"a.tar", b"A.JSONL", b"a.bin", b"tar", b"a.npy")] == [
        1 << 20,
        1 << 20,
        4096,
        1 << 20,
        4096,
    ]


# --- opens that the hub confirms -----------------------------------------------------------------------------


class Hub:
    """What is asked before an open; ``then`` happens before the answer."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.then: Callable[[], Any] = list

    async def confirm(self, path: bytes) -> None:
        self.asked.append(path)
        self.then()


@pytest.fixture
def strict(dataset: Dataset) -> tuple[Kernel, Hub]:
    hub = Hub()
    kernel_side = Kernel(dataset)
    kernel_side.operations = Operations(
        dataset.tree, dataset.reader, kernel_side.heard, kernel_side.passthrough, confirm=hub.confirm
    )
    return kernel_side, hub


async def test_a_confirmed_open_is_an_open(strict: tuple[Kernel, Hub], dataset: Dataset) -> None:
    it, hub = strict
    dataset.mkdir(b"d")
    dataset.put(b"d/f", b"bytes")
    node_id = it.lookup(b"f", it.lookup(b"d"))
    reply = await it.ask(Opcode.OPEN, node_id, struct.pack("<II", 0, 0))
    handle_id = struct.unpack("<QIi", reply)[0]
    assert handle_id > 0
    assert hub.asked == [b"d/f"]
    assert it.operations.open_files == 1


async def test_what_the_hub_has_changed_meanwhile_must_be_looked_up_again(
    strict: tuple[Kernel, Hub], dataset: Dataset
) -> None:
    it, hub = strict
    dataset.put(b"f", b"old")
    node_id = it.lookup(b"f")
    for change in (lambda: dataset.put(b"f", b"newer"), lambda: dataset.remove(b"f")):
        hub.then = change
        with pytest.raises(HeadraceError) as raised:
            await it.ask(Opcode.OPEN, node_id, struct.pack("<II", 0, 0))
        assert raised.value.errno == errno.ESTALE
        hub.then = list
        dataset.put(b"f", b"again")
        node_id = it.lookup(b"f")
    assert it.operations.open_files == 0


async def test_directories_links_and_outdated_names_are_not_asked_about(
    strict: tuple[Kernel, Hub], dataset: Dataset
) -> None:
    it, hub = strict
    dataset.mkdir(b"d")
    dataset.put(b"f", b"old")
    outdated = it.lookup(b"f")
    dataset.put(b"f", b"new")
    body = struct.pack("<II", 0, 0)
    assert it.ask(Opcode.OPEN, it.lookup(b"d"), body) == errno.EISDIR
    assert it.ask(Opcode.OPEN, outdated, body) == errno.ESTALE
    assert hub.asked == []
