"""One place in a lane: what is counted ahead of it and behind, also when two turn out to be one."""

from __future__ import annotations

from spoke.prefetch.cursor import Cursor, Item, Run, State

SIZE = 128 * 1024


def predicted(cursor: Cursor, position: int, state: State = State.ASKED) -> Item:
    start_bytes = position * SIZE
    item = Item(
        cursor, position, 0, start_bytes, start_bytes + SIZE, SIZE, Run(0, start_bytes, start_bytes + SIZE), state
    )
    cursor.add(item)
    return item


def test_a_place_that_takes_another_has_all_that_was_foretold_there_in_the_orders_order() -> None:
    one, other = Cursor(0.0, 0, 10, 4 * SIZE), Cursor(0.0, 0, 14, 3 * SIZE)
    for position in (9, 11, 13, 15):
        predicted(one, position)
    for position in (12, 14, 16):
        predicted(other, position)
    predicted(other, 17, State.READ)
    one.next_position, other.next_position = 16, 18
    one.take(other)
    assert (one.front, one.spread) == (14, 4)
    assert [item.position for item in one.behind] == [9, 11, 12, 13]
    assert [item.position for item in one.items] == [14, 15, 16, 17]
    assert (one.behind_bytes, one.ahead_bytes) == (4 * SIZE, 3 * SIZE), "what was read takes no room"
    assert one.window.window_bytes == 7 * SIZE
    assert one.next_position == 16, "the marks tell which of these are foretold"
    for item in (*one.behind, *one.items):
        assert item.cursor is one
        if item.is_waited:
            one.settle(item)
    assert (one.behind_bytes, one.ahead_bytes) == (0, 0)


def test_a_step_of_which_a_part_is_foretold_is_gone_on_with() -> None:
    one, other = Cursor(0.0, 0, 10, SIZE), Cursor(0.0, 0, 5, SIZE)
    one.next_position, one.next_offset_bytes, other.next_position = 12, SIZE, 8
    one.take(other)
    assert (one.next_position, one.next_offset_bytes) == (12, SIZE)
