"""What counts as the loss of a dataset."""

from __future__ import annotations

import pytest
from names_support import Model, batch, directory, file, filled, symlink

from common.entries import Entry
from spoke.namespace.suspicion import could_lose_much, forecast, is_suspicious

MODEL: Model = (
    {b"a": directory(), b"b": directory()}
    | {b"a/%d" % number: file(number) for number in range(10)}
    | {b"b/%d" % number: symlink(b"x") for number in range(5)}
)


@pytest.mark.parametrize(
    ("entries", "lost", "verdict"),
    [(100, 51, True), (100, 50, False), (99, 99, False), (1000, 501, True), (1000, 0, False)],
)
def test_more_than_half_of_what_is_not_tiny(entries: int, lost: int, verdict: bool) -> None:
    assert is_suspicious(entries, lost) is verdict


@pytest.mark.parametrize(
    ("steps", "lost"),
    [
        ([(b"a", None)], 11),
        ([(b"a", None), (b"b", None)], 17),
        ([(b"a/1", None), (b"a", None)], 11),
        ([(b"a/1", None), (b"a/1", file(1))], 0),
        ([(b"a/1", None), (b"a/1", file(99))], 1),
        ([(b"a/1", file(99))], 0),
        ([(b"absent", None)], 0),
        ([(b"a", file(99))], 11),
        ([(b"a", None), (b"c", directory())], 10),
        ([(b"n", directory()), (b"n/1", file(1)), (b"a", None)], 9),
        ([(b"n", directory()), (b"n/1", file(1)), (b"n/2", file(2)), (b"a", None), (b"n", None)], 11),
        ([(b"b/0", None), (b"l", symlink(b"y"))], 0),
        ([(b"b", None), (b"l", symlink(b"y"))], 5),
    ],
)
def test_renames_and_replacements_are_no_loss(steps: list[tuple[bytes, Entry | None]], lost: int) -> None:
    tree = filled(MODEL)
    assert forecast(tree, batch(5, *steps).changes) == lost
    assert tree.entry_count == len(MODEL)


def test_the_first_look_is_cheap_and_misses_nothing() -> None:
    tree = filled(MODEL | {b"%d" % number: file(1000 + number) for number in range(100)})
    few = batch(5, *((b"%d" % number, None) for number in range(20)), (b"new", file(1))).changes
    assert not could_lose_much(tree, few, 0)
    assert could_lose_much(tree, few, 80)
    assert could_lose_much(tree, batch(5, (b"a", None)).changes, 0)
    assert could_lose_much(tree, batch(5, (b"a", file(7))).changes, 0)
    assert could_lose_much(tree, batch(5, *((b"%d" % number, None) for number in range(70))).changes, 0)
    assert not could_lose_much(tree, batch(5, *((b"%d" % number, file(7)) for number in range(100))).changes, 0)
