"""The planner's hands: what is planned together is not asked for in one go."""

from __future__ import annotations

import asyncio

import pytest

from common.blocks import EXTENT_BYTES, BlockRange
from spoke.ahead import Ahead
from spoke.metrics import Counts
from spoke.prefetch.planner import Planner
from spoke.reads import Handle

READ = 128 * 1024
STREAMS = 8


class Link:
    """A far hub that nothing comes from, and the fetcher before it."""

    rate_bytes_per_s, rtt_s, up = 125e6, 0.06, (True,)
    prefetch_bytes, write_backlog_bytes, held_bytes, is_behind = 1 << 30, 0, 0, False

    def __init__(self) -> None:
        self.memory = self.links = self
        self.prefetch_outstanding_bytes = 0
        self.asked: list[tuple[bytes, BlockRange]] = []

    def prefetch_room_bytes(self, _held_bytes: int) -> int:
        return self.prefetch_bytes

    def prefetch(self, version: bytes, _size: int, blocks: BlockRange, _why: int, *, to_keep: bool) -> int:
        self.asked.append((version, blocks))
        self.prefetch_outstanding_bytes += blocks.block_count * 4096
        return blocks.block_count * 4096


def begun(link: Link) -> Ahead:
    """Streams that begin together, and nothing asked for yet."""
    now_s = 0.0
    ahead = Ahead(Planner(), Counts(), lambda: now_s)
    handles = [Handle(number, b"%d" % number, b"%016d" % number, 256 << 20) for number in range(1, STREAMS + 1)]
    for handle in handles:
        ahead.opened(handle, handle.handle_id)
    for offset_bytes in range(0, 4 * EXTENT_BYTES, READ):
        now_s += 0.001
        for handle in handles:
            ahead.read(handle, handle.handle_id, offset_bytes, READ, "late")
    ahead.attach(link, link)  # type: ignore[arg-type]
    return ahead


async def test_streams_that_begin_together_are_asked_for_a_few_pieces_in_each_step() -> None:
    """Sixty pieces in one go took 12 ms, in which nobody was answered."""
    link = Link()
    ahead = begun(link)
    ahead.look_again()
    in_steps = [len(link.asked)]
    for _ in range(20):
        before = len(link.asked)
        await asyncio.sleep(0)
        in_steps.append(len(link.asked) - before)
    assert max(in_steps) <= 8
    assert sum(in_steps) > 16
    assert {version for version, _ in link.asked} == {b"%016d" % number for number in range(1, STREAMS + 1)}


async def test_a_piece_that_cannot_be_asked_for_does_not_keep_the_rest() -> None:
    class Failing(Link):
        failed = False

        def prefetch(self, version: bytes, _size: int, blocks: BlockRange, _why: int, *, to_keep: bool) -> int:
            if not self.failed:
                self.failed = True
                raise RuntimeError("unforeseen")
            return super().prefetch(version, _size, blocks, _why, to_keep=to_keep)

    link = Failing()
    ahead = begun(link)
    with pytest.raises(RuntimeError):
        ahead.look_again()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(link.asked) > 16
