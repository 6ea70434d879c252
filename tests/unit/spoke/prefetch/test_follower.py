"""A job is found in an order by what it reads, and everything it reads next is there before it asks."""

from __future__ import annotations

from random import Random

import pytest
from order_support import FAULT, KIB, MIB, Job, facts, growing, lane_of, shared_out, shuffled_rows

from common import limits
from common.blocks import BlockRange
from common.errors import OrderError, PlanTooLong
from spoke.orders.growing import GrowingOrder
from spoke.prefetch.next_use import NEVER
from spoke.prefetch.orders import Reason, Step
from spoke.prefetch.planner import Planner

FILES = [facts(number, 32 * MIB) for number in range(4)]
ROW = 16 * KIB
LANES = shuffled_rows(FILES, ROW, 4, Random(3))
DELAY = 16


def job_with(
    lanes: list[list[Step]] = LANES, *, files: list = FILES, reason: Reason = Reason.RECIPE, faults: bool = False
) -> Job:
    planner = Planner()
    planner.link(0.06, 125e6)
    planner.add_order(0.0, growing(files, lanes, reason))
    job = Job(planner, files, faults=faults, delay_reads=DELAY)
    job.pump()
    return job


def random_documents(count: int, seed: int = 5) -> list[Step]:
    dice = Random(seed)
    return [
        Step(dice.randrange(4), dice.randrange(32 * MIB - 64 * KIB), dice.randrange(100, 20 * KIB))
        for _ in range(count)
    ]


def test_two_reads_find_the_place_and_the_rest_is_there() -> None:
    job = job_with()
    for step in LANES[2][:600]:
        job.step(step)
    assert job.results[:2] == ["miss", "miss"]
    assert job.hits(DELAY + 4) == 1.0
    assert lane_of(job.planner) == [2], "other lanes are not touched"
    assert job.planner.orders()[0]["wasted_bytes"] == 0


@pytest.mark.parametrize("start", [0, 777, 1500])
@pytest.mark.parametrize(("workers", "batch"), [(1, 8), (4, 8), (16, 4), (8, 64)])
def test_workers_that_share_a_lane_are_found_anywhere(start: int, workers: int, batch: int) -> None:
    job = job_with()
    for step in shared_out(LANES[1], workers, batch, Random(1), start):
        job.step(step)
    assert job.hits(2 * workers + 2 * DELAY) >= 0.99
    assert lane_of(job.planner) == [1]
    assert job.planner.orders()[0]["state"] == "done"


def test_several_lanes_at_once() -> None:
    job, dice = job_with(), Random(2)
    readers = [shared_out(LANES[lane], 4, 8, dice) for lane in (0, 3)]
    for _ in range(1500):
        step = next(dice.choice(readers), None)
        if step is not None:
            job.step(step)
    assert job.hits(64) >= 0.99
    assert lane_of(job.planner) == [0, 3]


def test_page_faults_are_foretold_as_the_kernel_sends_them() -> None:
    lanes = [random_documents(3000)]
    job = job_with(lanes, faults=True)
    for step in shared_out(lanes[0], 4, 24, Random(1)):
        job.step(step)
    assert job.hits(64) >= 0.99
    fetch = job.fetches[-1]
    assert fetch.reason is Reason.RECIPE


def test_a_plan_that_is_read_by_faults_is_foretold_anew() -> None:
    """Nothing tells before the first read how a plan will be read."""
    lanes = [random_documents(3000)]
    job = job_with(lanes, faults=True, reason=Reason.PLAN)
    for step in lanes[0]:
        job.step(step)
    assert job.hits(4 * DELAY) >= 0.99


def test_a_declared_plan_is_fetched_before_anybody_reads() -> None:
    job = job_with(reason=Reason.PLAN)
    fetched_bytes = sum(fetch.blocks.block_count for fetch in job.fetches) * 4096
    assert 8 * MIB <= fetched_bytes <= limits.ORDER_START_BYTES + MIB
    assert {fetch.reason for fetch in job.fetches} == {Reason.PLAN}
    assert job.planner.orders()[0]["state"] == "waiting"
    for step in LANES[0][:200]:
        job.step(step)
    assert job.hits(DELAY) == 1.0


def test_a_recipe_waits_for_its_first_reader() -> None:
    job = job_with()
    assert job.fetches == []
    assert job.planner.orders()[0]["state"] == "waiting"


