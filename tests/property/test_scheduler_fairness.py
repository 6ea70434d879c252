"""Whatever the shapes of their READs, spokes that always want more get equal shares; and no extent is lost or served twice."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, BlockRange, split_at_extents
from common.serving.requests import Pick
from common.serving.scheduler import ReadAhead, Scheduler
from common.wire.messages import Priority

VERSION = bytes(16)


class HungrySpoke:
    """Keeps a backlog of its own shape: links, READ sizes, priorities."""

    def __init__(self, scheduler: Scheduler, number: int, dice: random.Random, weight: float = 1.0) -> None:
        self.scheduler = scheduler
        self.spoke_id = b"%d" % number
        self.weight = weight
        self.links = [number * 100 + position for position in range(dice.choice([1, 1, 2, 8]))]
        for link_id in self.links:
            scheduler.add_link(link_id, self.spoke_id, weight)
        self.blocks_per_read = dice.choice([8, 32, 256, 1024, 4096])
        self.demand_share = dice.choice([0.0, 0.0, 0.5, 1.0])
        self.dice = dice
        self.next_id = 0
        self.sent_bytes = 0

    def refill(self, now_s: float, link_id: int) -> None:
        while self.scheduler.open_requests(link_id) < 4 or (
            self.scheduler.outstanding_bytes(self.spoke_id) < 8 * EXTENT_BYTES
        ):
            self.next_id += 1
            priority = Priority.DEMAND if self.dice.random() < self.demand_share else Priority.PREFETCH
            ranges = [BlockRange(self.dice.randrange(10_000), self.blocks_per_read)]
            self.scheduler.submit(now_s, link_id, self.next_id, VERSION, ranges, priority, None)


@settings(max_examples=2)
@given(seed=st.integers(0, 2**32))
def test_64_spokes_share_within_10_percent(seed: int) -> None:
    share(random.Random(seed), [1.0] * 64)


@settings(max_examples=2)
@given(seed=st.integers(0, 2**32))
def test_64_spokes_share_by_their_weights(seed: int) -> None:
    share(random.Random(seed), [0.5] * 16 + [1.0] * 32 + [2.0] * 15 + [4.0])


def share(dice: random.Random, weights: list[float]) -> None:
    rate = 1024 * EXTENT_BYTES
    run_s = 2.5
    scheduler = Scheduler(total_rate_bytes_per_s=rate)
    spokes = [HungrySpoke(scheduler, number, dice, weight) for number, weight in enumerate(weights)]
    for spoke in spokes:
        for link_id in spoke.links:
            spoke.refill(0.0, link_id)
    now_s = 0.0
    under_way: list[Pick] = []
    while now_s < run_s:
        while (pick := scheduler.next(now_s)) is not None:
            under_way.append(pick)
            scheduler.loaded(pick)
        for _ in range(min(len(under_way), dice.randint(1, 8))):
            pick = under_way.pop(dice.randrange(len(under_way)))
            spoke = spokes[pick.request.link_id // 100]
            spoke.sent_bytes += pick.size_bytes
            scheduler.finished(pick, pick.size_bytes)
            spoke.refill(now_s, pick.request.link_id)
        wake_s = scheduler.wake_at(now_s)
        assert wake_s is not None or under_way
        now_s = wake_s if wake_s is not None else now_s + 1e-4
    sent_bytes = sum(spoke.sent_bytes for spoke in spokes)
    assert sent_bytes == pytest.approx(run_s * rate, rel=0.05)
    for spoke in spokes:
        # What is under way, and demand on credit, count up to three extents: for a light spoke more than a tenth of its 17.
        expected = sent_bytes * spoke.weight / sum(weights)
        assert spoke.sent_bytes == pytest.approx(expected, rel=0.10, abs=3 * EXTENT_BYTES)


OPERATIONS = [
    "submit",
    "submit",
    "submit",
    "next",
    "next",
    "next",
    "load",
    "send",
    "send",
    "end",
    "promote",
    "drop_link",
]


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_every_extent_is_served_once_and_the_books_balance(seed: int) -> None:
    dice = random.Random(seed)
    read_ahead = ReadAhead(
        reading_bytes=dice.choice([1, 4, 64]) * EXTENT_BYTES,
        link_bytes=dice.choice([1, 4]) * EXTENT_BYTES,
        total_bytes=dice.choice([2, 16, 64]) * EXTENT_BYTES,
    )
    rate = dice.choice([None, 200 * EXTENT_BYTES])
    scheduler = Scheduler(total_rate_bytes_per_s=rate, read_ahead=read_ahead)
    wanted: dict[tuple[int, int], Counter[BlockRange]] = {}  # open READs: extents neither picked nor given up
    sizes: dict[tuple[int, int], int] = {}
    priorities: dict[tuple[int, int], Priority] = {}
    under_way: list[Pick] = []
    links: dict[int, bytes] = {}
    now_s = 0.0
    next_request = 0
    next_link = 0

    def key(pick: Pick) -> tuple[int, int]:
        return pick.request.link_id, pick.request.request_id

    def take() -> bool:
        pick = scheduler.next(now_s)
        if pick is None:
            return False
        assert key(pick) in wanted
        assert wanted[key(pick)][pick.blocks] == 1
        wanted[key(pick)][pick.blocks] -= 1
        spoke_id = links[pick.request.link_id]
        if pick.request.priority is Priority.PREFETCH and not read_ahead.total_bytes <= scheduler.read_ahead_bytes:
            waiting_demand = [
                found
                for found, extents in wanted.items()
                if links[found[0]] == spoke_id and priorities[found] is Priority.DEMAND and extents.total()
            ]
            for link_id, _ in waiting_demand:  # only a link that may read no further ahead lets prefetch by
                ahead = sum(
                    p.ahead_bytes for p in under_way if p.live and p.lane is Priority.DEMAND and key(p)[0] == link_id
                )
                assert ahead >= read_ahead.link_bytes
        under_way.append(pick)
        return True

    def send(pick: Pick) -> None:
        scheduler.loaded(pick)
        if pick.live:
            sizes[key(pick)] -= pick.size_bytes
            is_last = sizes[key(pick)] == 0
            assert pick.is_last == is_last
            if is_last:
                forget(key(pick))
        scheduler.finished(pick, dice.randint(0, pick.size_bytes))

    def forget(found: tuple[int, int]) -> None:
        del wanted[found], sizes[found], priorities[found]

    for _ in range(dice.randint(20, 250)):
        now_s += dice.random() * 0.01
        operation = dice.choice(OPERATIONS)
        if not links or (len(links) < 6 and dice.random() < 0.1):
            links[next_link] = b"%d" % dice.randrange(3)
            scheduler.add_link(next_link, links[next_link], dice.choice([0.5, 1, 4]))
            next_link += 1
        if operation == "submit":
            link_id = dice.choice(list(links))
            next_request += 1
            blocks = BlockRange(dice.randrange(1000), dice.randint(1, 3 * EXTENT_BLOCKS))
            priority = dice.choice(list(Priority))
            scheduler.submit(now_s, link_id, next_request, VERSION, [blocks], priority, None)
            wanted[link_id, next_request] = Counter(split_at_extents(blocks))
            sizes[link_id, next_request] = blocks.block_count * BLOCK_BYTES
            priorities[link_id, next_request] = priority
        elif operation == "next":
            take()
        elif operation == "load" and under_way:
            scheduler.loaded(dice.choice(under_way))
        elif operation == "send" and under_way:
            send(under_way.pop(dice.randrange(len(under_way))))
        elif operation == "end" and wanted:
            found = dice.choice(list(wanted))
            assert scheduler.end(*found) is not None
            forget(found)
        elif operation == "promote" and wanted:
            found = dice.choice(list(wanted))
            priorities[found] = dice.choice(list(Priority))
            assert scheduler.promote(*found, priorities[found], None) is not None
        elif operation == "drop_link" and dice.random() < 0.2:
            link_id = dice.choice(list(links))
            scheduler.remove_link(link_id)
            for found in [found for found in wanted if found[0] == link_id]:
                forget(found)
            del links[link_id]
        for spoke_id in set(links.values()):
            expected = sum(size for found, size in sizes.items() if links[found[0]] == spoke_id)
            assert scheduler.outstanding_bytes(spoke_id) == expected
        assert scheduler.read_ahead_bytes == sum(pick.ahead_bytes for pick in under_way if pick.live)

    for _ in range(100_000):  # all that is left is served, whatever state the walk ended in
        if not take():
            if under_way:
                send(under_way.pop())
            elif wanted:
                wake_s = scheduler.wake_at(now_s)
                assert wake_s is not None, "work waits, nothing is under way, and nobody would wake"
                now_s = wake_s
            else:
                break
    assert not wanted
    assert scheduler.next(now_s) is None
