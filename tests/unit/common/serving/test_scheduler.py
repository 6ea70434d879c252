"""The scheduler's promises one by one, in virtual time."""

from __future__ import annotations

from collections import Counter

import pytest

from common import limits
from common.blocks import EXTENT_BLOCKS, EXTENT_BYTES, BlockRange
from common.errors import Overloaded
from common.serving.requests import Pick
from common.serving.scheduler import DEMAND_CREDIT_BYTES, ReadAhead, Scheduler
from common.wire.messages import Priority

VERSION = bytes(16)
WIDE = ReadAhead(reading_bytes=1 << 40, link_bytes=1 << 40, path_bytes=1 << 40, total_bytes=1 << 40)


def read(
    scheduler: Scheduler,
    link_id: int,
    request_id: int,
    extents: int = 1,
    priority: Priority = Priority.DEMAND,
    deadline_s: float | None = None,
    now_s: float = 0.0,
) -> None:
    ranges = [BlockRange(0, extents * EXTENT_BLOCKS)]
    scheduler.submit(now_s, link_id, request_id, VERSION, ranges, priority, deadline_s)


def drain(scheduler: Scheduler, now_s: float = 0.0, count: int = 10_000) -> list[Pick]:
    picks: list[Pick] = []
    while len(picks) < count and (pick := scheduler.next(now_s)) is not None:
        picks.append(pick)
    return picks


def send(scheduler: Scheduler, pick: Pick) -> None:
    scheduler.loaded(pick)
    scheduler.finished(pick, pick.size_bytes)


def who(picks: list[Pick]) -> list[tuple[int, int]]:
    return [(pick.request.link_id, pick.request.request_id) for pick in picks]


def test_a_paths_pace_holds_prefetch_and_demand_goes_a_little_ahead() -> None:
    scheduler = Scheduler(read_ahead=WIDE)
    scheduler.add_link(1, b"a", path="near")
    scheduler.add_link(2, b"b", path="far")
    rate = 10.0 * EXTENT_BYTES
    scheduler.pace_path(0.0, "near", rate)
    scheduler.pace_path(0.0, "nowhere", rate)
    read(scheduler, 1, 1, extents=40, priority=Priority.PREFETCH)
    read(scheduler, 2, 1, extents=40, priority=Priority.PREFETCH)
    picks = drain(scheduler)
    assert len([pick for pick in picks if pick.request.link_id == 2]) == 40
    ahead = len(picks) - 40
    assert 1 <= ahead <= 2
    wake_s = scheduler.wake_at(0.0)
    assert wake_s is not None
    assert 0.0 < wake_s <= 0.2
    read(scheduler, 1, 2, now_s=0.06)
    assert who(drain(scheduler, 0.06)) == [(1, 2)]
    assert sum(len(drain(scheduler, step / 100)) for step in range(7, 201)) == pytest.approx(20 - ahead - 1, abs=1)
    scheduler.pace_path(2.0, "near", None)
    assert drain(scheduler, 2.0)
    assert scheduler.wake_at(2.0) is None


def test_the_configured_pace_of_a_spoke_is_the_most() -> None:
    scheduler = Scheduler(read_ahead=WIDE, spoke_rate_bytes_per_s=EXTENT_BYTES)
    scheduler.add_link(1, b"a", path="near")
    scheduler.pace_path(0.0, "near", 1000.0 * EXTENT_BYTES)
    read(scheduler, 1, 1, extents=40, priority=Priority.PREFETCH)
    assert sum(len(drain(scheduler, step / 10)) for step in range(50)) <= 6


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_spokes_behind_one_address_share_its_pace_whatever_their_connections(weight: float) -> None:
    scheduler = Scheduler(read_ahead=WIDE)
    for link_id in range(30):
        scheduler.add_link(link_id, b"greedy", path="near")
    scheduler.add_link(30, b"light", weight, path="near")
    scheduler.add_link(31, b"elsewhere", path="far")
    scheduler.pace_path(0.0, "near", 40.0 * EXTENT_BYTES)
    for link_id in range(30):
        read(scheduler, link_id, 1, extents=10, priority=Priority.PREFETCH)
    read(scheduler, 30, 1, extents=100, priority=Priority.PREFETCH)
    read(scheduler, 31, 1, extents=100, priority=Priority.PREFETCH)
    got: Counter[int] = Counter()
    for step in range(500):
        for pick in drain(scheduler, step / 250):
            got[pick.request.link_id] += 1
            send(scheduler, pick)
    assert got[31] == 100
    assert got[30] == pytest.approx(80 * weight / (1 + weight), abs=2)
    assert sum(got[link_id] for link_id in range(31)) == pytest.approx(80, abs=2)
    assert max(got[link_id] for link_id in range(30)) - min(got[link_id] for link_id in range(30)) <= 1


