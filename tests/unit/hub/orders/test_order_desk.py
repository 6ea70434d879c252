"""The hub's side of telling and taking: pieces, what is refused and what that costs, files that go, the limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from common import limits
from common.order_report import PackedReport, pack
from common.serving.orders import Teller
from common.wire import messages as m
from hub.orders.desk import OrderDeskOfHub
from tests.property.test_order_report_properties import report_of, shuffled

ONE = Teller("gpu-1", b"1" * 16)
OTHER = Teller("gpu-2", b"2" * 16)


class Names:
    """Files by version; all that ``report_of`` names are here."""

    def __init__(self) -> None:
        self.head_revision = 1
        self.files = {file.version: file.size_bytes for file in report_of([0]).files}

    async def sizes_of(self, versions: list[bytes]) -> dict[bytes, int]:
        return {version: self.files[version] for version in versions if version in self.files}


class Rig:
    def __init__(self, directory: Path) -> None:
        self.now_s = 1000.0
        self.names = Names()
        self.desk = OrderDeskOfHub({"data": self.names}, directory, lambda: self.now_s, lambda: self.now_s)

    async def say(self, question: Any, teller: Teller = ONE) -> Any:
        return await self.desk.answer("data", teller, question)

    async def tell(self, packed: PackedReport, teller: Teller = ONE, piece_bytes: int = 1000) -> m.Reported:
        """As a spoke does, to the end or to a refusal."""
        total_bytes = len(packed.data)
        answer = await self.say(m.Report(1, packed.digest, total_bytes, 0, False, b""), teller)
        while not answer.code and answer.offset_bytes < total_bytes:
            at = answer.offset_bytes
            piece = packed.data[at : at + piece_bytes]
            answer = await self.say(m.Report(2, packed.digest, total_bytes, at, False, piece), teller)
        assert isinstance(answer, m.Reported)
        return answer

    async def kept(self) -> tuple[m.KeptOrder, ...]:
        answer = await self.say(m.Orders(9))
        assert not answer.code
        return tuple(answer.orders)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path)
    await made.desk.start()
    yield made
    await made.desk.close()


async def test_told_in_pieces_and_taken_in_pieces(rig: Rig) -> None:
    packed = pack(report_of(shuffled(1, 500)))
    assert (await rig.tell(packed)).offset_bytes == len(packed.data)
    (order,) = await rig.kept()
    assert order == m.KeptOrder(packed.digest, len(packed.data), 500, "gpu-1", False)
    piece = await rig.say(m.Fetch(3, packed.digest, 10))
    assert (piece.token, piece.offset_bytes, piece.total_bytes, piece.payload) == (
        3, 10, len(packed.data), packed.data[10:],
    )  # fmt: skip
    assert (await rig.say(m.Fetch(4, bytes(16), 0))).code == "order"
    assert rig.desk.given_total == 1


async def test_a_link_that_is_lost_in_the_middle_costs_nothing_that_came(rig: Rig) -> None:
    packed = pack(report_of(shuffled(1, 500)))
    total_bytes = len(packed.data)
    await rig.say(m.Report(1, packed.digest, total_bytes, 0, False, packed.data[:700]))
    again = await rig.say(m.Report(2, packed.digest, total_bytes, 0, False, b""))
    assert again.offset_bytes == 700
    assert (await rig.say(m.Report(3, packed.digest, total_bytes, 5, False, b"elsewhere"))).offset_bytes == 700
    rig.now_s += limits.ORDER_ASSEMBLY_IDLE_S + 1
    forgotten = await rig.say(m.Report(4, packed.digest, total_bytes, 0, False, b""))
    assert forgotten.offset_bytes == 0
    await rig.tell(packed)
    assert len(await rig.kept()) == 1


async def test_garbage_is_refused_and_not_heard_twice(rig: Rig) -> None:
    packed = pack(report_of(shuffled(1, 500)))
    broken = PackedReport(packed.digest, packed.data[:-50] + bytes(50))
    assert (await rig.tell(broken)).code == "damaged-order"
    first = await rig.say(m.Report(1, packed.digest, len(packed.data), 0, False, b""))
    assert first.code == "damaged-order", "before a byte of it is sent again"
    short = pack(report_of(shuffled(1, limits.LEARN_MIN_STEPS - 1)))
    assert (await rig.tell(short)).code == "order"
    assert await rig.kept() == ()
    assert rig.desk.reports["refused"] == 3


async def test_an_order_of_files_that_are_not_here_is_refused_and_one_whose_files_go_is_forgotten(rig: Rig) -> None:
    packed = pack(report_of(shuffled(1, 500)))
    files, rig.names.files = rig.names.files, {}
    assert (await rig.tell(packed)).code == "stale"
    rig.names.files = dict.fromkeys(files, 1)
    assert (await rig.tell(packed)).code == "stale", "of another size they are other files"
    rig.names.files = files
    assert not (await rig.tell(packed)).code
    assert len(await rig.kept()) == 1
    rig.names.files = {}
    rig.names.head_revision += 1
    rig.now_s += limits.ORDERS_LOOK_INTERVAL_S
    await rig.kept()
    await asyncio.gather(*rig.desk._looks)
    assert await rig.kept() == ()


async def test_who_tells_of_a_million_is_held_back_and_others_are_not(rig: Rig) -> None:
    orders = [pack(report_of(shuffled(seed, 70))) for seed in range(limits.ORDER_REPORTS_BURST + 1)]
    answers = [await rig.tell(order) for order in orders]
    assert [answer.code for answer in answers] == [""] * limits.ORDER_REPORTS_BURST + ["overloaded"]
    assert len(await rig.kept()) == limits.ORDERS_KEPT_PER_SPOKE
    assert not (await rig.tell(orders[-1], OTHER)).code
    rig.now_s += limits.ORDER_REPORTS_INTERVAL_S
    assert not (await rig.tell(pack(report_of(shuffled(99, 70))))).code


async def test_gigabytes_that_are_announced_take_no_memory(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ORDER_ASSEMBLY_MAX_BYTES", 40 << 20)
    most = limits.ORDER_REPORT_MAX_BYTES
    codes = []
    for number in range(4):
        teller = Teller(f"gpu-{number}", bytes([number]) * 16)
        codes.append((await rig.say(m.Report(1, bytes([number]) * 16, most, 0, False, bytes(1000)), teller)).code)
    assert codes == ["", "", "overloaded", "overloaded"]


async def test_a_note_that_it_was_followed_proves_it(rig: Rig) -> None:
    packed = pack(report_of(shuffled(1, 500)))
    await rig.tell(packed)
    assert not (await rig.say(m.Report(1, packed.digest, 1, 1, True, b""), OTHER)).code
    (order,) = await rig.kept()
    assert order.proven
    unknown = await rig.say(m.Report(1, bytes(16), 1, 1, True, b""), OTHER)
    assert (unknown.code, unknown.offset_bytes) == ("", 1)
    assert len(await rig.kept()) == 1


async def test_a_dataset_whose_orders_cannot_be_kept_is_served_without(tmp_path: Path) -> None:
    (tmp_path / "data.orders").mkdir()
    rig = Rig(tmp_path)
    await rig.desk.start()
    assert (await rig.say(m.Orders(1))).code == "disk"
    assert rig.desk.facts("data")["trouble"]
    await rig.desk.close()


async def test_a_full_disk_is_told_and_passes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack(report_of(shuffled(3, 20_000)))
    store = rig.desk._datasets["data"].store
    assert store is not None
    store._database.execute("PRAGMA max_page_count = 12")
    answer = await rig.tell(packed, piece_bytes=60_000)
    assert (answer.code, rig.desk.reports["failed"]) == ("disk", 1)
    assert "full" in str(rig.desk.facts("data")["trouble"])
    store._database.execute("PRAGMA max_page_count = 100000")
    assert not (await rig.tell(packed, piece_bytes=60_000)).code
    assert rig.desk.facts("data")["trouble"] is None
