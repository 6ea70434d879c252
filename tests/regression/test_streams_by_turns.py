"""One thread that reads 16 places of a file by turns waited a round trip twice for each: two seconds of a job of five."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from sim.link_sim import LinkSim, Reader

from common.blocks import BLOCK_BYTES
from spoke.prefetch.planner import FileFacts, Planner

MIB = 1024 * 1024
READ = 128 * 1024
RTT_S, RATE_BYTES_PER_S = 0.06, 37.5e6

Part = tuple[int, int]


def by_turns(parts: list[Part]) -> Iterator[tuple[int, int]]:
    at = [start for start, _ in parts]
    while any(place < end for place, (_, end) in zip(at, parts, strict=True)):
        for lane, (_, end) in enumerate(parts):
            if at[lane] < end:
                yield at[lane], min(READ, end - at[lane])
                at[lane] += READ


def equal(count: int, size_bytes: int) -> list[Part]:
    step = size_bytes // count
    return [(number * step, (number + 1) * step) for number in range(count)]


def uneven(count: int, size_bytes: int, seed: int = 2) -> list[Part]:
    dice = random.Random(seed)
    starts = [0, *sorted(cut * BLOCK_BYTES for cut in dice.sample(range(1, size_bytes // BLOCK_BYTES), count - 1))]
    parts = list(zip(starts, [*starts[1:], size_bytes], strict=True))
    dice.shuffle(parts)
    return parts


def waited_rtts(parts: list[Part]) -> float:
    """Over what the link takes for the bytes."""
    size_bytes = max(end for _, end in parts)
    sim = LinkSim(Planner(), RTT_S, RATE_BYTES_PER_S)
    reader = Reader(1, FileFacts(b"f", b"f" * 16, size_bytes), by_turns(parts), depth=1)
    sim.run([reader])
    assert reader.done_at_s is not None
    assert sim.amplification <= 1.01
    return (reader.done_at_s - size_bytes / RATE_BYTES_PER_S) / RTT_S


@pytest.mark.parametrize(
    ("parts", "most_rtts"),
    [
        (equal(1, 96 * MIB), 3.0),
        (equal(16, 96 * MIB), 8.5),  # 0.85 of the rate of one; twice 16 before
        (equal(64, 192 * MIB), 15.0),  # 128 and more before
        (uneven(16, 96 * MIB), 22.0),  # nothing tells where they begin
    ],
    ids=["one", "16", "64", "uneven"],
)
def test_streams_by_turns_cost_a_few_round_trips_and_not_two_each(parts: list[Part], most_rtts: float) -> None:
    assert waited_rtts(parts) <= most_rtts


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_parts_each_costs_its_beginning_and_little_else(seed: int) -> None:
    dice = random.Random(seed)
    count = dice.randrange(3, 49)
    assert waited_rtts(uneven(count, 96 * MIB, seed)) <= count + 10