def test_reads_in_no_order_are_passed_over() -> None:
    job, dice = job_with(), Random(4)
    in_order = []
    for step in shared_out(LANES[0], 4, 8, dice):
        if dice.random() < 0.3:
            job.read(dice.randrange(4), dice.randrange(7000) * 4096, 4096)
        job.step(step)
        in_order.append(job.results[-1])
    assert in_order[64:].count("hit") >= 0.99 * len(in_order[64:])


def test_steps_that_are_left_out_do_not_hold_it_up() -> None:
    job, dice = job_with(), Random(4)
    for step in LANES[0]:
        if dice.random() < 0.8:
            job.step(step)
    assert job.hits(64) >= 0.99
    assert job.planner.orders()[0]["state"] in ("locked", "done")


def test_after_a_jump_it_is_found_anew() -> None:
    job = job_with()
    for step in LANES[0][:300]:
        job.step(step)
    jumped_at = len(job.results)
    for step in LANES[0][1200:1500]:
        job.step(step)
    assert job.hits(jumped_at + 2 * DELAY + 16) == 1.0


def test_a_job_that_starts_over_is_found_anew() -> None:
    """Its data are gone meanwhile; what was read before counts for nothing."""
    job = job_with()
    for step in LANES[0][:500]:
        job.step(step)
    for have in job.have.values():
        have[:] = bytes(len(have))
    again_at = len(job.results)
    for step in LANES[0][:400]:
        job.step(step)
    assert job.hits(again_at + 2 * DELAY + 16) >= 0.99


def test_what_was_learned_comes_again_after_its_end() -> None:
    job = job_with([LANES[0][:1000]], reason=Reason.LEARNED)
    job.keep = False
    for _ in range(3):
        for step in LANES[0][:1000]:
            job.step(step)
    assert job.hits(2 * DELAY, 1000) == 1.0
    assert job.hits(1000) >= 0.99


def test_the_wrong_order_costs_little_and_is_distrusted_or_never_found() -> None:
    wrong = shuffled_rows(FILES, ROW, 4, Random(99))
    job = job_with(wrong)
    for step in [*LANES[0], *LANES[1]]:
        job.step(step)
    fetched_bytes = sum(fetch.blocks.block_count for fetch in job.fetches) * 4096
    assert fetched_bytes <= 3 * limits.PREFETCH_GATE_ALLOWANCE_BYTES


def test_a_plan_that_nobody_follows_is_given_up() -> None:
    """Others read the same files, elsewhere."""
    files = [facts(number, 512 * MIB) for number in range(4)]
    job, dice = job_with(files=files, reason=Reason.PLAN), Random(6)
    for _ in range(2500):
        job.read(dice.randrange(4), 64 * MIB + dice.randrange(100_000) * 4096, 4096)
    (found,) = job.planner.orders()
    assert found["lanes"] == []
    assert found["wasted_bytes"] >= 8 * MIB


