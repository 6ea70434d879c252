"""Figures of the bench of foresight: what counts as full speed, what READs asked for, what is missed."""

from __future__ import annotations

import pytest

from bench.experiment.measures import FETCHED, reads_series
from bench.foresight.figures import (
    Figure,
    batches_to_full_speed,
    behind_link_s,
    fetched_bytes,
    hits,
    unique_bytes,
    waited_rtts,
)


def test_full_speed_begins_where_ten_batches_take_what_ten_local_ones_do() -> None:
    assert batches_to_full_speed([1.0, 0.5, *[0.1] * 20], 0.1) == 2
    assert batches_to_full_speed([0.1] * 5, 0.1) == 0
    assert batches_to_full_speed([0.2] * 20, 0.1) is None


def test_places_are_counted_once_however_often_they_are_read() -> None:
    grain = 128 * 1024
    assert unique_bytes([(0, 0, 4096), (0, 8192, 4096), (1, 0, 1)], grain) == 2 * grain
    assert unique_bytes([(0, grain - 1, 2)], grain) == 2 * grain
    assert unique_bytes([], grain) == 0


def test_hits_and_bytes_are_what_was_gained_since_a_scrape() -> None:
    run = {
        "before": {reads_series("hit"): 5.0, FETCHED: 100.0},
        "marked": {reads_series("hit"): 6.0, reads_series("miss"): 2.0},
        "after": {reads_series("hit"): 9.0, reads_series("miss"): 3.0, FETCHED: 150.0},
    }
    assert hits(run) == 4 / 7
    assert hits(run, "marked") == 3 / 4
    assert fetched_bytes(run) == 50.0
    assert waited_rtts({"wait_s": [0.3, 0.1]}, {"wait_s": [0.1, 0.0]}, 0.1) > 2.99


def test_a_figure_that_never_came_misses_its_target() -> None:
    assert Figure("load", "batches", None, at_most=2).is_met is False
    assert Figure("load", "rate", 0.8, at_least=0.8).is_met is True
    assert Figure("load", "shown", 3.0).is_met is None


def test_behind_the_link_is_what_the_bytes_so_far_do_not_explain() -> None:
    run = {"batch_s": [0.5, 0.1, 0.1, 0.3]}
    behind = [behind_link_s(run, share, 10.0, 100.0) for share in (0.0, 0.5, 1.0)]
    assert behind == pytest.approx([0.4, 0.4, 0.6])
