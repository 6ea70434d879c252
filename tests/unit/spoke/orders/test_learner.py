"""Learned orders on disk: kept, followed after a restart, proven, replaced, few, forgotten on demand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from common import limits
from spoke.orders.learner import Learner, is_learned_file
from spoke.orders.mapped import open_order
from spoke.orders.shelf import OrderShelf
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.orders import Order, Reason
from spoke.prefetch.succession import OrderRecorder

FILE = FileFacts(b"train.bin", b"v" * 16, 1 << 30)


class Followed:
    def __init__(self) -> None:
        self.matched: dict[str, int] = {}

    def add_order(self, order: Order) -> None:
        assert order.reason is Reason.LEARNED
        self.matched[order.name] = 0

    def drop_order(self, name: str) -> bool:
        return self.matched.pop(name, None) is not None

    def replace_order(self, former: str, order: Order) -> None:
        self.add_order(order)

    def orders(self) -> Sequence[Mapping[str, Any]]:
        return [{"name": name, "matched_reads": matched} for name, matched in self.matched.items()]


class Rig:
    """A learner over a directory; ``epoch`` reads 200 places in a row of their own and waits until that is dealt with."""

    def __init__(self, directory: Path, dataset: str = "corpus/a") -> None:
        self.followed = Followed()
        self.recorder = OrderRecorder(4 << 20)
        self.shelf = OrderShelf(directory, self.followed)
        self.learner = Learner(self.recorder, self.shelf, self.followed, dataset)

    async def start(self) -> Rig:
        await self.shelf.start()
        await self.learner.start()
        return self

    def read(self, first_place: int, *, explained: bool = False, by: str | None = None) -> None:
        for place in range(200):
            self.recorder.read(0.0, FILE, (first_place + 7919 * place % 200) << 18, 16384, explained=explained)
        if by is not None:
            self.followed.matched[by] += 200

    async def epoch(self, first_place: int, *, explained: bool = False, by: str | None = None) -> None:
        outcomes = sum(self.learner.outcomes.values())
        self.read(first_place, explained=explained, by=by)
        self.recorder.tend(limits.LEARN_CLOSED_REST_S, 0)
        async with asyncio.timeout(10):
            while sum(self.learner.outcomes.values()) == outcomes or self.learner._busy.locked():
                await asyncio.sleep(0.001)

    @property
    def files(self) -> list[str]:
        return sorted(os.listdir(self.shelf.directory))


async def test_an_epoch_becomes_an_order_on_disk_that_a_restart_follows(tmp_path: Path) -> None:
    rig = await Rig(tmp_path / "orders").start()
    await rig.epoch(0)
    assert list(rig.followed.matched) == ["learned:corpus/a:1"]
    assert rig.files == ["learned-corpus%2Fa-1.order"]
    order = open_order(rig.shelf.directory / rig.files[0])
    assert (order.reason, order.step_count, order.meta["ended"]) == (Reason.LEARNED, 200, "job")
    assert [order.step(0, place).offset_bytes for place in range(3)] == [
        (7919 * place % 200) << 18 for place in range(3)
    ]
    await rig.learner.close()
    again = await Rig(tmp_path / "orders").start()
    assert list(again.followed.matched) == ["learned:corpus/a:1"]
    await again.epoch(1000)
    assert again.files == ["learned-corpus%2Fa-1.order", "learned-corpus%2Fa-2.order"]
    await again.learner.close()


async def test_what_was_followed_stays_and_of_the_rest_the_newest(tmp_path: Path) -> None:
    rig = await Rig(tmp_path / "orders").start()
    await rig.epoch(0)
    await rig.epoch(0, explained=True, by="learned:corpus/a:1")
    assert rig.files == ["learned-corpus%2Fa-1-proven.order"]
    assert rig.learner.outcomes == {"kept": 1, "known": 1, "failed": 0}
    for number in range(1, 6):
        await rig.epoch(1000 * number % 3000)
    assert set(rig.followed.matched) == {f"learned:corpus/a:{number}" for number in (1, 5, 6)}
    # Half of it held: the new one takes the place of the old.
    await rig.epoch(500, by="learned:corpus/a:1")
    assert "learned-corpus%2Fa-7-proven.order" in rig.files
    assert "learned:corpus/a:1" not in rig.followed.matched
    assert rig.learner.facts()["proven_orders"] == 1
    await rig.learner.close()


async def test_a_stop_writes_down_what_was_read_so_far(tmp_path: Path) -> None:
    rig = await Rig(tmp_path / "orders").start()
    rig.read(0)
    await rig.learner.close()
    assert rig.files == ["learned-corpus%2Fa-1.order"]


async def test_reset_forgets_all_that_was_learned_and_nothing_else(tmp_path: Path) -> None:
    rig = await Rig(tmp_path / "orders").start()
    await rig.epoch(0)
    (tmp_path / "orders" / "learned-other-4.order").write_bytes(b"of another dataset")
    (tmp_path / "orders" / "recipe-x.order").write_bytes(b"")
    rig.read(1000)
    assert await rig.learner.reset() == 2
    assert rig.files == ["recipe-x.order"]
    assert (rig.followed.matched, rig.recorder.steps) == ({}, 0)
    await rig.learner.close()
    assert rig.files == ["recipe-x.order"]


async def test_switched_off_it_leaves_what_there_is_alone(tmp_path: Path) -> None:
    rig = await Rig(tmp_path / "orders").start()
    await rig.epoch(0)
    await rig.learner.close()
    followed = Followed()
    shelf = OrderShelf(tmp_path / "orders", followed, pass_over=is_learned_file)
    await shelf.start()
    off = Learner(None, shelf, followed, "corpus/a")
    await off.start()
    assert (followed.matched, off.facts()["enabled"]) == ({}, False)
    await off.close()
    assert rig.files == ["learned-corpus%2Fa-1.order"]


async def test_a_directory_that_cannot_be_written_costs_the_order_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await Rig(tmp_path / "orders").start()
    monkeypatch.setattr("spoke.orders.learner.OrderWriter", _no_space)
    await rig.epoch(0)
    assert rig.learner.outcomes["failed"] == 1
    assert rig.followed.matched == {}
    monkeypatch.undo()
    await rig.epoch(1000)
    assert rig.learner.outcomes["kept"] == 1
    await rig.learner.close()


def _no_space(*_arguments: object, **_named: object) -> None:
    raise OSError(28, "No space left on device")
