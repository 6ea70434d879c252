"""Declared plans become orders, within their limits, and are forgotten; what cannot be is refused, with the reason kept."""

import errno
import struct
from typing import Any

import pytest
from names_support import directory, file, filled, symlink

from common import limits
from common.entries import Change
from common.errors import HeadraceError, PlanTooLong
from spoke import hints
from spoke.namespace.tree import Tree
from spoke.orders.growing import GrowingOrder
from spoke.plan_message import Kind, PlanAnswer, encode_short
from spoke.plans import Plans
from spoke.prefetch.orders import Order, Reason, Step

MIB = 1 << 20
ANSWER = struct.Struct("<4sBBHQQQ")


class FakeFollower:
    """Takes orders; the test says how far they were read."""

    def __init__(self) -> None:
        self.active: dict[str, Order] = {}
        self.positions: dict[str, int] = {}
        self.full = False

    def add_order(self, order: Order) -> None:
        assert order.name not in self.active
        if self.full:
            raise PlanTooLong("32 orders are followed")
        self.active[order.name] = order

    def drop_order(self, name: str) -> bool:
        return self.active.pop(name, None) is not None

    def read_to(self, name: str, position: int) -> None:
        """As a follower does: it has the order forget what lies well behind."""
        self.positions[f"plan:{name}"] = position
        order = self.active[f"plan:{name}"]
        assert isinstance(order, GrowingOrder)
        order.forget(0, position - 1000)

    def order_grew(self, name: str) -> None:
        assert name in self.active

    def orders(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "state": "locked", "used_bytes": 1, "wasted_bytes": 2,
             "lanes": [{"position": self.positions[name]}] if name in self.positions else []}
            for name in self.active
        ]  # fmt: skip

    def steps(self, name: str) -> list[tuple[bytes, int, int]]:
        order = self.active[f"plan:{name}"]
        found = [order.step(0, position) for position in range(order.first(0), order.length(0))]
        return [(order.files[step.file].path, step.offset_bytes, step.length_bytes) for step in found]


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def tree() -> Tree:
    return filled({b"d": directory(), b"d/f": file(1, 10 * MIB), b"d/g": file(2, 5000), b"l": symlink(b"d/f")})


@pytest.fixture
def follower() -> FakeFollower:
    return FakeFollower()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def plans(tree: Tree, follower: FakeFollower, clock: Clock) -> Plans:
    return Plans(tree, follower, clock)


def say(
    *ranges: tuple[bytes, int, int], name: bytes = b"p", token: int = 1, from_step: int = 0, last: bool = False
) -> bytes:
    paths = sorted({path for path, _, _ in ranges})
    columns = [paths.index(path) for path, _, _ in ranges], [at for _, at, _ in ranges], [size for _, _, size in ranges]
    return hints.pack_steps(token, name, from_step, paths, *columns, last=last)


def records(count: int, first: int = 0) -> list[tuple[bytes, int, int]]:
    return [(b"d/f", (number * 37 % 2560) * 4096, 4096) for number in range(first, first + count)]


def refused(plans: Plans, message: bytes) -> tuple[int, str]:
    with pytest.raises(HeadraceError) as caught:
        plans.message(message)
    return caught.value.errno, str(caught.value)


def test_a_plan_becomes_an_order_of_its_steps(plans: Plans, follower: FakeFollower) -> None:
    answer = plans.message(say((b"d/g", 0, 100), (b"d/f", 4096, 8192)))
    assert answer == PlanAnswer(2, 2, limits.PLAN_MAX_STEPS - 2, new=True)
    order = follower.active["plan:p"]
    assert (order.reason, order.step(0, 1)) == (Reason.PLAN, Step(1, 4096, 8192))
    answer = plans.message(say((b"d/g", 100, 100), from_step=2))
    assert answer == PlanAnswer(3, 3, limits.PLAN_MAX_STEPS - 3)
    assert follower.steps("p") == [(b"d/g", 0, 100), (b"d/f", 4096, 8192), (b"d/g", 100, 100)]


def test_long_ranges_are_cut_at_extents_and_ends(plans: Plans, follower: FakeFollower) -> None:
    plans.message(say((b"d/f", 8 * MIB - 10, 1 << 40), (b"d/g", 4000, 4000)))
    assert follower.steps("p") == [
        (b"d/f", 8 * MIB - 10, 10),
        (b"d/f", 8 * MIB, MIB),
        (b"d/f", 9 * MIB, MIB),
        (b"d/g", 4000, 1000),
    ]


