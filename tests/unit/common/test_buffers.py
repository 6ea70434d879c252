"""Buffers that are used again only when nobody can see them any more."""

from common.blocks import BLOCK_BYTES, EXTENT_BYTES
from common.buffers import ExtentBuffer, ExtentBuffers


def test_a_buffer_comes_back_once_nothing_refers_to_it() -> None:
    buffers = ExtentBuffers(4)
    first = buffers.take()
    assert len(first) == EXTENT_BYTES
    place = id(first)
    del first
    assert id(buffers.take()) == place


def test_whoever_holds_a_view_of_a_part_keeps_the_buffer() -> None:
    buffers = ExtentBuffers(4)
    buffer = buffers.take()
    place, part = id(buffer), memoryview(buffer)[10:20]
    del buffer
    assert id(buffers.take()) != place
    assert id(buffers.take()) != place
    assert bytes(part) == bytes(10)
    del part
    assert place in {id(buffers.take()) for _ in range(4)}


def test_no_two_users_ever_share_one_and_few_are_kept() -> None:
    buffers = ExtentBuffers(3)
    users = [buffers.take() for _ in range(10)]
    assert len({id(user) for user in users}) == 10
    assert len(buffers) == 3
    users.clear()
    assert len({id(buffers.take()) for _ in range(10)}) <= 3, "and those that are kept are used again"


def test_the_views_of_its_blocks_are_its_blocks() -> None:
    buffer = ExtentBuffers(1).take()
    assert isinstance(buffer, ExtentBuffer)
    buffer[:] = bytes(range(256)) * (EXTENT_BYTES // 256)
    buffer[3 * BLOCK_BYTES] = 99
    assert b"".join(buffer.blocks) == buffer
    assert buffer.blocks[3][0] == 99


def test_what_is_forgotten_stays_with_its_user() -> None:
    buffers = ExtentBuffers(2)
    buffer = buffers.take()
    buffer[0] = 7
    buffers.forget()
    assert len(buffers) == 0
    assert buffers.take() is not buffer
    assert buffer[0] == 7
