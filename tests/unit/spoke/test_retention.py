"""What the hub has no more, or gives no longer, is erased in time, over restarts; and never because a hub is away."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from common.errors import CacheDirectoryError, NotAllowed, UsageError
from spoke import purge
from spoke.cache.store import Store
from spoke.namespace.tree import Tree
from spoke.retention import Retention
from tests.cache_support import MIB, File

DAY_S = 86400.0
REFUSAL = NotAllowed("'spoke-a' may read nothing here")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store.open(tmp_path / "cache", 32 * MIB, 0, 0, Random(1)) as opened:
        yield opened


class Watch:
    """Retention with names, open files and a clock in the test's hand."""

    def __init__(self, path: Path, store: Store, retention_s: float = DAY_S) -> None:
        self.now_s = 1_700_000_000.0
        self.live: set[bytes] = set()
        self.open: set[bytes] = set()
        self.refusal: NotAllowed | None = None
        self.given = True
        self.made = Retention(path, store, retention_s, lambda: self.now_s)

    async def tend(self, after_s: float = 0.0) -> None:
        self.now_s += after_s
        await self.made.tend(self.live.__contains__, self.open.__contains__, self.refusal, self.given)


@pytest.fixture
async def files(store: Store) -> list[File]:
    made = [File(number, MIB) for number in range(3)]
    for file in made:
        await file.put(store)
    return made


def on_disk(tmp_path: Path) -> int:
    return sum(1 for path in (tmp_path / "cache" / "versions").rglob("*.data"))


async def test_files_without_a_name_go_after_the_set_time(tmp_path: Path, store: Store, files: list[File]) -> None:
    watch = Watch(tmp_path / "retention.json", store)
    watch.live = {files[0].version}
    await watch.tend()
    await watch.tend(DAY_S - 1)
    assert on_disk(tmp_path) == 3
    watch.live.add(files[1].version)  # it has a name again
    await watch.tend()
    await watch.tend(1)
    assert on_disk(tmp_path) == 2
    assert files[2].state(store) == "absent"
    assert files[1].state(store) == "verified"
    assert watch.made.erased_bytes_total >= MIB
    assert store.usage().used_bytes < 3 * MIB


async def test_an_open_file_stays_until_it_is_closed(tmp_path: Path, store: Store, files: list[File]) -> None:
    watch = Watch(tmp_path / "retention.json", store)
    watch.open = {files[0].version}
    store.borrow_fd(files[1].version, MIB)
    await watch.tend()
    await watch.tend(2 * DAY_S)
    assert {file.state(store) for file in files[:2]} == {"verified"}
    store.return_fd(files[1].version)
    watch.open.clear()
    await watch.tend()
    assert on_disk(tmp_path) == 0


async def test_a_restart_does_not_begin_anew(tmp_path: Path, store: Store, files: list[File]) -> None:
    watch = Watch(tmp_path / "retention.json", store)
    await watch.tend()
    again = Watch(tmp_path / "retention.json", store)
    await again.made.load()
    await again.tend(DAY_S)
    assert on_disk(tmp_path) == 0
    damaged = tmp_path / "damaged.json"
    damaged.write_text('{"unnamed": 7}')
    await Watch(damaged, store).made.load()


async def test_a_clock_that_was_ahead_does_not_keep_them_for_ever(
    tmp_path: Path, store: Store, files: list[File]
) -> None:
    ahead = Watch(tmp_path / "retention.json", store)
    await ahead.tend(1000 * DAY_S)
    right = Watch(tmp_path / "retention.json", store)
    await right.made.load()
    await right.tend()
    await right.tend(DAY_S)
    assert on_disk(tmp_path) == 0


async def test_a_dataset_that_is_refused_goes_whole_and_one_that_is_given_again_stays(
    tmp_path: Path, store: Store, files: list[File]
) -> None:
    watch = Watch(tmp_path / "retention.json", store)
    watch.live = {file.version for file in files}
    watch.refusal = REFUSAL
    await watch.tend()
    watch.refusal = None
    await watch.tend(DAY_S)
    watch.refusal = REFUSAL
    await watch.tend()
    await watch.tend(DAY_S - 1)
    assert on_disk(tmp_path) == 3
    await watch.tend(1)
    assert on_disk(tmp_path) == 0


async def test_0_keeps_all(tmp_path: Path, store: Store, files: list[File]) -> None:
    watch = Watch(tmp_path / "retention.json", store, 0.0)
    watch.refusal = REFUSAL
    await watch.tend()
    await watch.tend(1e9)
    assert on_disk(tmp_path) == 3


async def test_purge_of_a_running_spoke(tmp_path: Path, store: Store, files: list[File]) -> None:
    with pytest.raises(UsageError, match="paths below the mount, or --all"):
        purge.chosen(Tree(), store, [], False)
    with pytest.raises(UsageError, match="is not in the dataset"):
        purge.chosen(Tree(), store, [b"nothing"], False)
    store.borrow_fd(files[0].version, MIB)
    done = await purge.erase(store, purge.chosen(Tree(), store, [], True))
    assert (done["files"], done["open"]) == (2, 1)
    assert done["bytes"] >= 2 * MIB
    await files[0].check(store)
    store.return_fd(files[0].version)


async def test_purge_of_a_cache_without_a_spoke(tmp_path: Path, files: list[File], store: Store) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(CacheDirectoryError, match="in use by another spoke"):
        purge.look(cache)
    await store.close()
    with pytest.raises(CacheDirectoryError, match="not a cache of headrace"):
        purge.look(tmp_path)
    (cache / "names" / "data").mkdir(parents=True)
    (cache / "pins").symlink_to(tmp_path)
    other_name = tmp_path / "hard-link"
    os.link(next((cache / "versions").rglob("*.data")), other_name)
    assert purge.look(cache)["files"] == 3
    done = purge.erase_all(cache)
    assert (done["files"], done["bytes"] >= 3 * MIB) == (3, True)
    assert other_name.stat().st_blocks == 0
    assert sorted(path.name for path in cache.iterdir()) == ["headrace-cache.json", "lock", "versions"]
    assert tmp_path.exists()
    assert on_disk(tmp_path) == 0


async def test_a_start_that_has_not_heard_from_the_hub_goes_on_counting(
    tmp_path: Path, store: Store, files: list[File]
) -> None:
    watch = Watch(tmp_path / "retention.json", store)
    watch.live, watch.refusal = {file.version for file in files}, REFUSAL
    await watch.tend()
    again = Watch(tmp_path / "retention.json", store)
    again.live, again.given = watch.live, False
    await again.made.load()
    await again.tend(DAY_S + 1)
    assert on_disk(tmp_path) == 3, "nobody has said no since"
    again.refusal = REFUSAL
    await again.tend()
    assert on_disk(tmp_path) == 0
