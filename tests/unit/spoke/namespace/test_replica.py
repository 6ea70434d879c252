"""The replica: what is believed, what asks for a resync, and a hub that seems to have lost its data."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from names_support import CATALOG, OTHER_CATALOG, Model, batch, contents, directory, file, filled, pages, symlink

from common import limits
from common.entries import Change, Entry
from common.errors import ProtocolError
from common.wire.entry_codec import decode_entries, encode_entries
from common.wire.messages import Changes, Heartbeat, SnapshotPage, Subscribe
from spoke.namespace import pin
from spoke.namespace.pin import Pin
from spoke.namespace.replica import CatalogHeld, Feed, FeedMessage, Outcome, Replica
from spoke.namespace.tree import Event, Tree

MODEL: Model = {b"d": directory(), b"d/f": file(1), b"d/g": file(2), b"l": symlink(b"d/f")}
BIG: Model = {b"data": directory()} | {b"data/%03d" % number: file(number) for number in range(200)}


def drive(replica: Replica, *messages: FeedMessage, now_s: float = 1.0) -> list[Outcome]:
    """Give the messages; returns all outcomes, those of further steps included."""
    outcomes = []
    for message in messages:
        outcomes.append(replica.receive(message, now_s))
        while outcomes[-1].more:
            outcomes.append(replica.proceed(now_s))
    return outcomes


def following(model: Model, revision: int = 5) -> Replica:
    """A replica that has a tree and follows its hub."""
    replica = Replica(filled(model, revision))
    replica.subscribe_request(0.0)
    replica.receive(Heartbeat(CATALOG, revision), 0.0)
    assert replica.feed is Feed.FOLLOWING
    return replica


# --- the ordinary way ----------------------------------------------------------------------------------------


def test_an_empty_replica_asks_for_everything_and_gets_it() -> None:
    replica = Replica(Tree())
    assert not replica.usable
    assert replica.staleness_s(3.0) == float("inf")
    assert replica.subscribe_request(0.0) == Subscribe(b"", 0)
    outcomes = drive(replica, *pages(MODEL, 9))
    assert contents(replica.tree) == MODEL
    assert (replica.tree.revision, replica.tree.catalog_id) == (9, CATALOG)
    assert replica.usable
    assert outcomes[-1].rewrite
    assert replica.staleness_s(3.0) == 2.0
    assert replica.subscribe_request(4.0) == Subscribe(CATALOG, 9)


def test_an_empty_dataset_is_a_tree_too() -> None:
    replica = Replica(Tree())
    replica.subscribe_request(0.0)
    drive(replica, *pages({}, 1))
    assert replica.usable
    assert replica.tree.entry_count == 0


def test_a_tree_from_disk_is_usable_at_once_and_goes_on_from_there() -> None:
    replica = Replica(filled(MODEL))
    assert replica.usable
    assert replica.subscribe_request(0.0) == Subscribe(CATALOG, 5)
    message = batch(5, (b"d/h", file(3)), (b"l", None))
    (outcome,) = drive(replica, message)
    assert outcome.journal is message
    assert [told.event for told in outcome.invalidations] == [Event.APPEARED, Event.REMOVED]
    assert replica.tree.revision == 7
    assert replica.feed is Feed.FOLLOWING


def test_a_batch_may_end_beyond_its_last_change() -> None:
    replica = following(MODEL)
    drive(replica, Changes(CATALOG, 5, 9, (Change(6, b"l", None),)), Changes(CATALOG, 9, 9, ()))
    assert replica.tree.revision == 9


def test_heartbeats_keep_it_fresh() -> None:
    replica = following(MODEL)
    (outcome,) = drive(replica, Heartbeat(CATALOG, 8), now_s=10.0)  # the changes come later, in order
    assert outcome == Outcome()
    assert replica.head_revision == 8
    assert replica.staleness_s(12.5) == 2.5


def test_names_that_the_hub_holds_are_as_old_as_when_it_last_looked() -> None:
    replica = following(MODEL)
    drive(replica, Heartbeat(CATALOG, 5, None, "the directory is away", 60_000), now_s=100.0)
    assert replica.catalog_held == CatalogHeld("the directory is away", 40.0)
    assert replica.staleness_s(103.0) == 63.0
    replica.disconnected()
    assert replica.staleness_s(110.0) == 70.0
    replica.subscribe_request(110.0)
    drive(replica, Heartbeat(CATALOG, 5), now_s=111.0)
    assert (replica.catalog_held, replica.staleness_s(112.0)) == (None, 1.0)


def test_a_heartbeat_tells_the_roots_own_mtime_and_the_kernel_hears_of_it_once() -> None:
    replica = following(MODEL)
    outcomes = drive(replica, *[Heartbeat(CATALOG, 5, 1234567890)] * 2, Heartbeat(CATALOG, 5), now_s=3.0)
    assert [[told.event for told in outcome.invalidations] for outcome in outcomes] == [[Event.ATTRIBUTES], [], []]
    assert outcomes[0].invalidations[0].node is replica.tree.root
    assert replica.tree.root.entry.mtime_ns == 1234567890
    assert contents(replica.tree) == MODEL


def test_a_resync_keeps_nodes_and_tells_only_differences() -> None:
    replica = following(MODEL)
    kept, edited = replica.tree.resolve(b"d/f"), replica.tree.resolve(b"d/g")
    replica.subscribe_request(0.0)
    now = dict(MODEL)
    now[b"d/g"] = file(7)
    now[b"n"] = directory()
    now[b"n/f"] = file(8)
    del now[b"l"]
    outcomes = drive(replica, *pages(now, 20))
    assert contents(replica.tree) == now
    assert replica.tree.resolve(b"d/f") is kept
    assert replica.tree.resolve(b"d/g") is edited
    told = [(told.event, told.name) for outcome in outcomes for told in outcome.invalidations]
    assert sorted(told, key=str) == sorted(
        [(Event.CONTENT, b"g"), (Event.APPEARED, b"n"), (Event.APPEARED, b"f"), (Event.REMOVED, b"l")], key=str
    )


def test_a_resync_replaces_other_kinds_with_all_below() -> None:
    replica = following(MODEL)
    replica.subscribe_request(0.0)
    now: Model = {b"d": file(4), b"l": directory(), b"l/below": file(5)}
    drive(replica, *pages(now, 20))
    assert contents(replica.tree) == now
    assert replica.tree.entry_count == 3


def test_a_version_is_never_dead_while_a_resync_renames() -> None:
    replica = following({b"a": file(1)})
    replica.subscribe_request(0.0)
    (outcome,) = drive(replica, *pages({b"b": file(1)}, 6))
    assert [told.event for told in outcome.invalidations] == [Event.APPEARED, Event.REMOVED]


def test_a_large_resync_goes_in_steps_and_the_epoch_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REPLICA_STEP_ENTRIES", 10)
    replica = following(MODEL)
    replica.subscribe_request(0.0)
    *first, last = pages(BIG, 9, page_entries=50)
    drive(replica, *first)
    outcome, steps, epochs = replica.receive(last, 1.0), 1, set()
    while outcome.more:
        assert replica.tree.revision == 5
        epochs.add(replica.tree.epoch % 2)
        outcome = replica.proceed(1.0)
        steps += 1
    assert steps > 15
    assert 1 in epochs
    assert replica.tree.epoch % 2 == 0
    assert contents(replica.tree) == BIG


@pytest.mark.parametrize("model", [MODEL, {}])
def test_a_root_in_a_snapshot_is_taken_for_its_attributes(model: Model) -> None:
    replica = following(model)
    replica.subscribe_request(0.0)
    drive(replica, *pages(MODEL | {b"": directory(0o711)}, 9))
    assert replica.tree.root.entry == directory(0o711)
    assert contents(replica.tree) == MODEL


def test_a_first_load_goes_on_with_fresh_serials_and_tells_top_names() -> None:
    replica = following({b"old": file(1)})
    old = replica.tree.resolve(b"old")
    assert old is not None
    drive(replica, batch(5, (b"old", None)))
    replica.subscribe_request(0.0)
    (outcome, *_) = reversed(drive(replica, *pages(MODEL, 9)))
    assert [(told.event, told.name) for told in outcome.invalidations] == [
        (Event.APPEARED, name) for name in (b"d", b"l")
    ]
    assert all(node.serial > old.serial for node in replica.tree.walk() if node is not replica.tree.root)
    assert all(node.parent is not None for node in replica.tree.walk() if node is not replica.tree.root)
    drive(replica, batch(9, (b"d/f", None), (b"d", file(3))))
    assert contents(replica.tree) == {b"d": file(3), b"l": symlink(b"d/f")}


# --- what does not fit ---------------------------------------------------------------------------------------


def test_a_partial_snapshot_never_touches_the_tree() -> None:
    replica = following(MODEL)
    replica.subscribe_request(0.0)
    drive(replica, *pages({b"other": file(9), b"p": file(8), b"q": file(7), b"r": file(6)}, 9)[:-1])
    assert contents(replica.tree) == MODEL
    replica.disconnected()
    assert replica.subscribe_request(1.0) == Subscribe(CATALOG, 5)
    drive(replica, *pages(MODEL, 9))
    assert contents(replica.tree) == MODEL


@pytest.mark.parametrize(
    ("message", "request_after"),
    [
        (batch(6, (b"x", file(1))), Subscribe(CATALOG, 5)),
        (batch(3, (b"x", file(1))), Subscribe(CATALOG, 5)),
        (batch(5, (b"x", file(1)), catalog_id=OTHER_CATALOG), Subscribe(b"", 0)),
        (batch(5, (b"absent/x", file(1))), Subscribe(b"", 0)),
        (Changes(CATALOG, 5, 6, (Change(9, b"x", file(1)),)), Subscribe(b"", 0)),
        (batch(5, (b"x", Entry(file(1).kind, 0, 0, 0, b"short"))), Subscribe(b"", 0)),
        (Heartbeat(CATALOG, 4), Subscribe(b"", 0)),
        (Heartbeat(OTHER_CATALOG, 5), Subscribe(b"", 0)),
    ],
)
def test_what_does_not_follow_asks_again_and_changes_nothing(message: FeedMessage, request_after: Subscribe) -> None:
    replica = following(MODEL)
    (outcome,) = drive(replica, message)
    assert outcome.resubscribe
    assert outcome.journal is None
    assert contents(replica.tree) == MODEL
    # Whatever else was under way says nothing now.
    assert drive(replica, batch(5, (b"y", file(1))), Heartbeat(CATALOG, 1)) == [Outcome(), Outcome()]
    assert replica.subscribe_request(2.0) == request_after


def test_a_batch_that_fails_half_way_keeps_the_half_that_came_in_order() -> None:
    replica = following(MODEL)
    (outcome,) = drive(replica, batch(5, (b"new", file(5)), (b"absent/x", file(1))))
    assert outcome.resubscribe
    assert outcome.journal is None
    assert [told.name for told in outcome.invalidations] == [b"new"]
    assert replica.tree.revision == 6


@pytest.mark.parametrize(
    "page",
    [
        SnapshotPage(CATALOG, 9, 2, True, ((b"d", directory()),)),
        SnapshotPage(CATALOG, 9, 1, True, ((b"a", file(1)), (b"b", file(1)))),
        SnapshotPage(CATALOG, 9, 1, True, ((b"absent/x", file(1)),)),
        SnapshotPage(CATALOG, 9, 2, True, ((b"f", file(1)), (b"f/x", file(2)))),
        SnapshotPage(CATALOG, 9, 2, True, ((b"d", directory()), (b"d", directory()))),
        SnapshotPage(CATALOG, 9, 3, True, ((b"n", directory()), (b"n", file(1)), (b"n/x", file(2)))),
    ],
)
def test_a_snapshot_that_does_not_fit_together_is_not_applied(page: SnapshotPage) -> None:
    replica = following(MODEL)
    replica.subscribe_request(0.0)
    (outcome,) = drive(replica, page)
    assert outcome.resubscribe
    assert contents(replica.tree) == MODEL


def test_changes_inside_a_snapshot_break_it() -> None:
    replica = following(MODEL)
    replica.subscribe_request(0.0)
    drive(replica, pages(BIG, 9)[0])
    (outcome,) = drive(replica, batch(9, (b"x", file(1))))
    assert outcome.resubscribe


def test_a_new_snapshot_in_place_of_a_partial_one_starts_over() -> None:
    replica = Replica(Tree())
    replica.subscribe_request(0.0)
    drive(replica, pages(BIG, 9)[0], *pages(MODEL, 10))
    assert contents(replica.tree) == MODEL


def test_no_hub_may_send_such_snapshots() -> None:
    replica = Replica(Tree())
    replica.subscribe_request(0.0)
    with pytest.raises(ProtocolError):
        replica.receive(SnapshotPage(CATALOG, 1, limits.TREE_MAX_ENTRIES + 1, False, ()), 0.0)
    with pytest.raises(ProtocolError):
        replica.receive(SnapshotPage(b"", 1, 0, True, ()), 0.0)
    with pytest.raises(ProtocolError):
        replica.receive(SnapshotPage(CATALOG, 1, 1, True, ((b"f", Entry(file(1).kind, 0, 0, 0)),)), 0.0)


def test_a_hub_that_never_answers_fittingly_is_asked_again_for_everything() -> None:
    replica = following(MODEL)
    drive(replica, batch(7, (b"x", file(1))))
    replica.subscribe_request(10.0)
    assert drive(replica, batch(7, (b"x", file(1))), now_s=11.0) == [Outcome()]
    late_s = 11.0 + limits.RESYNC_ANSWER_TIMEOUT_S
    (outcome,) = drive(replica, Heartbeat(CATALOG, 9), now_s=late_s)
    assert outcome.resubscribe
    assert replica.subscribe_request(late_s) == Subscribe(b"", 0)


def test_not_usable_means_only_a_snapshot_helps() -> None:
    replica = Replica(Tree())
    replica.subscribe_request(0.0)
    assert drive(replica, Heartbeat(CATALOG, 5), batch(0, (b"x", file(1)))) == [Outcome(), Outcome()]
    assert not replica.usable


# --- a suspicious hub ----------------------------------------------------------------------------------------


def emptied(replica: Replica) -> Outcome:
    """The hub says that all data are gone, by one change and then by its snapshot."""
    (outcome,) = drive(replica, batch(5, (b"data", None)))
    assert outcome.resubscribe
    assert replica.subscribe_request(1.0) == Subscribe(b"", 0)
    return drive(replica, *pages({}, 6))[-1]


def test_the_loss_of_most_names_is_not_believed() -> None:
    replica = following(BIG)
    outcome = emptied(replica)
    assert outcome == Outcome()
    assert contents(replica.tree) == BIG
    assert replica.suspicious is not None
    assert (replica.suspicious.lost_entries, replica.suspicious.entries) == (201, 201)
    assert "201 of 201" in str(replica.suspicious)
    drive(replica, Heartbeat(CATALOG, 6), now_s=50.0)
    assert replica.staleness_s(50.0) == 50.0, "a hub that is not believed confirms nothing"


def test_a_loss_that_is_accepted_is_applied() -> None:
    replica = following(BIG)
    emptied(replica)
    outcome = replica.accept(2.0)
    assert outcome.rewrite
    assert not outcome.resubscribe
    assert contents(replica.tree) == {}
    assert replica.tree.revision == 6
    assert replica.suspicious is None
    assert replica.accept(3.0) == Outcome()


def test_a_loss_accepted_before_the_snapshot_came_is_applied_as_told() -> None:
    replica = following(BIG)
    message = batch(5, (b"data", None), (b"more", directory()))
    drive(replica, message)
    outcome = replica.accept(2.0)
    assert outcome.journal is message
    assert outcome.resubscribe
    assert contents(replica.tree) == {b"more": directory()}
    assert replica.subscribe_request(2.0) == Subscribe(CATALOG, 7)


def test_news_missed_while_suspicious_is_asked_for_after_acceptance() -> None:
    replica = following(BIG)
    emptied(replica)
    drive(replica, batch(6, (b"new", file(1))), now_s=2.0)
    outcome = replica.accept(2.5)
    assert outcome.resubscribe
    assert replica.subscribe_request(2.5) == Subscribe(CATALOG, 6)


def test_a_hub_that_shows_the_names_again_is_believed_again() -> None:
    replica = following(BIG)
    emptied(replica)
    assert drive(replica, Heartbeat(CATALOG, 6), now_s=100.0) == [Outcome()], "no news, nothing to look at"
    (outcome,) = drive(replica, batch(6, (b"data", directory())), now_s=100.0)
    assert outcome.resubscribe
    assert replica.subscribe_request(100.0) == Subscribe(b"", 0)
    drive(replica, *pages(BIG | {b"extra": file(500)}, 300), now_s=101.0)
    assert replica.suspicious is None
    assert contents(replica.tree) == BIG | {b"extra": file(500)}
    assert replica.staleness_s(101.0) == 0.0


def test_rechecks_become_rarer() -> None:
    replica = following(BIG)
    emptied(replica)
    now_s, asked = 1.0, []
    for revision in range(7, 400):
        now_s += 1.0
        (outcome,) = drive(replica, Heartbeat(CATALOG, revision), now_s=now_s)
        if outcome.resubscribe:
            asked.append(now_s)
            replica.subscribe_request(now_s)
            drive(replica, *pages({}, revision), now_s=now_s)
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert len(gaps) >= 3
    assert all(later >= 1.9 * earlier for earlier, later in pairwise(gaps))


def test_a_reconnect_while_suspicious_asks_for_the_whole_tree() -> None:
    replica = following(BIG)
    emptied(replica)
    replica.disconnected()
    assert replica.subscribe_request(9.0) == Subscribe(b"", 0)
    drive(replica, *pages({}, 6))
    assert contents(replica.tree) == BIG


def test_a_renamed_directory_is_no_loss() -> None:
    replica = following(BIG)
    moved = {path.replace(b"data", b"renamed"): entry for path, entry in BIG.items()}
    (outcome,) = drive(replica, batch(5, (b"data", None), *sorted(moved.items())))
    assert outcome.journal is not None
    assert replica.suspicious is None
    assert contents(replica.tree) == moved
    replica.subscribe_request(0.0)
    drive(replica, *pages(BIG, 900))
    assert contents(replica.tree) == BIG
    assert replica.suspicious is None


def test_a_rename_told_in_two_batches_is_cleared_by_the_snapshot() -> None:
    replica = following(BIG)
    moved = {path.replace(b"data", b"renamed"): entry for path, entry in BIG.items()}
    drive(replica, batch(5, (b"data", None)))
    assert replica.suspicious is not None
    replica.subscribe_request(1.0)
    drive(replica, *pages(moved, 300))
    assert replica.suspicious is None
    assert contents(replica.tree) == moved


def test_a_loss_told_in_many_small_batches_is_seen() -> None:
    replica = following(BIG)
    for number in range(200):
        (outcome,) = drive(replica, batch(5 + number, (b"data/%03d" % number, None)), now_s=1.0)
        if outcome.resubscribe:
            break
    assert replica.suspicious is not None
    assert 90 <= replica.tree.entry_count <= 101


def test_slow_deletion_is_believed() -> None:
    replica = following(BIG)
    for number in range(200):
        drive(replica, batch(5 + number, (b"data/%03d" % number, None)), now_s=number * 2.0)
    assert replica.suspicious is None
    assert replica.tree.entry_count == 1


def test_small_trees_may_be_emptied() -> None:
    replica = following({b"%d" % number: file(number) for number in range(99)})
    drive(replica, batch(5, *((b"%d" % number, None) for number in range(99))))
    assert replica.suspicious is None
    assert replica.tree.entry_count == 0


def test_edits_are_no_loss() -> None:
    replica = following(BIG)
    edited = {path: entry if path == b"data" else file(1000 + entry.size_bytes) for path, entry in BIG.items()}
    drive(replica, batch(5, *sorted(edited.items())))
    assert replica.suspicious is None
    assert contents(replica.tree) == edited


# --- pinned ------------------------------------------------------------------------------------------------

OLD: Model = {b"d": directory(), b"d/f": file(9)}


def test_a_pinned_replica_asks_for_its_revision_and_stays_there() -> None:
    replica = Replica(Tree(), Pin(revision=3))
    assert replica.subscribe_request(0.0) == Subscribe(b"", 0, 3)
    drive(replica, *pages(OLD, 3))
    assert not replica.usable  # the hub has not said that this is it
    drive(replica, Heartbeat(CATALOG, 3))
    assert replica.usable
    outcomes = drive(replica, batch(3, (b"x", file(1))), Heartbeat(OTHER_CATALOG, 9), *pages(MODEL, 9))
    assert contents(replica.tree) == OLD
    assert not any(outcome.journal or outcome.rewrite or outcome.resubscribe for outcome in outcomes)
    assert replica.staleness_s(1e9) == 0.0


def test_a_pinned_replica_goes_back_as_well_as_forward() -> None:
    back = Replica(filled(MODEL, 5), Pin(snapshot="old"))
    assert back.subscribe_request(0.0) == Subscribe(CATALOG, 5, None, "old")
    assert not back.usable
    drive(back, *pages(OLD, 3), Heartbeat(CATALOG, 3))
    assert (contents(back.tree), back.tree.revision, back.usable) == (OLD, 3, True)
    forward = Replica(filled(MODEL, 5), Pin(revision=7))
    forward.subscribe_request(0.0)
    drive(forward, batch(5, (b"l", None)), Changes(CATALOG, 6, 7, ()), Heartbeat(CATALOG, 7))
    assert (forward.tree.revision, forward.usable, b"l" in contents(forward.tree)) == (7, True, False)


def test_what_a_pinned_revision_lacks_is_not_suspicious() -> None:
    replica = Replica(filled(BIG, 5), Pin(revision=2))
    replica.subscribe_request(0.0)
    drive(replica, *pages({}, 2), Heartbeat(CATALOG, 2))
    assert replica.suspicious is None
    assert replica.usable
    assert contents(replica.tree) == {}


def test_names_on_disk_that_are_the_pinned_ones_need_no_hub(tmp_path: Path) -> None:
    revision, named = Pin(revision=5), Pin(snapshot="s")
    assert pin.is_at(tmp_path, revision, CATALOG, 5)
    assert not pin.is_at(tmp_path, revision, CATALOG, 6)
    assert not pin.is_at(tmp_path, revision, b"", 5)
    assert not pin.is_at(tmp_path, named, CATALOG, 5)
    pin.remember(tmp_path, named, CATALOG, 5)
    assert pin.is_at(tmp_path, named, CATALOG, 5)
    assert not pin.is_at(tmp_path, named, OTHER_CATALOG, 5)
    assert not pin.is_at(tmp_path, named, CATALOG, 6)
    assert not pin.is_at(tmp_path, Pin(snapshot="other"), CATALOG, 5)
    (tmp_path / pin.RECORD_NAME).write_text("{")
    assert not pin.is_at(tmp_path, named, CATALOG, 5)
    replica = Replica(filled(MODEL), named, pin_reached=True)
    assert replica.usable


def test_pages_in_columns_and_pages_of_pairs_make_the_same_tree() -> None:
    for start in ({}, {b"d": directory(0o700), b"d/f": file(7), b"gone": file(8)}):
        trees = []
        for columns in (False, True):
            replica = Replica(filled(start, 5) if start else Tree())
            replica.subscribe_request(0.0)
            sent = pages(MODEL, 9)
            if columns:
                sent = [replace(page, entries=decode_entries(encode_entries(page.entries))) for page in sent]
            drive(replica, *sent)
            trees.append(contents(replica.tree))
        assert trees == [MODEL, MODEL]


def test_a_catalog_that_goes_on_under_a_new_id_is_followed() -> None:
    replica = Replica(filled(MODEL))
    replica.subscribe_request(0.0)
    (outcome,) = drive(replica, Changes(OTHER_CATALOG, 5, 5, (), CATALOG))
    assert outcome.rewrite  # the journal is of one catalog
    assert not outcome.resubscribe
    drive(replica, batch(5, (b"l", None), catalog_id=OTHER_CATALOG), Heartbeat(OTHER_CATALOG, 6))
    assert (replica.tree.revision, replica.tree.catalog_id) == (6, OTHER_CATALOG)
    assert replica.subscribe_request(1.0) == Subscribe(OTHER_CATALOG, 6)


def test_a_new_id_that_follows_another_tree_than_ours_is_not_believed() -> None:
    for message in (
        Changes(OTHER_CATALOG, 5, 5, (), b"e" * 16),
        Changes(OTHER_CATALOG, 5, 6, (Change(6, b"l", None),)),
    ):
        replica = Replica(filled(MODEL))
        replica.subscribe_request(0.0)
        (outcome,) = drive(replica, message)
        assert outcome.resubscribe
        assert contents(replica.tree) == MODEL
        assert replica.subscribe_request(1.0) == Subscribe(b"", 0)
