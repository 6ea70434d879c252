"""Pieces of equal length at random places: how far one is read on by those before it, whoever reads beside it."""

from __future__ import annotations

import random

import pytest

from common import limits
from spoke.prefetch.alike_pieces import AlikePieces

KIND = (b"c", b"")


def read_piece(pieces: AlikePieces, task: int, version: bytes, first: int, reads: int, kind: object = KIND) -> int:
    """What its first READ was answered."""
    known = pieces.read(task, version, kind, first, first + 32)
    assert pieces.has_begun or not known
    for number in range(1, reads):
        found = pieces.read(task, version, kind, first + 32 * number, first + 32 * number + 32)
        assert found == (known if first + 32 * number < known else 0)
        assert not (found and pieces.has_begun)
    return known


def test_after_twenty_four_alike_the_next_is_known_by_its_first_read() -> None:
    pieces = AlikePieces()
    for number in range(24):
        assert read_piece(pieces, 1, b"v%d" % number, 1000 * number, 4) == 0
    assert read_piece(pieces, 1, b"w", 5000, 4) == 5128
    assert read_piece(pieces, 2, b"v1", 640, 4) == 768
    assert read_piece(pieces, 1, b"w", 9000, 4, kind=(b"other", b"")) == 0


def test_readers_in_one_file_at_once_are_told_apart() -> None:
    pieces, dice, found = AlikePieces(), random.Random(1), []
    readers = {task: [0, 4] for task in range(8)}
    for _ in range(400):
        task = dice.randrange(8)
        first, number = readers[task]
        if number == 4:
            first, number = dice.randrange(1 << 20) * 128, 0
            found.append((first, pieces.read(task, b"v", KIND, first, first + 32)))
        else:
            assert pieces.read(task, b"v", KIND, first + 32 * number, first + 32 * number + 32) in (0, first + 128)
        readers[task] = [first, number + 1]
    assert all(until == first + 128 for first, until in found[80:])
    assert pieces.wasted_blocks == 0


def test_pieces_that_differ_are_no_pieces_and_a_shorter_one_costs_its_rest_once() -> None:
    pieces = AlikePieces()
    for number in range(40):
        assert read_piece(pieces, 1, b"v", 4096 * number, 2 + number % 3) == 0
    for number in range(40, 70):
        read_piece(pieces, 1, b"v", 4096 * number, 4)
    assert read_piece(pieces, 1, b"v", 1 << 20, 1) == (1 << 20) + 128
    assert read_piece(pieces, 1, b"v", 2 << 20, 4) == 0
    assert pieces.wasted_blocks == 96
    for number in range(100, 147):
        assert read_piece(pieces, 1, b"w", 4096 * number, 4) == 0, "twice as many must be alike now"
    assert read_piece(pieces, 1, b"w", 1 << 20, 4) == (1 << 20) + 128


def test_a_long_run_is_a_stream_and_no_piece() -> None:
    pieces = AlikePieces()
    for number in range(30):
        assert read_piece(pieces, 1, b"v", 8192 * number, limits.PREFETCH_PIECE_MAX_BLOCKS // 32 + 1) == 0


def test_who_may_not_fetch_only_learns() -> None:
    pieces = AlikePieces()
    for number in range(30):
        read_piece(pieces, 1, b"v", 8192 * number, 4)
    assert pieces.read(1, b"w", KIND, 0, 32, may_fetch=False) == 0
    assert pieces.read(1, b"x", KIND, 0, 32) == 0, "the piece before was left after one READ"


@pytest.mark.parametrize("seed", range(3))
def test_random_reads_are_told_nothing(seed: int) -> None:
    pieces, dice = AlikePieces(), random.Random(seed)
    for _ in range(5000):
        first = dice.randrange(100_000)
        assert pieces.read(dice.randrange(8), b"v", KIND, first, first + dice.choice((1, 8, 32))) == 0


def test_memory_is_bounded() -> None:
    pieces = AlikePieces()
    for number in range(5000):
        pieces.read(number, b"v", (b"%d" % number, b""), 0, 1)
        pieces.read(number, b"v", (b"%d" % number, b""), 100, 101)
    assert len(pieces) <= limits.PREFETCH_ACTIVE_MAX_STREAMS + 256
