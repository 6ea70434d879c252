"""From what the job and the spoke said to the figures of the experiment's report."""

import math
from dataclasses import replace

import pytest

from bench.experiment.costs import Prices, cost_of, full_speed_rates
from bench.experiment.measures import RECEIVED, Epoch, Phase, Second, per_second, read_percentiles
from bench.quantiles import quantile


def epoch(waits: list[float], steps: list[float] | None = None, losses: list[str] | None = None) -> Epoch:
    steps = steps or [0.1] * len(waits)
    rank = {
        "started_s": 50.0, "wait_s": waits, "step_s": steps, "losses": losses or [], "checksums": list(range(len(waits))),
        "reads": [[50.0 + number, 0.001 + wait] for number, wait in enumerate(waits)],
    }  # fmt: skip
    return Epoch.of_ranks(4, [rank])


LOCAL = epoch([0.0] * 40)


def test_a_batch_takes_as_long_as_its_slowest_rank() -> None:
    ranks = [
        {"started_s": 5.0, "wait_s": [0.3, 0.0], "step_s": [0.1, 0.1], "losses": [], "checksums": [1, 2], "reads": []},
        {"started_s": 4.0, "wait_s": [0.1, 0.2], "step_s": [0.3, 0.1], "losses": [], "checksums": [3, 4], "reads": []},
    ]
    made = Epoch.of_ranks(4, ranks)
    assert (made.started_s, made.samples) == (4.0, 8)
    assert made.batch_s == pytest.approx([0.4, 0.3])
    assert made.utilisation == pytest.approx(0.2 / 0.7)
    assert made.ends_s == pytest.approx([0.4, 0.7])


def test_lost_time_full_speed_and_its_share() -> None:
    cold = Phase("cold", "cold", "timed step", epoch([0.5, 0.3, *[0.0] * 38]), local=[LOCAL, LOCAL])
    assert cold.lost_s == pytest.approx(0.8)
    assert cold.full_speed_after == 2
    assert cold.ratio == pytest.approx(1.0)
    assert cold.lost_share(10_000) == pytest.approx(0.8 / 1000)
    assert full_speed_rates(cold)[:3] == pytest.approx([1 / 6, 0.25, 1.0])


def test_a_run_with_fewer_batches_is_held_against_as_many_local_ones() -> None:
    assert Phase("x", "x", "m", epoch([0.1] * 5), local=[LOCAL]).lost_s == pytest.approx(0.5)


def test_the_time_to_copy_is_lost_time() -> None:
    assert Phase("c", "c", "m", LOCAL, local=[LOCAL], before_s=7.0).lost_s == pytest.approx(7.0)


def test_the_same_data_means_the_same_checksums_and_losses_as_far_as_both_went() -> None:
    ours = epoch([0.0] * 3, losses=["0x1p0", "0x1p1", "0x1p2"])
    assert ours.same_data(epoch([0.5] * 2, losses=["0x1p0", "0x1p1"]))
    assert not ours.same_data(epoch([0.0] * 3, losses=["0x1p0", "0x1.0000000000001p1", "0x1p2"]))
    assert not ours.same_data(replace(ours, checksums=[[0, 1, 9]]))


def test_rates_by_the_second() -> None:
    looks = [
        Second(10.0, 5, 1, 2, 1000, 2000, 7, 100),
        Second(10.5, 10, 1, 3, 1500, 3000, 8, 200),
    ]
    (row,) = per_second(looks, 9.0)
    assert row == {"second": 1.5, "hit": 10, "late": 0, "miss": 2, "received_bytes": 1000, "fetched_bytes": 2000,
                   "window_bytes": 8, "cache_bytes": 200}  # fmt: skip


def test_percentiles() -> None:
    assert quantile(list(range(1, 101)), 0.95) == 95
    assert math.isnan(quantile([], 0.5))
    assert read_percentiles([(3.1, 0.2), (3.9, 0.4), (5.0, 0.1)], 3.0) == [(0, 0.2, 0.4, 0.4), (2, 0.1, 0.1, 0.1)]


def test_costs_of_a_copy_and_of_a_cold_start() -> None:
    cold = Phase("cold", "", "m", epoch([1.0, *[0.0] * 39]), local=[LOCAL], gained={RECEIVED: 40e6})
    copy = Phase("copy-first", "", "m", LOCAL, local=[LOCAL], before_s=1.0, before_bytes=100e6)
    first, second = cost_of([cold, copy], Prices(0.02, 3.6, 10, 1e12), 125e6)
    assert (first.transfer, first.idle_s) == (pytest.approx(20), pytest.approx(10_000))
    assert first.idle == pytest.approx(100)
    assert (second.transfer, second.idle_s) == (pytest.approx(8), pytest.approx(1.0))
