"""Any order, any number of ranks and workers, any start, any drift: found, followed, within bounds, and the same each time."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from order_support import KIB, MIB, Job, facts, growing, recorded, shared_out

from common.blocks import count_blocks
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.orders import Reason, Step
from spoke.prefetch.planner import Planner


def documents(dice: Random, files: list[FileFacts], count: int, longest_bytes: int) -> list[Step]:
    steps = []
    for _ in range(count):
        file = dice.randrange(len(files))
        length_bytes = dice.randrange(1, longest_bytes)
        steps.append(Step(file, dice.randrange(files[file].size_bytes - length_bytes), length_bytes))
    return steps


@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**32),
    lanes=st.integers(1, 6),
    readers=st.integers(1, 3),
    workers=st.integers(1, 8),
    batch=st.integers(1, 24),
    start=st.integers(0, 1000),
    drift=st.sampled_from((0.0, 0.05, 0.3)),
    skipped=st.sampled_from((0.0, 0.2)),
    faults=st.booleans(),
    reason=st.sampled_from((Reason.PLAN, Reason.RECIPE, Reason.LEARNED)),
    delay=st.integers(0, 40),
)
def test_readers_are_found_and_served(
    seed: int, lanes: int, readers: int, workers: int, batch: int, start: int, drift: float, skipped: float,
    faults: bool, reason: Reason, delay: int,
) -> None:  # fmt: skip
    dice = Random(seed)
    files = [facts(number, 512 * MIB + number) for number in range(4)]
    steps = [documents(dice, files, 1600, 20 * KIB) for _ in range(lanes)]
    planner = Planner()
    planner.link(0.06, 125e6)
    learned = reason is Reason.LEARNED  # it holds READs, not what was wanted
    lanes_of = [recorded(files, lane, faults=faults) for lane in steps] if learned else steps
    planner.add_order(0.0, growing(files, lanes_of, reason))
    job = Job(planner, files, faults=faults, delay_reads=delay)
    job.pump()
    mine = dice.sample(range(lanes), min(readers, lanes))
    turns = [shared_out(steps[lane], workers, batch, dice, start) for lane in mine]
    expected: list[bool] = []
    for _ in range(500 * len(turns)):
        step = next(dice.choice(turns), None)
        if step is None:
            break
        if dice.random() < skipped:
            continue
        if dice.random() < drift:
            job.read(dice.randrange(4), dice.randrange(100_000) * 4096, 4096)
        job.step(step)
        expected.append(job.results[-1] == "hit")
    warm = len(mine) * (3 * workers + 8) + 3 * delay + 24
    settled = expected[warm:]
    assert len(settled) < 50 or sum(settled) >= 0.97 * len(settled), (sum(settled), len(settled))
    (found,) = planner.orders()
    if reason is not Reason.PLAN:  # a plan's lanes are all this node's, and begun unasked
        assert {entry["lane"] for entry in found["lanes"]} <= set(mine)
    for fetch in job.fetches:
        size_bytes = next(file.size_bytes for file in files if file.version == fetch.version)
        assert 0 <= fetch.blocks.first_block < fetch.blocks.end_block <= count_blocks(size_bytes)
        assert fetch.size_bytes == size_bytes


@settings(max_examples=5)
@given(seed=st.integers(0, 2**32), budget=st.integers(0, 4 * MIB))
def test_it_keeps_to_the_budget_and_is_the_same_each_time(seed: int, budget: int) -> None:
    def run() -> list[object]:
        dice = Random(seed)
        files = [facts(number, 16 * MIB) for number in range(3)]
        steps = [documents(dice, files, 200, 200 * KIB) for _ in range(2)]
        planner = Planner()
        planner.add_order(0.0, growing(files, steps))
        job = Job(planner, files)
        told: list[object] = []
        for step in shared_out(steps[1], 3, 5, dice):
            job.now_s += 0.001
            job.read(step.file, step.offset_bytes & ~4095, step.length_bytes)
            fetches = planner.plan(job.now_s, budget)
            assert sum(fetch.blocks.block_count for fetch in fetches) * 4096 <= budget
            told += fetches
        return [*told, *job.fetches, planner.orders()]

    assert run() == run()
