"""The shelf of order files: what is loaded, replaced, dropped, and found again after a restart."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from common.errors import OrderError, UsageError
from spoke.orders.shelf import OrderShelf
from spoke.orders.writer import OrderWriter
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.orders import Order
from spoke.prefetch.scorecard import Reason


class Followed:
    def __init__(self) -> None:
        self.names: list[str] = []

    def add_order(self, order: Order) -> None:
        self.names.append(order.name)

    def drop_order(self, name: str) -> bool:
        found = name in self.names
        if found:
            self.names.remove(name)
        return found

    def orders(self) -> Sequence[Mapping[str, Any]]:
        return [{"name": name} for name in self.names]


def write(path: Path, name: str) -> Path:
    writer = OrderWriter(path, name=name, reason=Reason.RECIPE, files=[FileFacts(b"f", b"v" * 16, 100)], lane_count=1)
    writer.add(0, 0, 0, 10)
    writer.finish()
    return path


async def test_orders_are_loaded_replaced_and_dropped_with_their_files(tmp_path: Path) -> None:
    followed = Followed()
    shelf = OrderShelf(tmp_path / "orders", followed)
    await shelf.start()
    first = write(tmp_path / "orders" / "a.order", "x")
    assert await shelf.load(first) == {"name": "x", "lanes": 1, "steps": 1}
    second = write(tmp_path / "orders" / "b.order", "x")
    await shelf.load(second)
    assert followed.names == ["x"]
    assert not first.exists()
    assert await shelf.drop("x")
    assert not second.exists()
    assert followed.names == []
    assert not await shelf.drop("x")


async def test_a_file_from_elsewhere_a_damaged_one_and_a_plans_name_are_refused(tmp_path: Path) -> None:
    followed = Followed()
    shelf = OrderShelf(tmp_path / "orders", followed)
    await shelf.start()
    with pytest.raises(UsageError, match="must lie in"):
        await shelf.load(write(tmp_path / "a.order", "x"))
    bad = tmp_path / "orders" / "bad.order"
    bad.write_bytes(b"nothing")
    with pytest.raises(OrderError):
        await shelf.load(bad)
    followed.names.append("plan-3")
    with pytest.raises(OrderError, match="name of a plan"):
        await shelf.load(write(tmp_path / "orders" / "c.order", "plan-3"))
    assert followed.names == ["plan-3"]


async def test_a_restart_follows_the_newest_and_removes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.limits.ORDER_FILES_MAX_KEPT", 2)
    directory = tmp_path / "orders"
    directory.mkdir()
    for number in range(3):
        path = write(directory / f"{number}.order", f"x{number}")
        os.utime(path, (number, number))
    (directory / "bad.order").write_bytes(b"")
    os.utime(directory / "bad.order", (9, 9))
    (directory / "half.order.new").write_bytes(b"")
    followed = Followed()
    await OrderShelf(directory, followed).start()
    assert followed.names == ["x2"]
    assert sorted(os.listdir(directory)) == ["2.order"]


async def test_without_prefetch_no_order_is_taken(tmp_path: Path) -> None:
    shelf = OrderShelf(tmp_path, None)
    await shelf.start()
    with pytest.raises(UsageError, match="--no-prefetch"):
        await shelf.load(tmp_path / "a.order")
    assert shelf.facts() == []
