"""Steering: what the kernel says of several connections becomes one rate, and reaches scheduler and sockets."""

from __future__ import annotations

import pytest

from common import limits
from common.blocks import EXTENT_BLOCKS, BlockRange
from common.serving.packing_choice import PackingCost
from common.serving.scheduler import Scheduler
from common.serving.steering import LINK_SHARE, LOOK_EVERY_S, RENEW_EVERY_S, Steering
from common.tcp import PathFacts
from common.wire.messages import Priority

SPOKE = b"s" * 16
ADDRESS = "192.0.2.1"
RTT_S = 0.06
RATE = 100e6


class FakeLink:
    def __init__(self) -> None:
        self.delivered_bytes = 0
        self.queue_s = 0.0
        self.limits: list[float | None] = []
        self.renewals = 0

    def path(self) -> PathFacts | None:
        return PathFacts(RTT_S + self.queue_s, RTT_S, 0, 0, 0, self.delivered_bytes)

    def limit_rate(self, max_rate_bytes_per_s: float | None) -> None:
        self.limits.append(max_rate_bytes_per_s)

    def renew(self) -> None:
        self.renewals += 1


class NearLink(FakeLink):
    def path(self) -> PathFacts | None:
        return PathFacts(0.0002 + self.queue_s, 0.0002, 0, 0, 0, self.delivered_bytes)


def busy_scheduler() -> Scheduler:
    scheduler = Scheduler()
    scheduler.add_link(1, SPOKE, path=ADDRESS)
    scheduler.submit(0.0, 1, 1, bytes(16), [BlockRange(0, 16 * EXTENT_BLOCKS)], Priority.PREFETCH, None)
    return scheduler


def look(steering: Steering, links: list[FakeLink], looks: int, now: list[float]) -> None:
    for _ in range(looks):
        now[0] += LOOK_EVERY_S
        for link in links:
            link.delivered_bytes += int(RATE * LOOK_EVERY_S / len(links))
        steering.look()


def test_a_standing_queue_sets_the_pace_of_spoke_and_links_and_an_idle_link_counts_for_nothing() -> None:
    now = [0.0]
    steering = Steering(busy_scheduler(), lambda: now[0])
    bulk, control = [FakeLink() for _ in range(4)], FakeLink()
    for link in [*bulk, control]:
        steering.joined(ADDRESS, SPOKE, link)
    look(steering, bulk, 20, now)
    controller = steering.controller(ADDRESS)
    assert controller is not None
    assert controller.rate_bytes_per_s is None
    for link in bulk:
        assert link.limits[-1] is not None  # a start is paced as well,
        assert link.limits[-1] > 1.2 * RATE / len(bulk)  # above what it brings
        link.queue_s = 0.05
    control.queue_s = 5.0
    look(steering, bulk, 10, now)
    rate = controller.rate_bytes_per_s
    assert rate is not None
    assert 0.5 * RATE < rate < RATE
    told = control.limits[-1]
    assert told == bulk[0].limits[-1]
    assert told is not None
    assert rate / 4 * 0.9 <= told <= rate / 4 * LINK_SHARE * 1.1


def test_a_start_is_looked_at_more_often_until_its_queue_is_seen_and_no_longer() -> None:
    now = [0.0]
    steering = Steering(busy_scheduler(), lambda: now[0])
    assert not steering.look()
    link = FakeLink()
    steering.joined(ADDRESS, SPOKE, link)
    look(steering, [link], 2, now)
    assert steering.look()
    link.queue_s = 0.05
    look(steering, [link], 10, now)
    assert not steering.look()


def test_a_new_link_of_a_paced_spoke_is_told_and_a_spoke_without_links_forgotten() -> None:
    now = [0.0]
    steering = Steering(busy_scheduler(), lambda: now[0])
    first, second = FakeLink(), FakeLink()
    steering.joined(ADDRESS, SPOKE, first)
    first.queue_s = 0.05
    look(steering, [first], 20, now)
    assert first.limits
    steering.joined(ADDRESS, SPOKE, second)
    assert second.limits == first.limits[-1:]
    steering.left(SPOKE, first)
    steering.left(SPOKE, second)
    steering.left(SPOKE, second)
    assert steering.controller(ADDRESS) is None


def test_a_link_is_never_told_more_than_the_configured_rate() -> None:
    now = [0.0]
    steering = Steering(busy_scheduler(), lambda: now[0], RATE / 100)
    link = FakeLink()
    steering.joined(ADDRESS, SPOKE, link)
    link.queue_s = 0.05
    look(steering, [link], 20, now)
    assert set(link.limits) == {RATE / 100}


def test_connections_begin_anew_in_time_while_our_pace_rules_and_never_before() -> None:
    now = [0.0]
    steering = Steering(busy_scheduler(), lambda: now[0])
    link = FakeLink()
    steering.joined(ADDRESS, SPOKE, link)
    look(steering, [link], 20, now)
    assert link.renewals == 0  # TCP decides: it may have to look for the round trip
    link.queue_s = 0.05
    look(steering, [link], 10, now)
    link.queue_s = 0.0
    assert link.renewals == 1
    look(steering, [link], int(3 * RENEW_EVERY_S / LOOK_EVERY_S), now)
    assert link.renewals == 4