def test_long_steps_are_fetched_bit_by_bit() -> None:
    """Whole shards, read in READs of 128 KiB."""
    files = [facts(number, 24 * MIB) for number in range(20)]
    numbers = list(range(20))
    Random(1).shuffle(numbers)
    lanes = [[Step(number, 0, 24 * MIB) for number in numbers]]
    job = job_with(lanes, files=files)
    for number in numbers:
        for offset_bytes in range(0, 24 * MIB, FAULT):
            job.read(number, offset_bytes, FAULT)
    assert job.hits(24 * MIB // FAULT * 8) >= 0.999
    seen = [
        (fetch.version, block) for fetch in job.fetches for block in range(*fetch.blocks[:1], fetch.blocks.end_block)
    ]
    assert len(seen) <= 1.02 * 20 * 24 * MIB // 4096


def test_nothing_is_guessed_where_the_order_knows() -> None:
    """Files small enough to be taken whole, of which a row each is read."""
    files = [facts(number, 2 * MIB) for number in range(300)]
    dice = Random(8)
    steps = [Step(number, dice.randrange(100) * 4096, 4096) for number in range(300)] * 2
    dice.shuffle(steps)
    job = job_with([steps], files=files)
    for step in steps:
        job.step(step)
    guessed = {fetch.version for fetch in job.fetches if fetch.reason is not Reason.RECIPE}
    assert len(guessed) <= 16, "only before the place was found"


def test_next_use_counts_steps_and_knows_never() -> None:
    rows = LANES[0]
    job = job_with([rows[:800]])
    planner = job.planner
    assert planner.next_use(FILES[0].version, BlockRange(0, 256)) is None, "nobody follows it yet"
    for step in rows[:100]:
        job.step(step)
    position = job.planner.orders()[0]["lanes"][0]["position"]
    for ahead in (150, 300, 700):
        step = rows[ahead]
        extent = step.offset_bytes // MIB
        uses = [
            at for at in range(position, 800) if rows[at].file == step.file and rows[at].offset_bytes // MIB == extent
        ]
        found = planner.next_use(FILES[step.file].version, BlockRange(extent * 256, 256))
        assert found is not None
        assert abs(found - (uses[0] - position)) <= 1
    assert planner.next_use(b"unknown" * 2 + b"xx", BlockRange(0, 256)) is None
    for step in rows[100:800]:
        job.step(step)
    assert planner.next_use(FILES[rows[0].file].version, BlockRange(rows[0].offset_bytes // MIB * 256, 256)) == NEVER


def test_a_growing_plan_is_followed_as_it_grows() -> None:
    planner = Planner()
    order = GrowingOrder("plan", Reason.PLAN)
    for file in FILES:
        order.add_file(file)
    planner.add_order(0.0, order)
    job = Job(planner, FILES, delay_reads=4)
    for start in range(0, 1200, 100):
        for step in LANES[0][start : start + 100]:
            order.append(0, *step)
        planner.order_grew(job.now_s, "plan")
        job.pump()
        for step in LANES[0][max(0, start - 50) : start + 50]:
            job.step(step)
    assert job.hits(8) >= 0.98


def test_names_are_unique_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ORDERS_MAX_ACTIVE", 2)
    planner = Planner()
    planner.add_order(0.0, GrowingOrder("one", Reason.PLAN))
    with pytest.raises(OrderError, match="one"):
        planner.add_order(0.0, GrowingOrder("one", Reason.PLAN))
    planner.add_order(0.0, GrowingOrder("two", Reason.PLAN))
    with pytest.raises(PlanTooLong):
        planner.add_order(0.0, GrowingOrder("three", Reason.PLAN))
    assert planner.drop_order("one")
    assert not planner.drop_order("one")
    assert [found["name"] for found in planner.orders()] == ["two"]


def test_what_it_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ORDER_AHEAD_MAX_STEPS", 50)
    monkeypatch.setattr(limits, "ORDER_CURSORS_MAX", 2)
    monkeypatch.setattr(limits, "ORDER_MARK_CHUNKS_MAX", 1)
    monkeypatch.setattr(limits, "ORDER_VOTES_MAX", 20)
    monkeypatch.setattr(limits, "ORDER_FILES_KNOWN_MAX", 2)
    job, dice = job_with(), Random(1)
    readers = [shared_out(lane, 4, 8, dice) for lane in LANES]
    for _ in range(1500):
        step = next(dice.choice(readers), None)
        if step is not None:
            job.step(step)
    follower = job.planner._following._followers["an order"]
    assert len(follower._places.cursors) <= 2
    assert all(len(cursor.items) + len(cursor.behind) <= 50 for cursor in follower._places.cursors)
    assert len(follower._pieces.marks._chunks) <= 1
    assert len(follower._places.finder.votes) <= 20
    assert len(follower._foretelling._files) <= 3
    listed = {id(item) for item in follower._pieces.predictions.items()}
    held = {id(item) for cursor in follower._places.cursors for item in [*cursor.items, *cursor.behind, *cursor.trail]}
    assert listed <= held


def test_a_failed_fetch_pauses_the_order() -> None:
    lanes = [random_documents(3000)]
    job = job_with(lanes, faults=True)
    job.delay_reads = 0
    for step in lanes[0][:100]:
        job.step(step)
    fetch = job.fetches[-1]
    job.planner.failed(job.now_s, fetch.version, fetch.blocks)
    before = len(job.fetches)
    for step in lanes[0][100:120]:
        job.step(step)
    assert len(job.fetches) == before
    job.now_s += limits.PREFETCH_FAILURE_PAUSE_S
    for step in lanes[0][120:400]:
        job.step(step)
    assert len(job.fetches) > before


def test_steps_that_cost_nothing_are_not_held_against_it() -> None:
    """Everything is cached, and most of it is read where the spoke does not see it."""
    lanes = [random_documents(3000)]
    job = job_with(lanes, faults=True)
    for number, step in enumerate(lanes[0]):
        if number < 8 or number % 10 == 0:
            job.step(step)
        for fetch in job.fetches:
            job.planner.asked(fetch, 0)
        job.fetches.clear()
    (found,) = job.planner.orders()
    assert found["state"] != "distrusted"
    assert found["wasted_bytes"] <= 64 * MIB
