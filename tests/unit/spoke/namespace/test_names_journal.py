"""The names on disk: what is kept, what a crash or damage leaves, and a disk that fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from names_support import CATALOG, OTHER_CATALOG, Model, batch, contents, directory, file, filled, pages, symlink

from common import limits
from common.wire.messages import Changes
from spoke.namespace import journal_file
from spoke.namespace.journal import Journal
from spoke.namespace.journal_file import SNAPSHOT_NAME
from spoke.namespace.resync import StagedSnapshot
from spoke.namespace.tree import Node, Tree

MODEL: Model = {b"d": directory(), b"d/f": file(1), b"d/\xff\n": file(2), b"l": symlink(b"d/f"), b"e": directory()}


async def kept(where: Path, model: Model = MODEL, revision: int = 5) -> Journal:
    """A journal that has written this tree once."""
    journal = await Journal.open(where)
    fill(journal.tree, model, revision)
    async with journal:
        journal.rewrite()
        await journal.flush()
        assert journal.failure is None
    return await Journal.open(where)


def fill(tree: Tree, model: Model, revision: int) -> None:
    for path in sorted(model):
        tree.upsert(path, model[path])
    tree.revision, tree.catalog_id = revision, CATALOG


def take(journal: Journal, message: Changes) -> None:
    """What the replica's driver does with changes."""
    for change in message.changes:
        journal.tree.apply(change)
    journal.tree.revision = message.to_revision
    journal.append(message)


def log_file(where: Path) -> Path:
    (path,) = where.glob("names.*.log")
    return path


async def reloaded(where: Path) -> Tree:
    return (await Journal.open(where)).tree


async def test_nothing_on_disk_is_an_empty_tree(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path / "new")
    assert (journal.tree.catalog_id, journal.tree.entry_count) == (b"", 0)


async def test_the_whole_tree_comes_back(tmp_path: Path) -> None:
    journal = await kept(tmp_path)
    tree = journal.tree
    assert contents(tree) == MODEL
    assert (tree.revision, tree.catalog_id) == (5, CATALOG)
    assert tree.entry_count == len(MODEL)
    assert tree.live_versions() == filled(MODEL).live_versions()


async def test_the_roots_own_attributes_come_back(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path)
    journal.tree.upsert(b"", directory(0o711))
    fill(journal.tree, {}, 1)
    async with journal:
        journal.rewrite()
    assert (await reloaded(tmp_path)).root.entry == directory(0o711)


async def test_appended_changes_come_back_in_order(tmp_path: Path) -> None:
    async with await kept(tmp_path) as journal:
        take(journal, batch(5, (b"d", None), (b"d", file(9))))
        take(journal, Changes(CATALOG, 7, 20, ()))
        await journal.flush()
        take(journal, batch(20, (b"e/new", symlink(b"x"))))
    again = await reloaded(tmp_path)
    assert contents(again) == contents(journal.tree)
    assert again.revision == 21


async def test_the_first_append_without_a_snapshot_writes_the_tree(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path)
    journal.tree.catalog_id = CATALOG
    async with journal:
        take(journal, batch(0, (b"a", directory())))
    assert contents(await reloaded(tmp_path)) == {b"a": directory()}


@pytest.mark.parametrize("cut_bytes", [1, 11, 12, 20])
async def test_a_torn_tail_is_cut_and_the_log_goes_on_from_there(tmp_path: Path, cut_bytes: int) -> None:
    async with await kept(tmp_path) as journal:
        take(journal, batch(5, (b"one", file(3))))
        take(journal, batch(6, (b"two", file(4))))
    path = log_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-cut_bytes])
    async with await Journal.open(tmp_path) as journal:
        assert journal.tree.revision == 6
        assert contents(journal.tree) == MODEL | {b"one": file(3)}
        take(journal, batch(6, (b"three", file(5))))
    assert contents(await reloaded(tmp_path)) == MODEL | {b"one": file(3), b"three": file(5)}


async def test_a_flipped_bit_anywhere_never_gives_a_wrong_name(tmp_path: Path) -> None:
    async with await kept(tmp_path) as journal:
        take(journal, batch(5, (b"one", file(3)), (b"d/f", None)))
    after = contents(journal.tree)
    for path in (tmp_path / SNAPSHOT_NAME, log_file(tmp_path)):
        good = path.read_bytes()
        for position in range(0, len(good), 3):
            path.write_bytes(good[:position] + bytes([good[position] ^ 0x10]) + good[position + 1 :])
            loaded = journal_file.load(tmp_path)
            tree = loaded.tree
            if tree.revision == 5:
                assert contents(tree) == MODEL
            elif tree.revision == 6:
                pytest.fail("a batch was taken in part")
            else:
                assert tree.revision in (0, 7)
                assert contents(tree) == (after if tree.revision else {})
            assert loaded.notes
            path.write_bytes(good)  # a cut log is restored too


