"""The planner under any trace: deterministic, inside the file and the budget, never twice, and cheap on random access."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim.link_sim import LinkSim, Reader, sequential

from common.blocks import BLOCK_BYTES, BlockRange, byte_length, count_blocks
from spoke.prefetch.planner import Fetch, FileFacts, Planner, ReadSeen

KIB, MIB = 1024, 1024 * 1024
SIZES = (0, 1, 4096, 3 * MIB + 5, 5 * MIB, 40 * MIB + 1, 1 << 30)
FILES = [FileFacts(b"d/%d" % number, number.to_bytes(16, "big"), size) for number, size in enumerate(SIZES)]

offsets = st.one_of(
    st.integers(0, 300).map(lambda number: number * 128 * KIB),
    st.integers(0, 1 << 30),
    st.just("next"),
)
events = st.lists(
    st.one_of(
        st.tuples(
            st.just("read"),
            st.integers(0, len(FILES) - 1),
            offsets,
            st.sampled_from((1, 4096, 16 * KIB, 128 * KIB, 256 * KIB, MIB)),
            st.sampled_from(("hit", "late", "miss")),
        ),
        st.tuples(st.just("arrive"), st.integers(0, 50)),
        st.tuples(st.just("fail"), st.integers(0, 50)),
        st.tuples(st.just("close"), st.integers(0, len(FILES) - 1)),
        st.tuples(st.just("wait"), st.floats(0, 20)),
        st.tuples(st.just("link"), st.floats(0, 1), st.floats(0, 2e9)),
        st.tuples(st.just("evict"), st.integers(0, len(FILES) - 1)),
    ),
    max_size=120,
)
budgets = st.integers(0, 40 * MIB)


def replay(script: list[tuple[object, ...]], budget_bytes: int) -> list[Fetch]:
    """Run the events; check what must always hold; return all fetches."""
    following = {before.path: after for before, after in pairwise(FILES)}
    planner, now_s, fetched, open_now = Planner(following.get), 0.0, [], set()
    outstanding: list[Fetch] = []
    coming: dict[bytes, set[int]] = defaultdict(set)
    places: dict[int, int] = defaultdict(int)
    for event in script:
        now_s += 0.001
        match event:
            case ("read", int(handle), offset, int(length), str(result)):
                file = FILES[handle]
                if handle not in open_now:
                    open_now.add(handle)
                    planner.opened(now_s, handle, file, 1)
                start = places[handle] if offset == "next" else offset
                assert isinstance(start, int)
                places[handle] = start + length
                planner.read(now_s, ReadSeen(handle, 1, file.version, start, length, result))  # type: ignore[arg-type]
            case ("arrive" | "fail" as what, int(which)) if outstanding:
                fetch = outstanding.pop(which % len(outstanding))
                coming[fetch.version] -= set(range(fetch.blocks.first_block, fetch.blocks.end_block))
                (planner.arrived if what == "arrive" else planner.failed)(now_s, fetch.version, fetch.blocks)
            case ("close", int(handle)) if handle in open_now:
                open_now.discard(handle)
                planner.closed(now_s, handle)
            case ("wait", float(seconds)):
                now_s += seconds
            case ("link", float(rtt_s), float(rate)):
                planner.link(rtt_s, rate)
            case ("evict", int(handle)):
                planner.evicted(FILES[handle].version, BlockRange(0, 1000))
        fetches = planner.plan(now_s, budget_bytes)
        assert sum(fetch.blocks.block_count for fetch in fetches) * BLOCK_BYTES <= budget_bytes
        for fetch in fetches:
            file = FILES[int.from_bytes(fetch.version, "big")]
            assert fetch.size_bytes == file.size_bytes
            assert 0 <= fetch.blocks.first_block < fetch.blocks.end_block <= count_blocks(file.size_bytes)
            assert byte_length(fetch.blocks, file.size_bytes) > 0
            wanted = set(range(fetch.blocks.first_block, fetch.blocks.end_block))
            if event[0] != "read" or event[4] != "hit":
                # (A hit shows that what counted as outstanding was there: planning it later is no second fetch.)
                assert not wanted & coming[fetch.version]
            coming[fetch.version] |= wanted
        outstanding += fetches
        fetched += fetches
        if event[0] == "read" and event[4] == "hit":
            file = FILES[int(event[1])]  # type: ignore[call-overload]
            first = (places[int(event[1])] - int(event[3])) // BLOCK_BYTES  # type: ignore[call-overload]
            coming[file.version] -= set(range(first, first + int(event[3]) // BLOCK_BYTES + 2))  # type: ignore[call-overload]
    return fetched


@settings(max_examples=60)
@given(events, budgets)
def test_whatever_happens_plans_are_sound_and_repeatable(script: list[tuple[object, ...]], budget_bytes: int) -> None:
    assert replay(script, budget_bytes) == replay(script, budget_bytes)


@settings(max_examples=20)
@given(
    st.integers(0, 2**32),
    st.sampled_from((256 * MIB, 1 << 30, 16 << 30)),
    st.sampled_from(("pages", "rows", "faults", "aligned", "mixed")),
    st.integers(1, 32),
)
def test_random_access_costs_at_most_a_twentieth(seed: int, size_bytes: int, kind: str, depth: int) -> None:
    dice = random.Random(seed)
    planner = Planner()
    file = FileFacts(b"f", b"f" * 16, size_bytes)
    planner.opened(0.0, 1, file, 1)
    row_bytes = dice.choice((8, 16, 32, 64)) * KIB
    asked: set[int] = set()
    sent: set[int] = set()
    for number in range(600):
        length_bytes = {"pages": 4 * KIB, "rows": row_bytes, "mixed": dice.randrange(1, 33) * 4 * KIB}.get(
            kind, 128 * KIB
        )
        unit_bytes = {"rows": row_bytes, "aligned": 128 * KIB}.get(kind, 4 * KIB)
        offset_bytes = dice.randrange((size_bytes - length_bytes) // unit_bytes) * unit_bytes
        blocks = set(range(offset_bytes // BLOCK_BYTES, (offset_bytes + length_bytes) // BLOCK_BYTES))
        result = "hit" if blocks <= sent else "miss"
        asked |= blocks
        sent |= blocks
        now_s = 0.06 * number / depth
        planner.read(now_s, ReadSeen(1, number % depth, file.version, offset_bytes, length_bytes, result))
        for fetch in planner.plan(now_s, 1 << 30):
            sent |= set(range(fetch.blocks.first_block, fetch.blocks.end_block))
            planner.arrived(now_s, fetch.version, fetch.blocks)
    assert len(sent) <= 1.05 * len(asked)


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(16, 64), st.sampled_from((16 * KIB, 64 * KIB, 128 * KIB)))
def test_many_interleaved_streams_are_all_recognised(seed: int, lanes: int, length_bytes: int) -> None:
    """Shuffled turns, each lane's reads now and then one place out of order."""
    dice = random.Random(seed)
    planner, file = Planner(), FileFacts(b"f", b"f" * 16, 64 << 30)
    planner.opened(0.0, 1, file, 1)
    lane_bytes = file.size_bytes // lanes // BLOCK_BYTES * BLOCK_BYTES
    orders = []
    for _ in range(lanes):
        order = list(range(16))
        for at in range(0, 14, 3):
            if dice.random() < 0.5:
                order[at], order[at + 1] = order[at + 1], order[at]
        orders.append(order)
    recognised: set[int] = set()
    for step in range(16):
        for lane in dice.sample(range(lanes), lanes):
            offset_bytes = lane * lane_bytes + orders[lane][step] * length_bytes
            planner.read(step * 0.01, ReadSeen(1, 1, file.version, offset_bytes, length_bytes, "late"))
        for fetch in planner.plan(step * 0.01, 1 << 30):
            recognised.add(fetch.blocks.first_block * BLOCK_BYTES // lane_bytes)
    assert recognised == set(range(lanes))


# --- over a link ---------------------------------------------------------------------------------------------


def run(lanes: int, size_bytes: int, *, rtt_s: float = 0.06, rate: float = 125e6, reader_rate: float = 0.0) -> tuple[
    LinkSim, list[Reader]
]:  # fmt: skip
    sim = LinkSim(Planner(), rtt_s, rate)
    file = FileFacts(b"f", b"f" * 16, size_bytes)
    part = size_bytes // lanes
    readers = [
        Reader(lane, file, sequential(lane * part, (lane + 1) * part), rate_bytes_per_s=reader_rate)
        for lane in range(lanes)
    ]
    sim.run(readers)
    return sim, readers


def test_a_cold_sequential_reader_fills_the_link() -> None:
    sim, (reader,) = run(1, 192 * MIB)
    assert reader.rate_after(0.5) >= 0.95 * sim.rate_bytes_per_s
    assert 192 * MIB / sim.now_s >= 0.9 * sim.rate_bytes_per_s, "the start included"
    assert sim.amplification == 1.0


def test_sixteen_interleaved_cold_streams_fill_the_link() -> None:
    sim, readers = run(16, 192 * MIB)
    assert 192 * MIB / sim.now_s >= 0.9 * sim.rate_bytes_per_s
    ends = sorted(reader.done_at_s or 0.0 for reader in readers)
    assert ends[0] >= 0.7 * ends[-1], "and share it about evenly"


def test_a_reader_of_300_mb_a_second_is_fed_without_waiting() -> None:
    planner_hits = run(1, 256 * MIB, rate=1250e6, reader_rate=300e6)[0]
    assert planner_hits.planner is not None
    card = planner_hits.planner.scorecard
    assert card.misses == 1
    assert card.late <= 20
    assert card.hits >= 0.99 * (card.hits + card.late + card.misses)


def test_a_very_long_link_is_filled_too() -> None:
    sim, (reader,) = run(1, 384 * MIB, rtt_s=0.9, rate=50e6)
    assert reader.rate_after(5.0) >= 0.9 * sim.rate_bytes_per_s


@pytest.mark.parametrize("lanes", [1, 16])
def test_without_prefetch_the_same_readers_crawl(lanes: int) -> None:
    sim = LinkSim(None, 0.06, 125e6)
    file = FileFacts(b"f", b"f" * 16, lanes * 4 * MIB)
    readers = [Reader(lane, file, sequential(lane * 4 * MIB, (lane + 1) * 4 * MIB)) for lane in range(lanes)]
    sim.run(readers)
    assert readers[0].rate_after(0.0) <= 0.05 * sim.rate_bytes_per_s
