"""Damage between two lives of a spoke: every byte served is right, everything else is missing, nothing loops."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cache_support import BLOCK_BYTES, EXTENT_BYTES, BlocksMissing, File, content_of, version_of

from common.blocks import BlockRange, whole_file
from common.digest import block_digests
from spoke.cache.index import encode_header, layout_of

SIZE_BYTES = 2 * EXTENT_BYTES + 5000
BLOCKS = 514
Damage = Callable[[File, Path], None]


def patch(path: Path, offset_bytes: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset_bytes)
        file.write(data)


def peek(path: Path, offset_bytes: int, length_bytes: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset_bytes)
        return file.read(length_bytes)


def flip_a_bit(file: File, cache: Path) -> None:
    path = file.path(cache)
    patch(path, 7 * BLOCK_BYTES + 99, bytes([peek(path, 7 * BLOCK_BYTES + 99, 1)[0] ^ 4]))


def swap_neighbours(file: File, cache: Path) -> None:
    path = file.path(cache)
    first, second = peek(path, 5 * BLOCK_BYTES, BLOCK_BYTES), peek(path, 6 * BLOCK_BYTES, BLOCK_BYTES)
    patch(path, 5 * BLOCK_BYTES, second + first)


def swap_neighbours_with_their_digests(file: File, cache: Path) -> None:
    swap_neighbours(file, cache)
    path, place = file.path(cache, "index"), layout_of(SIZE_BYTES).digest_at(5)
    pair = peek(path, place, 16)
    patch(path, place, pair[8:] + pair[:8])


def zero_a_range(file: File, cache: Path) -> None:
    patch(file.path(cache), 100 * BLOCK_BYTES, bytes(3 * BLOCK_BYTES))


def zero_data_and_digests(file: File, cache: Path) -> None:
    zero_a_range(file, cache)
    patch(file.path(cache, "index"), layout_of(SIZE_BYTES).digest_at(100), bytes(24))


def an_older_versions_block(file: File, cache: Path) -> None:
    older = version_of(999)
    data = content_of(older, BLOCK_BYTES)
    patch(file.path(cache), 0, data)
    patch(file.path(cache, "index"), layout_of(SIZE_BYTES).digest_at(0), block_digests(older, 0, data))


def cut_last_byte_of_last_block(file: File, cache: Path) -> None:
    patch(file.path(cache), SIZE_BYTES - 1, bytes([file.content[-1] ^ 1]))


@pytest.mark.parametrize(
    ("damage", "bad"),
    [
        (flip_a_bit, [BlockRange(7, 1)]),
        (swap_neighbours, [BlockRange(5, 2)]),
        (swap_neighbours_with_their_digests, [BlockRange(5, 2)]),
        (zero_a_range, [BlockRange(100, 3)]),
        (zero_data_and_digests, [BlockRange(100, 3)]),
        (an_older_versions_block, [BlockRange(0, 1)]),
        (cut_last_byte_of_last_block, [BlockRange(BLOCKS - 1, 1)]),
    ],
)
async def test_damaged_blocks_are_dropped_alone(
    open_store, tmp_path: Path, damage: Damage, bad: list[BlockRange]
) -> None:
    store = open_store()
    file = File(1, SIZE_BYTES)
    await file.put(store)
    await store.close()
    damage(file, tmp_path / "cache")
    store = open_store()
    with pytest.raises(BlocksMissing) as caught:
        await file.check(store)
    assert caught.value.ranges == bad
    assert file.missing(store) == bad
    count = sum(found.block_count for found in bad)
    assert store.usage().corrupt_blocks_total == count
    assert await file.right_bytes(store) == BLOCKS - count
    await store.close()  # the dropped blocks are dropped for the next life too
    store = open_store()
    assert file.missing(store) == bad
    await file.put(store, bad[0])
    await file.check(store)
    assert store.usage().corrupt_blocks_total == 0


@pytest.mark.parametrize("by_verify", [False, True])
async def test_verify_finds_what_reads_would(open_store, tmp_path: Path, by_verify: bool) -> None:
    store = open_store()
    file = File(1, SIZE_BYTES)
    await file.put(store)
    await store.close()
    flip_a_bit(file, tmp_path / "cache")
    store = open_store()
    assert file.state(store) == "whole"
    assert not await store.verify(file.version, file.size_bytes)
    assert file.missing(store) == [BlockRange(7, 1)]
    await file.put(store, BlockRange(7, 1))
    assert await store.verify(file.version, file.size_bytes)


def truncate_data(file: File, cache: Path) -> None:
    os.truncate(file.path(cache), SIZE_BYTES - 1)


def grow_data(file: File, cache: Path) -> None:
    os.truncate(file.path(cache), SIZE_BYTES + 1)


def truncate_index(file: File, cache: Path) -> None:
    os.truncate(file.path(cache, "index"), 6000)


def empty_index(file: File, cache: Path) -> None:
    os.truncate(file.path(cache, "index"), 0)


def index_of_another_version(file: File, cache: Path) -> None:
    patch(file.path(cache, "index"), 0, encode_header(version_of(2), SIZE_BYTES))


def index_of_another_size(file: File, cache: Path) -> None:
    patch(file.path(cache, "index"), 0, encode_header(file.version, SIZE_BYTES - 1))


def torn_header(file: File, cache: Path) -> None:
    patch(file.path(cache, "index"), 32, b"\xff")


def foreign_format(file: File, cache: Path) -> None:
    patch(file.path(cache, "index"), 0, b"SQLite format 3\0")


def index_is_a_directory(file: File, cache: Path) -> None:
    path = file.path(cache, "index")
    path.unlink()
    path.mkdir()


def index_is_gone(file: File, cache: Path) -> None:
    file.path(cache, "index").unlink()


def data_is_a_symlink(file: File, cache: Path) -> None:
    path = file.path(cache)
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


@pytest.mark.parametrize(
    "damage",
    [
        truncate_data,
        grow_data,
        truncate_index,
        empty_index,
        index_of_another_version,
        index_of_another_size,
        torn_header,
        foreign_format,
        index_is_gone,
        data_is_a_symlink,
        index_is_a_directory,
    ],
)
async def test_a_file_that_cannot_be_believed_is_dropped_alone(open_store, tmp_path: Path, damage: Damage) -> None:
    store = open_store()
    file, other = File(1, SIZE_BYTES), File(3, 9000)
    await file.put(store)
    await other.put(store)
    await store.close()
    damage(file, tmp_path / "cache")
    store = open_store()
    assert file.missing(store) == [whole_file(SIZE_BYTES)]
    assert file.state(store) == "absent"
    await other.check(store)
    if damage is not index_is_a_directory:  # that one stands in the way until somebody removes it
        await file.put(store)
        await file.check(store)


async def test_data_cut_in_this_life(open_store, tmp_path: Path) -> None:
    store = open_store()
    file = File(1, SIZE_BYTES)
    await file.put(store)
    os.truncate(file.path(tmp_path / "cache"), EXTENT_BYTES)
    assert store.read_nowait(file.version, SIZE_BYTES, EXTENT_BYTES, 4096) is None
    with pytest.raises(BlocksMissing):
        await file.check(store)
    assert file.state(store) == "absent"
    assert store.usage().damaged_files_total == 1
    await file.put(store)
    await file.check(store)


async def test_garbage_in_the_presence_map_means_absent(open_store, tmp_path: Path) -> None:
    store = open_store()
    file = File(1, SIZE_BYTES)
    await file.put(store, BlockRange(0, 256))
    await store.close()
    patch(file.path(tmp_path / "cache", "index"), 4096, b"\xff\x02\x01\x00")
    patch(file.path(tmp_path / "cache", "index"), 4096 + 300, b"\x01\x01")
    store = open_store()
    assert file.missing(store) == [
        BlockRange(0, 2),
        BlockRange(3, 1),
        BlockRange(256, 44),
        BlockRange(302, BLOCKS - 302),
    ]
    assert await file.right_bytes(store) == 253
    assert store.usage().corrupt_blocks_total == 2
