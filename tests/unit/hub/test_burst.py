import pytest
from inotify_simple import flags

from common import limits
from hub.burst import Burst, WatchMap


def test_a_burst_is_due_after_quiet_but_never_starves() -> None:
    burst = Burst()
    assert burst.due_s(0.02, 0.2) is None
    burst.note(int(flags.MODIFY), b"f", 0, 10.0)
    assert burst.due_s(0.02, 0.2) == 10.02
    burst.note(int(flags.MODIFY), b"f", 0, 10.19)
    assert burst.due_s(0.02, 0.2) == 10.2


def test_a_name_event_makes_its_directory_dirty_too() -> None:
    burst = Burst()
    burst.note(int(flags.CREATE | flags.ISDIR), b"d/new", 0, 0.0)
    burst.note(int(flags.MODIFY), b"d2/f", 0, 0.0)
    assert burst.dirty == {b"d", b"d/new", b"d2/f"}
    assert burst.scan == {b"d/new"}


def test_more_names_than_are_followed_cost_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HUB_DIRTY_NAMES_MAX", 10)
    burst = Burst()
    for number in range(1000):
        burst.note(int(flags.CREATE), b"%d" % number, 0, 0.0)
        burst.note(int(flags.MOVED_FROM), b"%d" % number, number + 1, 0.0)
    assert burst.overfull
    assert not burst.empty
    assert not burst.dirty
    assert not burst.half_moved
    assert burst.events == 2000


def test_half_a_rename_is_noticed() -> None:
    burst = Burst()
    burst.note(int(flags.MOVED_FROM), b"a", 9, 0.0)
    assert burst.half_moved
    burst.note(int(flags.MOVED_TO), b"b", 9, 0.0)
    assert not burst.half_moved


def test_a_moved_directory_is_found_again_by_its_watch() -> None:
    watches = WatchMap()
    for number, path in enumerate([b"", b"a", b"a/b", b"a/b/c", b"ab"]):
        watches.add(number, path)
    watches.detach(b"a")
    assert [watches.path(number) for number in range(5)] == [b"", None, None, None, b"ab"]
    assert watches.detached == {1, 2, 3}
    watches.add(1, b"z")
    watches.add(2, b"z/b")
    assert watches.detached == {3}
    assert watches.path(2) == b"z/b"
    watches.ignored(3)
    assert not watches.detached
    watches.add(9, b"z/b")  # another directory stands there now
    assert watches.path(9) == b"z/b"
    assert watches.path(2) is None
    assert len(watches) == 4