async def test_a_snapshot_cut_short_or_of_another_format_is_not_used(tmp_path: Path) -> None:
    await kept(tmp_path)
    path = tmp_path / SNAPSHOT_NAME
    good = path.read_bytes()
    end_bytes = len(journal_file.end_record(5, len(MODEL)))
    newer = bytearray(good)
    newer[8] += 1
    for bad in (b"", good[:10], good[:-1], good[:-end_bytes], good + journal_file.end_record(5, 4), bytes(newer)):
        path.write_bytes(bad)
        loaded = journal_file.load(tmp_path)
        assert (loaded.tree.entry_count, loaded.generation) == (0, 0)
        assert loaded.notes


async def test_a_snapshot_without_its_own_log_is_not_used(tmp_path: Path) -> None:
    await kept(tmp_path)
    path = log_file(tmp_path)
    path.unlink()
    assert journal_file.load(tmp_path).generation == 0
    header = journal_file.Header(journal_file.LOG, 1, OTHER_CATALOG, 5)
    path.write_bytes(header.encode())
    assert journal_file.load(tmp_path).generation == 0


async def test_a_log_that_does_not_follow_its_snapshot_is_not_believed(tmp_path: Path) -> None:
    await kept(tmp_path)
    path = log_file(tmp_path)
    good = path.read_bytes()
    path.write_bytes(good + journal_file.changes_record(batch(6, (b"x", file(1)))))
    assert contents(journal_file.load(tmp_path).tree) == MODEL
    path.write_bytes(good + journal_file.changes_record(batch(5, (b"absent/x", file(1)))))
    assert journal_file.load(tmp_path).generation == 0


async def test_an_outgrown_log_is_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOURNAL_COMPACT_MIN_BYTES", 2000)
    async with await kept(tmp_path) as journal:
        for number in range(200):
            take(journal, batch(5 + number, (b"d/f", file(number))))
            await journal.flush()
    assert log_file(tmp_path).name != "names.1.log"
    assert log_file(tmp_path).stat().st_size < 4000
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([SNAPSHOT_NAME, log_file(tmp_path).name])
    again = await reloaded(tmp_path)
    assert contents(again) == contents(journal.tree)
    assert again.revision == 205


async def test_changes_during_compaction_are_in_what_it_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOURNAL_PAGE_ENTRIES", 2)
    model = {b"%d" % top: directory() for top in range(9)}
    model |= {b"%d/%d" % (top, number): file(number) for top in range(9) for number in range(5)}
    model |= {b"7/s": directory(), b"7/s/old": file(50)}
    journal = await kept(tmp_path, model)
    reached, go_on = threading.Event(), threading.Event()
    real_listing, listed = journal_file._listing, []

    def stop_half_way(node: Node) -> list[Node]:
        listed.append(node)
        if len(listed) == 5:
            reached.set()
            assert go_on.wait(10)
        return real_listing(node)

    monkeypatch.setattr(journal_file, "_listing", stop_half_way)
    async with journal:
        journal.rewrite()
        await asyncio.to_thread(reached.wait, 10)
        revision = 5
        for step in ((b"7/s/new", file(60)), (b"7/s", None)):  # gone before the walk gets there: seen by the log alone
            take(journal, batch(revision, step))
            revision += 1
        # Before and after the place the walk has reached: new names in directories that go again, kinds that change.
        for top in (b"0", b"8"):
            for path, entry in (
                (top + b"/sub", directory()),
                (top + b"/sub/f", file(77)),
                (top, None),
                (top, file(3)),
                (b"new" + top, directory()),
                (b"new" + top + b"/x", file(8)),
            ):
                take(journal, batch(revision, (path, entry)))
                revision += 1
        go_on.set()
        await journal.flush()
        take(journal, batch(revision, (b"last", file(5))))
    again = await reloaded(tmp_path)
    assert contents(again) == contents(journal.tree)
    assert again.revision == revision + 1


