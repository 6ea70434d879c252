"""Struct layouts (fixed bytes and sizes of fuse.h), parsing, and version negotiation."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spoke.fuse import kernel
from spoke.fuse.kernel import Init, InitRequest, InitWishes, MalformedRequest, UnsupportedKernel

ALL_FLAGS = (1 << 64) - 1


def test_sizes_are_those_of_the_header_file() -> None:
    assert kernel.IN_HEADER.size == 40
    assert kernel.OUT_HEADER.size == 16
    assert kernel.READ_IN.size == 40
    assert kernel.RELEASE_IN.size == 24
    assert kernel.IOCTL_IN.size == 32
    now = kernel.lifetime(0)
    fields = kernel.bare_fields(1, 0o40000)
    assert len(kernel.pack_entry(1, now, now, fields)) == 128
    assert len(kernel.pack_attributes(now, fields)) == 104
    assert len(kernel.pack_open(1, 0)) == 16
    assert len(kernel.pack_statfs(0, 0, 4096, 255)) == 80
    assert len(kernel.pack_dirent(1, 1, 4, b"abc")) == 32
    assert len(kernel.pack_direntplus(1, now, now, fields, 1, 4, b"abcdefgh")) == 128 + 24 + 8
    assert len(kernel.pack_major()) == 64
    assert len(kernel.pack_ioctl(0, b"xy")) == 18


def test_golden_bytes() -> None:
    assert (
        kernel.notify_entry(7, b"ab").hex()
        == "2300000003000000" + "00" * 8 + "0700000000000000" + "02000000" + "00000000" + "616200"
    )
    assert kernel.notify_delete(7, 9, b"a").hex() == (
        "2a00000006000000" + "00" * 8 + "0700000000000000" + "0900000000000000" + "01000000" + "00000000" + "6100"
    )
    assert kernel.notify_attributes(5).hex() == "2800000002000000" + "00" * 8 + "0500000000000000" + "ff" * 8 + "00" * 8
    assert kernel.notify_resend().hex() == "1000000007000000" + "00" * 8
    assert kernel.notify_epoch().hex() == "1000000008000000" + "00" * 8
    assert kernel.pack_open(3, kernel.FOPEN_PASSTHROUGH, 2).hex() == "0300000000000000" + "80000000" + "02000000"
    assert bytes(kernel.pack_backing_map(6)).hex() == "06000000" + "00" * 12
    assert (kernel.BACKING_OPEN, kernel.BACKING_CLOSE) == (0x4010E501, 0x4004E502)


def test_lifetimes() -> None:
    assert kernel.lifetime(3600) == (3600, 0)
    assert kernel.lifetime(1.25) == (1, 250_000_000)
    packed = kernel.pack_negative_entry(kernel.lifetime(1.5))
    assert struct.unpack_from("<QQQQII", packed) == (0, 0, 1, 0, 500_000_000, 0)


def test_all_that_is_wanted_and_offered_is_agreed() -> None:
    terms, reply = kernel.negotiate(InitRequest(7, 45, 1 << 20, ALL_FLAGS), InitWishes(passthrough=True))
    major, minor, readahead, flags, background, congestion, max_write, _, max_pages, _, flags2, depth = (
        struct.unpack_from("<IIIIHHIIHHII", reply)
    )
    assert (major, minor, readahead, max_write, max_pages, depth) == (7, 45, 128 * 1024, 4096, 256, 1)
    assert background >= congestion >= 512
    assert flags2 & 1 << 5
    assert terms.passthrough
    assert terms.inc_epoch
    assert flags | flags2 << 32 == int(kernel.WANTED | Init.PASSTHROUGH)


def test_what_is_not_offered_is_not_asked_for() -> None:
    terms, reply = kernel.negotiate(InitRequest(7, 31, 65536, int(Init.ASYNC_READ)), InitWishes(passthrough=True))
    assert struct.unpack_from("<IIII", reply) == (7, 31, 65536, int(Init.ASYNC_READ))
    assert not terms.passthrough
    assert not terms.inc_epoch


def test_bits_beyond_32_need_the_extension() -> None:
    offer = InitRequest(7, 40, 65536, ALL_FLAGS & ~int(Init.INIT_EXT))
    assert kernel.negotiate(offer, InitWishes(passthrough=True))[0].flags < 1 << 32


def test_a_newer_kernel_is_answered_with_our_version() -> None:
    assert kernel.negotiate(InitRequest(7, 99, 65536, 0), InitWishes())[0].minor == 45


@pytest.mark.parametrize(("major", "minor"), [(7, 30), (6, 45), (8, 0)])
def test_a_kernel_we_cannot_serve(major: int, minor: int) -> None:
    with pytest.raises(UnsupportedKernel, match=f"{major}.{minor}"):
        kernel.negotiate(InitRequest(major, minor, 0, ALL_FLAGS), InitWishes())


def test_init_of_old_and_new_kernels() -> None:
    old = struct.pack("<IIII", 7, 31, 131072, 5)
    assert kernel.parse_init(memoryview(old)) == (7, 31, 131072, 5)
    new = struct.pack("<IIIII44x", 7, 45, 131072, int(Init.INIT_EXT), 32)
    assert kernel.parse_init(memoryview(new)).flags == int(Init.INIT_EXT | Init.PASSTHROUGH)
    with pytest.raises(MalformedRequest):
        kernel.parse_init(memoryview(old[:-1]))


@given(st.binary(max_size=300))
def test_a_name_round_trips_or_is_refused(name: bytes) -> None:
    if b"\0" in name:
        with pytest.raises(MalformedRequest):
            kernel.parse_name(memoryview(name + b"\0"))
    else:
        assert kernel.parse_name(memoryview(name + b"\0")) == name
        with pytest.raises(MalformedRequest):
            kernel.parse_name(memoryview(name))


@given(st.lists(st.tuples(st.integers(0, 1 << 63), st.integers(0, 1 << 63)), max_size=20), st.integers(0, 40))
def test_batch_forget(pairs: list[tuple[int, int]], cut: int) -> None:
    body = struct.pack("<II", len(pairs), 0) + b"".join(struct.pack("<QQ", *pair) for pair in pairs)
    assert kernel.parse_batch_forget(memoryview(body)) == pairs
    if pairs and cut:
        with pytest.raises((MalformedRequest, struct.error)):
            kernel.parse_batch_forget(memoryview(body[:-cut]))


@given(st.lists(st.binary(min_size=1, max_size=255), min_size=1, max_size=10))
def test_directory_entries_are_aligned_and_measured(names: list[bytes]) -> None:
    now, fields = kernel.lifetime(0), kernel.bare_fields(3, 0o40000)
    for name in names:
        plain = kernel.pack_dirent(1, 2, 4, name)
        plus = kernel.pack_direntplus(9, now, now, fields, 2, 4, name)
        assert len(plain) == kernel.dirent_bytes(name)
        assert len(plus) == kernel.direntplus_bytes(name)
        assert len(plain) % 8 == len(plus) % 8 == 0
        assert plain[24 : 24 + len(name)] == plus[152 : 152 + len(name)] == name
