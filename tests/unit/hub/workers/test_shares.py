"""The total rate divided between serving processes: never more than it, nobody starved, settled within a few looks."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import limits
from hub.workers.shares import Claim, Shares, divide

TOTAL = 100e6

claims = st.lists(
    st.builds(
        Claim,
        st.floats(0, 6400, allow_nan=False),
        st.none() | st.floats(0, 1e11, allow_nan=False, allow_infinity=False),
    ),
    min_size=1,
    max_size=limits.WORKERS_MAX,
)


@given(total=st.floats(1, 1e11), claimed=claims)
def test_never_more_than_the_total_and_nobody_is_starved(total: float, claimed: list[Claim]) -> None:
    shares = divide(total, claimed)
    assert sum(shares) <= total * (1 + 1e-12)
    assert sum(shares) >= total * (1 - 1e-9), "and all of it is given"
    assert min(shares) >= total * min(limits.WORKER_IDLE_SHARE, 0.5 / len(claimed)) * (1 - 1e-9)


@given(total=st.floats(1, 1e11), claimed=claims)
def test_who_wants_more_than_it_has_has_no_less_by_weight_than_any_other_that_waits(
    total: float, claimed: list[Claim]
) -> None:
    floor = total * min(limits.WORKER_IDLE_SHARE, 0.5 / len(claimed))
    shares = divide(total, claimed)
    by_weight = [(share - floor) / max(claim.weight, 0.01) for share, claim in zip(shares, claimed, strict=True)]
    hungry = [
        per_weight
        for per_weight, claim, share in zip(by_weight, claimed, shares, strict=True)
        if claim.wanted_bytes_per_s is None or share < claim.wanted_bytes_per_s * (1 - 1e-9)
    ]
    assert all(mine >= max(by_weight) * (1 - 1e-6) - total * 1e-9 for mine in hungry)


def test_examples() -> None:
    assert divide(TOTAL, []) == []
    assert divide(TOTAL, [Claim(3, None)]) == [pytest.approx(TOTAL)]
    assert divide(TOTAL, [Claim(1, None), Claim(1, None)]) == [pytest.approx(TOTAL / 2)] * 2
    assert divide(TOTAL, [Claim(3, None), Claim(1, None)])[0] == pytest.approx(0.745 * TOTAL)
    busy, idle = divide(TOTAL, [Claim(1, None), Claim(0, 0.0)])
    assert (busy, idle) == (pytest.approx(0.99 * TOTAL), pytest.approx(0.01 * TOTAL))
    slow, fast = divide(TOTAL, [Claim(5, 10e6), Claim(1, None)])
    assert (slow, fast) == (pytest.approx(10e6), pytest.approx(90e6))


@dataclass
class Simulated:
    """A process whose spokes could take ``able`` bytes/s, and that sends what its share allows."""

    weight: float
    able_bytes_per_s: float
    sent_bytes: float = 0.0
    rate: float = 0.0

    def step(self, share: float, span_s: float) -> None:
        self.rate = min(share, self.able_bytes_per_s)
        self.sent_bytes += self.rate * span_s


def run(shares: Shares, processes: list[Simulated], start_s: float, looks: int) -> float:
    now_s = start_s
    for _ in range(looks):
        given_now = shares.divide(TOTAL)
        for index, process in enumerate(processes):
            process.step(given_now[index], limits.WORKER_TICK_S)
        now_s += limits.WORKER_TICK_S
        for index, process in enumerate(processes):
            held = process.able_bytes_per_s > given_now[index]
            waits = process.weight if process.able_bytes_per_s > 0 else 0.0
            shares.heard(index, now_s, waits, held, int(process.sent_bytes))
    return now_s


def joined(count: int) -> Shares:
    shares = Shares()
    for index in range(count):
        shares.joined(index, 0.0)
    return shares


def test_it_settles_on_the_fair_division_within_half_a_second_and_again_after_each_change() -> None:
    processes = [Simulated(1, 0.0), Simulated(1, 1e9), Simulated(2, 1e9)]
    shares = joined(3)
    now_s = run(shares, processes, 0.0, 5)
    idle, one, two = (process.rate for process in processes)
    assert idle == 0
    assert two / one == pytest.approx(2, rel=0.02)
    assert one + two >= 0.98 * TOTAL
    processes[0].able_bytes_per_s = 1e9  # a spoke wakes up
    now_s = run(shares, processes, now_s, 3)
    assert processes[0].rate == pytest.approx(TOTAL / 4, rel=0.05)
    processes[2].able_bytes_per_s = 0.0  # two go to sleep
    run(shares, processes, now_s, 12)
    assert processes[0].rate == pytest.approx(processes[1].rate)
    assert processes[0].rate + processes[1].rate >= 0.97 * TOTAL


def test_what_a_slow_path_cannot_use_goes_to_the_others() -> None:
    processes = [Simulated(1, 10e6), Simulated(1, 1e9)]
    run(joined(2), processes, 0.0, 10)
    assert processes[0].rate == 10e6
    assert processes[1].rate >= 0.8 * TOTAL


def test_a_noisy_fleet_never_leaves_much_of_the_total_unused() -> None:
    dice = random.Random(7)
    processes = [Simulated(1 + index % 3, 0.0) for index in range(6)]
    shares, now_s, sent, could = joined(6), 0.0, 0.0, 0.0
    for _ in range(200):
        for process in processes:
            if dice.random() < 0.05:
                process.able_bytes_per_s = dice.choice([0.0, 5e6, 40e6, 1e9])
        now_s = run(shares, processes, now_s, 1)
        sent += sum(process.rate for process in processes)
        could += min(TOTAL, sum(process.able_bytes_per_s for process in processes))
    assert sent >= 0.85 * could


def test_who_left_has_no_share() -> None:
    shares = joined(2)
    shares.left(0)
    assert shares.divide(TOTAL) == {1: pytest.approx(TOTAL)}
    shares.left(1)
    assert shares.divide(TOTAL) == {}