def test_what_is_read_ahead_for_one_of_several_behind_an_address_is_bounded_and_goes_on_as_it_leaves() -> None:
    scheduler = Scheduler(read_ahead=ReadAhead(1 << 40, 4 * EXTENT_BYTES, path_bytes=10 * EXTENT_BYTES))
    for link_id in range(8):
        scheduler.add_link(link_id, b"greedy", path="near")
        read(scheduler, link_id, 1, extents=4, priority=Priority.PREFETCH)
    alone = drain(scheduler)
    assert len(alone) == 32  # nobody else waits: each connection has its four
    for pick in alone:
        send(scheduler, pick)
    scheduler.add_link(8, b"light", path="near")
    for link_id in range(9):
        read(scheduler, link_id, 2, extents=4, priority=Priority.PREFETCH)
    ahead = drain(scheduler)
    assert Counter(pick.request.link_id == 8 for pick in ahead) == {False: 5, True: 4}
    got = 5
    while got < 32:
        pick = next(pick for pick in ahead if pick.request.link_id != 8)
        ahead.remove(pick)
        send(scheduler, pick)
        (following,) = drain(scheduler)
        ahead.append(following)
        got += 1
    assert not drain(scheduler)


def test_a_path_is_forgotten_with_its_last_connection() -> None:
    scheduler = Scheduler(read_ahead=WIDE)
    scheduler.add_link(1, b"a", path="near")
    scheduler.add_link(2, b"b", path="near")
    read(scheduler, 1, 1, extents=3)
    read(scheduler, 2, 1, extents=2)
    assert scheduler.waiting_on_path("near") == 5 * EXTENT_BYTES
    assert scheduler.waiting_on_path("far") == 0
    scheduler.remove_link(1)
    assert scheduler.waiting_on_path("near") == 2 * EXTENT_BYTES
    scheduler.pace_path(0.0, "near", EXTENT_BYTES)
    scheduler.remove_link(2)
    scheduler.add_link(3, b"a", path="near")
    read(scheduler, 3, 1, extents=9)
    assert len(drain(scheduler)) == 9  # the pace went with it


def test_a_read_is_cut_at_extents_and_its_last_one_known() -> None:
    scheduler = Scheduler(read_ahead=WIDE)
    scheduler.add_link(1, b"a")
    scheduler.submit(0.0, 1, 7, VERSION, [BlockRange(250, 20), BlockRange(1000, 1)], Priority.DEMAND, None)
    picks = drain(scheduler)
    assert [pick.blocks for pick in picks] == [BlockRange(250, 6), BlockRange(256, 14), BlockRange(1000, 1)]
    assert [pick.is_last for pick in picks] == [False, False, False]
    send(scheduler, picks[2])
    send(scheduler, picks[0])
    assert picks[1].is_last
    assert scheduler.open_requests(1) == 1
    send(scheduler, picks[1])
    assert scheduler.open_requests(1) == 0
    assert scheduler.outstanding_bytes(b"a") == 0
    assert scheduler.read_ahead_bytes == 0


def test_demand_goes_before_prefetch_and_small_demand_is_not_held_up_by_large() -> None:
    scheduler = Scheduler(read_ahead=WIDE)
    scheduler.add_link(1, b"a")
    read(scheduler, 1, 1, 3, Priority.PREFETCH)
    read(scheduler, 1, 2, 3, Priority.DEMAND)
    read(scheduler, 1, 3, 1, Priority.DEMAND)
    read(scheduler, 1, 4, 1, Priority.PREFETCH)
    assert who(drain(scheduler)) == [(1, 2), (1, 3), (1, 2), (1, 2), (1, 1), (1, 1), (1, 1), (1, 4)]


def test_demand_overtakes_prefetch_of_the_same_spoke_on_another_link() -> None:
    scheduler = Scheduler(read_ahead=WIDE)
    scheduler.add_link(1, b"a")
    scheduler.add_link(2, b"a")
    read(scheduler, 1, 1, 8, Priority.PREFETCH)
    assert len(drain(scheduler, count=2)) == 2
    read(scheduler, 2, 1, 2, Priority.DEMAND)
    assert who(drain(scheduler, count=3)) == [(2, 1), (2, 1), (1, 1)]


