"""Pins: kept on disk, applied to what is below their paths now, bounded by the cache, honoured by eviction."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from common.blocks import BLOCK_BYTES
from common.digest import block_digests
from common.entries import Change, Entry, Kind
from common.errors import DiskError, UsageError
from spoke.cache.store import Store
from spoke.namespace.tree import Tree
from spoke.pins import Pins

MIB = 1 << 20
SIZE = 4 * MIB


def version(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Names:
    """A tree of files that can be added to."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.tree.apply(Change(1, b"d", Entry(Kind.DIRECTORY, 0o755, 0, 0, b"")))
        self.tree.apply(Change(2, b"\xff odd", Entry(Kind.FILE, 0o644, 10, 0, version(99))))

    def put(self, path: bytes, number: int, size_bytes: int = SIZE) -> None:
        self.tree.apply(Change(self.tree.revision + 1, path, Entry(Kind.FILE, 0o644, size_bytes, 0, version(number))))

    def remove(self, path: bytes) -> None:
        self.tree.apply(Change(self.tree.revision + 1, path, None))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store.open(tmp_path / "cache", 32 * MIB, 0, 0, Random(1)) as opened:
        yield opened


@pytest.fixture
def names() -> Names:
    made = Names()
    for number in range(4):
        made.put(b"d/%d" % number, number)
    return made


def pins_of(tmp_path: Path, names: Names, store: Store) -> Pins:
    ticks = iter(range(1_000_000))
    return Pins(tmp_path / "pins" / "data.json", names.tree, store, lambda: float(next(ticks)))


async def fill(store: Store, number: int, size_bytes: int = SIZE) -> None:
    dice = Random(number)
    for first in range(0, size_bytes // BLOCK_BYTES, 256):
        data = dice.randbytes(MIB)
        await store.write(version(number), size_bytes, first, data, block_digests(version(number), first, data))


async def test_what_is_pinned_stays_and_the_rest_goes(tmp_path: Path, names: Names, store: Store) -> None:
    pins = pins_of(tmp_path, names, store)
    await pins.load()
    await pins.pin([b"d/1"])
    for number in (0, 1, *range(10, 30)):
        await fill(store, number)
    assert store.present_bytes(version(1), SIZE) == SIZE
    assert store.usage().evicted_bytes_total > 40 * MIB
    await pins.unpin([b"d/1"])
    for number in range(40, 60):
        await fill(store, number)
    assert store.present_bytes(version(1), SIZE) < SIZE


async def test_they_outlive_a_restart(tmp_path: Path, names: Names, store: Store) -> None:
    pins = pins_of(tmp_path, names, store)
    await pins.load()
    await pins.pin([b"d/1", b"\xff odd"])
    again = pins_of(tmp_path, names, store)
    await again.load()
    assert again.facts() == pins.facts()
    assert (again.facts()["path_count"], again.facts()["files"]) == (2, 2)
    assert (await again.unpin([b"\xff odd"]))["paths"] == ["d/1"]
    assert json.loads((tmp_path / "pins" / "data.json").read_text()) == {"format": 1, "paths": ["d/1"]}


async def test_what_cannot_fit_is_refused_with_numbers(tmp_path: Path, names: Names, store: Store) -> None:
    pins = pins_of(tmp_path, names, store)
    await pins.load()
    await pins.pin([b"d"])
    names.put(b"big", 50, 15 * MIB)
    with pytest.raises(
        UsageError, match=r"5 files that take 3\d{7} bytes, 1\d{7} of them pinned already; at most 31457280"
    ):
        await pins.pin([b"big"])
    assert pins.facts()["paths"] == ["d"]


async def test_names_that_change_below_a_pin(tmp_path: Path, names: Names, store: Store) -> None:
    pins = pins_of(tmp_path, names, store)
    await pins.load()
    await pins.pin([b"d"])
    before_bytes = pins.pinned_bytes
    names.put(b"d/new", 60)
    names.put(b"d/1", 61)  # rewritten: another version
    names.remove(b"d/0")
    for _ in range(100):  # it does not look at once again
        pins.tend()
    assert pins.facts()["files"] == 4
    assert pins.pinned_bytes == before_bytes
    assert pins.pinned_beside({version(60), version(61)}) == before_bytes // 2
    names.put(b"d/huge", 62, 100 * MIB)
    for _ in range(100):
        pins.tend()
    assert pins.facts()["left_out_files"] == 1
    names.remove(b"d/2")
    names.remove(b"d")
    for _ in range(100):
        pins.tend()
    assert (pins.facts()["files"], pins.facts()["absent_paths"]) == (0, 1)


async def test_paths_below_others_add_nothing(tmp_path: Path, names: Names, store: Store) -> None:
    pins = pins_of(tmp_path, names, store)
    await pins.load()
    assert (await pins.pin([b"d/1", b"d/", b"d/2"]))["paths"] == ["d"]
    with pytest.raises(UsageError, match="'d/1' is not pinned by itself, but with 'd': unpin that"):
        await pins.unpin([b"d/1"])
    with pytest.raises(UsageError, match="'x' is not pinned"):
        await pins.unpin([b"x"])
    with pytest.raises(UsageError, match="'x' is not in the dataset"):
        await pins.pin([b"x"])
    assert (await pins.pin([b""]))["paths"] == ["."]
    assert (await pins.unpin(None))["path_count"] == 0


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 2, "paths": []}', '{"format": 1}', '{"format":1,"paths":[5]}']
)
async def test_a_file_that_cannot_be_read_pins_nothing_and_is_left(
    tmp_path: Path, names: Names, store: Store, text: str
) -> None:
    file = tmp_path / "pins" / "data.json"
    file.parent.mkdir()
    file.write_text(text)
    pins = pins_of(tmp_path, names, store)
    await pins.load()
    assert "cannot be read" in (pins.failure or "")
    with pytest.raises(DiskError, match="cannot be read"):
        await pins.pin([b"d"])
    assert file.read_text() == text


async def test_a_disk_that_cannot_keep_them(tmp_path: Path, names: Names, store: Store) -> None:
    (tmp_path / "pins").write_text("in the way")
    pins = pins_of(tmp_path, names, store)
    await pins.load()
    pins.failure = None
    with pytest.raises(DiskError, match="cannot be kept"):
        await pins.pin([b"d"])
    assert pins.facts()["path_count"] == 0
    assert os.path.exists(tmp_path / "pins")
