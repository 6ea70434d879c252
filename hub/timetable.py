"""How much may leave in all at which hour: rules over the week's clock. Pure: the moment and the time zone come in.

Written as ``RATE[@[DAYS] [HH:MM-HH:MM]]``, rules separated by commas, for example ``2gbit@mon-fri 08:00-20:00, none``.
The first rule that covers a moment holds; outside all of them there is no limit. A rule without days or hours covers
everything and can only be the last. ``20:00-06:00`` runs past midnight and belongs to the day it begins on, so
``none@fri 20:00-06:00`` ends on Saturday. Hours are those a clock on the wall shows in the zone: an hour that daylight
saving skips has no limit of its own, one that it repeats has its limit twice; every moment has exactly one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from common.errors import UsageError
from common.units import format_rate, parse_rate

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60

_EXAMPLE = "10gbit, or 2gbit@08:00-20:00,10gbit, or 2gbit@mon-fri 08:00-20:00,none"
_HOURS = re.compile(r"(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d)\Z")
_HORIZON_DAYS = 9
"""A rule comes round within a week; a day more where the clock was changed."""


@dataclass(frozen=True, slots=True)
class Rule:
    """``rate_bytes_per_s``: None is no limit. ``days``: 0 is Monday. From ``start_minute`` of such a day to ``end_minute``, which
    is above DAY_MINUTES when it lies on the next day."""

    rate_bytes_per_s: float | None
    days: frozenset[int] = frozenset(range(7))
    start_minute: int = 0
    end_minute: int = DAY_MINUTES

    @property
    def is_always(self) -> bool:
        return len(self.days) == 7 and self.end_minute - self.start_minute == DAY_MINUTES

    def covers(self, weekday: int, minute: float) -> bool:
        """``minute``: of the day, seconds as a fraction."""
        if weekday in self.days and self.start_minute <= minute < self.end_minute:
            return True
        return (weekday - 1) % 7 in self.days and self.start_minute <= minute + DAY_MINUTES < self.end_minute

    def __str__(self) -> str:
        rate = "none" if self.rate_bytes_per_s is None else format_rate(self.rate_bytes_per_s)
        if self.is_always:
            return rate
        days = "" if len(self.days) == 7 else "+".join(DAYS[day] for day in sorted(self.days))
        return f"{rate}@{' '.join(filter(None, (days, self._hours())))}"

    def _hours(self) -> str:
        if (self.start_minute, self.end_minute) == (0, DAY_MINUTES):
            return ""
        end = self.end_minute if self.end_minute <= DAY_MINUTES else self.end_minute - DAY_MINUTES
        return f"{self.start_minute // 60:02}:{self.start_minute % 60:02}-{end // 60:02}:{end % 60:02}"


NO_LIMIT = Rule(None)


class InForce(NamedTuple):
    """``until_s``: Unix time of the next moment at which another rule holds; None when none ever will."""

    rule: Rule
    until_s: float | None


class Timetable:
    """Rules in the order in which they are tried. ``zone``: None is this host's own time."""

    def __init__(self, rules: Iterable[Rule], zone: tzinfo | None = None) -> None:
        self.rules = tuple(rules)
        self.zone = zone

    @property
    def most_bytes_per_s(self) -> float | None:
        """The highest limit that can ever hold; None when there may be none."""
        rates = [rule.rate_bytes_per_s for rule in self.rules]
        if not self.rules or not self.rules[-1].is_always:
            return None  # outside the rules, or at least not known to be limited
        return None if None in rates else max(rate for rate in rates if rate is not None)

    def rule_at(self, now_s: float) -> Rule:
        """The one rule that holds at a moment (Unix time)."""
        local = datetime.fromtimestamp(now_s, self.zone)
        minute = local.hour * 60 + local.minute + (local.second + local.microsecond / 1e6) / 60
        weekday = local.weekday()
        return next((rule for rule in self.rules if rule.covers(weekday, minute)), NO_LIMIT)

    def in_force(self, now_s: float) -> InForce:
        """The rule that holds, and until when."""
        rule = self.rule_at(now_s)
        if rule.is_always and (not self.rules or self.rules[0] is rule):
            return InForce(rule, None)
        # The rule can only change where the clock on the wall shows an edge of one, or where that clock itself is set.
        for moment_s in sorted({*self._edges(now_s), *self._clock_changes(now_s)}):
            if moment_s > now_s and self.rule_at(moment_s) != rule:
                return InForce(rule, moment_s)
        return InForce(rule, None)

    def _edges(self, now_s: float) -> Iterator[float]:
        minutes = {minute % DAY_MINUTES for rule in self.rules for minute in (0, rule.start_minute, rule.end_minute)}
        midnight = datetime.fromtimestamp(now_s, self.zone).replace(hour=0, minute=0, second=0, microsecond=0)
        for day in range(_HORIZON_DAYS):
            for minute in minutes:
                shown = midnight + timedelta(days=day, minutes=minute)  # on the wall: without regard to its changes
                yield shown.replace(fold=0).timestamp()
                yield shown.replace(fold=1).timestamp()

    def _clock_changes(self, now_s: float) -> Iterator[float]:
        step_s = 6 * 3600
        for number in range(_HORIZON_DAYS * 24 * 3600 // step_s):
            before_s, after_s = int(now_s) + number * step_s, int(now_s) + (number + 1) * step_s
            if self._offset(before_s) == self._offset(after_s):
                continue
            while after_s - before_s > 1:
                middle_s = (before_s + after_s) // 2
                if self._offset(middle_s) == self._offset(before_s):
                    before_s = middle_s
                else:
                    after_s = middle_s
            yield float(after_s)

    def _offset(self, moment_s: int) -> timedelta:
        """How far the clock on the wall is ahead of UTC."""
        shown = datetime.fromtimestamp(moment_s, self.zone).replace(tzinfo=None)
        return shown - datetime.fromtimestamp(moment_s, UTC).replace(tzinfo=None)

    def shown(self, moment_s: float) -> str:
        """A moment as the clock on the wall shows it: ``Mon 2026-03-02 08:00 CET``."""
        local = datetime.fromtimestamp(moment_s, self.zone)
        return (local if self.zone is not None else local.astimezone()).strftime("%a %Y-%m-%d %H:%M %Z").strip()

    def __str__(self) -> str:
        return ", ".join(map(str, self.rules)) or str(NO_LIMIT)


def parse_zone(text: str) -> tzinfo | None:
    """``local`` is this host's own time (None), else ``UTC`` or a name like ``Europe/Berlin``. Raises UsageError."""
    if text.lower() == "local":
        return None
    if text.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(
            f"{text!r} is not a time zone that this host knows (package tzdata); write local, UTC, or a name like Europe/Berlin"
        ) from None


def parse_timetable(value: object, zone: tzinfo | None = None) -> Timetable:
    """From text, a list of rules (TOML), or a number of bytes per second. Raises UsageError with what is allowed."""
    if isinstance(value, str):
        texts: list[object] = list(value.split(","))
    elif isinstance(value, (list, tuple)):
        texts = [part for text in value for part in (text.split(",") if isinstance(text, str) else [text])]
    else:
        texts = [value]
    rules = [_parse_rule(text) for text in texts]
    for number, rule in enumerate(rules[:-1]):
        if rule.is_always:
            raise UsageError(
                f"{str(texts[number]).strip()!r} always holds, so {str(texts[number + 1]).strip()!r} after it never would; put it last"
            )
    return Timetable(rules, zone)


def _parse_rule(text: object) -> Rule:
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise UsageError(f"{text!r} is not a rate limit; write it like {_EXAMPLE}")
    rate_text, at, when = text.partition("@") if isinstance(text, str) else (text, "", "")
    days, start_minute, end_minute = (
        _parse_when(str(text).strip(), when.split()) if at else (NO_LIMIT.days, 0, DAY_MINUTES)
    )
    return Rule(_parse_limit(rate_text), days, start_minute, end_minute)


def _parse_limit(text: str | float) -> float | None:
    """``none`` is no limit, and so is 0, which would let nothing leave at all."""
    if isinstance(text, str) and text.strip().lower() in {"none", "0"}:
        return None
    try:
        return parse_rate(text) or None
    except UsageError as error:
        raise UsageError(f"{error}, none for no limit, and with hours like {_EXAMPLE}") from None


def _parse_when(rule: str, words: list[str]) -> tuple[frozenset[int], int, int]:
    days, start_minute, end_minute = NO_LIMIT.days, 0, DAY_MINUTES
    if words and not _HOURS.match(words[0]):
        days = _parse_days(rule, words.pop(0))
    elif not words:
        raise UsageError(f"{rule!r}: nothing follows the @; write it like {_EXAMPLE}")
    if words:
        start_minute, end_minute = _parse_hours(rule, words.pop(0))
    if words:
        raise UsageError(f"{rule!r}: {words[0]!r} is one word too many; write it like {_EXAMPLE}")
    return days, start_minute, end_minute


def _parse_days(rule: str, text: str) -> frozenset[int]:
    days: set[int] = set()
    for part in text.lower().split("+"):
        first, dash, last = part.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise UsageError(
                f"{rule!r}: {part!r} is no day and no hours; days are {', '.join(DAYS)}, as mon-fri or sat+sun, hours as 08:00-20:00"
            )
        length = (DAYS.index(last or first) - DAYS.index(first)) % 7 + 1
        days.update((DAYS.index(first) + day) % 7 for day in range(length))
    return frozenset(days)


def _parse_hours(rule: str, text: str) -> tuple[int, int]:
    match = _HOURS.match(text)
    if match is None:
        raise UsageError(f"{rule!r}: {text!r} are not hours; write them like 08:00-20:00")
    start_hour, start, end_hour, end = map(int, match.groups())
    start_minute, end_minute = start_hour * 60 + start, end_hour * 60 + end
    if start > 59 or end > 59 or start_minute >= DAY_MINUTES or end_minute > DAY_MINUTES:
        raise UsageError(f"{rule!r}: hours are from 00:00 to 24:00")
    if start_minute == end_minute:
        raise UsageError(f"{rule!r}: it begins when it ends; leave the hours out for the whole day")
    return start_minute, end_minute if end_minute > start_minute else end_minute + DAY_MINUTES