def test_links_of_a_spoke_take_turns_and_a_full_one_is_passed_over() -> None:
    scheduler = Scheduler(read_ahead=ReadAhead(1 << 40, 2 * EXTENT_BYTES))
    for link_id in (1, 2):
        scheduler.add_link(link_id, b"a")
        read(scheduler, link_id, 1, 4, Priority.PREFETCH)
    picks = drain(scheduler)
    assert sorted(who(picks)) == [(1, 1), (1, 1), (2, 1), (2, 1)]
    first_of_two = next(pick for pick in picks if pick.request.link_id == 2)
    send(scheduler, first_of_two)
    assert who(drain(scheduler)) == [(2, 1)]


def test_connections_of_a_spoke_take_turns_at_prefetch_by_bytes() -> None:
    """Extent by extent, each small READ here waited for a whole extent of the other connection: at 300 Mbit/s and with twelve connections
    seven of 64 KiB took 1.2 s, and the workers of a loader stood before them."""
    scheduler = Scheduler(read_ahead=WIDE)
    for link_id in (1, 2):
        scheduler.add_link(link_id, b"a")
    for number in range(7):
        small = BlockRange(EXTENT_BLOCKS * number, 16)
        scheduler.submit(0.0, 1, number, VERSION, [small], Priority.PREFETCH, None)
        read(scheduler, 2, number, priority=Priority.PREFETCH)
    assert [link_id for link_id, _ in who(drain(scheduler))] == [1, 2, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]
    # Who asked for nothing meanwhile has no more of it than the other now.
    for number in (7, 8):
        read(scheduler, 1, number, priority=Priority.PREFETCH)
        read(scheduler, 2, number, priority=Priority.PREFETCH)
    assert sorted(link_id for link_id, _ in who(drain(scheduler, count=2))) == [1, 2]


def test_demand_has_its_own_read_ahead() -> None:
    scheduler = Scheduler(read_ahead=ReadAhead(1 << 40, 2 * EXTENT_BYTES))
    scheduler.add_link(1, b"a")
    read(scheduler, 1, 1, 9, Priority.PREFETCH)
    assert len(drain(scheduler)) == 2
    read(scheduler, 1, 2, 1, Priority.DEMAND)
    assert who(drain(scheduler)) == [(1, 2)]


def test_reading_is_bounded_until_loaded_and_small_reads_count_for_more() -> None:
    scheduler = Scheduler(read_ahead=ReadAhead(2 * EXTENT_BYTES, 1 << 40))
    scheduler.add_link(1, b"a")
    read(scheduler, 1, 1, 5)
    picks = drain(scheduler)
    assert len(picks) == 2
    scheduler.loaded(picks[0])
    scheduler.loaded(picks[0])
    assert len(drain(scheduler)) == 1
    scheduler.end(1, 1)
    scheduler.submit(0.0, 1, 2, VERSION, [BlockRange(2 * i, 1) for i in range(500)], Priority.DEMAND, None)
    assert len(drain(scheduler)) == 2 * EXTENT_BYTES // limits.READ_AHEAD_ITEM_MIN_BYTES


def test_sockets_that_take_nothing_do_not_stop_the_others() -> None:
    scheduler = Scheduler(read_ahead=ReadAhead(1 << 40, 4 * EXTENT_BYTES, total_bytes=8 * EXTENT_BYTES))
    for link_id in range(4):
        scheduler.add_link(link_id, b"%d" % link_id)
        read(scheduler, link_id, 1, 100, Priority.PREFETCH)
    stuck = drain(scheduler)
    assert len(stuck) == 8
    scheduler.add_link(9, b"9")
    read(scheduler, 9, 1, 3, Priority.PREFETCH)
    for _ in range(3):
        (pick,) = drain(scheduler)
        assert pick.request.link_id == 9
        send(scheduler, pick)
    # One socket takes what it had: the total has room again and its turn comes back.
    for pick in stuck:
        if pick.request.link_id == 0:
            send(scheduler, pick)
    assert {link for link, _ in who(drain(scheduler))} & {0, 1, 2, 3}


