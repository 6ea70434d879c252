"""Which moved ctime still names the same bytes: each case is a story of events, with the state before and after it."""

import pytest
from inotify_simple import flags

from hub.burst import Burst
from hub.versions import FILE, Facts, Judgement, Known, judge, signed_inode, version_of

A, B, C = b"a", b"b", b"c"


def facts(inode: int = 1, ctime_ns: int = 100, size_bytes: int = 10, mtime_ns: int = 50, link_count: int = 1) -> Facts:
    return Facts(FILE, 0o644, size_bytes, mtime_ns, inode, ctime_ns, 0, link_count, b"")


def known(seen: Facts) -> Known:
    return Known(seen, seen.ctime_ns, version_of(seen, seen.ctime_ns))


def burst(*events: tuple[flags | int, bytes] | tuple[flags | int, bytes, int]) -> Burst:
    it = Burst()
    for mask, path, *cookie in events:
        it.note(int(mask), path, cookie[0] if cookie else 0, 0.0)
    return it


MOVED = facts(ctime_ns=200)
KEPT = Judgement({(0, 1): 100}, set())


def told(
    before: dict[bytes, Facts], now: dict[bytes, Facts | None], it: Burst, later: Burst | None = None
) -> Judgement:
    rows = {path: known(seen) for path, seen in before.items()}
    linked: dict[tuple[int, int], set[bytes]] = {}
    for path, seen in before.items():
        linked.setdefault((0, seen.inode), set()).add(path)
    return judge(rows, now, linked, it.evidence(later))


def test_chmod_and_rename_and_link_keep_the_version() -> None:
    assert told({A: facts()}, {A: MOVED}, burst((flags.ATTRIB, A))) == KEPT
    rename = burst((flags.MOVED_FROM, A, 7), (flags.MOVED_TO, B, 7))
    assert told({A: facts()}, {A: None, B: MOVED}, rename) == KEPT
    there_and_back = burst(
        (flags.MOVED_FROM, A, 7), (flags.MOVED_TO, B, 7), (flags.MOVED_FROM, B, 8), (flags.MOVED_TO, A, 8)
    )
    assert told({A: facts()}, {A: MOVED, B: None}, there_and_back) == KEPT
    two = facts(ctime_ns=200, link_count=2)
    assert told({A: facts()}, {A: two, B: two}, burst((flags.CREATE, B))) == KEPT
    before = facts(link_count=2)
    assert told({A: before, B: before}, {A: MOVED, B: None}, burst((flags.DELETE, B))) == KEPT


def test_swapped_names_keep_both_versions() -> None:
    swap = burst(
        (flags.MOVED_FROM, A, 1),
        (flags.MOVED_TO, C, 1),
        (flags.MOVED_FROM, B, 2),
        (flags.MOVED_TO, A, 2),
        (flags.MOVED_FROM, C, 3),
        (flags.MOVED_TO, B, 3),
    )
    now = {A: facts(2, 200), B: facts(1, 200), C: None}
    assert told({A: facts(1), B: facts(2, 101)}, now, swap).kept == {(0, 1): 100, (0, 2): 101}


@pytest.mark.parametrize("edit", [flags.MODIFY, flags.CLOSE_WRITE])
def test_an_edit_before_or_after_or_under_another_name_counts(edit: flags) -> None:
    attrib, came = (flags.ATTRIB, A), {A: MOVED}
    assert told({A: facts()}, came, burst((edit, A), attrib)) == Judgement({}, {(0, 1)})
    assert told({A: facts()}, came, burst(attrib), later=burst((edit, A))) == Judgement({}, {(0, 1)})
    rename = ((flags.MOVED_FROM, A, 7), (flags.MOVED_TO, B, 7))
    for it in (burst((edit, A), *rename), burst(*rename, (edit, B))):
        assert told({A: facts()}, {A: None, B: MOVED}, it) == Judgement({}, {(0, 1)})
    before, now = facts(link_count=2), facts(ctime_ns=200, link_count=2)
    linked = burst((edit, B), attrib)
    assert told({A: before, B: before}, {A: now, B: now}, linked) == Judgement({}, {(0, 1)})
    removed = burst((edit, B), attrib, (flags.DELETE, B))
    assert told({A: before, B: before}, {A: MOVED, B: None}, removed) == Judgement({}, {(0, 1)})


