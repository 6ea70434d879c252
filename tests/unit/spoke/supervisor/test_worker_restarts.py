"""When a worker is started again, and when not any more."""

from __future__ import annotations

from common import limits
from spoke.supervisor.restarts import Restarts


def test_a_worker_that_had_served_is_started_at_once_and_many_in_a_row_a_little_later() -> None:
    restarts = Restarts()
    delays_s = []
    for number in range(20):
        restarts.served()
        delays_s.append(restarts.died(100.0 + 2 * number, had_served=True))
    assert delays_s[:5] == [0.0] * 5
    assert max(delay_s for delay_s in delays_s if delay_s is not None) <= 0.5
    assert None not in delays_s
    assert restarts.total == 20


def test_starts_that_fail_are_tried_more_and_more_slowly_and_then_no_more() -> None:
    restarts = Restarts()
    assert restarts.died(10.0, had_served=True) == 0.0
    assert [restarts.died(11.0 + number, had_served=False) for number in range(5)] == [0.5, 1.0, 2.0, 4.0, None]
    assert restarts.why() == "5 starts in a row failed"


def test_one_that_comes_up_begins_the_count_anew() -> None:
    restarts = Restarts()
    for _ in range(3):
        for number in range(4):
            assert restarts.died(number, had_served=False) is not None
        restarts.served()
        assert restarts.failed_starts == 0


def test_something_that_kills_every_worker_ends_it_too() -> None:
    restarts = Restarts()
    for number in range(limits.SUPERVISED_DEATHS_MAX - 1):
        restarts.served()
        assert restarts.died(number * 7.0, had_served=True) is not None
    restarts.served()
    assert restarts.died(limits.SUPERVISED_DEATHS_MAX * 7.0, had_served=True) is None
    assert "40 times within 300 s" in restarts.why()


def test_deaths_long_ago_do_not_count() -> None:
    restarts = Restarts()
    for number in range(200):
        restarts.served()
        assert restarts.died(number * 10.0, had_served=True) is not None
