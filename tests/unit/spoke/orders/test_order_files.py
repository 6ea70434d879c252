"""Writing, growing and keeping orders: limits, mistakes, and what is left on disk."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from common import limits
from common.errors import DamagedOrder, DiskError, OrderError, OrderTooNew, PlanTooLong
from spoke.orders.growing import GrowingOrder
from spoke.orders.mapped import open_order
from spoke.orders.writer import OrderWriter
from spoke.prefetch.orders import FileFacts, Reason, Step

FILES = [FileFacts(b"a", b"a" * 16, 10_000), FileFacts(b"b", b"b" * 16, 5), FileFacts(b"empty", b"e" * 16, 0)]


def writer(path: Path, name: str = "n", lanes: int = 2) -> OrderWriter:
    return OrderWriter(path, name=name, reason=Reason.RECIPE, files=FILES, lane_count=lanes)


def test_columns_and_single_steps_make_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ORDER_SEGMENT_STEPS", 7)
    steps = [Step(0, number * 100, 50) for number in range(90)]
    with writer(tmp_path / "one") as one:
        for step in steps:
            one.add(1, *step)
        one.finish()
    with writer(tmp_path / "columns") as other:
        for part in (steps[:40], steps[40:]):
            files, offsets, lengths = zip(*part, strict=True)
            other.extend(1, array("I", files), array("Q", offsets), array("I", lengths))
        other.finish()
    assert (tmp_path / "one").read_bytes() == (tmp_path / "columns").read_bytes()


def test_nothing_is_left_of_an_unfinished_order(tmp_path: Path) -> None:
    with writer(tmp_path / "o") as unfinished:
        unfinished.add(0, 0, 0, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "step", [(0, 3, 0, 1), (0, -1, 0, 1), (0, 0, 9_999, 2), (0, 0, 0, 0), (0, 2, 0, 1), (0, 0, -1, 5), (2, 0, 0, 1)]
)
def test_a_step_that_cannot_be_is_refused(tmp_path: Path, step: tuple[int, int, int, int]) -> None:
    with writer(tmp_path / "o") as written, pytest.raises(OrderError):
        written.add(*step)
    order = GrowingOrder("n", Reason.PLAN)
    for file in FILES:
        order.add_file(file)
    if step[0] < 2:
        with pytest.raises(OrderError):
            order.append(*step)


def test_what_is_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OrderError, match="name"):
        writer(tmp_path / "o", name="")
    with pytest.raises(OrderError, match="name"):
        GrowingOrder("x" * 256, Reason.PLAN)
    with pytest.raises(PlanTooLong):
        writer(tmp_path / "o", lanes=limits.ORDER_MAX_LANES + 1)
    monkeypatch.setattr(limits, "ORDER_MAX_STEPS", 3)
    with writer(tmp_path / "o") as written:
        for _ in range(4):
            written.add(0, 0, 0, 1)
        with pytest.raises(PlanTooLong):
            written.finish()
    assert list(tmp_path.iterdir()) == []


def test_an_order_without_steps_or_files_is_an_order(tmp_path: Path) -> None:
    with OrderWriter(tmp_path / "o", name="n", reason=Reason.PLAN, files=[], lane_count=1) as written:
        written.finish()
    order = open_order(tmp_path / "o")
    assert (order.length(0), len(order.files), order.file_of(b"a" * 16)) == (0, 0, None)


def test_a_growing_order_holds_so_many_steps_and_takes_more_once_some_are_forgotten() -> None:
    order = GrowingOrder("n", Reason.PLAN, max_steps=10)
    order.add_file(FILES[0])
    for number in range(10):
        order.append(0, 0, number * 10, 5)
    with pytest.raises(PlanTooLong, match="10"):
        order.append(0, 0, 0, 5)
    order.forget(0, 10)
    assert (order.first(0), order.length(0), order.held_steps) == (10, 10, 0)
    assert order.find(0, 0, 10_000, 99) == []
    with pytest.raises(IndexError):
        order.step(0, 9)
    order.append(0, 0, 7, 5)
    assert order.step(0, 10) == Step(0, 7, 5)
    assert order.find(0, 0, 100, 99) == [(0, 10)]
    assert order.add_file(FILES[0]) == 0


def test_messages_say_what_was_seen(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="No such file"):
        open_order(tmp_path / "none")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(DamagedOrder, match="empty"):
        open_order(tmp_path / "empty")
    with writer(tmp_path / "new") as written:
        written.finish()
    data = bytearray((tmp_path / "new").read_bytes())
    data[8] = 2
    (tmp_path / "new").write_bytes(data)
    with pytest.raises(OrderTooNew, match="format 2"):
        open_order(tmp_path / "new")
