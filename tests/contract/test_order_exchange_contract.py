"""Spokes and hub about orders, over real sockets and with real files: told, taken, known, refused, reset, lost links, old peers."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from common import limits, runtime
from common.entries import Entry
from common.order_report import OrderReport, PackedReport, ReportedFile, pack
from common.serving.orders import OrderAnswer, OrderDesk, OrderQuestion, Teller
from common.serving.server import Server
from common.wire import messages as m
from hub.orders.desk import OrderDeskOfHub
from spoke.hub_client.client import HubClient, make_hello
from spoke.namespace.tree import Tree
from spoke.orders import report as reports
from spoke.orders.exchange import OrderExchange
from spoke.orders.learner import Learner, own_name_prefix
from spoke.orders.mapped import MappedOrder
from spoke.orders.shelf import OrderShelf
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.orders import Order, Reason
from spoke.prefetch.succession import OrderRecorder
from tests.fakes.memory_source import MemorySource

RECORD_BYTES = 4096
STRIDE_BYTES = 2 * RECORD_BYTES  # reads that go on where another ended would become one step
RECORDS = 300
FILES = (b"a.bin", b"d/b.bin")


class Followed:
    """Stands for the planner: which orders are followed, and what became of them."""

    def __init__(self) -> None:
        self.by_name: dict[str, Order] = {}
        self.matched: dict[str, int] = {}
        self.states: dict[str, str] = {}

    def add_order(self, order: Order) -> None:
        self.by_name[order.name], self.matched[order.name] = order, 0

    def drop_order(self, name: str) -> bool:
        self.matched.pop(name, None)
        return self.by_name.pop(name, None) is not None

    def replace_order(self, former: str, order: Order) -> None:
        self.add_order(order)

    def order(self, name: str) -> Order | None:
        return self.by_name.get(name)

    def orders(self) -> Sequence[Mapping[str, Any]]:
        return [
            {"name": name, "matched_reads": self.matched[name], "state": self.states.get(name, "waiting")}
            for name in self.by_name
        ]


class Source(MemorySource):
    async def sizes_of(self, versions: list[bytes]) -> dict[bytes, int]:
        return {entry.version: entry.size_bytes for entry in self.entries().values() if entry.version in set(versions)}


class Hub:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.source = Source({path: Random(path).randbytes(STRIDE_BYTES * RECORDS // 2) for path in FILES})
        self.desk: Any = None
        self.server: Server | None = None

    async def start(self, *, desk: OrderDesk | None = None, port: int = 0, orders: bool = True) -> None:
        if desk is None and orders:
            desk = OrderDeskOfHub({"memory": self.source}, self.directory, runtime.now_s, runtime.wall_time_s)
            await desk.start()
        self.desk = desk
        self.server = Server(
            {"memory": self.source}, listen=("127.0.0.1", port), clock=runtime.now_s, orders=desk
        )  # fmt: skip
        await self.server.start()

    async def stop(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            await server.close()
        if isinstance(self.desk, OrderDeskOfHub):
            await self.desk.close()

    @property
    def port(self) -> int:
        assert self.server is not None
        return self.server.port


class Spoke:
    """All of a spoke that has to do with orders. ``read``: an epoch of these records, to its end."""

    def __init__(self, hub: Hub, directory: Path, identity: str, *, share: bool = True, has_names: bool = True) -> None:
        self.files = {path: hub.source.entries()[path] for path in FILES}
        self.tree = Tree()
        for path, entry in sorted(hub.source.entries().items()) if has_names else ():
            self.tree.upsert(path, entry)
        self.client = HubClient(
            "127.0.0.1", hub.port, make_hello("memory", identity, identity.encode().ljust(16, b"\0"), share_orders=share),
            bulk_links=1, follower=_Feed(), clock=runtime.now_s, dice=Random(1),
        )  # fmt: skip
        self.followed = Followed()
        self.recorder = OrderRecorder(4 << 20)
        self.shelf = OrderShelf(directory / identity / "orders", self.followed)
        self.learner = Learner(self.recorder, self.shelf, self.followed, "memory")
        self.waited_for = self.stopped = False
        self.exchange = self.learner.others = OrderExchange(
            self.client.orders, self.shelf, self.followed, self.tree, dataset="memory", hub="hub:1",
            own_prefix=own_name_prefix("memory"), is_waited_for=lambda: self.waited_for,
            is_short_of_memory=lambda: False, clock=runtime.now_s, enabled=share,
        )  # fmt: skip

    async def start(self) -> None:
        self.shelf.directory.parent.mkdir(exist_ok=True)
        await self.shelf.start()
        await self.learner.start()
        self.client.start()
        await self.client.links.first_contact(10)
        await self.exchange.start()

    async def stop(self, *, tell: bool = True) -> None:
        if self.stopped:
            return
        self.stopped = True
        await self.learner.close()
        await self.exchange.close(tell=tell)
        await self.client.close()

    def reads(self, order: list[int], *, explained: bool = False, along: str | None = None) -> None:
        for record in order:
            path, place = FILES[record % 2], record // 2
            entry = self.files[path]
            facts = FileFacts(path, entry.version, entry.size_bytes)
            self.recorder.read(0.0, facts, place * STRIDE_BYTES, RECORD_BYTES, explained=explained)
        if along is not None:
            self.followed.matched[along] += len(order)

    async def epoch(self, order: list[int], *, explained: bool = False, along: str | None = None) -> None:
        before = self.learner.outcomes.total()
        self.reads(order, explained=explained, along=along)
        self.recorder.tend(limits.LEARN_CLOSED_REST_S, 0)
        await until(lambda: self.learner.outcomes.total() > before and not self.learner._busy.locked())

    @property
    def foreign(self) -> list[str]:
        return sorted(self.exchange.names())

    def steps(self, name: str) -> list[tuple[bytes, int, int]]:
        order = self.followed.by_name[name]
        assert isinstance(order, MappedOrder)
        steps = (order.step(0, at) for at in range(order.length(0)))
        return [(order.files[step.file].path, step.offset_bytes, step.length_bytes) for step in steps]


class _Feed:
    def feed_up(self, link: Any) -> None: ...
    def feed_message(self, link: Any, message: Any) -> None: ...
    def feed_lost(self, link: Any) -> None: ...


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def shuffled(seed: int) -> list[int]:
    order = list(range(RECORDS))
    Random(seed).shuffle(order)
    return order


def as_steps(order: list[int]) -> list[tuple[bytes, int, int]]:
    return [(FILES[record % 2], record // 2 * STRIDE_BYTES, RECORD_BYTES) for record in order]


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    found = Hub(tmp_path)
    await found.start()
    yield found
    await found.stop()


@pytest.fixture
async def spoke(hub: Hub, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    made: list[Spoke] = []

    async def make(identity: str, **options: Any) -> Spoke:
        found = Spoke(hub, tmp_path, identity, **options)
        made.append(found)
        await found.start()
        return found

    yield make
    for found in made:
        await found.stop(tell=False)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ORDERS_ASK_INTERVAL_S", 0.05)


async def test_what_one_learned_the_other_follows_step_by_step(hub: Hub, spoke: Any) -> None:
    first, second = await spoke("gpu-1"), await spoke("gpu-2")
    order = shuffled(1)
    await first.epoch(order)
    await until(lambda: bool(second.foreign))
    (name,) = second.foreign
    found = second.followed.by_name[name]
    assert (found.reason, found.origin) == (Reason.REPORTED, "told by gpu-1 through the hub hub:1")
    assert second.steps(name) == as_steps(order)
    assert first.foreign == [], "its own is no news"
    # Read along, it is proven here and at the hub, and nothing else is kept of the epoch.
    await second.epoch(order, explained=True, along=name)
    assert [path.name.endswith("-proven.order") for path in second.shelf.paths.values()] == [True]
    await until(lambda: all(row.followed for row in hub.desk._datasets["memory"].store.rows()))


async def test_what_is_being_taken_over_counts_as_memory(hub: Hub, spoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await spoke("gpu-1"), await spoke("gpu-2")
    examine, write = reports.examine, reports.write
    held: list[int] = []

    def examined(data: bytearray, digest: bytes) -> Any:
        held.extend((len(data), second.exchange.held_bytes))
        return examine(data, digest)

    def written(*given: Any) -> None:
        held.append(second.exchange.held_bytes)
        write(*given)

    monkeypatch.setattr(reports, "examine", examined)
    monkeypatch.setattr(reports, "write", written)
    await first.epoch(shuffled(1))
    await until(lambda: bool(second.foreign))
    arrived, while_examined, while_written = held
    assert while_examined == arrived > RECORDS
    assert while_written == arrived + RECORDS * limits.MEMORY_STEP_BYTES
    assert second.exchange.held_bytes == 0


async def test_it_is_there_after_restarts_of_both(hub: Hub, spoke: Any, tmp_path: Path) -> None:
    first = await spoke("gpu-1")
    first.reads(shuffled(1))
    await first.stop()  # what was learned last is told while it stops
    port = hub.port
    await hub.stop()
    await hub.start(port=port)
    second = await spoke("gpu-2")
    await until(lambda: bool(second.foreign))
    await second.stop()
    await hub.stop()
    await hub.start(port=port, orders=False)
    again = Spoke(hub, tmp_path, "gpu-2")
    await again.start()
    assert again.foreign == second.foreign, "held on disk, whatever the hub says now"
    assert again.exchange.facts()["hub_keeps_orders"] is False
    await again.stop()


async def test_a_hub_whose_state_was_lost_hears_it_again(hub: Hub, spoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ORDER_RETELL_S", 0.0)
    first = await spoke("gpu-1")
    await first.epoch(shuffled(1))
    await until(lambda: first.exchange.told["told"] == 1)
    port = hub.port
    await hub.stop()
    for path in hub.directory.glob("memory.orders*"):
        path.unlink()
    await hub.start(port=port)
    await until(lambda: hub.desk.kept()["memory"][0] == 1)


async def test_reset_is_not_undone_and_new_ones_come(hub: Hub, spoke: Any, tmp_path: Path) -> None:
    first, second = await spoke("gpu-1"), await spoke("gpu-2")
    await first.epoch(shuffled(1))
    await until(lambda: bool(second.foreign))
    assert await second.learner.reset() == 1
    await until(lambda: second.exchange.facts()["refused"] == 1)
    await first.epoch(shuffled(2))
    await until(lambda: bool(second.foreign))
    assert [second.steps(name) for name in second.foreign] == [as_steps(shuffled(2))]
    await second.shelf.drop(second.foreign[0])  # by command
    await until(lambda: second.exchange.facts()["refused"] == 2)
    await second.stop()
    again = await spoke("gpu-2")
    await asyncio.sleep(0.2)
    assert again.foreign == []


async def test_an_order_of_ones_own_that_says_the_same_wins(hub: Hub, spoke: Any) -> None:
    first, second = await spoke("gpu-1"), await spoke("gpu-2")
    order = shuffled(1)
    drifted = [record for at in range(0, RECORDS, 8) for record in reversed(order[at : at + 8])]
    await asyncio.gather(first.epoch(order), second.epoch(drifted))
    await until(lambda: first.exchange.told["told"] == second.exchange.told["told"] == 1)
    await asyncio.sleep(0.2)
    assert (first.foreign, second.foreign) == ([], [])
    (row,) = hub.desk._datasets["memory"].store.rows()
    assert row.tellers == 2


async def test_steps_of_files_that_are_not_here_are_left_out_and_sizes_are_ours(
    hub: Hub, spoke: Any, tmp_path: Path
) -> None:
    second = await spoke("gpu-2")
    entry = second.files[FILES[0]]
    files = [
        ReportedFile(entry.version, entry.size_bytes, FILES[0]),
        ReportedFile(b"\xee" * 16, 1 << 40, b"gone"),
        ReportedFile(second.files[FILES[1]].version, 1 << 50, FILES[1]),  # a size that is not ours
    ]
    numbers = array("I", [0, 1, 0, 2, 0] * 40)
    offsets = array("Q", (at * RECORD_BYTES % entry.size_bytes for at in range(200)))
    packed = pack(OrderReport(files, numbers, offsets, array("I", [RECORD_BYTES]) * 200))
    await tell(hub, packed)
    await until(lambda: bool(second.foreign))
    (name,) = second.foreign
    assert [file.path for file in second.followed.by_name[name].files] == [FILES[0]]
    assert len(second.steps(name)) == 120
    # One most of whose files are not in these names (a pinned mount, a tree that moved on) is not followed at all.
    elsewhere = Spoke(hub, tmp_path, "gpu-3", has_names=False)
    await elsewhere.start()
    await until(lambda: elsewhere.exchange.received["elsewhere"] == 1)
    assert elsewhere.foreign == []
    await elsewhere.stop()


async def tell(hub: Hub, packed: PackedReport) -> None:
    teller, at = Teller("mad", b"m" * 16), 0
    while at < len(packed.data):
        piece = packed.data[at : at + limits.ORDER_PIECE_BYTES]
        answer = await hub.desk.answer("memory", teller, m.Report(1, packed.digest, len(packed.data), at, False, piece))
        assert not answer.code, answer
        at = answer.offset_bytes


async def test_one_that_does_not_pay_is_dropped_for_good_and_leaves_less_room(hub: Hub, spoke: Any) -> None:
    first, second = await spoke("gpu-1"), await spoke("gpu-2")
    await first.epoch(shuffled(1))
    await until(lambda: bool(second.foreign))
    second.followed.states[second.foreign[0]] = "distrusted"
    await until(lambda: second.exchange.received["distrusted"] == 1)
    await asyncio.sleep(0.2)
    assert (second.foreign, second.exchange.facts()["refused"]) == ([], 1)
    assert second.exchange._foreign._distrusted == 1


async def test_no_more_are_held_than_there_is_room_for(hub: Hub, spoke: Any) -> None:
    first, second = await spoke("gpu-1"), await spoke("gpu-2")
    most = limits.ORDERS_FOREIGN_KEPT
    for seed in range(most + 2):
        await first.epoch(shuffled(seed))
        await until(lambda seed=seed: hub.desk.kept()["memory"][0] == seed + 1)  # type: ignore[misc]
    await until(lambda: len(second.foreign) == most)
    await asyncio.sleep(0.2)
    assert len(second.foreign) == most
    # An epoch of its own goes by without them: there are others, which get their room.
    before = set(second.foreign)
    await second.epoch(shuffled(99))
    await until(lambda: len(set(second.foreign) - before) >= 1)
    assert len(second.foreign) <= most


class MadHub:
    """Answers what is not so."""

    def __init__(self) -> None:
        self.asked: list[OrderQuestion] = []
        self.data = bytearray(Random(1).randbytes(100_000))

    async def answer(self, dataset: str, teller: Teller, question: OrderQuestion) -> OrderAnswer:
        self.asked.append(question)
        if isinstance(question, m.Report):
            return m.Reported(question.token, 0)  # wants the beginning, for ever
        if isinstance(question, m.Orders):
            listed = (m.KeptOrder(bytes([number]) * 16, len(self.data), 100, "mad", True) for number in range(64))
            return m.Kept(question.token, tuple(listed))
        at = question.offset_bytes
        return m.Piece(question.token, at, len(self.data), bytes(self.data[at : at + 60_000]))


async def test_a_mad_hub_costs_some_requests_and_no_order(hub: Hub, spoke: Any) -> None:
    port, mad = hub.port, MadHub()
    await hub.stop()
    await hub.start(desk=mad, port=port)
    found = await spoke("gpu-1")
    await until(lambda: found.exchange.received["damaged"] == 64)
    assert found.foreign == []
    await found.epoch(shuffled(1))
    await until(lambda: found.exchange.told["refused"] == 1)
    assert "again and again" not in str(found.exchange.facts()["last_error"])
    asked = len(mad.asked)
    await asyncio.sleep(0.2)
    assert all(isinstance(question, m.Orders) for question in mad.asked[asked:]), (
        "what was refused is not asked for again"
    )


async def test_an_old_hub_is_asked_nothing_and_an_old_spoke_is_told_nothing(hub: Hub, spoke: Any) -> None:
    port = hub.port
    await hub.stop()
    await hub.start(port=port, orders=False)
    found = await spoke("gpu-1")
    assert m.ORDERS not in found.client.links.control.welcome.capabilities
    await found.epoch(shuffled(1))
    await asyncio.sleep(0.1)
    assert found.exchange.told.total() == 0
    quiet = await spoke("gpu-2", share=False)
    assert m.ORDERS not in quiet.client.links.control.welcome.capabilities


async def test_telling_waits_for_readers_and_not_for_ever(
    hub: Hub, spoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ORDER_REPORT_PATIENCE_S", 0.3)
    first = await spoke("gpu-1")
    first.waited_for = True
    began_s = runtime.now_s()
    await first.epoch(shuffled(1))
    await until(lambda: first.exchange.told["told"] == 1)
    assert runtime.now_s() - began_s >= 0.3


async def test_a_renamed_file_is_found_by_its_version(hub: Hub, spoke: Any, tmp_path: Path) -> None:
    first = await spoke("gpu-1")
    await first.epoch(shuffled(1))
    await until(lambda: first.exchange.told["told"] == 1)
    hub.source.rename(FILES[0], b"moved.bin")
    entries: dict[bytes, Entry] = hub.source.entries()
    hub.source.put(FILES[0], b"another file in its place")
    second = Spoke(hub, tmp_path, "gpu-2")
    await second.start()
    await until(lambda: bool(second.foreign))
    assert len(second.steps(second.foreign[0])) == RECORDS
    assert entries[b"moved.bin"].version == first.files[FILES[0]].version
    await second.stop()