def test_demand_of_one_spoke_does_not_wait_for_the_prefetch_of_others() -> None:
    scheduler = Scheduler(read_ahead=WIDE)
    for link_id in range(64):
        scheduler.add_link(link_id, b"%d" % link_id)
        read(scheduler, link_id, 1, 64, Priority.PREFETCH)
    drain(scheduler, count=100)
    read(scheduler, 63, 2, 2, Priority.DEMAND)
    assert who(drain(scheduler, count=2)) == [(63, 2), (63, 2)]


def test_demand_on_credit_is_paid_back_also_after_a_pause() -> None:
    scheduler = Scheduler(read_ahead=WIDE)
    scheduler.add_link(1, b"greedy")
    scheduler.add_link(2, b"patient")
    read(scheduler, 2, 1, 60, Priority.PREFETCH)
    taken = {1: 0, 2: 0}
    for request_id in range(40):  # a new small demand each time the last one was served
        if request_id % 2:
            read(scheduler, 1, request_id, 1, Priority.DEMAND)
        pick = scheduler.next(0.0)
        assert pick is not None
        taken[pick.request.link_id] += 1
        send(scheduler, pick)
    assert abs(taken[1] - taken[2]) <= DEMAND_CREDIT_BYTES // EXTENT_BYTES + 2


def test_weights_share_in_proportion() -> None:
    scheduler = Scheduler(read_ahead=WIDE)
    scheduler.add_link(1, b"a", weight=1)
    scheduler.add_link(2, b"b", weight=3)
    for link_id in (1, 2):
        for request_id in range(30):
            read(scheduler, link_id, request_id, 16, Priority.PREFETCH)
    picks = drain(scheduler, count=400)
    share = sum(pick.request.link_id == 2 for pick in picks) / len(picks)
    assert share == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("weight", [0, -1, 1e9])
def test_impossible_weight_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        Scheduler().add_link(1, b"a", weight)


def test_total_rate_is_kept_and_the_wake_time_is_right() -> None:
    rate = 64 * EXTENT_BYTES
    scheduler = Scheduler(total_rate_bytes_per_s=rate, read_ahead=WIDE)
    scheduler.add_link(1, b"a")
    for request_id in range(32):
        read(scheduler, 1, request_id, 16, Priority.PREFETCH)
    now_s, sent = 0.0, 0
    while now_s < 4.0:
        for pick in drain(scheduler, now_s):
            send(scheduler, pick)
            sent += 1
            if sent % 16 == 0:
                read(scheduler, 1, 1000 + sent, 16, Priority.PREFETCH, now_s=now_s)
        wake_s = scheduler.wake_at(now_s)
        assert wake_s is not None
        assert wake_s > now_s
        now_s = wake_s
    assert sent * EXTENT_BYTES == pytest.approx(4 * rate, rel=0.02)


def test_a_rate_per_spoke_holds_all_its_links_and_leaves_the_others_alone() -> None:
    rate = 16 * EXTENT_BYTES
    scheduler = Scheduler(spoke_rate_bytes_per_s=rate, read_ahead=WIDE)
    for link_id, spoke_id in ((1, b"a"), (2, b"a"), (3, b"b")):
        scheduler.add_link(link_id, spoke_id)
        for request_id in range(10):
            read(scheduler, link_id, request_id, 16, Priority.DEMAND)
    now_s = 0.0
    sent = {1: 0, 2: 0, 3: 0}
    while now_s < 4.0:
        for pick in drain(scheduler, now_s):
            send(scheduler, pick)
            sent[pick.request.link_id] += 1
        wake_s = scheduler.wake_at(now_s)
        assert wake_s is not None
        assert wake_s > now_s
        now_s = wake_s
    assert (sent[1] + sent[2]) == pytest.approx(64, abs=3)
    assert sent[3] == pytest.approx(64, abs=3)
    assert abs(sent[1] - sent[2]) <= 1