def test_connections_are_bound_by_their_spokes_part_of_the_path() -> None:
    now = [0.0]
    scheduler = busy_scheduler()
    scheduler.add_link(2, b"light", path=ADDRESS)
    scheduler.submit(0.0, 2, 1, bytes(16), [BlockRange(0, 16 * EXTENT_BLOCKS)], Priority.PREFETCH, None)
    steering = Steering(scheduler, lambda: now[0])
    many, one = [FakeLink() for _ in range(9)], FakeLink()
    for link in many:
        steering.joined(ADDRESS, SPOKE, link)
    steering.joined(ADDRESS, b"light", one)
    for link in (*many, one):
        link.queue_s = 0.05
    look(steering, [*many, one], 20, now)
    controller = steering.controller(ADDRESS)
    assert controller is not None
    assert controller.path_bytes_per_s > 0.8 * RATE  # one path, however many spokes
    few, alone = many[0].limits[-1], one.limits[-1]
    assert few is not None
    assert alone is not None
    assert alone > 8 * few


def test_a_spoke_that_comes_from_two_addresses_has_one_pace_for_all_its_connections() -> None:
    now = [0.0]
    steering = Steering(busy_scheduler(), lambda: now[0])
    first, second = FakeLink(), FakeLink()
    steering.joined(ADDRESS, SPOKE, first)
    steering.joined("192.0.2.2", SPOKE, second)  # behind a pool of addresses
    first.queue_s = second.queue_s = 0.05
    look(steering, [first, second], 20, now)
    controller = steering.controller(ADDRESS)
    assert controller is not None
    assert controller.path_bytes_per_s > 0.8 * RATE  # what both carry, not what one does
    assert second.limits == first.limits != []
    assert steering.controller("192.0.2.2") is None
    steering.left(SPOKE, first)
    steering.left(SPOKE, second)
    steering.left(SPOKE, second)
    assert steering.controller(ADDRESS) is None


def test_what_is_known_of_packing_for_a_path_is_shared_by_its_spokes_and_outlives_them() -> None:
    now = [0.0]
    steering = Steering(busy_scheduler(), lambda: now[0])
    one, other = FakeLink(), FakeLink()
    assert steering.packing(SPOKE, far=False) is None, "nobody is there"
    steering.joined(ADDRESS, SPOKE, one)
    steering.joined(ADDRESS, b"other", other)
    choice = steering.packing(SPOKE, far=False)
    assert choice is not None
    assert steering.packing(b"other", far=False) is choice
    choice.prepared(1 << 20, 1 << 20, PackingCost())
    for _ in range(10):
        choice.prepared(1 << 20, 1 << 20, PackingCost())
        look(steering, [one, other], 1, now)
    assert choice.raw_bytes_per_s == pytest.approx(RATE, rel=0.01)
    steering.left(SPOKE, one)
    steering.left(b"other", other)
    steering.joined(ADDRESS, SPOKE, one)
    assert steering.packing(SPOKE, far=False) is choice
    steering.joined(ADDRESS, b"through a proxy", other)
    assert steering.packing(b"through a proxy", far=True) is not choice


def test_who_comes_back_begins_at_what_the_path_carried_unless_that_is_long_ago() -> None:
    now = [0.0]
    steering = Steering(busy_scheduler(), lambda: now[0])

    def visit(seconds_later: float, looks: int) -> float | None:
        now[0] += seconds_later
        link = FakeLink()
        steering.joined(ADDRESS, SPOKE, link)
        controller = steering.controller(ADDRESS)
        assert controller is not None
        begins_at = controller.rate_bytes_per_s
        link.queue_s = 0.05
        look(steering, [link], looks, now)
        steering.left(SPOKE, link)
        return begins_at

    assert visit(0.0, 20) is None
    assert visit(600.0, 0) == pytest.approx(RATE, rel=0.1)
    assert visit(0.0, 0) == pytest.approx(RATE, rel=0.1)  # who asked for nothing forgot nothing
    assert visit(limits.PATHS_KNOWN_S + 1.0, 0) is None


def test_a_near_path_is_not_remembered() -> None:
    """What limits it are the processes at its ends, and those change."""
    now = [0.0]
    steering = Steering(busy_scheduler(), lambda: now[0])
    link = NearLink()
    steering.joined(ADDRESS, SPOKE, link)
    link.queue_s = 0.05
    look(steering, [link], 20, now)
    assert link.limits
    steering.left(SPOKE, link)
    steering.joined(ADDRESS, SPOKE, link)
    controller = steering.controller(ADDRESS)
    assert controller is not None
    assert controller.rate_bytes_per_s is None
