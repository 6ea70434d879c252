"""Which limit holds when: every moment has exactly one, whatever the rules and whatever the clock on the wall does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UsageError
from hub.timetable import DAYS, InForce, Rule, Timetable, parse_timetable, parse_zone

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = [UTC, BERLIN, ZoneInfo("America/New_York"), ZoneInfo("Australia/Lord_Howe"), ZoneInfo("Asia/Kathmandu")]
GBIT = 1e9 / 8


def at(text: str, zone: object = UTC, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()  # type: ignore[arg-type]


def limit(timetable: Timetable, moment_s: float) -> float | None:
    rate = timetable.rule_at(moment_s).rate_bytes_per_s
    return None if rate is None else rate / GBIT


def test_two_gigabit_by_day_and_all_of_it_by_night() -> None:
    table = parse_timetable("2gbit@08:00-20:00,10gbit", UTC)
    assert table.most_bytes_per_s == 10 * GBIT
    for text, expected in [("07:59:59", 10), ("08:00", 2), ("19:59:59.999999", 2), ("20:00", 10), ("00:00", 10)]:
        assert limit(table, at(f"2026-03-03 {text}")) == expected
    assert table.in_force(at("2026-03-03 09:30")) == InForce(table.rules[0], at("2026-03-03 20:00"))
    assert table.in_force(at("2026-03-03 20:00")) == InForce(table.rules[1], at("2026-03-04 08:00"))


def test_days_and_hours_past_midnight_which_belong_to_the_day_they_begin_on() -> None:
    table = parse_timetable(["1gbit@sat+sun", "none@fri 20:00-06:00", "5gbit@mon-fri 20:00-06:00", "2gbit"], UTC)
    assert table.most_bytes_per_s is None
    assert limit(table, at("2026-03-06 21:00")) is None  # a Friday
    assert limit(table, at("2026-03-07 05:00")) == 1  # Saturday morning: the first rule that covers it
    assert limit(table, at("2026-03-05 21:00")) == 5
    assert limit(table, at("2026-03-06 05:59")) == 5
    assert limit(table, at("2026-03-06 06:00")) == 2
    assert limit(table, at("2026-03-09 05:00")) == 2  # Monday morning: Sunday has no such night
    assert table.in_force(at("2026-03-06 21:00")).until_s == at("2026-03-07 00:00")


def test_what_always_holds_has_no_end() -> None:
    for text in ("10gbit", "none", "0", "1gbit@mon-sun 00:00-24:00"):
        assert parse_timetable(text, UTC).in_force(at("2026-03-03 09:30")).until_s is None
    assert parse_timetable(125e6).rules[0].rate_bytes_per_s == 125e6
    assert Timetable(()).in_force(0.0) == InForce(Rule(None), None)
    assert parse_timetable("1gbit@mon-sun").in_force(0.0).until_s is None


def test_a_day_with_an_hour_less_and_one_with_an_hour_more() -> None:
    table = parse_timetable("2gbit@02:30-08:00,10gbit", BERLIN)
    # 2026-03-29: 02:00 becomes 03:00, so 02:30 is never shown; the rule begins where the clock jumps past it.
    assert table.in_force(at("2026-03-29 01:00", BERLIN)).until_s == at("2026-03-29 01:00", UTC)
    assert table.in_force(at("2026-03-29 03:00", BERLIN)).until_s == at("2026-03-29 08:00", BERLIN)
    # 2026-10-25: 03:00 becomes 02:00, so 02:30 is shown twice, and between them 02:00 to 02:30 again.
    first, again = at("2026-10-25 02:30", BERLIN), at("2026-10-25 02:30", BERLIN, fold=1)
    assert again - first == 3600
    assert table.in_force(at("2026-10-25 01:00", BERLIN)).until_s == first
    assert table.in_force(first) == InForce(table.rules[0], again - 1800)
    assert table.in_force(again - 1800) == InForce(table.rules[1], again)
    assert table.in_force(again).until_s == at("2026-10-25 08:00", BERLIN)


moments = st.floats(at("2026-01-01 00:00"), at("2027-01-01 00:00"))
rules = st.builds(
    lambda rate, days, start, minutes: Rule(rate, days, start, start + min(minutes, 1440 if not start else 1439)),
    st.one_of(st.none(), st.sampled_from([GBIT, 2 * GBIT, 10 * GBIT])),
    st.frozensets(st.integers(0, 6), min_size=1),
    st.sampled_from([0, 1, 119, 120, 150, 180, 480, 1200, 1439]),
    st.integers(1, 1440),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(rules, max_size=4),
    st.sampled_from(ZONES),
    moments,
)
def test_from_one_change_to_the_next_one_rule_holds_and_each_change_is_one(
    found: list[Rule], zone: object, now_s: float
) -> None:
    """``in_force`` against looking at every minute: what it says until when, and nothing changes before."""
    table = Timetable(found, zone)  # type: ignore[arg-type]
    rule, until_s = table.in_force(now_s)
    assert rule == table.rule_at(now_s)
    assert until_s is None or until_s > now_s
    end_s = until_s if until_s is not None else now_s + 8 * 86400
    minute_s = now_s - now_s % 60 + 60
    while minute_s < end_s:
        assert table.rule_at(minute_s) == rule
        minute_s += 60
    assert table.rule_at(end_s - 0.001) == rule
    if until_s is not None:
        assert until_s % 60 == 0
        assert table.rule_at(until_s) != rule


@given(st.lists(rules, min_size=1, max_size=4), moments)
def test_a_table_reads_back_from_its_own_text(found: list[Rule], moment_s: float) -> None:
    table = Timetable([rule for rule in found[:-1] if not rule.is_always] + found[-1:], UTC)
    again = parse_timetable(str(table).replace(" Gbit/s", "gbit"), UTC)
    assert again.rule_at(moment_s).rate_bytes_per_s == table.rule_at(moment_s).rate_bytes_per_s


def test_the_hosts_own_time_is_a_zone_as_well() -> None:
    table = parse_timetable("2gbit@08:00-20:00,10gbit", parse_zone("local"))
    midnight = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)  # noqa: DTZ005 that is the point
    assert limit(table, (midnight + timedelta(hours=9)).timestamp()) == 2
    assert (
        table.in_force((midnight + timedelta(hours=9)).timestamp()).until_s
        == (midnight + timedelta(hours=20)).timestamp()
    )
    assert parse_zone("utc") is UTC


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fast", "'fast' is not a rate"),
        ("2gbit@", "nothing follows the @"),
        ("2gbit@8-20", "is no day and no hours"),
        ("2gbit@mon-fry", "is no day and no hours"),
        ("2gbit@mon 25:00-26:00", "from 00:00 to 24:00"),
        ("2gbit@mon 08:00-08:00", "begins when it ends"),
        ("2gbit@mon 08:00-09:00 tue", "one word too many"),
        ("2gbit@mon tue", "'tue' are not hours"),
        ("10gbit,2gbit@08:00-20:00", "put it last"),
        ("2gbit,", "is not a rate"),
        (True, "is not a rate limit"),
        ({"a": 1}, "is not a rate limit"),
        (-1, "is not a rate"),
    ],
)
def test_a_refusal_says_what_was_seen(text: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_timetable(text)


def test_zones_that_are_not() -> None:
    for text in ("Mars/Olympus", "../etc/passwd", ""):
        with pytest.raises(UsageError, match="is not a time zone"):
            parse_zone(text)


def test_days_are_named_as_calendars_do() -> None:
    assert DAYS[datetime(2026, 3, 2, tzinfo=UTC).weekday()] == "mon"
