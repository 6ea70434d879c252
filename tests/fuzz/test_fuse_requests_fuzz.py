"""Any bytes in place of a request: the device answers with a reply or an error of the right form, and goes on."""

from __future__ import annotations

import asyncio
import os
import socket
import struct

from fuse_support import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from common.log import configure
from spoke.fuse import kernel
from spoke.fuse.device import Device, MountOptions
from spoke.fuse.kernel import Opcode
from spoke.fuse.operations import Operations
from spoke.fuse.virtual import VirtualFile

_NODE_IDS = st.one_of(st.integers(0, 5), st.integers(1022, 1030), st.integers(0, (1 << 64) - 1))
_BODIES = st.one_of(
    st.binary(max_size=100),
    st.sampled_from([b"f\0", b"d\0", b".headrace\0", b"status\0", b"", b"\0"]),
    # fh, offset, size and what follows: READ, READDIR(PLUS), RELEASE
    st.tuples(st.integers(0, 6), st.integers(0, 20), st.integers(0, 1 << 21)).map(
        lambda ints: struct.pack("<QQIIQII", *ints, 0, 0, 0, 0)
    ),
    st.tuples(
        st.integers(0, 100), st.sampled_from([b"user.headrace.version\0", b"user.x\0", b"security.capability\0"])
    ).map(lambda pair: struct.pack("<II", pair[0], 0) + pair[1]),
)
_REQUESTS = st.tuples(st.one_of(st.sampled_from(list(Opcode)), st.integers(0, 1 << 32 - 1)), _NODE_IDS, _BODIES)


def _request(opcode: int, unique: int, node_id: int, body: bytes, length_error: int = 0) -> bytes:
    return kernel.IN_HEADER.pack(40 + len(body) + length_error, opcode, unique, node_id, 0, 0, 1, 0, 0) + body


def _dataset() -> Dataset:
    dataset = Dataset()
    dataset.mkdir(b"d")
    dataset.put(b"f", b"0123456789")
    dataset.link(b"l", b"f")
    for number in range(20):
        dataset.put(b"d/%d" % number, b"x")
    return dataset


async def _converse(requests: list[tuple[int, int, bytes]], raw: list[bytes]) -> None:
    """A datagram pair stands in for the device: one request or reply each."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    dataset = _dataset()
    dataset.reader.later.add(dataset.version(b"d/1"))
    device = Device.from_fd(theirs.detach(), MountOptions())
    operations = Operations(
        dataset.tree,
        dataset.reader,
        device.notifier,
        device.passthrough,
        virtual_files={b"status": VirtualFile(lambda: b"{}", lambda command, data, room, task: data)},
    )
    loop = asyncio.get_running_loop()

    async def ask(unique: int, packet: bytes) -> tuple[int, bytes]:
        await loop.sock_sendall(ours, packet)
        while True:
            reply = await asyncio.wait_for(loop.sock_recv(ours, 1 << 21), 5)
            length, error, answered = kernel.OUT_HEADER.unpack_from(reply)
            assert length == len(reply)
            assert -512 < error <= 0
            assert not error or length == 16
            if answered == unique:
                return error, reply[16:]

    try:
        serving = asyncio.create_task(device.serve(operations))
        await ask(1, _request(Opcode.INIT, 1, 0, struct.pack("<IIIII44x", 7, 45, 131072, 0xFFFFFFFF, 0xFFFFFFFF)))
        await serving
        unique = 2
        for opcode, node_id, body in requests:
            unique += 2
            packet = _request(opcode, unique, node_id, body)
            if opcode in kernel.NO_REPLY:
                await loop.sock_sendall(ours, packet)
            else:
                await ask(unique, packet)
        for junk in raw:
            if junk:  # an empty packet would read as the end of the socket, which a device never gives
                await loop.sock_sendall(ours, junk)
        # Still there, and right.
        error, entry = await ask(1 << 63, _request(Opcode.LOOKUP, 1 << 63, 1, b"f\0"))
        assert not error
        node_id = struct.unpack_from("<Q", entry)[0]
        error, opened = await ask(3, _request(Opcode.OPEN, 3, node_id, bytes(8)))
        assert not error
        read = struct.pack("<QQIIQII", struct.unpack_from("<Q", opened)[0], 0, 4096, 0, 0, 0, 0)
        assert await ask(5, _request(Opcode.READ, 5, node_id, read)) == (0, b"0123456789")
    finally:
        await device.close()
        ours.close()
    assert dataset.reader.opens == dataset.reader.releases


@settings(max_examples=60)
@given(st.lists(_REQUESTS, max_size=12), st.lists(st.binary(max_size=60), max_size=3))
def test_no_request_ends_the_loop(requests: list[tuple[int, int, bytes]], raw: list[bytes]) -> None:
    with open(os.devnull, "w") as nowhere:
        configure("critical", "json", nowhere)
        asyncio.run(_converse([request for request in requests if request[0] != Opcode.INIT], raw))


@settings(max_examples=30)
@given(st.binary(max_size=80), st.integers(-40, 40))
def test_an_init_of_any_form_fails_cleanly(body: bytes, length_error: int) -> None:
    async def check() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        device = Device.from_fd(theirs.detach(), MountOptions())
        dataset = _dataset()
        serving = asyncio.create_task(
            device.serve(Operations(dataset.tree, dataset.reader, device.notifier, device.passthrough))
        )
        ours.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(ours, _request(Opcode.INIT, 1, 0, body, length_error))
        reply = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(ours, 4096), 5)
        assert kernel.OUT_HEADER.unpack_from(reply)[2] == 1
        await device.close()
        await asyncio.gather(serving, return_exceptions=True)
        ours.close()

    with open(os.devnull, "w") as nowhere:
        configure("critical", "json", nowhere)
        asyncio.run(check())
