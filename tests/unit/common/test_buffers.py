"""Buffers that are used again only when nobody can see them any more."""

import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BYTES
from common.buffers import ExtentBuffer, ExtentBuffers, blocks_of_buffer


def place(data: bytearray | memoryview) -> int:
    """Which buffer it is a view of."""
    assert isinstance(data, memoryview)
    return id(data.obj)


def test_a_buffer_comes_back_once_nothing_refers_to_it() -> None:
    buffers = ExtentBuffers(1)
    first = buffers.take()
    assert len(first) == EXTENT_BYTES
    where = place(first)
    del first
    assert place(buffers.take()) == where


def test_whoever_holds_a_view_of_a_part_keeps_the_buffer() -> None:
    buffers = ExtentBuffers(4)
    buffer = buffers.take()
    buffer[10:20] = b"0123456789"
    where, part = place(buffer), memoryview(buffer)[10:20]
    del buffer
    others = [buffers.take() for _ in range(3)]
    assert where not in {place(other) for other in others}
    assert isinstance(buffers.take(), bytearray), "all four are in use"
    assert bytes(part) == b"0123456789"
    del part
    assert place(buffers.take()) == where


def test_no_two_users_ever_share_one_and_few_are_kept() -> None:
    buffers = ExtentBuffers(3)
    users = [buffers.take() for _ in range(10)]
    assert len({id(user.obj) if isinstance(user, memoryview) else id(user) for user in users}) == 10
    assert len(buffers) == 3
    users.clear()
    assert len({place(buffers.take()) for _ in range(10)}) <= 3, "and those that are kept are used again"


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(0, 20))
def test_one_in_use_is_never_handed_out_again(steps: list[int], capacity: int) -> None:
    """A step above 20 takes one and holds all of it or four bytes; others shrink, forget, or let go of the one at that place."""
    buffers = ExtentBuffers(capacity)
    users: list[tuple[bytes, memoryview]] = []
    for number, step in enumerate(steps):
        if step > 20:
            stamp = number.to_bytes(4, "little")
            whole = memoryview(buffers.take())
            whole[:4] = stamp
            users.append((stamp, whole[:4] if step % 2 else whole))
            del whole
        elif step == 20:
            buffers.forget()
        elif step == 19:
            buffers.shrink()
        elif step < len(users):
            del users[step]
        assert all(held[:4] == stamp for stamp, held in users)
        assert len(buffers) <= capacity


def test_they_may_be_taken_and_let_go_of_in_any_thread() -> None:
    buffers = ExtentBuffers(8)
    wrong: list[int] = []

    def use(number: int) -> None:
        for turn in range(300):
            mine = [buffers.take() for _ in range(1 + turn % 4)]
            for at, buffer in enumerate(mine):
                buffer[at] = number
            wrong.extend(number for at, buffer in enumerate(mine) if buffer[at] != number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(buffers) <= 8
    assert buffers.idle_bytes == len(buffers) * EXTENT_BYTES


def test_the_views_of_its_blocks_are_its_blocks() -> None:
    buffer = ExtentBuffers(1).take()
    buffer[:] = bytes(range(256)) * (EXTENT_BYTES // 256)
    buffer[3 * BLOCK_BYTES] = 99
    blocks = blocks_of_buffer(buffer)
    assert blocks is not None
    assert b"".join(blocks) == buffer
    assert blocks[3][0] == 99


def test_only_the_whole_of_a_buffer_has_known_blocks() -> None:
    buffer = memoryview(ExtentBuffers(1).take())
    assert blocks_of_buffer(buffer) is not None
    assert blocks_of_buffer(buffer[:-1]) is None
    assert blocks_of_buffer(memoryview(bytearray(EXTENT_BYTES))) is None
    assert blocks_of_buffer(bytes(EXTENT_BYTES)) is None


def test_what_is_forgotten_is_unmapped_at_once_and_what_is_in_use_comes_back() -> None:
    buffers = ExtentBuffers(4)
    buffer, idle = buffers.take(), buffers.take()
    where, known = place(buffer), idle.obj if isinstance(idle, memoryview) else None
    assert isinstance(known, ExtentBuffer)
    buffer[0] = 7
    del idle
    gone = weakref.ref(known)
    del known
    buffers.forget()
    assert gone() is None, "no cycle keeps it for the collector"
    assert len(buffers) == 1, "the one that has a user"
    assert buffer[0] == 7
    del buffer
    assert place(buffers.take()) == where


def test_what_lies_idle_for_long_goes_by_halves() -> None:
    buffers = ExtentBuffers(16)
    users = [buffers.take() for _ in range(16)]
    users = users[:4]
    for _ in range(limits.EXTENT_BUFFERS_IDLE_LOOKS - 1):
        buffers.shrink()
    assert len(buffers) == 16
    buffers.shrink()
    assert len(buffers) == 10, "half of the twelve that nobody used"
    for look in range(limits.EXTENT_BUFFERS_IDLE_LOOKS):
        if look == 5:
            users += [buffers.take() for _ in range(6)]
        buffers.shrink()
    assert len(buffers) == 10, "they were all in use meanwhile"
    assert buffers.idle_bytes == 0


def test_a_kernel_that_maps_no_more_is_memory_that_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(ExtentBuffer, "__new__", refuse)
    with pytest.raises(MemoryError, match="Cannot allocate memory"):
        ExtentBuffers(2).take()
