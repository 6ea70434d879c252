"""The fleet on the hub's page: figures of the last minute, what calls for somebody, bounds."""

from __future__ import annotations

from typing import Any

import pytest

from common import limits
from common.serving.server import SpokeView
from hub.fleet import DatasetView, Fleet

C4 = DatasetView("c4", "/data/c4", 1000, 20, None, 0, 0, 0)


def spoke(number: int = 1, sent_bytes: int = 0, age_s: float | None = 1.0, **stats: float) -> SpokeView:
    return SpokeView(number.to_bytes(16, "big"), f"gpu-{number}", "c4", 60.0, 1.0, sent_bytes, 5e6, 0, (), stats, age_s)


def looked(*views: SpokeView) -> tuple[Fleet, dict[str, Any]]:
    """Looked at every 5 s; facts as of the last."""
    fleet = Fleet()
    for number, view in enumerate(views):
        fleet.look(5.0 * number, [view], {"c4": 20})
    return fleet, dict(fleet.facts(5.0 * (len(views) - 1), [views[-1]], [C4]))


def test_a_spoke_in_good_health() -> None:
    stats = {
        "misses": 10.0,
        "revision": 20.0,
        "version_major": 0.0,
        "version_minor": 1.0,
        "version_patch": 2.0,
        "staleness_seconds": 1.5,
    }
    _, facts = looked(*(spoke(1, 1_000_000 * n, hits=1000.0 * n, **stats) for n in range(5)))
    (row,) = facts["spokes"]
    assert facts["alerts"] == []
    assert (row["version"], row["hit_rate"], row["behind"], row["staleness_s"]) == ("0.1.2", 1.0, 0, 1.5)
    assert row["rates"] == [200_000] * 4


@pytest.mark.parametrize(
    ("views", "level", "text"),
    [
        (
            [spoke(hits=0.0), spoke(hits=80.0, misses=40.0)],
            "warning",
            "only 67 % of the last minute's reads did not wait",
        ),
        ([spoke(), spoke(lost_seconds=2.0)], "warning", "somebody waited for 40 %"),
        ([spoke(revision=17.0)] * 6, "warning", "3 revisions behind for 25 s"),
        ([spoke(age_s=31.0)], "problem", "linked, and silent for 31 s"),
    ],
)
def test_what_calls_for_somebody(views: list[SpokeView], level: str, text: str) -> None:
    (alert,) = looked(*views)[1]["alerts"]
    assert alert["level"] == level
    assert text in alert["text"]


def test_problems_come_first_and_datasets_alert_too() -> None:
    dataset = C4._replace(held="its directory is empty", unreadable=3, unwatched=2)
    alerts = Fleet().facts(0.0, [], [dataset])["alerts"]
    assert [alert["level"] for alert in alerts] == ["problem", "warning", "warning"]


def test_what_a_spoke_says_of_itself_is_bounded_and_may_be_nonsense() -> None:
    odd = {
        "hits": float("nan"),
        "late": float("inf"),
        "revision": -5.0,
        "rtt_seconds": float("nan"),
        "version_major": -1.0,
    }
    fleet = Fleet()
    many = [spoke(number, **odd) for number in range(limits.FLEET_SPOKES_MAX + 7)]
    for now_s in range(3):
        fleet.look(float(now_s), many, {"c4": 20})
    facts = fleet.facts(3.0, many, [C4])
    assert (len(facts["spokes"]), facts["spokes_not_shown"]) == (limits.FLEET_SPOKES_MAX, 7)
    assert len(facts["alerts"]) <= limits.FLEET_ALERTS_MAX
    assert facts["spokes"][0]["hit_rate"] is None
    assert facts["spokes"][0]["rtt_s"] is None
