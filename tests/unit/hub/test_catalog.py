import asyncio
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from common import limits
from common.entries import Kind
from common.errors import DiskError, HeadraceError, RevisionGone, UsageError
from hub import snapshots
from hub.catalog import Catalog
from hub.catalog_file import translated
from hub.scan import Listing
from hub.versions import DIRECTORY, FILE, Evidence, Facts

NO_EVIDENCE = Evidence(trusted=False)


def file(inode: int, ctime_ns: int = 1) -> Facts:
    return Facts(FILE, 0o644, 10, 5, inode, ctime_ns, 0, 1, b"")


DIR = Facts(DIRECTORY, 0o755, 0, 5, 99, 0, 0, 0, b"")


def listing(path: bytes, **entries: Facts) -> Listing:
    return Listing(path, {os.fsencode(name): facts for name, facts in entries.items()}, complete=True)


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "state"


@pytest.fixture
def catalog(state_dir: Path) -> Iterator[Catalog]:
    it = Catalog.open(state_dir, "ds/1")
    yield it
    it.close()


def test_state_is_private_and_one_hub_alone_holds_it(catalog: Catalog, state_dir: Path) -> None:
    assert stat.S_IMODE(state_dir.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in state_dir.iterdir())
    with pytest.raises(UsageError, match="in use by another hub"):
        Catalog.open(state_dir, "ds/1")
    other = Catalog.open(state_dir, "ds/2")
    assert other.catalog_id != catalog.catalog_id
    other.close()


def test_state_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="state directory"):
        Catalog.open(tmp_path / "file", "ds")


async def test_identity_and_content_survive_closing(state_dir: Path) -> None:
    first = Catalog.open(state_dir, "ds")
    first.apply((), [listing(b"", a=file(1), d=DIR), listing(b"d", b=file(2))], NO_EVIDENCE)
    first.close()
    second = Catalog.open(state_dir, "ds")
    try:
        assert second.catalog_id != first.catalog_id
        assert second.leads_from(first.catalog_id, first.head_revision)
        assert not second.leads_from(first.catalog_id, first.head_revision + 1)
        assert second.head_revision == 3
        assert [change.path for change in await second.changes_since(1, 10)] == [b"d", b"d/b"]
        assert second.apply((), [listing(b"", a=file(1), d=DIR), listing(b"d", b=file(2))], NO_EVIDENCE).changes == 0
    finally:
        second.close()


def damage_not_a_database(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 1000)


