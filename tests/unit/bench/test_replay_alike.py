"""What READs alone tell of files of one kind, without an order: pieces of equal length, and chunks read whole, at hardly more bytes."""

from __future__ import annotations

import pytest

from bench.replay.pages import MIB, Scale
from bench.replay.patterns import make
from bench.replay.runs import Bench, Report, world_for


def reports(name: str, seed: int, reads: int) -> dict[str, Report]:
    trace = make(name, Scale(seed, 256 * MIB, reads)).at_load(62.5e6)
    bench = Bench(trace, world_for(trace, 0.06, 125e6, 0.25), seed)
    return {policy: bench.run(policy) for policy in ("none", "planner")}


@pytest.mark.parametrize("seed", [1, 2])
def test_chunks_of_an_array_at_random_places_are_read_at_nearly_full_speed(seed: int) -> None:
    found = reports("tensorstore", seed, 2000)
    assert found["planner"].speed >= 1.2 * found["none"].speed
    assert found["planner"].wan_bytes <= 1.1 * found["none"].wan_bytes


@pytest.mark.parametrize("seed", [1, 2])
def test_chunks_read_whole_in_random_order_are_fetched_whole(seed: int) -> None:
    found = reports("litdata", seed, 4500)
    assert found["planner"].speed >= 1.2 * found["none"].speed
    assert found["planner"].wan_bytes <= 1.1 * found["none"].wan_bytes