def test_an_edit_that_cannot_be_attributed_keeps_nothing() -> None:
    attrib = (flags.ATTRIB, A)
    # linked, edited through the new name, unlinked: no trace of which file b was
    passing = burst((flags.CREATE, B), (flags.MODIFY, B), (flags.DELETE, B), attrib)
    assert told({A: facts()}, {A: MOVED, B: None}, passing).kept == {}
    # the same, the link moved to where we do not see
    gone = burst((flags.CREATE, B), (flags.MODIFY, B), (flags.MOVED_FROM, B, 5), attrib)
    assert told({A: facts()}, {A: MOVED, B: None}, gone).kept == {}
    # a write through a descriptor whose name is gone
    assert told({A: facts()}, {A: MOVED, B: None}, burst((flags.DELETE, B), (flags.MODIFY, B), attrib)).kept == {}
    # an edit read after the look, of a name that was not looked at
    assert told({A: facts()}, {A: MOVED}, burst(attrib), later=burst((flags.MODIFY, B))).kept == {}
    # a name that changed its meaning between the look and the judgement
    assert told({A: facts()}, {A: MOVED}, burst(attrib), later=burst((flags.CREATE, B))).kept == {}
    # names below a moved directory
    moved_dir = burst((int(flags.MOVED_FROM | flags.ISDIR), C, 1), (int(flags.MOVED_TO | flags.ISDIR), B, 1), attrib)
    assert told({A: facts()}, {A: MOVED}, moved_dir).kept == {}


def test_what_no_event_explains_counts_as_an_edit() -> None:
    looked_at = Burst()
    looked_at.look_at(A, 0.0)
    assert told({A: facts()}, {A: MOVED}, looked_at).kept == {}
    assert told({A: facts()}, {A: MOVED}, burst((flags.ATTRIB, B))).kept == {}


@pytest.mark.parametrize(
    "now", [facts(ctime_ns=200, size_bytes=11), facts(ctime_ns=200, mtime_ns=51), facts(inode=2, ctime_ns=200)]
)
def test_another_size_mtime_or_inode_is_an_edit(now: Facts) -> None:
    assert told({A: facts()}, {A: now}, burst((flags.ATTRIB, A))).kept == {}


def test_a_name_that_was_made_anew_is_not_the_old_file() -> None:
    # removed, and the inode number used again for other bytes of the same size and mtime
    again = burst((flags.DELETE, A), (flags.CREATE, A), (flags.ATTRIB, A))
    assert told({A: facts()}, {A: MOVED}, again).kept == {}
    # moved out of sight and in again: what happened there is unknown
    outside = burst((flags.MOVED_FROM, A, 1), (flags.MOVED_TO, A, 2))
    assert told({A: facts()}, {A: MOVED}, outside).kept == {}


def test_a_link_outside_or_not_looked_at_keeps_nothing() -> None:
    hidden = facts(ctime_ns=200, link_count=2)
    assert told({A: facts(link_count=2)}, {A: hidden}, burst((flags.ATTRIB, A))).kept == {}
    assert told({A: facts()}, {A: hidden}, burst((flags.ATTRIB, A))).kept == {}
    before = {A: facts(link_count=2), B: facts(ctime_ns=150, link_count=2)}  # b was seen at a later ctime than a
    assert told(before, {A: hidden, B: hidden}, burst((flags.ATTRIB, A))).kept == {}


def test_versions_differ_in_every_part_and_take_any_64_bits() -> None:
    seen = [facts(), facts(inode=2), facts(size_bytes=11), facts(mtime_ns=51), facts(inode=signed_inode(2**64 - 1))]
    names = {version_of(found, 100) for found in seen} | {version_of(facts(), 101)}
    assert len(names) == 6
    assert version_of(facts(), 100) == version_of(facts(ctime_ns=300, link_count=5), 100)
    assert all(len(name) == 16 for name in names)