def damage_foreign_schema(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 77")
    database.close()


def damage_middle(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as broken:
        broken.seek(4096)
        broken.write(os.urandom(size - 4096))


@pytest.mark.parametrize("damage", [damage_not_a_database, damage_foreign_schema, damage_middle])
async def test_a_catalog_that_cannot_be_used_is_moved_aside(state_dir: Path, damage) -> None:
    first = Catalog.open(state_dir, "ds")
    first.apply((), [listing(b"", a=file(1))], NO_EVIDENCE)
    first.close()
    for number in (1, 2):
        damage(state_dir / "ds.catalog")
        fresh = Catalog.open(state_dir, "ds")
        assert fresh.catalog_id != first.catalog_id
        assert fresh.head_revision == 0
        assert fresh.apply((), [listing(b"", a=file(1))], NO_EVIDENCE).changes == 1
        fresh.close()
        assert (state_dir / f"ds.catalog.broken-{number}").exists()


async def test_changes_come_in_pages_and_the_floor_is_told(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANGE_LOG_MAX_CHANGES", 5)
    for number in range(8):
        catalog.apply((), [listing(b"", a=file(1, ctime_ns=number + 1))], NO_EVIDENCE)
    assert catalog.head_revision == 8
    assert [change.revision for change in await catalog.changes_since(3, 2)] == [4, 5]
    assert [change.revision for change in await catalog.changes_since(5, 9)] == [6, 7, 8]
    assert await catalog.changes_since(8, 9) == []
    for revision in (2, 9):  # before the floor, and from a log that went further than this one
        with pytest.raises(RevisionGone):
            await catalog.changes_since(revision, 9)
    many = {f"f{number}": file(10 + number) for number in range(6)}  # one batch larger than the log
    catalog.apply((), [listing(b"", **many)], NO_EVIDENCE)
    assert catalog.head_revision == 15
    with pytest.raises(RevisionGone):
        await catalog.changes_since(14, 9)
    assert await catalog.changes_since(15, 9) == []


async def test_a_snapshot_shows_its_revision_whatever_comes_after(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FEED_FRAME_MAX_ENTRIES", 2)
    tree = [
        listing(b"", b=DIR, a=file(1), **{"b-": DIR}),
        listing(b"b", y=file(3), x=file(2)),
        listing(b"b-", z=file(4)),
    ]
    catalog.apply((), tree, NO_EVIDENCE)
    snapshot = await catalog.snapshot()
    pages = aiter(snapshot.pages)
    first = await anext(pages)
    catalog.apply((), [listing(b"", new=file(9))], NO_EVIDENCE)
    rest = [page async for page in pages]
    assert (snapshot.revision, snapshot.entry_count) == (6, 6)
    assert [len(page) for page in (first, *rest)] == [2, 2, 2]
    paths = [path for page in (first, *rest) for path, _ in page]
    assert paths == [b"a", b"b", b"b-", b"b/x", b"b/y", b"b-/z"]


async def test_snapshot_pages_are_bounded_in_bytes(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FRAME_PAYLOAD_MAX_BYTES", 800)
    catalog.apply((), [listing(b"", **{f"{number:0200}": file(number + 1) for number in range(5)})], NO_EVIDENCE)
    snapshot = await catalog.snapshot()
    assert [len(page) async for page in snapshot.pages] == [2, 1, 2]


async def test_snapshots_expire_and_give_their_slot_back(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_MAX_S", 0.05)
    catalog.apply((), [listing(b"", a=file(1))], NO_EVIDENCE)
    forgotten = [await catalog.snapshot() for _ in range(limits.SNAPSHOTS_MAX_OPEN)]
    late = await catalog.snapshot()  # waits until one of those expires
    with pytest.raises(RevisionGone):
        [page async for page in forgotten[0].pages]
    assert [len(page) async for page in late.pages] == [1]


async def test_a_failed_batch_leaves_nothing_behind(catalog: Catalog) -> None:
    def broken() -> Iterator[Listing]:
        yield listing(b"", a=file(1), d=DIR)
        raise OSError(5, "the disk went away")

    with pytest.raises(OSError, match="went away"):
        catalog.apply((), broken(), NO_EVIDENCE)
    assert catalog.head_revision == 0
    assert await catalog.changes_since(0, 9) == []
    assert catalog.apply((), [listing(b"", d=DIR), listing(b"d", a=file(1))], NO_EVIDENCE).changes == 2


async def test_batches_of_many_single_names(catalog: Catalog) -> None:
    """More names than one query asks for: new, changed, renamed and gone."""
    names = [b"f%04d" % number for number in range(700)]
    seen = {name: file(number) for number, name in enumerate(names)}
    catalog.apply(
        [Listing(b"", {b"d": DIR}, complete=False), Listing(b"d", dict(seen), complete=False)], (), NO_EVIDENCE
    )
    first = {change.path: change for change in await catalog.changes_since(0, 10_000)}
    assert list(first) == [b"d", *(b"d/" + name for name in names)]

    looks: dict[bytes, Facts | None] = dict.fromkeys(names[:300])
    looks.update({b"new-" + name: seen[name] for name in names[:300]})  # moved: the inode is as it was
    looks.update({name: file(number, ctime_ns=2) for number, name in enumerate(names) if 300 <= number < 600})
    applied = catalog.apply([Listing(b"d", looks, complete=False)], (), NO_EVIDENCE)
    assert (applied.changes, applied.entry_count) == (900, 701)
    second = await catalog.changes_since(701, 10_000)
    assert [change.revision for change in second] == list(range(702, 1602))
    assert [change.path for change in second[-300:]] == [b"d/" + name for name in names[:300]], "removals come last"
    entries = {change.path: change.entry for change in second}
    for name in names[:300]:
        assert entries[b"d/" + name] is None
        assert entries[b"d/new-" + name] == first[b"d/" + name].entry, "the same bytes"
    for name in names[300:600]:
        entry, before = entries[b"d/" + name], first[b"d/" + name].entry
        assert entry is not None
        assert before is not None
        assert entry.version != before.version


async def test_versions_resolve_to_where_the_bytes_are_now(catalog: Catalog) -> None:
    catalog.apply((), [listing(b"", a=file(1), d=DIR), listing(b"d")], NO_EVIDENCE)
    version = (await catalog.changes_since(0, 1))[0].entry.version
    place = await catalog.resolve(version)
    assert place is not None
    assert (place.path, place.identity.inode, place.identity.ctime_ns) == (b"a", 1, 1)
    catalog.apply((), [listing(b"", d=DIR), listing(b"d", b=file(1))], NO_EVIDENCE)
    place = await catalog.resolve(version)
    assert place is not None
    assert place.path == b"d/b"
    catalog.apply((), [listing(b"")], NO_EVIDENCE)
    assert await catalog.resolve(version) is None


async def test_what_could_not_be_looked_at_stays(catalog: Catalog) -> None:
    catalog.apply((), [listing(b"", a=file(1), d=DIR), listing(b"d", x=file(2), y=file(3))], NO_EVIDENCE)
    unsure = Listing(b"d", {}, complete=True, unknown={b"x"})
    catalog.apply((), [Listing(b"", {}, complete=False), unsure], NO_EVIDENCE)
    assert [(change.path, change.entry) for change in await catalog.changes_since(4, 9)] == [(b"d/y", None)]


async def test_a_removed_directory_is_one_change_and_a_replaced_one_none_but_its_own(catalog: Catalog) -> None:
    tree = [listing(b"", d=DIR), listing(b"d", e=DIR, x=file(1)), listing(b"d/e", y=file(2))]
    catalog.apply((), tree, NO_EVIDENCE)
    catalog.apply((), [listing(b"", d=file(7))], NO_EVIDENCE)
    (change,) = await catalog.changes_since(4, 9)
    assert change.entry is not None
    assert (change.path, change.entry.kind) == (b"d", Kind.FILE)
    catalog.apply((), tree, NO_EVIDENCE)
    head = catalog.head_revision
    assert head == 9
    catalog.apply((), [listing(b"")], NO_EVIDENCE)
    assert [(change.path, change.entry) for change in await catalog.changes_since(head, 9)] == [(b"d", None)]
    assert catalog.entry_count() == 0


async def test_a_directory_seen_twice_in_one_batch_as_different_things(catalog: Catalog) -> None:
    catalog.apply((), [listing(b"", d=DIR), listing(b"d", x=file(1))], NO_EVIDENCE)
    observed = [Listing(b"", {b"d": file(7)}, complete=False), Listing(b"", {b"d": DIR}, complete=False)]
    catalog.apply(observed, [listing(b"d", y=file(2))], NO_EVIDENCE)
    snapshot = await catalog.snapshot()
    assert [path async for page in snapshot.pages for path, _ in page] == [b"d", b"d/y"]
    assert snapshot.entry_count == 2
    kinds = [(change.path, change.entry.kind if change.entry else None) for change in await catalog.changes_since(2, 9)]
    assert kinds == [(b"d", Kind.FILE), (b"d", Kind.DIRECTORY), (b"d/y", Kind.FILE)]
    gone = [Listing(b"", {b"d": None}, complete=False), Listing(b"", {b"d": DIR}, complete=False)]
    catalog.apply(gone, [listing(b"d", y=file(2))], NO_EVIDENCE)
    assert catalog.head_revision == 5


async def test_waiters_are_woken_by_their_revision_and_failed_with_the_catalog(catalog: Catalog) -> None:
    first = asyncio.create_task(catalog.wait_beyond(0), name="first")
    second = asyncio.create_task(catalog.wait_beyond(1), name="second")
    await asyncio.sleep(0)
    await asyncio.to_thread(catalog.apply, (), [listing(b"", a=file(1))], NO_EVIDENCE)
    await first
    await catalog.wait_beyond(0)
    assert not second.done()
    catalog.fail(HeadraceError("the watcher died"))
    with pytest.raises(HeadraceError, match="the watcher died"):
        await second
    with pytest.raises(HeadraceError, match="the watcher died"):
        await catalog.wait_beyond(1)


async def test_a_closed_catalog_says_so(state_dir: Path) -> None:
    catalog = Catalog.open(state_dir, "ds")
    catalog.close()
    with pytest.raises(DiskError, match="closed"):
        await catalog.changes_since(0, 1)
    with pytest.raises(DiskError, match="closed"):
        await catalog.wait_beyond(0)


def test_a_failing_database_is_translated(catalog: Catalog) -> None:
    catalog._database.execute("DROP TABLE changes")
    with pytest.raises(DiskError, match=r"ds%2F1\.catalog failed"):
        catalog.apply((), [listing(b"", a=file(1))], NO_EVIDENCE)


def test_a_damaged_database_is_told_from_a_full_disk() -> None:
    for code, advice in ((sqlite3.SQLITE_CORRUPT, "restart the hub"), (sqlite3.SQLITE_FULL, "has room")):
        error = sqlite3.OperationalError("failed")
        error.sqlite_errorcode = code
        with pytest.raises(DiskError, match=advice), translated(Path("c")):
            raise error


def test_snapshot_needs_no_sort(catalog: Catalog) -> None:
    for query in (snapshots.HEAD_QUERY, snapshots.PAST_QUERY):
        plan = " ".join(row[3] for row in catalog._database.execute(f"EXPLAIN QUERY PLAN {query}", {"revision": 1}))
        assert "TEMP B-TREE" not in plan


async def test_a_catalog_put_back_from_a_backup_does_not_pass_for_the_one_it_was(state_dir: Path) -> None:
    first = Catalog.open(state_dir, "ds")
    first.apply((), [listing(b"", a=file(1))], NO_EVIDENCE)
    saved_id, saved_revision = first.catalog_id, first.head_revision
    first.close()
    backup = (state_dir / "ds.catalog").read_bytes()
    second = Catalog.open(state_dir, "ds")
    second.apply((), [listing(b"", a=file(1), b=file(2))], NO_EVIDENCE)
    seen_id, seen_revision = second.catalog_id, second.head_revision
    second.close()
    (state_dir / "ds.catalog").write_bytes(backup)
    restored = Catalog.open(state_dir, "ds")
    restored.apply((), [listing(b"", a=file(1), c=file(3))], NO_EVIDENCE)
    assert restored.head_revision == seen_revision  # the same number for another tree
    assert not restored.leads_from(seen_id, seen_revision)
    assert not restored.leads_from(seen_id, saved_revision)  # it has never heard of that id
    assert restored.leads_from(saved_id, saved_revision)
    restored.close()


def test_former_ids_go_with_the_log_they_lead_into(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANGE_LOG_MAX_CHANGES", 1)
    for number in range(1, 5):
        catalog = Catalog.open(state_dir, "ds")
        catalog.apply((), [listing(b"", a=file(number))], NO_EVIDENCE)
        catalog.close()
    catalog = Catalog.open(state_dir, "ds")
    assert catalog._database.execute("SELECT COUNT(*) FROM former_ids").fetchone()[0] == 2
    catalog.close()


def test_while_a_batch_is_applied_the_caller_goes_on(catalog: Catalog) -> None:
    called = threading.Event()

    def waits_for_the_caller() -> Iterator[Listing]:
        assert called.wait(10)
        yield listing(b"", a=file(1))

    assert catalog.apply((), waits_for_the_caller(), NO_EVIDENCE, called.set).changes == 1
    called.clear()

    def paths() -> Iterator[bytes]:
        assert called.wait(10)
        yield b"a"

    assert catalog.linked_names(paths(), (), called.set) == set()
