"""A stream fetched 384 MiB ahead over a fast link while the cache disk was behind: what landed was given up before its reader came, who
then missed it, and all that was ahead was asked for again: 51 GiB of requests for 3 GiB, at a third of the interpreter's time."""

from __future__ import annotations

import asyncio

import pytest

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange
from spoke.ahead import Ahead
from spoke.metrics import Counts
from spoke.prefetch.planner import Planner
from spoke.reads import Handle

MIB = 1 << 20
READ = 1 * MIB
SIZE = 4096 * MIB
KEPT = 64 * MIB
VERSION = b"v" * 16


class Disk:
    """A fetcher whose fetches land at once, and a link that wants much in flight. ``is_behind``: of its cache disk."""

    rate_bytes_per_s, rtt_s, up = 1.25e9, 0.06, (True,)
    prefetch_bytes, bypass_bytes, write_backlog_bytes, held_bytes, prefetch_outstanding_bytes = 256 * MIB, KEPT, 0, 0, 0

    def __init__(self) -> None:
        self.now_s, self.is_behind, self.there_bytes = 0.0, False, 0
        self.memory = self.links = self
        self.ahead = Ahead(Planner(), Counts(), lambda: self.now_s, None)
        self.ahead.attach(self, self)  # type: ignore[arg-type]
        self.handle = Handle(1, b"f", VERSION, SIZE)

    def prefetch_room_bytes(self, _held_bytes: int) -> int:
        return self.prefetch_bytes

    def prefetch(self, version: bytes, _size: int, blocks: BlockRange, _why: int, *, to_keep: bool) -> int:
        self.there_bytes = max(self.there_bytes, blocks.end_block * BLOCK_BYTES)
        asyncio.get_running_loop().call_soon(self.ahead.arrived, version, blocks, blocks.block_count * BLOCK_BYTES)
        return blocks.block_count * BLOCK_BYTES

    async def read(self, from_bytes: int, to_bytes: int) -> int:
        """Every READ has to wait. Returns how far ahead of it lay there at most."""
        most_bytes = 0
        for offset_bytes in range(from_bytes, to_bytes, READ):
            self.now_s += READ / 1e9
            self.ahead.read(self.handle, 1, offset_bytes, READ, "late")
            for _ in range(200):
                await asyncio.sleep(0)
            most_bytes = max(most_bytes, self.there_bytes - offset_bytes - READ)
        return most_bytes


@pytest.mark.parametrize("is_behind", [False, True])
def test_streams_stay_within_what_memory_keeps_while_the_disk_is_behind(*, is_behind: bool) -> None:
    async def run() -> None:
        disk = Disk()
        disk.ahead.opened(disk.handle, 1)
        disk.is_behind = is_behind
        most_bytes = await disk.read(0, 512 * MIB)
        if not is_behind:
            assert most_bytes == 384 * MIB
            return
        assert KEPT // 2 <= most_bytes <= KEPT
        disk.is_behind = False
        assert await disk.read(512 * MIB, 600 * MIB) > 2 * KEPT, "and no longer than that"

    asyncio.run(run())


def test_a_window_that_is_large_already_is_not_filled() -> None:
    async def run() -> None:
        disk = Disk()
        disk.ahead.opened(disk.handle, 1)
        await disk.read(0, 256 * MIB)
        disk.is_behind = True
        lay_bytes = disk.there_bytes
        await disk.read(256 * MIB, 400 * MIB)
        assert disk.there_bytes == lay_bytes
        await disk.read(400 * MIB, lay_bytes + 100 * MIB)
        assert lay_bytes < disk.there_bytes <= lay_bytes + 100 * MIB + KEPT

    asyncio.run(run())


def test_streams_run_less_far_ahead_while_the_disk_catches_up() -> None:
    """Over loopback a window of 186 MiB filled 230 buffers, made anew, with what nobody was near: a seventh of the spoke's time."""

    async def run() -> None:
        disk = Disk()
        disk.rtt_s = 0.001
        ample_bytes = 2 * limits.PREFETCH_OUTSTANDING_MIN_BYTES  # a short path wants no more than that in flight
        disk.ahead.opened(disk.handle, 1)
        disk.write_backlog_bytes = ample_bytes + 1
        assert ample_bytes // 2 <= await disk.read(0, 512 * MIB) <= ample_bytes
        disk.write_backlog_bytes = ample_bytes
        assert await disk.read(512 * MIB, 600 * MIB) > 2 * ample_bytes, "and no longer than that"

    asyncio.run(run())


def test_on_a_long_path_they_run_as_far_ahead_as_it_wants() -> None:
    async def run() -> None:
        disk = Disk()
        disk.write_backlog_bytes = 200 * MIB  # 10 Gbit/s bring that in 170 ms
        disk.ahead.opened(disk.handle, 1)
        assert await disk.read(0, 512 * MIB) == 384 * MIB

    asyncio.run(run())
