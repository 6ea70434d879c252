"""Keeps the total rate at what the timetable says, while the hub runs, and says which rule that is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from common.log import get_logger
from common.units import format_rate
from hub.timetable import InForce, Timetable

log = get_logger(__name__)

LOOK_EVERY_S = 5.0
"""The longest sleep: the wall clock may be set, and the host may have slept."""


class RateSchedule:
    """``apply``: sets the total in bytes per second, None for no limit. ``wall_clock``: Unix time."""

    def __init__(
        self, timetable: Timetable, apply: Callable[[float | None], None], wall_clock: Callable[[], float]
    ) -> None:
        self.timetable = timetable
        self._apply = apply
        self._wall_clock = wall_clock
        self.in_force: InForce | None = None

    def look(self) -> float:
        """Apply what holds now; returns how many seconds until it should be looked at again."""
        now_s = self._wall_clock()
        before = self.in_force
        if (
            before is None
            or before.until_s is None
            or now_s >= before.until_s
            or self.timetable.rule_at(now_s) != before.rule
        ):
            found = self.in_force = self.timetable.in_force(now_s)
            if before is None or found.rule != before.rule:
                self._apply(found.rule.rate_bytes_per_s)
                if before is not None or found.until_s is not None:
                    log.info("rate limit", **self._facts(found))
        until_s = self.in_force.until_s if self.in_force is not None else None
        return LOOK_EVERY_S if until_s is None else min(LOOK_EVERY_S, max(0.0, until_s - now_s))

    async def run(self) -> None:
        """For ever."""
        while True:
            wait_s = self.look()
            await asyncio.sleep(wait_s)

    @property
    def rate_bytes_per_s(self) -> float | None:
        return self.in_force.rule.rate_bytes_per_s if self.in_force is not None else None

    def status(self) -> Mapping[str, Any]:
        """``rule``: in force now; ``until_s``: Unix time, None when nothing else ever holds; ``until``: the same in the zone."""
        found = self.in_force or self.timetable.in_force(self._wall_clock())
        return {"rules": str(self.timetable), **self._facts(found), "until_s": found.until_s}

    def _facts(self, found: InForce) -> dict[str, str | None]:
        rate = found.rule.rate_bytes_per_s
        return {
            "limit": "none" if rate is None else format_rate(rate),
            "rule": str(found.rule),
            "until": None if found.until_s is None else self.timetable.shown(found.until_s),
        }