def test_what_was_said_twice_is_taken_once_and_what_was_lost_is_passed_over(
    plans: Plans, follower: FakeFollower
) -> None:
    plans.message(say(*records(4)))
    assert plans.message(say(*records(4))).said_steps == 4
    assert plans.message(say(*records(4, 2), from_step=2)).said_steps == 6
    assert follower.steps("p") == records(6)
    assert plans.message(say(*records(1, 9), from_step=9)).said_steps == 10
    assert follower.steps("p") == records(6) + records(1, 9)


def test_another_token_begins_anew(plans: Plans, follower: FakeFollower) -> None:
    plans.message(say(*records(4)))
    assert plans.message(say(*records(2, 7), token=2)).new
    assert follower.steps("p") == records(2, 7)
    assert plans.ended_total == {"begun-anew": 1}


def test_steps_that_cannot_be_are_left_out_and_said(plans: Plans, follower: FakeFollower) -> None:
    answer = plans.message(
        say((b"d/f", 0, 1), (b"no", 0, 1), (b"d", 0, 1), (b"l", 0, 1), (b"", 0, 1), (b"../d/f", 0, 1), (b"d/g", 5000, 1),
            (b"d/g", 0, 0))
    )  # fmt: skip
    assert follower.steps("p") == [(b"d/f", 0, 1)]
    assert answer.text == "left out: 5 unknown-file, 1 past-end, 1 empty"
    assert answer.left_out_steps == (1, 2, 3, 4, 5, 6, 7)
    assert plans.facts()["active"][0]["left_out"] == {"unknown-file": 5, "past-end": 1, "empty": 1}
    assert plans.facts()["left_out_steps"] == {"unknown-file": 5, "past-end": 1, "empty": 1}


def test_messages_of_which_nothing_is_left_are_refused(plans: Plans, follower: FakeFollower) -> None:
    code, why = refused(plans, say((b"no/such", 0, 1)))
    assert (code, "no/such" in why, "relative to the mount's root" in why) == (errno.ENOENT, True, True)
    code, why = refused(plans, say((b"d/g", 5000, 10), (b"d/g", 1 << 50, 1)))
    assert (code, "5000 bytes" in why) == (errno.ERANGE, True)
    assert refused(plans, b"{" * 10_000)[0] == errno.EINVAL
    assert follower.active == {}
    assert plans.facts()["refused_messages"] == {"plan-unknown": 1, "plan-past-end": 1, "bad-plan": 1}
    assert "not a plan" in plans.facts()["last_refusal"]["reason"]


def test_a_message_that_leads_to_too_many_steps_is_refused(plans: Plans) -> None:
    whole = [(b"d/f", 0, 10 * MIB)] * 500
    assert refused(plans, say(*whole))[0] == errno.E2BIG
    assert plans.message(say(*whole[:400])).waiting_steps == 4000