async def test_a_walk_overtaken_by_a_resync_is_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = await kept(tmp_path)
    reached, go_on, installed = threading.Event(), threading.Event(), []
    real_listing, real_install = journal_file._listing, journal_file.install

    def stop(node: Node) -> list[Node]:
        reached.set()
        assert go_on.wait(10)
        return real_listing(node)

    def install(directory: Path, written: Path, header: journal_file.Header, records: Iterable[bytes], *rest) -> int:
        installed.append(header.revision)
        return real_install(directory, written, header, records, *rest)

    monkeypatch.setattr(journal_file, "_listing", stop)
    monkeypatch.setattr(journal_file, "install", install)
    async with journal:
        journal.rewrite()
        await asyncio.to_thread(reached.wait, 10)
        (page,) = pages({b"x": file(1)}, 9)
        staged = StagedSnapshot(journal.tree, page)
        staged.add(page)
        list(staged.sweep())
        list(staged.apply())
        go_on.set()
        await asyncio.sleep(0.02)
        journal.rewrite()
        await journal.flush()
    assert installed == [9]
    assert contents(await reloaded(tmp_path)) == {b"x": file(1)}


async def test_a_log_cut_where_it_completes_the_snapshot_makes_both_useless(tmp_path: Path) -> None:
    tree = filled(MODEL)
    header = journal_file.Header(journal_file.SNAPSHOT, 3, CATALOG, 5)
    page = list(journal_file.snapshot_records(tree))
    written = tmp_path / "new"
    end = journal_file.end_record(7, len(MODEL))
    written.write_bytes(header.encode() + b"".join(data for _, data in page) + end)
    first = journal_file.changes_record(batch(5, (b"x", file(1))))
    second = journal_file.changes_record(batch(6, (b"y", file(1))))
    journal_file.install(tmp_path, written, header, [first, second])
    assert journal_file.load(tmp_path).tree.revision == 7
    log = log_file(tmp_path)
    log.write_bytes(log.read_bytes()[: -len(second)])
    assert journal_file.load(tmp_path).generation == 0


async def test_a_crash_before_the_rename_leaves_the_old_generation(tmp_path: Path) -> None:
    async with await kept(tmp_path) as journal:
        take(journal, batch(5, (b"one", file(3))))
    (tmp_path / f"{SNAPSHOT_NAME}.new").write_bytes(b"half a snapshot")
    journal_file.log_path(tmp_path, 2).write_bytes(journal_file.Header(journal_file.LOG, 2, CATALOG, 6).encode())
    assert contents(await reloaded(tmp_path)) == MODEL | {b"one": file(3)}


async def test_a_tree_that_is_being_replaced_is_not_written(tmp_path: Path) -> None:
    async with await kept(tmp_path) as journal:
        (page,) = pages({b"x": file(1), b"y": file(2)}, 9)
        staged = StagedSnapshot(journal.tree, page)
        staged.add(page)
        list(staged.sweep())
        applying = staged.apply()
        limits_step, limits.REPLICA_STEP_ENTRIES = limits.REPLICA_STEP_ENTRIES, 1
        try:
            next(applying)
            journal.rewrite()
            for _ in range(3):
                await asyncio.sleep(0.01)
            assert contents(journal_file.load(tmp_path).tree) == MODEL
            list(applying)
        finally:
            limits.REPLICA_STEP_ENTRIES = limits_step
        journal.rewrite()
        await journal.flush()
    assert contents(await reloaded(tmp_path)) == {b"x": file(1), b"y": file(2)}


async def test_a_failing_disk_is_noted_and_later_everything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JOURNAL_RETRY_S", 0.05)
    async with await kept(tmp_path) as journal:
        real_append, failing = Journal._append_batch, threading.Event()
        failing.set()

        def append(self: Journal, changes: list[Changes]) -> int:
            if failing.is_set():
                raise OSError(28, "No space left on device")
            return real_append(self, changes)

        monkeypatch.setattr(Journal, "_append_batch", append)
        take(journal, batch(5, (b"one", file(3))))
        await journal.flush()
        assert journal.failure is not None
        assert "No space" in journal.failure
        failing.clear()
        take(journal, batch(6, (b"two", file(3))))
        while journal.failure is not None:
            await asyncio.sleep(0.01)
    assert contents(await reloaded(tmp_path)) == MODEL | {b"one": file(3), b"two": file(3)}


async def test_a_queue_that_grows_too_long_becomes_a_rewrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOURNAL_QUEUE_MAX_CHANGES", 3)
    journal = await kept(tmp_path)
    for number in range(10):
        take(journal, batch(5 + number, (b"n%d" % number, file(number))))
    async with journal:
        await journal.flush()
    assert contents(await reloaded(tmp_path)) == contents(journal.tree)


async def test_a_dead_worker_fails_those_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Journal, changes: list[Changes]) -> int:
        raise LookupError("a bug")

    monkeypatch.setattr(Journal, "_append_batch", broken)
    journal = await kept(tmp_path)
    await journal.__aenter__()
    for number in range(2):
        take(journal, batch(5 + number, (b"one", file(3))))
        with pytest.raises(RuntimeError, match="a bug"):
            await journal.flush()
    with pytest.raises(LookupError):
        await journal.close()
