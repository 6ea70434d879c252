"""Reads that wait for long: all counted, one line at the beginning of an incident, one with the first EIO, one at its end."""

from __future__ import annotations

import pytest
import structlog

from common import limits
from common.errors import DeadlineExceeded
from spoke.long_waits import LongWaits, Wait

BEGINS, FAILS, GOES_ON = (
    "reads wait for the hub",
    "a read failed; others that fail like this are counted",
    "reads go on",
)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def begin_many(waits: LongWaits, clock: Clock, count: int) -> list[Wait]:
    made = [waits.begin(b"f%d" % number, number * 4096) for number in range(count)]
    clock.now_s += limits.SLOW_READ_AFTER_S
    for wait in made:
        waits.grew_long(wait)
    return made


def fail(waits: LongWaits, wait: Wait) -> None:
    error = DeadlineExceeded("no data")
    waits.timed_out(wait, error)
    waits.ended(wait, well=False)
    assert error.logged


def test_a_thousand_readers_are_one_line_and_one_when_they_go_on(clock: Clock) -> None:
    waits = LongWaits(clock, lambda: "no link for 5 s")
    with structlog.testing.capture_logs() as lines:
        made = begin_many(waits, clock, 1000)
        assert (waits.long_count, waits.long_total, waits.longest_s()) == (1000, 1000, 5.0)
        clock.now_s += 2
        for wait in made:
            waits.ended(wait, well=True)
    assert [line["event"] for line in lines] == [BEGINS, GOES_ON]
    assert lines[0]["path"] == b"f0"
    assert lines[0]["hub"] == "no link for 5 s"
    assert (lines[1]["waited_long"], lines[1]["failed"], lines[1]["longest_s"], lines[1]["lasted_s"]) == (
        1000,
        0,
        7.0,
        2.0,
    )
    assert (waits.long_count, waits.longest_s()) == (0, 0.0)


def test_failures_are_told_once_and_those_who_try_again_belong_to_the_same_incident(clock: Clock) -> None:
    waits = LongWaits(clock)
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):  # each reader tries again after its EIO
            for wait in begin_many(waits, clock, 50):
                fail(waits, wait)
        assert [line["event"] for line in lines] == [BEGINS, FAILS]
        last = waits.begin(b"f", 0)
        clock.now_s += 1
        waits.ended(last, well=True)
    assert [line["event"] for line in lines] == [BEGINS, FAILS, GOES_ON]
    assert (lines[2]["waited_long"], lines[2]["failed"]) == (150, 150)
    assert waits.timeouts_total == 150


def test_a_read_timeout_below_five_seconds_begins_an_incident_too(clock: Clock) -> None:
    waits = LongWaits(clock)
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            wait = waits.begin(b"f", 0)
            clock.now_s += 1
            fail(waits, wait)
    assert [line["event"] for line in lines] == [FAILS]
    assert (waits.long_total, waits.timeouts_total) == (0, 2)


def test_a_failure_that_nobody_followed_up_does_not_swallow_the_next_incident(clock: Clock) -> None:
    waits = LongWaits(clock)
    with structlog.testing.capture_logs() as lines:
        for wait in begin_many(waits, clock, 2):
            fail(waits, wait)
        clock.now_s += limits.WAIT_INCIDENT_QUIET_S + 1
        for wait in begin_many(waits, clock, 2):
            fail(waits, wait)
    assert [line["event"] for line in lines] == [BEGINS, FAILS, BEGINS, FAILS]


def test_it_is_not_over_while_others_wait_and_quick_reads_say_nothing(clock: Clock) -> None:
    waits = LongWaits(clock)
    with structlog.testing.capture_logs() as lines:
        quick = waits.begin(b"quick", 0)
        waits.ended(quick, well=True)
        one, two = begin_many(waits, clock, 2)
        waits.ended(one, well=True)
        assert [line["event"] for line in lines] == [BEGINS]
        waits.ended(two, well=False)  # its reader was killed
    assert [line["event"] for line in lines] == [BEGINS, "nobody waits for the hub any more"]