def test_what_was_not_sent_after_all_does_not_count_against_the_rate() -> None:
    scheduler = Scheduler(total_rate_bytes_per_s=EXTENT_BYTES, read_ahead=WIDE)
    scheduler.add_link(1, b"a")
    read(scheduler, 1, 1, 2)
    (pick,) = drain(scheduler)
    scheduler.loaded(pick)
    scheduler.finished(pick, EXTENT_BYTES // 4)  # compressed, or a short last block
    wake_s = scheduler.wake_at(0.0)
    assert wake_s is not None
    assert wake_s <= 0.25


def test_deadline_is_reported_once_and_wakes_the_caller() -> None:
    scheduler = Scheduler(read_ahead=WIDE)
    scheduler.add_link(1, b"a")
    read(scheduler, 1, 1, deadline_s=5.0)
    read(scheduler, 1, 2, deadline_s=9.0)
    read(scheduler, 1, 3)
    assert scheduler.wake_at(0.0) == 5.0
    assert scheduler.expired(4.9) == []
    assert [request.request_id for request in scheduler.expired(5.0)] == [1]
    assert scheduler.expired(5.0) == []
    scheduler.end(1, 1)
    assert who(drain(scheduler)) == [(1, 2), (1, 3)]


def test_promote_moves_the_rest_and_replaces_the_deadline() -> None:
    scheduler = Scheduler(read_ahead=WIDE)
    scheduler.add_link(1, b"a")
    read(scheduler, 1, 1, 3, Priority.PREFETCH, deadline_s=1.0)
    read(scheduler, 1, 2, 3, Priority.PREFETCH)
    drain(scheduler, count=1)
    request = scheduler.promote(1, 2, Priority.DEMAND, 8.0)
    assert request is not None
    assert request.priority is Priority.DEMAND
    scheduler.promote(1, 1, Priority.PREFETCH, None)
    assert who(drain(scheduler)) == [(1, 2), (1, 2), (1, 2), (1, 1), (1, 1)]
    assert scheduler.expired(7.0) == []
    assert [found.request_id for found in scheduler.expired(8.0)] == [2]
    assert scheduler.promote(1, 99, Priority.DEMAND, None) is None


def test_an_ended_read_gives_everything_back() -> None:
    scheduler = Scheduler(total_rate_bytes_per_s=EXTENT_BYTES * 100, read_ahead=WIDE)
    scheduler.add_link(1, b"a")
    read(scheduler, 1, 1, 5, Priority.PREFETCH)
    picks = drain(scheduler, count=2)
    ended = scheduler.end(1, 1)
    assert ended is not None
    assert set(ended) == set(picks)
    assert not any(pick.live for pick in picks)
    scheduler.loaded(picks[0])
    scheduler.finished(picks[0], EXTENT_BYTES)
    assert scheduler.outstanding_bytes(b"a") == 0
    assert scheduler.read_ahead_bytes == 0
    assert scheduler.end(1, 1) is None
    assert drain(scheduler) == []
    read(scheduler, 1, 1)  # the id is free again
    assert len(drain(scheduler)) == 1


def test_limits_are_refused_not_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUESTS_MAX_OUTSTANDING", 2)
    monkeypatch.setattr(limits, "SPOKE_MAX_OUTSTANDING_BYTES", 6 * EXTENT_BYTES)
    scheduler = Scheduler(read_ahead=WIDE)
    scheduler.add_link(1, b"a")
    scheduler.add_link(2, b"a")
    read(scheduler, 1, 1, 2)
    read(scheduler, 1, 2, 2)
    with pytest.raises(Overloaded, match="open on this connection"):
        read(scheduler, 1, 3)
    with pytest.raises(Overloaded, match="outstanding"):
        read(scheduler, 2, 1, 3)
    read(scheduler, 2, 1, 2)
    assert scheduler.outstanding_bytes(b"a") == 6 * EXTENT_BYTES


def test_a_lost_link_takes_its_reads_along_and_leaves_its_spoke() -> None:
    scheduler = Scheduler(read_ahead=WIDE)
    scheduler.add_link(1, b"a")
    scheduler.add_link(2, b"a")
    read(scheduler, 1, 1, 4)
    read(scheduler, 2, 1, 2)
    picks = drain(scheduler, count=3)
    gone = scheduler.remove_link(1)
    assert set(gone) == {pick for pick in picks if pick.request.link_id == 1}
    assert all(link == 2 for link, _ in who(drain(scheduler)))
    scheduler.remove_link(2)
    assert scheduler.read_ahead_bytes == 0
    assert drain(scheduler) == []
    assert scheduler.wake_at(0.0) is None
    scheduler.add_link(1, b"a")
    read(scheduler, 1, 1)
    assert len(drain(scheduler)) == 1


def test_deadlines_of_reads_long_over_do_not_pile_up() -> None:
    scheduler = Scheduler(read_ahead=WIDE)
    scheduler.add_link(1, b"a")
    for request_id in range(10_000):
        read(scheduler, 1, request_id, deadline_s=300.0)
        (pick,) = drain(scheduler)
        send(scheduler, pick)
    assert len(scheduler._deadlines) < 1100
