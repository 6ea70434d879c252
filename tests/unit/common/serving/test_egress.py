"""The egress goes on by itself: whatever frees room starts the next extent, with no other event to help."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from common.blocks import EXTENT_BYTES, BlockRange, whole_file
from common.errors import HeadraceError
from common.serving.egress import Egress, Packed
from common.serving.observer import NoObserver
from common.serving.requests import Pick
from common.serving.scheduler import ReadAhead, Scheduler
from common.wire.messages import Codec, Priority
from tests.fakes.memory_source import MemorySource

FILE_BYTES = 12 * EXTENT_BYTES


class TakesAll:
    """A connection whose socket takes an extent as soon as it comes, or a step of the loop later."""

    link_id = 1
    codecs: Sequence[Codec] = (Codec.RAW,)

    def __init__(self, source: MemorySource, *, later: bool) -> None:
        self.source = source
        self.taken: list[BlockRange] = []
        self.refused: list[HeadraceError] = []
        self.complete = asyncio.Event()
        self.egress: Egress | None = None
        self._later = later

    def stage(self, pick: Pick, packed: Packed) -> None:
        if self._later:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._take, pick)
        else:
            self._take(pick)

    def _take(self, pick: Pick) -> None:
        assert self.egress is not None
        last = pick.is_last
        self.taken.append(pick.blocks)
        self.egress.sent(pick, pick.size_bytes, last=last)
        if last:
            self.complete.set()

    def refuse(self, request_id: int, error: HeadraceError) -> None:
        self.refused.append(error)
        self.complete.set()


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("narrow", ["reading", "link", "total", "rate"])
async def test_it_goes_on_by_itself(narrow: str, later: bool) -> None:
    one = EXTENT_BYTES
    read_ahead = ReadAhead(
        one if narrow == "reading" else 64 * one,
        one if narrow == "link" else 64 * one,
        one if narrow == "total" else 64 * one,
    )
    rate = 200 * one if narrow == "rate" else None
    source = MemorySource({b"f": bytes(FILE_BYTES)})
    link = TakesAll(source, later=later)
    scheduler = Scheduler(total_rate_bytes_per_s=rate, read_ahead=read_ahead)
    egress = link.egress = Egress(scheduler, asyncio.get_running_loop().time, NoObserver())
    egress.attach(link, b"a", 1.0, "")
    egress.submit(link, 1, source.version(b"f"), [whole_file(FILE_BYTES)], Priority.PREFETCH, 0)
    egress.pump()
    async with asyncio.timeout(5):
        await link.complete.wait()
    assert len(set(link.taken)) == 12
    assert scheduler.read_ahead_bytes == 0
    await egress.close()


async def test_a_deadline_alone_wakes_it_and_frees_the_room_for_others() -> None:
    source = MemorySource({b"f": bytes(FILE_BYTES)})
    source.gate = asyncio.Event()
    link = TakesAll(source, later=False)
    egress = link.egress = Egress(
        Scheduler(read_ahead=ReadAhead(reading_bytes=EXTENT_BYTES)), asyncio.get_running_loop().time, NoObserver()
    )
    egress.attach(link, b"a", 1.0, "")
    egress.submit(link, 1, source.version(b"f"), [BlockRange(0, 256)], Priority.DEMAND, 20)
    egress.submit(link, 2, source.version(b"f"), [BlockRange(256, 256)], Priority.DEMAND, 0)
    egress.pump()
    async with asyncio.timeout(5):
        await link.complete.wait()
        assert [error.wire_code for error in link.refused] == ["deadline"]
        source.gate.set()
        while not link.taken:
            await asyncio.sleep(0)
    assert link.taken == [BlockRange(256, 256)]
    await egress.close()


async def test_close_ends_open_reads() -> None:
    source = MemorySource({b"f": bytes(FILE_BYTES)})
    source.gate = asyncio.Event()
    link = TakesAll(source, later=False)
    egress = link.egress = Egress(Scheduler(), asyncio.get_running_loop().time, NoObserver())
    egress.attach(link, b"a", 1.0, "")
    egress.submit(link, 1, source.version(b"f"), [whole_file(FILE_BYTES)], Priority.DEMAND, 0)
    egress.pump()
    async with asyncio.timeout(5):
        while not source.reads_open:
            await asyncio.sleep(0)
        await egress.close()
    assert source.reads_open == 0
    egress.pump()
    egress.detach(link)
    assert source.reads_open == 0


async def test_what_is_read_for_a_stuck_socket_frees_the_disk_for_others() -> None:
    class TakesNothing(TakesAll):
        link_id = 2

        def stage(self, pick: Pick, packed: Packed) -> None:
            self.taken.append(pick.blocks)

    source = MemorySource({b"f": bytes(FILE_BYTES)})
    scheduler = Scheduler(read_ahead=ReadAhead(reading_bytes=EXTENT_BYTES))
    egress = Egress(scheduler, asyncio.get_running_loop().time, NoObserver())
    stuck, link = TakesNothing(source, later=False), TakesAll(source, later=False)
    link.egress = egress
    for found in (stuck, link):
        egress.attach(found, b"%d" % found.link_id, 1.0, "")
        egress.submit(found, 1, source.version(b"f"), [BlockRange(0, 256)], Priority.DEMAND, 0)
    egress.pump()
    assert len(egress._reading) == 1
    async with asyncio.timeout(5):
        await link.complete.wait()
    assert (len(stuck.taken), len(link.taken)) == (1, 1)
    await egress.close()
