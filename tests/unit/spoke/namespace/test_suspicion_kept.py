"""A suspicious hub after a restart, after small steps, and before it is believed: what would be lost is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from names_support import CATALOG, Model, batch, contents, directory, file, filled, pages

from common.wire.messages import Heartbeat
from spoke.namespace.replica import Feed, FeedMessage, Replica
from spoke.namespace.suspicion import Losses, Suspicion
from spoke.namespace.suspicion_record import keep, kept
from spoke.namespace.tree import Tree

BIG: Model = {b"data": directory()} | {b"data/%03d" % number: file(number, size_bytes=100) for number in range(200)}


def drive(replica: Replica, *messages: FeedMessage, now_s: float = 1.0) -> None:
    for message in messages:
        outcome = replica.receive(message, now_s)
        while outcome.more:
            outcome = replica.proceed(now_s)


def following(model: Model) -> Replica:
    replica = Replica(filled(model))
    replica.subscribe_request(0.0)
    drive(replica, Heartbeat(CATALOG, 5), now_s=0.0)
    return replica


def without(model: Model, *numbers: int) -> Model:
    return {path: entry for path, entry in model.items() if path == b"data" or int(path[5:]) not in numbers}


def remove(replica: Replica, first: int, end: int) -> None:
    """The hub tells that these files go, in one batch."""
    steps = [(b"data/%03d" % number, None) for number in range(first, end)]
    drive(replica, batch(replica.tree.revision, *steps))


def losses(replica: Replica) -> Losses:
    counted = Losses()
    for _ in replica.losses(counted, lambda version, size_bytes: size_bytes // 2):
        pass
    return counted


def test_it_is_kept_and_read_back_and_taken_away(tmp_path: Path) -> None:
    assert kept(tmp_path, 3.0) is None
    seen = Suspicion(200, 150, 9, CATALOG, 1.0, lost_before=20)
    keep(tmp_path, seen)
    assert kept(tmp_path, 3.0) == Suspicion(200, 150, 9, CATALOG, 3.0, lost_before=20)
    keep(tmp_path, None)
    keep(tmp_path, None)
    assert kept(tmp_path, 3.0) is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"entries": "many"}', b"\xff"])
def test_a_damaged_record_still_says_that_there_was_a_suspicion(tmp_path: Path, damage: bytes) -> None:
    keep(tmp_path, Suspicion(200, 150, 9, CATALOG, 1.0))
    (tmp_path / "suspicious.json").write_bytes(damage)
    assert kept(tmp_path, 3.0) is not None


def test_after_a_restart_only_the_whole_tree_clears_or_confirms_it() -> None:
    seen = Suspicion(201, 150, 9, CATALOG, 0.0)
    for shown, stays in ((without(BIG, *range(150)), True), (without(BIG, 7), False)):
        replica = Replica(filled(BIG), suspicious=seen)
        assert replica.suspicious is seen
        assert not replica.can_accept
        assert replica.subscribe_request(1.0).catalog_id == b"", "the whole tree is asked for"
        drive(replica, Heartbeat(CATALOG, 9))
        assert replica.suspicious is seen
        drive(replica, *pages(shown, 9))
        assert (replica.suspicious is not None) is stays
        assert replica.can_accept is stays
        assert contents(replica.tree) == (BIG if stays else shown)


def test_a_spoke_without_names_has_nothing_to_doubt() -> None:
    assert Replica(Tree(), suspicious=Suspicion(200, 150, 9, CATALOG, 0.0)).suspicious is None


def test_what_went_in_small_steps_counts_when_the_whole_tree_is_looked_at() -> None:
    """80 of 201 names went bit by bit; 30 more are too many. The tree without them is still most of what is left."""
    replica = following(BIG)
    for step in range(4):
        remove(replica, 20 * step, 20 * step + 20)
    assert replica.suspicious is None
    remove(replica, 80, 110)
    assert replica.suspicious is not None
    assert (replica.suspicious.lost_entries, replica.suspicious.lost_before) == (110, 80)
    held = without(BIG, *range(80))
    assert contents(replica.tree) == held
    for restarted in (False, True):
        if restarted:
            replica = Replica(filled(held, 85), suspicious=replica.suspicious)
        replica.subscribe_request(2.0)
        drive(replica, *pages(without(BIG, *range(110)), 115), now_s=1000.0)
        assert replica.feed is Feed.FOLLOWING
        assert replica.suspicious is not None, "time alone, or a restart, makes no loss believable"
        assert contents(replica.tree) == held
    replica.subscribe_request(1001.0)
    drive(replica, *pages(BIG, 116), now_s=1001.0)
    assert replica.suspicious is None
    assert contents(replica.tree) == BIG


def test_what_would_be_lost_is_counted_before_it_is_accepted() -> None:
    replica = following(BIG)
    steps = [(b"data", None), (b"moved", directory()), (b"moved/a", file(199, 100))]
    drive(replica, batch(5, *steps))
    assert replica.suspicious is not None
    told = losses(replica)
    assert (told.files, told.others, told.file_bytes, told.cached_bytes) == (199, 1, 19_900, 9_950)
    assert told.examples == [b"data/%03d" % number for number in range(10)]
    replica.subscribe_request(1.0)
    drive(replica, *pages({b"moved": directory(), b"moved/a": file(199, 100)}, 8))
    seen = losses(replica)
    assert (seen.files, seen.others, seen.file_bytes) == (199, 1, 19_900)
    assert len(seen.examples) == 10
    replica.accept(2.0)
    while replica.proceed(2.0).more:
        pass
    assert set(contents(replica.tree)) == {b"moved", b"moved/a"}
