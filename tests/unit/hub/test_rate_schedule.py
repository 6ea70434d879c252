"""The schedule at work: a change reaches the scheduler at its time, is told, and the total holds throughout."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from common.blocks import EXTENT_BYTES, BlockRange
from common.serving.requests import Pick
from common.serving.scheduler import Scheduler
from common.wire.messages import Priority
from hub.rate_schedule import LOOK_EVERY_S, RateSchedule
from hub.timetable import parse_timetable

MIB = 1024 * 1024
START_S = datetime(2026, 3, 3, 19, 59, 50, tzinfo=UTC).timestamp()


class Wall:
    now_s = START_S

    def __call__(self) -> float:
        return self.now_s


def test_changes_are_applied_once_and_a_clock_that_is_set_is_noticed() -> None:
    wall = Wall()
    applied: list[float | None] = []
    schedule = RateSchedule(parse_timetable("1MiB/s@08:00-20:00,none", UTC), applied.append, wall)
    assert schedule.look() == LOOK_EVERY_S
    assert applied == [MIB]
    assert schedule.status() == {
        "rules": "8.39 Mbit/s@08:00-20:00, none",
        "limit": "8.39 Mbit/s",
        "rule": "8.39 Mbit/s@08:00-20:00",
        "until": "Tue 2026-03-03 20:00 UTC",
        "until_s": START_S + 10,
    }
    wall.now_s += 9
    assert schedule.look() == pytest.approx(1)
    assert applied == [MIB]
    wall.now_s += 1
    schedule.look()
    assert applied == [MIB, None]
    wall.now_s -= 3600  # set back
    schedule.look()
    assert applied == [MIB, None, MIB]
    wall.now_s += 86400 * 3.5  # slept
    schedule.look()
    assert applied == [MIB, None, MIB, None]


def test_the_total_holds_over_a_day_and_a_night_in_the_real_scheduler() -> None:
    """16 spokes that always want more, at a rate that goes down and up again; virtual time."""
    wall = Wall()
    scheduler = Scheduler()
    schedule = RateSchedule(
        parse_timetable("64MiB/s@20:00-20:01,256MiB/s", UTC), lambda rate: scheduler.limit_total(wall.now_s, rate), wall
    )
    for number in range(16):
        scheduler.add_link(number, b"%d" % number)
    requests = 0

    def refill() -> None:
        nonlocal requests
        for number in range(16):
            while scheduler.outstanding_bytes(b"%d" % number) < 8 * EXTENT_BYTES:
                requests += 1
                scheduler.submit(
                    wall.now_s, number, requests, bytes(16), [BlockRange(0, 1024)], Priority.PREFETCH, None
                )

    sent: list[tuple[float, int]] = []
    under_way: list[Pick] = []
    look_at_s = wall.now_s
    while wall.now_s < START_S + 80:
        if wall.now_s >= look_at_s:
            look_at_s = wall.now_s + schedule.look()
        refill()
        while (pick := scheduler.next(wall.now_s)) is not None:
            sent.append((wall.now_s, pick.size_bytes))
            under_way.append(pick)
            scheduler.loaded(pick)
        while under_way:
            scheduler.finished(under_way[-1], under_way.pop().size_bytes)
        wake_s = scheduler.wake_at(wall.now_s)
        assert wake_s is not None
        wall.now_s = min(wake_s, look_at_s)

    def rate_mib(start_s: float, end_s: float) -> float:
        return sum(size for at_s, size in sent if start_s <= at_s - START_S < end_s) / (end_s - start_s) / MIB

    assert rate_mib(0, 10) == pytest.approx(256, rel=0.02)
    assert rate_mib(10, 70) == pytest.approx(64, rel=0.02)
    assert rate_mib(10, 11) <= 64 * 1.1
    assert rate_mib(70, 80) == pytest.approx(256, rel=0.02)
