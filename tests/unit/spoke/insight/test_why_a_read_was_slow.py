"""The history of an extent, the parts of a wait, and the causes that follow."""

from __future__ import annotations

import pytest

from common import limits
from common.blocks import BlockRange
from spoke import explain_cli
from spoke.insight.history import History, What
from spoke.insight.slow_reads import Fetch, SlowRead, as_facts, causes, in_words, parts
from spoke.insight.watch import verdict

V, W = b"v" * 16, b"w" * 16


def slow(**changed: object) -> SlowRead:
    """It began at 100 s and took 60 ms, of which 50 ms went to the hub and back."""
    facts: dict[str, object] = {
        "path": b"train/shard-17", "version": V, "offset_bytes": 0, "length_bytes": 4096, "task_id": 7, "began_s": 100.0,
        "ended_s": 100.06, "result": "miss", "rtt_s": 0.048, "hub_linked": True, "before": (),
        "fetch": Fetch(100.0, 100.001, 100.055, False, 1, 1, 0),
    }  # fmt: skip
    return SlowRead(**{**facts, **changed})  # type: ignore[arg-type]


def history(*notes: tuple[float, What, int]) -> History:
    kept = History()
    for at_s, what, detail in notes:
        kept.note(at_s, V, 0, what, detail)
    return kept


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (slow(), ["never-fetched", "rtt"]),
        (slow(before=tuple(history((1, What.ASKED, 0), (2, What.LANDED, 0), (50, What.EVICTED, 3)).of(V, 0))), ["evicted", "rtt"]),
        (slow(before=tuple(history((2, What.LANDED, 0), (50, What.OUTDATED, 0)).of(V, 0))), ["outdated", "rtt"]),
        (slow(result="late", fetch=Fetch(99.99, 99.991, 100.055, True, 1, 1, 0)), ["late-prefetch", "rtt"]),
        (slow(ended_s=100.4, fetch=Fetch(100.0, 100.3, 100.36, False, 1, 1, 0)), ["never-fetched", "queue"]),
        (slow(ended_s=101.0, fetch=Fetch(100.0, 100.001, 100.99, False, 3, 1, 0)), ["never-fetched", "retry", "slow-link"]),
        (
            slow(ended_s=130.0, fetch=Fetch(100.0, 100.001, 129.9, False, 1, 2, 0), hub_linked=False),
            ["never-fetched", "no-link", "retry", "slow-link"],
        ),
        (slow(ended_s=400.0, fetch=Fetch(100.0, 0.0, 0.0, False, 1, 0, 0), error="timed out"), ["never-fetched", "queue", "error"]),
        (slow(fetch=None), ["never-fetched"]),
    ],
)  # fmt: skip
def test_causes(read: SlowRead, expected: list[str]) -> None:
    assert causes(read) == expected
    cut = parts(read)
    assert sum(cut.values()) == pytest.approx(read.waited_s)
    assert min(cut.values()) >= 0
    assert as_facts(read, 500.0)["causes"] == expected


def test_words_name_when_and_for_whom() -> None:
    kept = history((2.0, What.LANDED, 0), (50.0, What.EVICTED, 1))
    text = in_words(slow(before=tuple(kept.of(V, 0))), 110.0, {W: "val/other.bin"}, {1: W})
    assert text == (
        "waited 0.06 s, 9.9 s ago: evicted 60 s ago for val/other.bin; 0.054 s from the request to the bytes (round trip 48 ms)"
    )
    late = slow(result="late", fetch=Fetch(99.99, 99.991, 100.055, True, 1, 1, 0))
    assert "late prefetch, asked for 0.01 s before the reader came" in in_words(late, 110.0, {}, {})


def test_random_reads_of_one_extent_do_not_push_out_its_eviction() -> None:
    kept = history((1.0, What.LANDED, 0), (2.0, What.EVICTED, 9))
    for number in range(100):
        kept.note(3.0 + number, V, 0, What.ASKED)
        kept.note(3.5 + number, V, 0, What.LANDED)
    assert [(note.what, note.detail) for note in kept.of(V, 0)] == [
        (What.LANDED, 1), (What.EVICTED, 9), (What.ASKED, 100), (What.LANDED, 100),
    ]  # fmt: skip


def test_the_history_is_bounded_in_extents_notes_and_names() -> None:
    kept = History()
    kept.note_blocks(1.0, V, BlockRange(0, 256 * (limits.HISTORY_EXTENTS_MAX + 10)), What.AHEAD, 1)
    assert len(kept) == limits.HISTORY_EXTENTS_MAX
    assert kept.of(V, 0) == []
    for number in range(40):
        kept.note(2.0, V, 99, What.EVICTED, number)
    assert len(kept.of(V, 99)) == limits.HISTORY_NOTES_KEPT
    numbers = [kept.whom(number.to_bytes(16, "big")) for number in range(limits.HISTORY_WHOM_MAX + 1)]
    assert kept.version_of(numbers[0]) is None
    assert kept.version_of(numbers[-1]) == limits.HISTORY_WHOM_MAX.to_bytes(16, "big")
    assert kept.whom(b"") == 0
    assert 99 in set(kept.extents(V))


def test_a_wait_too_short_to_name_who_lost_it_is_not_denied() -> None:
    """Below 10 ms nobody is said to have lost anything, and the read is shown all the same."""
    text = explain_cli.render({"said": [], "slow_reads": [as_facts(slow(ended_s=100.005), 101.0) | {"path": "f"}]})
    assert text.splitlines()[0] == "no reader lost 10 ms or more to the hub in the last ten minutes"
    assert "f:0" in text


def test_a_name_that_moves_the_cursor_is_shown_escaped() -> None:
    name = "a\x1b[2J\nb\u202e\udcff"
    text = explain_cli.render({"said": [], "slow_reads": [as_facts(slow(ended_s=100.005), 101.0) | {"path": name}]})
    assert "a\\x1b[2J\\nb\\u202e\\xff:0" in text
    assert len(text.splitlines()) == 2


def test_a_place_in_an_empty_file_is_not_waited_for() -> None:
    place = {"present": False, "in_memory": False, "on_its_way": False}
    assert verdict({"size_bytes": 0, "cached_bytes": 0, "place": place}) == "empty: nothing to fetch"
    assert verdict({"size_bytes": 1, "cached_bytes": 0, "place": place}).startswith("not present")
