"""What any Order must do, as one suite: subclass it and give it a ``make`` fixture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from spoke.prefetch.orders import FileFacts, Order, Reason, Step

Make = Callable[[Sequence[FileFacts], Sequence[Sequence[Step]]], Order]
KIB = 1024
FILES = [FileFacts(b"d/%d" % number, bytes([7 - number]) * 16, (number + 1) * 300 * KIB + 5) for number in range(7)]


def random_lanes(seed: int, lanes: int, steps: int, longest_bytes: int) -> list[list[Step]]:
    dice = Random(seed)
    found: list[list[Step]] = [[] for _ in range(lanes)]
    for _ in range(steps):
        file = dice.randrange(len(FILES))
        length_bytes = dice.randrange(1, min(longest_bytes, FILES[file].size_bytes) + 1)
        offset_bytes = dice.randrange(FILES[file].size_bytes - length_bytes + 1)
        found[dice.randrange(lanes)].append(Step(file, offset_bytes, length_bytes))
    return found


class OrderSuite:
    """Small segments are set by the subclass, so that a few hundred steps make several."""

    @pytest.fixture(params=[(1, 1, 1), (1, 300, 4 * KIB), (3, 700, 20 * KIB), (5, 900, 300 * KIB)])
    def lanes(self, request: pytest.FixtureRequest) -> list[list[Step]]:
        count, steps, longest_bytes = request.param
        return random_lanes(1, count, steps, longest_bytes)

    def test_gives_back_what_it_was_made_of(self, make: Make, lanes: list[list[Step]]) -> None:
        order = make(FILES, lanes)
        assert order.name == "contract"
        assert order.reason is Reason.RECIPE
        assert list(order.files) == FILES
        assert order.lane_count == len(lanes)
        for lane, steps in enumerate(lanes):
            assert (order.first(lane), order.length(lane)) == (0, len(steps))
            assert [order.step(lane, position) for position in range(len(steps))] == steps

    def test_has_no_step_before_its_first_or_after_its_last(self, make: Make, lanes: list[list[Step]]) -> None:
        order = make(FILES, lanes)
        for position in (-1, len(lanes[0]), 1 << 40):
            with pytest.raises(IndexError):
                order.step(0, position)

    def test_finds_all_that_overlap_and_nothing_else(self, make: Make, lanes: list[list[Step]]) -> None:
        order, dice = make(FILES, lanes), Random(2)
        for _ in range(60):
            file = dice.randrange(len(FILES))
            start_bytes = dice.randrange(FILES[file].size_bytes)
            end_bytes = start_bytes + dice.choice((1, 4 * KIB, 128 * KIB))
            expected = sorted(
                (lane, position)
                for lane, steps in enumerate(lanes)
                for position, step in enumerate(steps)
                if step.file == file
                and step.offset_bytes < end_bytes
                and step.offset_bytes + step.length_bytes > start_bytes
            )
            assert sorted(order.find(file, start_bytes, end_bytes, 10_000)) == expected
            some = order.find(file, start_bytes, end_bytes, 3)
            assert len(some) == len(set(some)) == min(3, len(expected))
            assert set(some) <= set(expected)
        assert order.find(0, 0, 10, 0) == order.find(0, 10, 10, 5) == []

    def test_knows_the_next_position(self, make: Make, lanes: list[list[Step]]) -> None:
        order, dice = make(FILES, lanes), Random(3)
        for _ in range(60):
            lane, file = dice.randrange(len(lanes)), dice.randrange(len(FILES))
            start_bytes = dice.randrange(FILES[file].size_bytes)
            end_bytes = start_bytes + dice.choice((1, 4 * KIB, 128 * KIB))
            after = dice.randrange(-1, len(lanes[lane]) + 2)
            expected = [
                position
                for position, step in enumerate(lanes[lane])
                if position >= after
                and step.file == file
                and step.offset_bytes < end_bytes
                and step.offset_bytes + step.length_bytes > start_bytes
            ]
            assert order.next_position(lane, file, start_bytes, end_bytes, after) == (expected or [None])[0]
        assert order.next_position(99, 0, 0, 10, 0) is None

    def test_knows_files_by_version(self, make: Make, lanes: list[list[Step]]) -> None:
        order = make(FILES, lanes)
        assert [order.file_of(file.version) for file in FILES] == list(range(len(FILES)))
        assert order.file_of(b"\xff" * 16) is None
        assert order.file_of(b"\0" * 16) is None

    def test_forgetting_leaves_what_comes(self, make: Make, lanes: list[list[Step]]) -> None:
        order = make(FILES, lanes)
        order.forget(0, len(lanes[0]) // 2)
        assert order.first(0) <= len(lanes[0]) // 2
        for position in range(len(lanes[0]) // 2, len(lanes[0])):
            assert order.step(0, position) == lanes[0][position]
