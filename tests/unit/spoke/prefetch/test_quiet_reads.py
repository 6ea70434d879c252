"""Quiet readers: which READs are only noted."""

from __future__ import annotations

from spoke.prefetch.quiet import Quiet, QuietReads
from spoke.prefetch.source import ReadSeen

A, B = b"a" * 16, b"b" * 16


def seen(version: bytes, offset_bytes: int, length_bytes: int) -> ReadSeen:
    return ReadSeen(1, 1, version, offset_bytes, length_bytes, "hit")


def test_reads_that_go_on_are_noted_up_to_the_end_and_no_others() -> None:
    quiets, quiet = QuietReads(), Quiet(seen(A, 0, 100), 350)
    quiets.add(quiet)
    assert not quiets.note(B, 100, 100)
    assert not quiets.note(A, 200, 100)
    assert quiets.note(A, 100, 100)
    assert not quiets.note(A, 100, 100), "that is behind him now"
    assert quiets.note(A, 200, 150)
    assert not quiets.note(A, 350, 1)
    assert quiet.reads == 2
    assert quiets.of(A) == {350: quiet}
    assert quiet.noted(350) == seen(A, 100, 250)


def test_two_who_would_come_to_one_place_are_both_heard() -> None:
    quiets = QuietReads()
    for start_bytes in (0, 100):
        quiets.add(Quiet(seen(A, start_bytes, 100), 1000))
    assert not quiets.note(A, 100, 100), "there the other one is"
    assert quiets.note(A, 200, 100)
    assert quiets.note(A, 100, 100)
    taken = quiets.take_all(A)
    assert taken is not None
    assert sorted(taken) == [200, 300]
    assert not quiets.note(A, 200, 100)
    assert quiets.versions() == []


def test_the_only_quiet_reader_of_a_file_becomes_the_current_one() -> None:
    quiets, quiet = QuietReads(), Quiet(seen(A, 0, 100), 1000)
    told: list[tuple[int, int]] = []
    quiets.tally = lambda found: told.append((found.reads, found.next_bytes))
    quiets.add(quiet)
    assert quiets.current is not quiet
    assert quiets.note(A, 100, 100) is quiet
    assert quiets.note(A, 200, 100) is quiet
    assert quiets.current is quiet, "he reads on"
    quiet.next_bytes, quiet.reads = 400, 3  # as whoever sees his READ notes it
    assert quiets.note(A, 300, 100) is None, "that is behind him"
    assert quiets.note(B, 400, 100) is None, "another file"
    assert quiets.note(A, 400, 100) is quiet
    assert quiets.note(A, 500, 501) is None, "beyond what changes nothing"
    assert told == []
    assert quiets.of(A) == {500: quiet}
    assert told == [(4, 500)], "he is counted before another may take his place"
    assert quiets.current is not quiet


def test_one_of_two_in_a_file_is_not_the_current_one() -> None:
    quiets = QuietReads()
    for start_bytes in (0, 5000):
        quiets.add(Quiet(seen(A, start_bytes, 100), start_bytes + 4000))
    for offset_bytes in (100, 200, 300):
        assert quiets.note(A, offset_bytes, 100) is not None
    assert quiets.of(A) is not None
    assert quiets.current.seen.version != A, "what is his place the other must not come to unseen"


def test_late_reads_are_noted_where_they_change_nothing_and_counted_as_late() -> None:
    quiets, quiet, other = QuietReads(), Quiet(seen(A, 0, 100), 1000), Quiet(seen(B, 0, 100), 1000)
    quiets.add(quiet)
    quiets.add(other)
    assert quiets.note(A, 100, 100, late=True) is None
    quiet.takes_late = True
    assert quiets.note(A, 100, 100, late=True) is quiet
    quiet.came_late(100)
    assert quiets.note(A, 200, 50) is quiet
    assert (quiet.reads - quiet.told_reads, quiet.next_bytes - quiet.told_bytes) == (1, 50), "the hit is to be counted"
    assert quiet.noted(250) == seen(A, 100, 150)._replace(result="late")
    assert quiets.current is quiet
    assert quiets.note(A, 250, 50, late=True) is quiet
    quiet.takes_late = False
    assert quiets.note(A, 300, 50, late=True) is None
