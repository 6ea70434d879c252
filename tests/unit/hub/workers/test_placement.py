"""Spokes stay in one process while they are linked, and are spread by load."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hub.workers.placement import Placement


def nothing_waits(_index: int) -> float:
    return 0.0


def spoke(number: int) -> bytes:
    return number.to_bytes(16, "big")


def placement(count: int = 3) -> Placement:
    made = Placement(nothing_waits)
    for index in range(count):
        made.up(index)
    return made


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=200))
def test_all_connections_of_a_spoke_are_in_one_process(steps: list[tuple[int, bool]]) -> None:
    made = placement()
    where: dict[int, list[int]] = {}
    for number, comes in steps:
        if comes:
            index = made.place(spoke(number), 1.0)
            assert index is not None
            where.setdefault(number, []).append(index)
            assert len(set(where[number])) == 1
        elif where.get(number):
            where[number].pop()
            made.left(spoke(number))
    linked = [indexes[0] for indexes in where.values() if indexes]
    assert [made.spokes(index) for index in range(3)] == [linked.count(index) for index in range(3)]


def test_new_spokes_go_where_the_weight_is_least() -> None:
    made = placement(2)
    heavy = made.place(spoke(0), 4.0)
    light = [made.place(spoke(number), 1.0) for number in range(1, 5)]
    assert set(light) == {1 - heavy if heavy is not None else None}
    made = placement(4)
    counted = Counter(made.place(spoke(number), 1.0) for number in range(40))
    assert set(counted.values()) == {10}


def test_those_that_wait_count_twice() -> None:
    waiting = {0: 1.0, 1: 0.0}
    made = Placement(waiting.__getitem__)
    made.up(0)
    made.up(1)
    first = [made.place(spoke(number), 1.0) for number in range(3)]
    assert first.count(1) == 2


def test_ties_are_broken_alike_after_a_restart_and_not_all_to_one_side() -> None:
    def first_choices() -> list[int | None]:
        return [placement(4).place(spoke(number), 1.0) for number in range(64)]

    assert first_choices() == first_choices()
    assert set(first_choices()) == {0, 1, 2, 3}


def test_a_process_that_is_down_gets_nothing_and_its_spokes_are_placed_anew() -> None:
    made = placement(2)
    before = made.place(spoke(1), 1.0)
    assert before is not None
    made.down(before)
    assert made.place(spoke(1), 1.0) == 1 - before
    made.down(1 - before)
    assert made.place(spoke(1), 1.0) is None
    made.up(before)
    assert made.place(spoke(1), 1.0) == before
