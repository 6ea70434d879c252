"""What a large fetch may expect of the link: measured over what really came, and not forgotten while nothing does."""

from __future__ import annotations

from itertools import pairwise

from spoke.hub_client.keeper import _RateMeter

MB = 1_000_000


class Link:
    """Ticks as the keeper gives them: ten a second while bytes arrive, one in two seconds else."""

    def __init__(self) -> None:
        self.meter = _RateMeter()
        self.now_s = 0.0
        self.received_bytes = 0
        self.meter.tick(0.0, 0)

    def carry(self, seconds: float, bytes_per_s: float, every_s: float = 0.1) -> None:
        for _ in range(round(seconds / every_s)):
            self.now_s += every_s
            self.received_bytes += int(bytes_per_s * every_s)
            self.meter.tick(self.now_s, self.received_bytes)

    def rest(self, seconds: float) -> None:
        self.carry(seconds, 30.0, every_s=2.0)


def test_names_and_signs_of_life_are_no_rate() -> None:
    link = Link()
    link.carry(0.2, 10_000)
    link.rest(600)
    assert link.meter.carried_bytes_per_s == 0.0


def test_what_was_carried_is_known_hours_later() -> None:
    link = Link()
    link.rest(60)
    link.carry(5, 20 * MB)
    link.rest(7200)
    assert 0.9 * 20 * MB <= link.meter.carried_bytes_per_s <= 20 * MB
    assert link.meter.best_bytes_per_s < MB, "the rate of now is nothing"


def test_a_rest_before_a_burst_does_not_count() -> None:
    link = Link()
    link.carry(2, 20 * MB)
    first = link.meter.carried_bytes_per_s
    link.rest(8)
    link.carry(3, 2 * MB)
    assert link.meter.carried_bytes_per_s >= 0.95 * first
    fresh = Link()
    fresh.rest(9)
    fresh.carry(2, 20 * MB)
    assert fresh.meter.carried_bytes_per_s >= 0.8 * 20 * MB


def test_a_slow_link_is_measured_and_a_slower_one_is_believed_in_time() -> None:
    link = Link()
    link.carry(30, 0.2 * MB)
    assert 0.18 * MB <= link.meter.carried_bytes_per_s <= 0.2 * MB
    link.carry(5, 100 * MB)
    seen = []
    for _ in range(20):
        link.carry(30, 11 * MB)
        seen.append(link.meter.carried_bytes_per_s)
    assert all(after <= before for before, after in pairwise(seen))
    assert seen[-1] < 15 * MB
