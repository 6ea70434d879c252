"""Arithmetic of a plan: what must hold whatever the numbers, and the cases an operator asks about."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from common.errors import UsageError
from spoke.cli import app
from spoke.estimate import Job, Order, Reads, estimate, missing_share

JOB = Job(
    dataset_bytes=1e12,
    record_bytes=16_384,
    batch=2048,
    step_s=1.0,
    rtt_s=0.060,
    link_bytes_per_s=1.25e9,
    cache_bytes=1e12,
    epochs=3,
    workers=16,
)


def test_a_link_that_is_fast_enough_costs_no_stall_in_order_and_each_byte_crosses_once() -> None:
    made = estimate(JOB)
    cached, copied = made.ways
    assert made.needed_bytes_per_s == 16_384 * 2048
    assert made.epoch_stalls_s == (0.0, 0.0, 0.0)
    assert cached.wan_bytes == copied.wan_bytes == 1e12
    assert cached.transfer_money == pytest.approx(20.0)
    assert cached.first_batch_s < 1 < copied.first_batch_s
    assert copied.first_batch_s == pytest.approx(1e12 / (0.95 * 1.25e9))


def test_a_link_that_is_too_slow_stalls_the_cold_epoch_by_what_is_missing() -> None:
    made = estimate(replace(JOB, link_bytes_per_s=12.5e6))
    assert made.epoch_stalls_s[0] == pytest.approx(1e12 / (0.95 * 12.5e6) - made.steps, rel=1e-6)
    assert made.epoch_stalls_s[1:] == (0.0, 0.0)


def test_a_shuffled_order_that_nobody_told_waits_for_round_trips_a_declared_one_does_not() -> None:
    shuffled = estimate(replace(JOB, order=Order.SHUFFLED))
    assert shuffled.epoch_stalls_s[0] == pytest.approx(1e12 / 16_384 * 0.060 / 16 - shuffled.steps, rel=1e-6)
    assert estimate(replace(JOB, order=Order.DECLARED)).epoch_stalls_s[0] == 0.0


def test_a_cache_that_is_too_small_keeps_a_part() -> None:
    small = replace(JOB, cache_bytes=0.5e12)
    assert [missing_share(small, epoch) for epoch in (1, 2, 3)] == [1.0, 0.55, 0.55]
    hosts = replace(JOB, hosts=4, reads=Reads.ALL)
    assert [round(missing_share(hosts, epoch), 3) for epoch in (1, 2, 3)] == [1.0, 0.75, 0.562]
    assert estimate(hosts).ways[1].wan_bytes == 4e12


@given(
    st.floats(1e6, 1e15),
    st.floats(1, 1e6),
    st.integers(1, 10_000),
    st.floats(0.001, 100),
    st.floats(0, 2),
    st.floats(1e3, 1e11),
    st.floats(0, 1e15),
    st.integers(1, 5),
    st.integers(1, 64),
    st.sampled_from(Order),
    st.sampled_from(Reads),
)
def test_nothing_is_negative_and_more_of_everything_never_hurts(
    dataset: float, record: float, batch: int, step: float, rtt: float, link: float, cache: float, epochs: int, hosts: int,
    order: Order, reads: Reads,
) -> None:  # fmt: skip
    job = Job(dataset, record, batch, step, rtt, link, cache, epochs, hosts, hosts, order, reads, wait_s=1.0)
    cached, copied, waited = estimate(job).ways
    for way in (cached, copied, waited):
        assert min(way.first_batch_s, way.stall_s, way.total_s, way.wan_bytes, way.transfer_money) >= 0
    assert cached.wan_bytes <= epochs * dataset * (1 + 1e-9)
    better = replace(job, cache_bytes=2 * cache, link_bytes_per_s=2 * link, rtt_s=rtt / 2)
    assert estimate(better).ways[0].total_s <= cached.total_s * (1 + 1e-9)
    told = estimate(replace(job, order=Order.DECLARED)).ways[0]
    assert told.stall_s <= cached.stall_s * (1 + 1e-9)


GIVEN = [
    *("estimate", "--dataset-size", "2TB", "--record-size", "16KiB", "--batch", "2048", "--step-time", "1s"),
    *("--rtt", "60ms", "--link", "10gbit"),
]


def test_the_command() -> None:
    shown: Any = CliRunner().invoke(app, [*GIVEN, "--wait", "72h", "--host-price", "160", "--epochs", "2"])
    assert shown.exit_code == 0, shown.output
    for words in ("cached remote", "copy first", "wait for capacity", "72 h", "enough", "40.00"):
        assert words in shown.output
    told = CliRunner().invoke(app, [*GIVEN, "--json"])
    assert [way["name"] for way in json.loads(told.output)["ways"]] == ["cached remote", "copy first"]
    hint = CliRunner().invoke(app, [*GIVEN, "--order", "shuffled"])
    assert "--order declared" in hint.output


@pytest.mark.parametrize(
    "wrong",
    ["--link fast", "--batch 0", "--compression 0.5", "--record-size 3TB", "--order odd", "--price-per-gb nan"],
)
def test_what_makes_no_sense_is_refused(wrong: str) -> None:
    assert CliRunner().invoke(app, [*GIVEN, *wrong.split()]).exit_code == 2


def test_numbers_that_make_no_sense_are_named() -> None:
    with pytest.raises(UsageError, match="step must be above 0"):
        replace(JOB, step_s=0.0)
