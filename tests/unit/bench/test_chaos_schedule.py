"""The schedule of the chaos runs is a function of its seed, and its faults do not get in each other's way; its judge excuses no more."""

import errno
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.faults import FAULTS
from bench.chaos.judge import Broken, Judge, bound_s, longest_by_kind
from bench.chaos.ledger import Ledger, LedgerWriter
from bench.chaos.proxy import FrameFollower
from bench.chaos.schedule import CALM_S, kinds_of, plan
from common.wire.frame import FrameType, pack_header

SHAPES = {kind: fault.shape for kind, fault in FAULTS.items()}


def test_there_are_more_than_twenty_kinds() -> None:
    assert len(FAULTS) >= 20


def test_the_same_seed_gives_the_same_schedule_and_another_another() -> None:
    assert plan(3, SHAPES, 600.0) == plan(3, SHAPES, 600.0)
    assert plan(3, SHAPES, 600.0) != plan(4, SHAPES, 600.0)


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_comes_and_none_meets_one_that_uses_the_same(seed: int) -> None:
    planned = plan(seed, SHAPES, 900.0)
    assert {one.kind for one in planned} == set(SHAPES)
    for number, one in enumerate(planned):
        meanwhile = [other for other in planned[:number] if other.end_s > one.start_s]
        assert len(meanwhile) < 3
        assert not [other for other in meanwhile if SHAPES[other.kind].uses & SHAPES[one.kind].uses]
    assert max(one.end_s for one in planned) <= 900.0
    assert any(len([other for other in planned if other.start_s < one.start_s < other.end_s]) == 2 for one in planned)
    edges = sorted((one.start_s, one.end_s) for one in planned)
    calms = [later[0] - max(end for _, end in edges[: number + 1]) for number, (_, later) in enumerate(pairwise(edges))]
    assert len([calm for calm in calms if calm >= CALM_S - 0.01]) >= 9


def test_a_short_run_still_does_each_kind_once() -> None:
    assert sorted(one.kind for one in plan(1, SHAPES, 5.0)) == sorted(SHAPES)


def test_an_unknown_fault_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"wire_reste; there are .*wire_reset"):
        kinds_of("wire_reste", list(FAULTS))
    with pytest.raises(ValueError, match="no fault named"):
        kinds_of(" , ", list(FAULTS))


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_the_proxy_knows_which_part_of_a_frame_a_byte_is_of(step: int) -> None:
    frames = (
        *(pack_header(FrameType.DATA, 1, 5, 3, 40), b"map", bytes(40)),
        *(pack_header(FrameType.PING, 0, 6, 2, 0), b"mp"),
        *(pack_header(FrameType.CHANGES, 0, 7, 1, 9), b"m", bytes(9)),
    )
    stream, follower, found = b"".join(frames), FrameFollower(), []
    for start in range(0, len(stream), step):
        for low, high, part in follower.parts(stream[start : start + step]):
            found.extend([part] * (high - low))
    header = ["header"] * 16
    assert found == [*header, *["map"] * 3, *["data"] * 40, *header, *["map"] * 2, *header, "map", *["names"] * 9]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    writer = LedgerWriter(tmp_path / "ledger")
    writer.done("a", writer.begin("a", 10, ((0, 10, 1),)))
    ledger = Ledger(tmp_path / "ledger")
    ledger.refresh()
    at_s = ledger.of("a")[0].begun_s
    judge = Judge(10.0, ledger, [Broken("x", at_s + 100, at_s + 110)], [[at_s + 200, at_s + 210]])
    writer.close()
    ledger.close()
    return judge


def event(judge: Judge, after_s: float, kind: str, lasts_s: float = 1.0, **more: Any) -> dict[str, Any]:
    from_s = judge._ledger.of("a")[0].begun_s + after_s
    return {"kind": kind, "what": "pread", "path": "a", "from_s": from_s, "to_s": from_s + lasts_s, **more}


def test_an_error_is_excused_only_by_what_was_broken(judge: Judge) -> None:
    assert judge.of(event(judge, 105, "error", errno=errno.EIO)).failure == ""
    assert judge.of(event(judge, 50, "error", errno=errno.EIO)).failure == "EIO with nothing broken"
    assert judge.of(event(judge, 50, "error", errno=errno.ESTALE)).failure == "ESTALE with nothing broken"
    assert judge.of(event(judge, 1, "error", errno=errno.ESTALE)).failure == ""
    assert judge.of(event(judge, 50, "error", errno=errno.ENOENT)).failure == "missing name"
    assert judge.of(event(judge, 205, "error", errno=errno.ENOTCONN)).failure == ""
    assert judge.of(event(judge, 105, "error", errno=errno.ENOTCONN)).failure == "unexpected ENOTCONN"
    assert judge.of(event(judge, 105, "died", signal="SIGBUS")).failure == ""
    assert judge.of(event(judge, 105, "died", signal="SIGSEGV")).failure == "reader died"


def test_wrong_bytes_and_hangs_are_never_excused(judge: Judge) -> None:
    assert judge.of(event(judge, 105, "wrong", why="so")).failure == "wrong bytes"
    assert judge.of(event(judge, 105, "slow", lasts_s=bound_s(10.0) + 1)).failure == "hang"
    assert judge.of(event(judge, 105, "slow", lasts_s=bound_s(10.0) - 1)).failure == ""
    assert judge.of(event(judge, 50, "old", lag_s=6.0)).failure == "stale open"
    assert judge.of(event(judge, 105, "old", lag_s=6.0)).failure == ""


def test_the_longest_call_is_told_for_each_fault_it_met(judge: Judge) -> None:
    slow = [event(judge, 109, "slow", lasts_s=4.0), event(judge, 90, "slow", lasts_s=9.0)]
    assert longest_by_kind(slow, judge._faults) == {"x": pytest.approx(4.0)}
