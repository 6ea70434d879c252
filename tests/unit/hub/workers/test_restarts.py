"""Restarts wait longer and longer, and end."""

from __future__ import annotations

from random import Random

from common import limits
from hub.workers.restarts import Restarts


def test_deaths_in_a_row_wait_longer_and_then_the_hub_gives_up() -> None:
    restarts = Restarts()
    waits = [restarts.died(float(second), Random(1)) for second in range(limits.WORKER_DEATHS_MAX)]
    assert waits[-1] is None
    told = [wait for wait in waits if wait is not None]
    assert len(told) == limits.WORKER_DEATHS_MAX - 1
    for number, wait in enumerate(told):
        step = limits.WORKER_RESTART_FIRST_S * 2**number
        assert step / 2 <= wait <= step


def test_deaths_far_apart_never_end_it() -> None:
    restarts = Restarts()
    for number in range(100):
        now_s = number * limits.WORKER_DEATHS_WINDOW_S / (limits.WORKER_DEATHS_MAX - 1) * 1.01
        wait = restarts.died(now_s, Random(number))
        assert wait is not None
        assert wait <= limits.WORKER_RESTART_CAP_S
    assert restarts.total == 100
