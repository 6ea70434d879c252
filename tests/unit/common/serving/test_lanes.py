"""What is ready leaves by priority, and in the order it was picked, not in which it became ready."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from common.blocks import BlockRange
from common.serving.egress import Packed
from common.serving.lanes import Lanes
from common.serving.scheduler import Pick, Scheduler
from common.serving.source import Extent
from common.wire.messages import Codec, Priority

DEMAND, PREFETCH = Priority.DEMAND, Priority.PREFETCH


def picks_of(*reads: tuple[int, Priority]) -> list[Pick]:
    """One pick for each request, in the order given."""
    scheduler = Scheduler()
    scheduler.add_link(1, b"spoke", 1.0, "address")
    picks = []
    for request_id, priority in reads:
        scheduler.submit(0.0, 1, request_id, b"version", [BlockRange(0, 1)], priority, None)
        pick = scheduler.next(0.0)
        assert pick is not None
        picks.append(pick)
    return picks


def packed(size_bytes: int = 10) -> Packed:
    return Packed(Extent(BlockRange(0, 1), bytes(size_bytes), b""), Codec.RAW, bytes(size_bytes))


def ids(lanes: Lanes) -> list[int]:
    taken = []
    while (staged := lanes.take()) is not None:
        taken.append(staged[0].request.request_id)
    return taken


def test_demand_goes_first_and_each_in_the_order_picked() -> None:
    picks = picks_of((1, PREFETCH), (2, DEMAND), (3, PREFETCH), (4, DEMAND), (5, PREFETCH))
    lanes = Lanes()
    for pick in (picks[4], picks[3], picks[0], picks[2], picks[1]):
        lanes.add(pick, packed())
    assert ids(lanes) == [2, 4, 1, 3, 5]


def test_what_is_promoted_moves_with_all_that_is_ready_of_it() -> None:
    picks = picks_of((1, PREFETCH), (2, PREFETCH), (3, DEMAND))
    lanes = Lanes()
    for pick in picks:
        lanes.add(pick, packed())
    picks[1].request.priority = DEMAND
    lanes.promote(picks[1].request)
    assert lanes.waiting_bytes == 30
    assert ids(lanes) == [2, 3, 1]


@given(st.lists(st.sampled_from(["add", "take", "drop"]), max_size=60), st.randoms(use_true_random=False))
def test_bytes_that_wait_are_counted(steps: list[str], dice: Random) -> None:
    lanes = Lanes()
    waiting: dict[int, int] = {}
    unused = picks_of(*[(number, dice.choice(list(Priority))) for number in range(1, 61)])
    for step in steps:
        if step == "add":
            pick = unused.pop(dice.randrange(len(unused)))
            size_bytes = dice.randrange(100)
            lanes.add(pick, packed(size_bytes))
            waiting[pick.request.request_id] = size_bytes
        elif step == "take":
            staged = lanes.take()
            assert (staged is None) == (not waiting)
            if staged is not None:
                assert len(staged[1].payload) == waiting.pop(staged[0].request.request_id)
        elif waiting:
            request_id = dice.choice(sorted(waiting))
            lanes.drop(request_id)
            del waiting[request_id]
        assert lanes.waiting_bytes == sum(waiting.values())
        assert bool(lanes) == bool(waiting)
    lanes.clear()
    assert (lanes.waiting_bytes, bool(lanes)) == (0, False)
