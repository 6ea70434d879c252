"""A cache disk slower than the link: what waited for it was held in memory without a bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from random import Random

import pytest

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, BlockRange
from common.digest import block_digests
from common.runtime import settle
from common.wire.messages import Codec, Data
from spoke.fetcher import Fetcher
from spoke.hub_client.client import Request
from spoke.hub_client.single_flight import Want

VERSION = b"s" * 16
EXTENTS = 64
SIZE_BYTES = EXTENTS * EXTENT_BYTES
CONTENT = Random(9).randbytes(EXTENT_BYTES)


class Hub:
    """A client whose hub answers each request at once, with the same bytes in every extent."""

    def __init__(self) -> None:
        self.requests = 0

    def spread(self, blocks: BlockRange) -> list[BlockRange]:
        return [blocks]

    def submit(self, request: Request) -> None:
        self.requests += 1
        asyncio.get_running_loop().call_soon(self._answer, request)

    def _answer(self, request: Request) -> None:
        (blocks,) = request.ranges
        digests = block_digests(VERSION, blocks.first_block, CONTENT)
        request.sink.arrived(request, Data(blocks, Codec.RAW, len(CONTENT), digests, True, CONTENT))
        request.done = True
        request.sink.finished(request)


class SlowStore:
    """Takes nothing until ``go`` is set."""

    run_max_bytes = 64 * EXTENT_BYTES

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.written: set[int] = set()

    async def write_run(
        self, version: bytes, size_bytes: int, first_block: int, pieces: Sequence[bytes], digests: bytes
    ) -> None:
        await self.go.wait()
        first_extent = first_block // EXTENT_BLOCKS
        self.written.update(range(first_extent, first_extent + len(pieces)))

    def missing(self, version: bytes, size_bytes: int, blocks: BlockRange) -> Sequence[BlockRange]:
        return [blocks]

    def is_worthless(self, version: bytes, blocks: BlockRange) -> bool:
        return False


class Observer:
    def arrived(self, version: bytes, blocks: BlockRange, raw_bytes: int) -> None: ...
    def failed(self, version: bytes, blocks: BlockRange) -> None: ...
    def corrupt_on_wire(self, version: bytes, block: int) -> None: ...


async def read(fetcher: Fetcher, extent: int) -> bytearray | memoryview:
    arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    blocks = BlockRange(extent * EXTENT_BLOCKS, EXTENT_BLOCKS)
    want = Want(blocks, blocks.first_block * BLOCK_BYTES, EXTENT_BYTES, lambda error: settle(arrival, error))
    fetcher.demand(VERSION, SIZE_BYTES, want, [blocks])
    want.release_hold()
    await asyncio.wait_for(arrival, 10)
    assert want.buffer is not None
    return want.buffer


async def test_what_waits_for_the_disk_is_bounded_and_readers_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WRITE_BACKLOG_MAX_BYTES", 16 * EXTENT_BYTES)
    monkeypatch.setattr(limits, "BYPASS_MEMORY_BYTES", 8 * EXTENT_BYTES)
    hub, store = Hub(), SlowStore()
    fetcher = Fetcher(hub, store, Observer(), time.monotonic, Random(1))
    fetcher.start()
    for extent in range(EXTENTS):
        assert await read(fetcher, extent) == CONTENT
        assert fetcher.write_backlog_bytes <= 16 * EXTENT_BYTES
    assert fetcher.skipped_bytes_total == 48 * EXTENT_BYTES
    assert hub.requests == EXTENTS
    for extent in (
        *range(16),
        *range(EXTENTS - 8, EXTENTS),
    ):  # still at hand: on the way to the disk, or kept for a while
        assert await read(fetcher, extent) == CONTENT
    assert hub.requests == EXTENTS

    store.go.set()
    await fetcher.written()
    kept = set(range(EXTENTS - 8, EXTENTS))
    assert store.written == set(range(16)) | kept, "what memory kept meanwhile is written once the disk keeps up"
    assert fetcher.write_backlog_bytes == 0
    assert await read(fetcher, 20) == CONTENT
    await fetcher.written()
    assert 20 in store.written
    await fetcher.close()
