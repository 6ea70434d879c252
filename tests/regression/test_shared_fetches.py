"""Fetches that several readers share: what one reader needs must not be mixed up with what another asked for."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from random import Random

import pytest

from common.blocks import BLOCK_BYTES, BlockRange
from common.errors import DeadlineExceeded, HeadraceError
from common.runtime import settle
from common.wire.messages import Priority
from spoke.cache.store import Store
from spoke.fetcher import Fetcher
from spoke.hub_client.client import Request
from spoke.hub_client.single_flight import Flight, Landed, Want

VERSION = b"v" * 16
SIZE_BYTES = 64 * BLOCK_BYTES


def piece(first_block: int, block_count: int) -> Landed:
    data = b"".join(bytes([block]) * BLOCK_BYTES for block in range(first_block, first_block + block_count))
    return Landed(BlockRange(first_block, block_count), memoryview(data), b"")


@pytest.mark.parametrize("landed_before", [True, False])
def test_a_flight_may_bring_more_than_a_reader_still_misses(landed_before: bool) -> None:
    """Counted in blocks, what the reader had from the cache was taken for what it waited for, and it hung."""
    ended: list[HeadraceError | None] = []
    want = Want(BlockRange(0, 8), 0, 8 * BLOCK_BYTES, ended.append)
    flight = Flight(VERSION, SIZE_BYTES, BlockRange(0, 64), prefetched=True)
    if landed_before:
        flight.landed.append(piece(0, 5))
    want.expect([BlockRange(6, 2)])  # blocks 0 to 5 are in the cache
    flight.join(want)
    want.fill(0, piece(0, 6).data)
    want.release_hold()
    if not landed_before:
        want.landed(piece(0, 5))
    assert ended == []
    want.landed(piece(5, 59))
    assert ended == [None]
    assert bytes(want.buffer) == bytes(piece(0, 8).data)
    assert not flight.wants


class Client:
    """Keeps what was submitted; promotes as the real one does."""

    def __init__(self) -> None:
        self.submitted: list[Request] = []

    def spread(self, blocks: BlockRange) -> list[BlockRange]:
        return [blocks]

    def submit(self, request: Request) -> None:
        request.done = False
        self.submitted.append(request)

    def promote(self, request: Request, deadline_s: float | None) -> None:
        if request.priority is Priority.PREFETCH and not request.done:
            request.priority, request.deadline_s = Priority.DEMAND, deadline_s

    def cancel(self, request: Request) -> None:
        request.done = True


class Observer:
    def arrived(self, version: bytes, blocks: BlockRange, raw_bytes: int) -> None: ...
    def failed(self, version: bytes, blocks: BlockRange) -> None: ...
    def corrupt_on_wire(self, version: bytes, block: int) -> None: ...


def read(fetcher: Fetcher, deadline_s: float | None, priority: Priority = Priority.DEMAND) -> asyncio.Future[None]:
    arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    blocks = BlockRange(0, 4)
    want = Want(blocks, 0, 4 * BLOCK_BYTES, lambda error: settle(arrival, error))
    fetcher.demand(VERSION, SIZE_BYTES, want, [blocks], priority=priority, deadline_s=deadline_s)
    want.release_hold()
    return arrival


async def resubmitted(client: Client, count: int) -> Request:
    async with asyncio.timeout(10):
        while len(client.submitted) < count:
            await asyncio.sleep(0.005)
    return client.submitted[count - 1]


def fail(request: Request, error: HeadraceError) -> None:
    request.done = True
    request.sink.failed(request, error)


@pytest.fixture
async def store(tmp_path: Path) -> Store:
    opened = Store.open(tmp_path / "cache", 64 << 20, 0, 0, Random(1))
    yield opened
    await opened.close()


async def test_who_joins_later_waits_for_its_own_deadline(store: Store) -> None:
    """The fetch carried the first reader's deadline for ever: those who joined it failed with the first."""
    client = Client()
    fetcher = Fetcher(client, store, Observer(), time.monotonic, Random(1))
    first, second = read(fetcher, 100.0), read(fetcher, 200.0)
    assert len(client.submitted) == 1
    for tries in range(2, 8):  # more often than a fetch is tried for anything else
        fail(client.submitted[-1], DeadlineExceeded("passed"))
        assert (await resubmitted(client, tries)).deadline_s == 200.0
    assert not first.done()
    assert not second.done()
    await fetcher.close()


async def test_a_reader_who_waits_for_ever_lifts_the_deadline(store: Store) -> None:
    client = Client()
    fetcher = Fetcher(client, store, Observer(), time.monotonic, Random(1))
    waiting = [read(fetcher, 100.0), read(fetcher, None), read(fetcher, 150.0)]
    fail(client.submitted[0], DeadlineExceeded("passed"))
    assert (await resubmitted(client, 2)).deadline_s is None
    assert not any(arrival.done() for arrival in waiting)
    await fetcher.close()


async def test_a_reader_who_joins_between_two_tries_makes_it_urgent(store: Store) -> None:
    """The next try went out at the priority of the first, behind all prefetch."""
    client = Client()
    fetcher = Fetcher(client, store, Observer(), time.monotonic, Random(1))
    warming = read(fetcher, None, Priority.PREFETCH)
    fail(client.submitted[0], DeadlineExceeded("passed"))
    reading = read(fetcher, 100.0)
    again = await resubmitted(client, 2)
    assert (again.priority, again.deadline_s) == (Priority.DEMAND, 100.0)
    await fetcher.close()
    assert warming.done()
    assert reading.done()
