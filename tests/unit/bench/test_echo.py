"""The plain exchange beside which a cold page is measured."""

from __future__ import annotations

from bench.link import LinkShape
from bench.path import GivenWay, make_way
from bench.wan import echo


def test_exchanges_on_a_short_way_are_counted_and_quick() -> None:
    took_s = echo.measure(GivenWay("loopback", [], "127.0.0.1"), [], 5)
    assert len(took_s) == 5
    assert all(0 < took < 5 for took in took_s)


def test_across_the_proxy_each_takes_the_round_trip(tmp_path) -> None:
    with make_way("proxy", LinkShape(0.05, 1e9), tmp_path / "log", {}) as way:
        assert min(echo.measure(way, [], 3)) >= 0.05
        way.silence(on=True)
        way.silence(on=False)
        assert min(echo.measure(way, [], 2)) >= 0.05  # a second proxy; both obey, both are ended
