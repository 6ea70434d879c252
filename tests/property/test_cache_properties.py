"""Models of the cache: the block map against a list, the index header against mutation, the store against a dictionary."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from cache_support import BLOCK_BYTES, CAPACITY_BYTES, BlocksMissing, FaultyDisk, File, ManualClock, disk_usage
from hypothesis import given, settings
from hypothesis import strategies as st

from common.blocks import BlockRange, coalesce
from common.errors import CacheWriteError
from spoke.cache.presence import BlockMap
from spoke.cache.quota import FreeSpace, Ledger, Limits
from spoke.cache.store import Store

BLOCK_COUNT = 700  # two extents and a part of a third


def span_of(count: int) -> st.SearchStrategy[BlockRange]:
    return st.tuples(st.integers(0, count - 1), st.integers(1, count)).map(
        lambda pair: BlockRange(pair[0], min(pair[1], count - pair[0]))
    )


def runs(states: Sequence[int], span: BlockRange, value: int) -> list[BlockRange]:
    return coalesce(BlockRange(block, 1) for block in range(span.first_block, span.end_block) if states[block] == value)


@settings(max_examples=40)
@given(
    presence=st.one_of(
        st.just(bytes(BLOCK_COUNT)),
        st.just(b"\1" * BLOCK_COUNT),
        st.binary(min_size=BLOCK_COUNT, max_size=BLOCK_COUNT).map(
            lambda raw: bytes(value % 3 for value in raw)  # 2 is no presence byte: absent
        ),
    ),
    steps=st.lists(st.tuples(st.booleans(), span_of(BLOCK_COUNT), span_of(BLOCK_COUNT)), max_size=12),
)
def test_the_block_map_is_a_list_of_states(presence: bytes, steps: list[tuple[bool, BlockRange, BlockRange]]) -> None:
    blocks = BlockMap.from_presence(presence)
    states = [1 if value == 1 else 0 for value in presence]
    for verify, span, asked in [(False, BlockRange(0, 0), BlockRange(0, BLOCK_COUNT)), *steps]:
        if verify:
            blocks.set_verified(span)
        else:
            cleared = sum(states[block] != 0 for block in range(span.first_block, span.end_block))
            assert blocks.clear(span) == cleared
        for block in range(span.first_block, span.end_block):
            states[block] = 2 if verify else 0
        assert blocks.missing(asked) == runs(states, asked, 0)
        assert blocks.unverified(asked) == runs(states, asked, 1)
        held = coalesce(blocks.present(asked))
        cut = [BlockRange(found.first_block, min(64, found.block_count)) for found in held[:1]]
        assert [blocks.first_present(asked.first_block, asked.end_block, 64)] == (cut or [None])
        part = states[asked.first_block : asked.end_block]
        assert blocks.covers(asked.first_block, asked.end_block) == all(state == 2 for state in part)
        assert blocks.present_count == sum(state != 0 for state in states)
        assert blocks.verified_count == states.count(2)
        per_extent = [sum(state != 0 for state in states[start : start + 256]) for start in range(0, BLOCK_COUNT, 256)]
        assert [blocks.present_in_extent(extent) for extent in range(3)] == per_extent
        assert list(blocks.present_extents()) == [extent for extent in range(3) if per_extent[extent]]
        assert blocks.is_whole == (0 not in states)


@settings(max_examples=100)
@given(
    configured=st.integers(0, 1000),
    floor=st.integers(0, 500),
    free=st.integers(0, 1000),
    moves=st.lists(st.integers(-200, 200), max_size=8),
)
def test_own_writes_do_not_move_the_limit(configured: int, floor: int, free: int, moves: list[int]) -> None:
    """Whenever the disk is looked at, the limit is the same as long as only the cache itself wrote."""
    ledger = Ledger(Limits(configured, floor), FreeSpace(10_000, free, None))
    limit = ledger.capacity_bytes
    assert limit == max(0, min(configured, free - floor))
    for wish in moves:
        move = max(-ledger.used_bytes, min(wish, free))
        ledger.charge(move)
        free -= move
        if free - floor + ledger.used_bytes >= 0:
            ledger.look(FreeSpace(10_000, free, None))
            assert ledger.capacity_bytes == limit


FILES = [File(number, size_bytes) for number, size_bytes in enumerate((5 << 20, (9 << 20) + 77, 4097, 12 << 20))]

step = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 3), st.integers(0, 3000), st.integers(1, 400)),
    st.tuples(st.just("read"), st.integers(0, 3), st.integers(0, 3000), st.integers(1, 300)),
    st.tuples(st.just("nowait"), st.integers(0, 3), st.integers(0, 3000), st.integers(1, 300)),
    st.tuples(st.just("drop"), st.integers(0, 3), st.just(0), st.just(0)),
    st.tuples(st.just("evict"), st.integers(0, 3), st.integers(0, 12), st.just(0)),
    st.tuples(st.just("pin"), st.integers(0, 3), st.just(0), st.just(0)),
    st.tuples(st.just("verify"), st.integers(0, 3), st.just(0), st.just(0)),
    st.tuples(st.just("fault"), st.integers(0, 4), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(0), st.just(0)),
)
FAULTS = ("pwrite", "preadv", "open", "punch_hole", "unlink")


class Model:
    """Runs steps side by side; whatever the interleaving, bytes are right or missing, and limits hold."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.disk = FaultyDisk()
        self.clock = ManualClock()
        self.store = self.open()
        self.pinned: set[int] = set()

    def open(self) -> Store:
        return Store.open(self.cache, CAPACITY_BYTES, 0, 0, Random(3), clock=self.clock, disk=self.disk)

    async def run(self, steps: list[tuple[str, int, int, int]]) -> None:
        running: list[asyncio.Task[None]] = []
        for name, *arguments in steps:
            self.clock.now_s += 1000
            if name in ("restart", "pin"):
                await asyncio.gather(*running)
                running.clear()
            running.append(asyncio.create_task(getattr(self, name)(*arguments)))
            if len(running) >= 4:
                await running.pop(0)
            assert self.store.usage().used_bytes <= CAPACITY_BYTES
        await asyncio.gather(*running)
        assert disk_usage(self.cache) <= CAPACITY_BYTES
        self.disk.heal()
        await self.settle()
        for file in FILES:
            await file.right_bytes(self.store)
        await self.store.close()

    async def settle(self) -> None:
        """Once all is done the books agree with the disk, and whatever was lost can be had again."""
        for number in list(self.pinned):
            await self.pin(number)
        self.clock.now_s += 1000
        await FILES[2].put(self.store)
        await FILES[2].check(self.store)
        assert self.store.usage().bypass is None

    async def write(self, number: int, first: int, count: int) -> None:
        file = FILES[number]
        total = -(-file.size_bytes // BLOCK_BYTES)
        first %= total
        with contextlib.suppress(CacheWriteError):
            await file.put(self.store, BlockRange(first, min(count, total - first)))

    async def read(self, number: int, first: int, count: int) -> None:
        file = FILES[number]
        offset_bytes = first * BLOCK_BYTES % file.size_bytes + 5
        with contextlib.suppress(BlocksMissing):
            await file.check(self.store, offset_bytes, count * BLOCK_BYTES)

    async def nowait(self, number: int, first: int, count: int) -> None:
        file = FILES[number]
        offset_bytes = first * BLOCK_BYTES % file.size_bytes
        got = self.store.read_nowait(file.version, file.size_bytes, offset_bytes, count * BLOCK_BYTES)
        assert got is None or got == file.content[offset_bytes : offset_bytes + count * BLOCK_BYTES]

    async def drop(self, number: int, *_: int) -> None:
        self.store.drop(FILES[number].version)

    async def evict(self, number: int, extent: int, _: int) -> None:
        """Any extent that may go, whatever the policy thinks of it."""
        shelf = self.store._shelf
        file = shelf.find(FILES[number].version, FILES[number].size_bytes)
        if file is None or file.extents is None or file.blocks is None:
            return
        extent %= len(file.extents.ticks)
        if file.extents.pins or extent in file.extents.busy or not file.blocks.present_in_extent(extent):
            return
        first_block = extent * 256
        shelf.free(file, [BlockRange(first_block, min(256, file.blocks.block_count - first_block))])

    async def pin(self, number: int, *_: int) -> None:
        if number in self.pinned:
            self.pinned.remove(number)
            self.store.unpin(FILES[number].version)
        else:
            self.pinned.add(number)
            self.store.pin(FILES[number].version)

    async def verify(self, number: int, *_: int) -> None:
        file = FILES[number]
        if await self.store.verify(file.version, file.size_bytes):
            with contextlib.suppress(BlocksMissing):
                await file.check(self.store)

    async def fault(self, which: int, after: int, _: int) -> None:
        self.disk.fail_once(FAULTS[which], errno.ENOSPC if (which + after) % 2 else errno.EIO, after)

    async def restart(self, *_: int) -> None:
        await self.store.close()
        self.disk.heal()
        self.pinned.clear()
        self.store = self.open()


@settings(max_examples=30)
@given(steps=st.lists(step, min_size=5, max_size=40))
def test_right_bytes_or_missing_whatever_happens(steps: list[tuple[str, int, int, int]]) -> None:
    cache = Path(tempfile.mkdtemp(prefix="headrace-cache-test-"))
    try:

        async def main() -> None:
            await Model(cache / "c").run(steps)

        asyncio.run(main())
    finally:
        shutil.rmtree(cache)
