"""``warm`` over files that are partly cached: it took more room for a window than it gave back, and stood still."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from random import Random

import pytest

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockRange, whole_file
from common.digest import block_digests
from common.entries import Change, Entry, Kind
from common.wire.messages import Codec, Data
from spoke.cache.store import Store
from spoke.fetcher import Fetcher
from spoke.hub_client.client import Request
from spoke.namespace.tree import Tree
from spoke.selection import Selection
from spoke.warm import Warmer

VERSION = b"w" * 16
EXTENTS = 40


class Hub:
    """A client whose hub answers each request at once."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.asked: list[BlockRange] = []

    def spread(self, blocks: BlockRange) -> list[BlockRange]:
        return [blocks]

    def submit(self, request: Request) -> None:
        asyncio.get_running_loop().call_soon(self._answer, request)

    def _answer(self, request: Request) -> None:
        for blocks in request.ranges:
            self.asked.append(blocks)
            payload = self._content[blocks.first_block * BLOCK_BYTES : blocks.end_block * BLOCK_BYTES]
            digests = block_digests(VERSION, blocks.first_block, payload)
            request.sink.arrived(request, Data(blocks, Codec.RAW, len(payload), digests, True, payload))
        request.done = True
        request.sink.finished(request)


class Observer:
    def arrived(self, version: bytes, blocks: BlockRange, raw_bytes: int) -> None: ...
    def failed(self, version: bytes, blocks: BlockRange) -> None: ...
    def corrupt_on_wire(self, version: bytes, block: int) -> None: ...


async def test_warm_ends_when_every_window_is_partly_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WARM_WINDOW_BYTES", EXTENT_BLOCKS * BLOCK_BYTES)
    monkeypatch.setattr(limits, "WARM_OUTSTANDING_BYTES", 4 * EXTENT_BLOCKS * BLOCK_BYTES)
    content = Random(5).randbytes(EXTENTS * EXTENT_BLOCKS * BLOCK_BYTES - 7)
    tree = Tree()
    tree.apply(Change(1, b"file", Entry(Kind.FILE, 0o644, len(content), 0, VERSION)))
    store = Store.open(tmp_path / "cache", 256 << 20, 0, 0, Random(1))
    selection = Selection()
    selection.add_paths(tree, [b""])
    hub = Hub(content)
    fetcher = Fetcher(hub, store, Observer(), time.monotonic, Random(1))
    fetcher.start()
    try:
        for extent in range(EXTENTS):  # all but the last quarter of each window is here
            blocks = BlockRange(extent * EXTENT_BLOCKS, EXTENT_BLOCKS * 3 // 4)
            data = content[blocks.first_block * BLOCK_BYTES : blocks.end_block * BLOCK_BYTES]
            await store.write(
                VERSION, len(content), blocks.first_block, data, block_digests(VERSION, blocks.first_block, data)
            )
        async with asyncio.timeout(20):
            facts = [facts async for facts in Warmer(selection, store, fetcher, time.monotonic).run()]
        assert facts[-1]["verified_bytes"] == len(content)
        assert facts[-1]["files_done"] == 1
        assert store.state(VERSION, len(content)) == "verified"
        assert sum(blocks.block_count for blocks in hub.asked) == whole_file(len(content)).block_count - EXTENTS * 192
    finally:
        await fetcher.close()
        await store.close()