def test_a_plan_that_nobody_reads_fills_up_and_is_refused(
    plans: Plans, follower: FakeFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PLAN_MAX_STEPS", 1000)
    assert plans.message(say(*records(1000))).room_steps == 0
    code, why = refused(plans, say(*records(1, 1000), from_step=1000))
    assert (code, "none of them was read" in why) == (errno.ENOSPC, True)
    assert plans.message(say(*records(5), name=b"other")).room_steps == 995


def test_all_plans_together_are_bounded(plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PLANS_MAX_STEPS", 1000)
    plans.message(say(*records(600), name=b"a"))
    assert refused(plans, say(*records(600), name=b"b"))[0] == errno.ENOSPC
    assert plans.message(say(*records(400), name=b"b")).room_steps == 0
    assert plans.active == 2


def test_what_was_read_is_forgotten_and_makes_room(
    plans: Plans, follower: FakeFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PLAN_MAX_STEPS", 10_000)
    for start in range(0, 10_000, 2000):
        plans.message(say(*records(2000, start), from_step=start))
    assert refused(plans, say(*records(2000, 10_000), from_step=10_000))[0] == errno.ENOSPC
    follower.read_to("p", 9000)
    answer = plans.message(say(*records(2000, 10_000), from_step=10_000))
    assert answer.waiting_steps == 3000
    assert plans.facts()["active"][0]["used_bytes"] == 1


def test_what_the_prefetcher_cannot_follow_is_refused(plans: Plans, follower: FakeFollower) -> None:
    follower.full = True
    assert refused(plans, say(*records(1))) == (errno.ENOSPC, "32 orders are followed")
    assert plans.active == 0


def test_plans_over_the_limit_push_out_only_idle_ones(
    plans: Plans, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PLANS_MAX", 2)
    plans.message(say(*records(1), name=b"a"))
    plans.message(say(*records(1), name=b"b"))
    assert refused(plans, say(*records(1), name=b"c"))[0] == errno.ENOSPC
    clock.now_s += limits.PLAN_IDLE_S
    plans.message(say(*records(1, 1), name=b"a", from_step=1))
    plans.message(say(*records(1), name=b"c"))
    assert {plan["name"] for plan in plans.facts()["active"]} == {"a", "c"}
    assert plans.ended_total == {"made-way": 1}


def test_a_plan_of_a_process_that_died_is_forgotten(plans: Plans, follower: FakeFollower, clock: Clock) -> None:
    plans.message(say(*records(9)))
    follower.positions["plan:p"] = 3
    clock.now_s += limits.PLAN_UNUSED_S - 1
    plans.tend()  # three of it were read: it is used
    clock.now_s += limits.PLAN_UNUSED_S - 1
    plans.tend()
    assert plans.active == 1
    clock.now_s += 1
    plans.tend()
    assert (plans.active, follower.active, plans.ended_total) == (0, {}, {"unused": 1})


def test_a_plan_said_to_its_end_goes_once_it_is_read(plans: Plans, follower: FakeFollower) -> None:
    plans.message(say(*records(9), last=True))
    plans.tend()
    assert plans.active == 1
    follower.positions["plan:p"] = 9
    plans.tend()
    assert (plans.active, follower.active, plans.ended_total) == (0, {}, {"read": 1})


def test_a_plan_whose_file_changed_begins_anew_with_the_new_version(
    plans: Plans, follower: FakeFollower, tree: Tree
) -> None:
    plans.message(say((b"d/f", 0, 10), (b"d/g", 0, 10)))
    tree.apply(Change(6, b"x", file(9)))
    plans.tend()
    assert plans.active == 1
    tree.apply(Change(7, b"d/g", file(3, 100)))
    plans.tend()
    assert (plans.active, plans.ended_total) == (0, {"file-changed": 1})
    answer = plans.message(say((b"d/g", 90, 20), from_step=2))
    assert (answer.new, answer.said_steps) == (True, 3)
    (changed,) = follower.active["plan:p"].files
    assert changed.version == file(3).version
    assert follower.steps("p") == [(b"d/g", 90, 10)]


def test_a_plan_of_too_many_files_begins_anew(plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PLAN_MAX_FILES", 1)
    plans.message(say((b"d/f", 0, 10)))
    assert plans.message(say((b"d/g", 0, 10), from_step=1)).new
    assert plans.facts()["active"][0]["files"] == 1


def test_a_plan_is_dropped_by_its_name_and_token(plans: Plans, follower: FakeFollower) -> None:
    plans.message(say(*records(1)))
    plans.message(encode_short(Kind.DROP, "p", 99))  # of an earlier beginning
    assert plans.active == 1
    assert plans.message(encode_short(Kind.LOOK, "p")).said_steps == 1
    plans.message(encode_short(Kind.DROP, "p", 1))
    assert (plans.active, follower.active) == (0, {})
    assert refused(plans, encode_short(Kind.DROP, "p"))[0] == errno.ENOENT


def test_the_ioctl_gives_the_reason_beside_the_errno(plans: Plans) -> None:
    assert plans.ioctl(0x5401, b"", 100) is None
    answered = plans.ioctl(0xC0004801 | 512 << 16, say((b"no", 0, 1)), 512)
    assert answered is not None
    result, answer = answered
    assert result == -errno.ENOENT
    assert b"no file of the dataset" in answer
    answered = plans.ioctl(0xC0004801 | 512 << 16, say(*records(2)), 512)
    assert answered is not None
    result, answer = answered
    assert (result, ANSWER.unpack(answer)[2:]) == (0, (1, 0, 2, 2, limits.PLAN_MAX_STEPS - 2))


def test_the_socket_takes_the_same(plans: Plans) -> None:
    assert plans.request(say(*records(2)))["said_steps"] == 2
    assert plans.request(say((b"no", 0, 1), from_step=2))["errno"] == errno.ENOENT
    assert plans.request(b"")["errno"] == errno.EINVAL


def test_a_mount_that_fetches_nothing_ahead_says_so(tree: Tree, clock: Clock) -> None:
    assert refused(Plans(tree, None, clock), say(*records(1)))[0] == errno.EOPNOTSUPP


def test_the_log_is_not_flooded(plans: Plans, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[dict[str, object]] = []

    class Log:
        def warning(self, event: str, **facts: object) -> None:
            said.append({"event": event, **facts})

    monkeypatch.setattr("spoke.plans.log", Log())
    for _ in range(100):
        refused(plans, b"rubbish")
    clock.now_s += limits.PLAN_LOG_INTERVAL_S
    refused(plans, b"rubbish")
    assert [line["event"] for line in said] == ["a plan was refused"] * 2
    assert said[1]["more_like_it"] == 99
