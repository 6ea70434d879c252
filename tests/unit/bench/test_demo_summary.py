"""From times and counters to the figures of the demonstration's table."""

import pytest

from bench.demo.summary import Step, Sweep, batches_to_full_speed, difference, hit_rate, reads_seen


def sweep(batch_s: list[float], samples: int = 16) -> Sweep:
    return Sweep(samples, batch_s, [seconds / 2 for seconds in batch_s], "00000000")


def test_steps_of_ten_batches() -> None:
    assert sweep([0.1] * 10 + [0.2] * 10).steps() == [Step(1, 10, pytest.approx(160)), Step(11, 20, pytest.approx(80))]


def test_a_last_step_that_is_not_whole_is_left_out() -> None:
    assert [step.last for step in sweep([0.1] * 27).steps()] == [10, 20]


def test_a_run_shorter_than_a_step_is_one_step() -> None:
    assert sweep([0.1] * 3).steps() == [Step(1, 3, pytest.approx(160))]


def test_rates_and_waits() -> None:
    run = sweep([0.4] * 10 + [0.1] * 20 + [0.2] * 10)
    assert run.samples_per_s == pytest.approx(16 * 40 / 8.0)
    assert run.level_samples_per_s == pytest.approx(160)  # median of 160, 160, 80; the first step is not in it
    assert run.waited_s == pytest.approx(4.0)


def test_full_speed_is_counted_in_batches_before_ten_good_ones() -> None:
    slow_start = sweep([1.0] * 3 + [0.1] * 30)
    assert batches_to_full_speed(slow_start, 160.0) == 3
    assert batches_to_full_speed(sweep([0.1] * 30), 160.0) == 0
    assert batches_to_full_speed(sweep([0.2] * 30), 160.0) is None


def test_a_hiccup_among_ten_puts_full_speed_off() -> None:
    assert batches_to_full_speed(sweep([0.1] * 5 + [1.0] + [0.1] * 20), 160.0) == 6


def test_counters_gain_what_they_gained() -> None:
    assert difference({"a": 1.0}, {"a": 3.0, "new": 2.0}) == {"a": 2.0, "new": 2.0}


def test_the_hit_rate_is_over_all_reads_the_spoke_saw() -> None:
    gained = {
        'headrace_spoke_reads_total{result="hit"}': 90.0,
        'headrace_spoke_reads_total{result="late"}': 6.0,
        'headrace_spoke_reads_total{result="miss"}': 4.0,
        "headrace_spoke_opens_total": 7.0,
    }
    assert hit_rate(gained) == pytest.approx(0.9)
    assert reads_seen(gained) == 100


def test_without_reads_there_is_no_hit_rate() -> None:
    assert hit_rate({}) is None
    assert reads_seen({}) == 0
