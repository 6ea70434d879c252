"""Named snapshots and earlier revisions: what the catalog can still give, what it forgets, and what it says when it cannot."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from common import limits
from common.entries import Entry
from common.errors import RevisionUnavailable, UsageError
from hub import catalog_tables, snapshots
from hub.catalog import Catalog
from hub.scan import Listing
from hub.versions import DIRECTORY, FILE, SYMLINK, Evidence, Facts

NO_EVIDENCE = Evidence(trusted=False)
DIR = Facts(DIRECTORY, 0o755, 0, 5, 99, 0, 0, 0, b"")


def file(inode: int, ctime_ns: int = 1) -> Facts:
    return Facts(FILE, 0o644, 10, 5, inode, ctime_ns, 0, 1, b"")


def link(target: bytes) -> Facts:
    return Facts(SYMLINK, 0o777, len(target), 5, 98, 0, 0, 0, target)


def scan(catalog: Catalog, tree: dict[bytes, dict[bytes, Facts]]) -> int:
    """Make the whole tree be this; the revision it is at."""
    listings = [Listing(path, dict(entries), complete=True) for path, entries in sorted(tree.items())]
    return catalog.apply((), listings, NO_EVIDENCE).head_revision


async def tree_at(catalog: Catalog, revision: int | None = None) -> dict[bytes, Entry]:
    snapshot = await catalog.snapshot(revision)
    found = [item async for page in snapshot.pages for item in page]
    tree = dict(found)
    assert len(found) == len(tree) == snapshot.entry_count
    assert list(tree) == sorted(tree, key=lambda path: (path.rpartition(b"/")[0], path))
    return tree


def rows(catalog: Catalog) -> int:
    found = catalog._database.execute("SELECT COUNT(*) FROM past").fetchone()[0]
    assert found == catalog_tables.read_number(catalog._database, "past_rows")
    return int(found)


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def catalog(state_dir: Path) -> Iterator[Catalog]:
    it = Catalog.open(state_dir, "ds")
    yield it
    it.close()


BEFORE = {
    b"": {b"a": DIR, b"b": file(1), b"c": file(2), b"kind": DIR, b"l": link(b"x")},
    b"a": {b"f": file(3), b"sub": DIR},
    b"a/sub": {b"g": file(4)},
    b"kind": {b"inside": file(5)},
}
AFTER = {
    b"": {b"b": file(1, ctime_ns=2), b"d": DIR, b"kind": file(6), b"l": link(b"y"), b"new": file(7)},
    b"d": {b"f": file(3), b"sub": DIR},
    b"d/sub": {b"g": file(4)},
}


async def test_a_snapshot_shows_its_tree_after_everything_changed(catalog: Catalog, state_dir: Path) -> None:
    scan(catalog, BEFORE)
    expected = await tree_at(catalog)
    with snapshots.opened(state_dir, "ds") as database:  # another connection, as the command beside a running hub has
        made = snapshots.create(database, "first", 1.5)
    assert (made.revision, made.entry_count) == (catalog.head_revision, len(expected))
    scan(catalog, AFTER)
    now = await tree_at(catalog)
    assert now != expected
    assert set(now) == {b"b", b"d", b"d/f", b"d/sub", b"d/sub/g", b"kind", b"l", b"new"}
    assert await tree_at(catalog, await catalog.named_revision("first")) == expected
    scan(catalog, {b"": {}})
    assert await tree_at(catalog) == {}
    assert await tree_at(catalog, made.revision) == expected


async def test_snapshots_and_trees_survive_a_restart(state_dir: Path) -> None:
    first = Catalog.open(state_dir, "ds")
    revision = scan(first, BEFORE)
    expected = await tree_at(first)
    with snapshots.opened(state_dir, "ds") as database:
        snapshots.create(database, "kept", 1.0)
    scan(first, AFTER)
    first.close()
    second = Catalog.open(state_dir, "ds")
    assert await second.named_revision("kept") == revision
    assert await tree_at(second, revision) == expected
    second.close()


async def test_every_revision_within_the_log_can_be_given(catalog: Catalog) -> None:
    between = [{**BEFORE, b"": {**BEFORE[b""], b"b": file(10 + number)}} for number in range(5)]
    seen = {}
    for tree in (BEFORE, *between, AFTER):
        revision = scan(catalog, tree)
        seen[revision] = await tree_at(catalog)
    for revision, expected in seen.items():
        assert await tree_at(catalog, revision) == expected


async def test_what_neither_log_nor_snapshot_needs_is_forgotten(
    catalog: Catalog, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHANGE_LOG_MAX_CHANGES", 3)
    scan(catalog, {b"": {b"f": file(1)}})
    with snapshots.opened(state_dir, "ds") as database:
        snapshots.create(database, "one", 1.0)
    for number in range(2, 12):
        scan(catalog, {b"": {b"f": file(number)}})
    assert rows(catalog) == 3 + 1  # what the log reaches back to, and what the snapshot shows
    with pytest.raises(RevisionUnavailable, match=r"revision 5 of dataset 'ds' is not kept; .* 8 to 11 .* one \(1\)"):
        await catalog.snapshot(5)
    assert set(await tree_at(catalog, 1)) == {b"f"}
    with snapshots.opened(state_dir, "ds") as database:
        assert snapshots.drop(database, "one").revision == 1
    assert rows(catalog) == 3
    for gone in (catalog.snapshot(1), catalog.named_revision("one")):
        with pytest.raises(RevisionUnavailable):
            await gone


async def test_a_batch_larger_than_the_log_keeps_only_what_snapshots_need(
    catalog: Catalog, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHANGE_LOG_MAX_CHANGES", 4)
    many = {b"f%d" % number: file(10 + number) for number in range(4)}
    scan(catalog, {b"": {b"d": DIR, **many}, b"d": many})
    first = await tree_at(catalog)
    with snapshots.opened(state_dir, "ds") as database:
        revision = snapshots.create(database, "s", 1.0).revision
    scan(catalog, {b"": {b"d": DIR, **{name: file(50) for name in many}}, b"d": many})  # all but d and what is below it
    scan(catalog, {b"": {}})
    assert await tree_at(catalog, revision) == first
    assert rows(catalog) == len(first)
    with pytest.raises(RevisionUnavailable):
        await catalog.snapshot(revision + 1)


async def test_too_much_past_is_dropped_but_for_snapshots(
    catalog: Catalog, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PAST_ROWS_MAX", 5)
    scan(catalog, {b"": {b"f": file(1)}})
    first = await tree_at(catalog)
    with snapshots.opened(state_dir, "ds") as database:
        snapshots.create(database, "s", 1.0)
    for number in range(2, 8):
        scan(catalog, {b"": {b"f": file(number)}})
    assert rows(catalog) <= 5
    assert await tree_at(catalog, 1) == first
    with pytest.raises(RevisionUnavailable):
        await catalog.snapshot(3)


async def test_a_revision_to_come_and_an_unknown_name_are_refused_with_what_there_is(catalog: Catalog) -> None:
    scan(catalog, {b"": {b"f": file(1)}})
    with pytest.raises(RevisionUnavailable, match="can give revisions 0 to 1, no snapshots"):
        await catalog.snapshot(2)
    with pytest.raises(RevisionUnavailable, match="has no snapshot 'x'"):
        await catalog.named_revision("x")


def test_names_that_cannot_be(catalog: Catalog, state_dir: Path) -> None:
    with snapshots.opened(state_dir, "ds") as database:
        snapshots.create(database, "one", 1.0)
    for name in ("", "one", " padded", "new\nline", "x" * (limits.LABEL_MAX_BYTES + 1)):
        with pytest.raises(UsageError), snapshots.opened(state_dir, "ds") as database:
            snapshots.create(database, name, 1.0)
    with (
        pytest.raises(UsageError, match="no snapshot 'two'; there are one"),
        snapshots.opened(state_dir, "ds") as database,
    ):
        snapshots.drop(database, "two")
    with snapshots.opened(state_dir, "ds", write=False) as database:
        assert [snapshot.name for snapshot in snapshots.list_all(database)] == ["one"]
    with pytest.raises(UsageError, match="there: ds"), snapshots.opened(state_dir, "other"):
        pass
    assert snapshots.datasets_in(state_dir) == ["ds"]


async def test_a_catalog_of_schema_1_is_taken_over(state_dir: Path) -> None:
    old = Catalog.open(state_dir, "ds")
    revision = scan(old, BEFORE)
    catalog_id, expected = old.catalog_id, await tree_at(old)
    old.close()
    with sqlite3.connect(state_dir / "ds.catalog") as database:  # as schema 1 had it
        for statement in (
            "DROP TABLE past",
            "DROP TABLE snapshots",
            "DROP TABLE former_ids",
            "ALTER TABLE entries DROP COLUMN since",
            "DELETE FROM meta WHERE key IN ('past_floor', 'past_rows')",
            "PRAGMA user_version = 1",
        ):
            database.execute(statement)
    database.close()
    catalog = Catalog.open(state_dir, "ds")
    assert catalog.head_revision == revision
    assert catalog.leads_from(catalog_id, revision)
    assert await tree_at(catalog) == expected
    with pytest.raises(RevisionUnavailable):
        await catalog.snapshot(revision - 1)
    scan(catalog, AFTER)
    assert await tree_at(catalog, revision) == expected
    catalog.close()
