"""The catalog follows a real directory: what is asserted is awaited by revision, or settled first."""

import asyncio
import os
import shutil
import threading
from pathlib import Path

import pytest
from hub_support import Served, changes_to, tree, version

from common.entries import Kind
from common.errors import DiskError, HeadraceError, SourceReadError, UsageError
from hub import notifier, watcher
from hub.source import HubSource


async def test_changes_arrive_by_themselves(root: Path, served: Served) -> None:
    source = await served.start()
    (root / "f").write_bytes(b"1")
    (change,) = [found for found in await changes_to(source, 0, b"f") if found.path == b"f"][-1:]
    assert change.entry is not None
    assert (change.entry.kind, change.entry.version != b"") == (Kind.FILE, True)
    await source.settled()
    head = source.head_revision
    (root / "f").unlink()
    assert (await changes_to(source, head, b"f"))[-1].entry is None
    head = source.head_revision
    (root / "new").mkdir()
    (root / "new" / "g").write_bytes(b"2")
    await changes_to(source, head, b"new/g")


async def test_a_stream_of_writes_does_not_starve(root: Path, served: Served) -> None:
    source = await served.start(settle_s=10.0, max_delay_s=0.05)
    (root / "f").write_bytes(b"1")
    await asyncio.wait_for(changes_to(source, 0, b"f"), 5)


async def test_rename_and_chmod_and_link_keep_the_version(root: Path, served: Served) -> None:
    (root / "f").write_bytes(b"bytes")
    (root / "d").mkdir()
    source = await served.start()
    before = await version(source, b"f")
    (root / "f").chmod(0o600)
    await source.settled()
    assert (await tree(source))[b"f"].mode == 0o600
    assert await version(source, b"f") == before
    (root / "f").rename(root / "d" / "g")
    await source.settled()
    assert await version(source, b"d/g") == before
    os.link(root / "d" / "g", root / "h")
    await source.settled()
    assert await version(source, b"d/g") == await version(source, b"h") == before
    (root / "d" / "g").unlink()
    await source.settled()
    assert await version(source, b"h") == before


async def test_a_renamed_directory_keeps_versions_live_and_while_down(root: Path, served: Served) -> None:
    (root / "d" / "e").mkdir(parents=True)
    (root / "d" / "e" / "f").write_bytes(b"bytes")
    (root / "d" / "old name").write_bytes(b"more")
    source = await served.start()
    (root / "d" / "old name").rename(root / "d" / "g")  # its edit ctime is now older than its ctime
    await source.settled()
    versions = await version(source, b"d/e/f"), await version(source, b"d/g")
    head = source.head_revision
    (root / "d").rename(root / "z")
    await source.settled()
    assert (await version(source, b"z/e/f"), await version(source, b"z/g")) == versions
    changes = await source.changes_since(head, 100)
    assert [(change.path, change.entry is None) for change in changes] == [
        (b"z", False),
        (b"z/e", False),
        (b"z/g", False),
        (b"z/e/f", False),
        (b"d", True),
    ]
    (root / "z" / "e" / "f").chmod(0o640)  # the moved directories are watched under their new names
    await source.settled()
    assert (await tree(source))[b"z/e/f"].mode == 0o640
    await served.stop()
    (root / "z").rename(root / "y")
    source = await served.start()
    assert (await version(source, b"y/e/f"), await version(source, b"y/g")) == versions
    assert set(await tree(source)) == {b"y", b"y/e", b"y/e/f", b"y/g"}


def disguise(path: Path) -> None:
    seen = path.stat()
    path.write_bytes(os.urandom(seen.st_size))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


async def test_an_edit_with_its_mtime_put_back_is_a_new_version(root: Path, served: Served) -> None:
    (root / "f").write_bytes(b"bytes")
    source = await served.start()
    first = await version(source, b"f")
    disguise(root / "f")
    await source.settled()
    second = await version(source, b"f")
    assert second != first
    await served.stop()
    disguise(root / "f")
    source = await served.start()
    assert await version(source, b"f") not in {first, second}


async def test_a_rebuilt_catalog_names_unchanged_files_alike(root: Path, served: Served) -> None:
    (root / "f").write_bytes(b"bytes")
    os.link(root / "f", root / "g")
    source = await served.start()
    first = await version(source, b"f")
    catalog_id = source.catalog_id
    await served.stop()
    shutil.rmtree(served.state_dir)
    source = await served.start()
    assert source.catalog_id != catalog_id
    assert await version(source, b"f") == await version(source, b"g") == first


async def test_restart_finds_what_happened_meanwhile(root: Path, served: Served) -> None:
    for name in ("stays", "goes", "changes"):
        (root / name).write_bytes(b"1")
    source = await served.start()
    head, stays = source.head_revision, await version(source, b"stays")
    await served.stop()
    (root / "goes").unlink()
    (root / "changes").write_bytes(b"22")
    (root / "comes").write_bytes(b"3")
    source = await served.start()
    changes = {change.path: change.entry for change in await source.changes_since(head, 100)}
    assert changes.keys() == {b"goes", b"changes", b"comes"}
    assert changes[b"goes"] is None
    assert await version(source, b"stays") == stays


async def test_an_overflow_means_a_rescan(root: Path, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    source = await served.start()
    real = notifier.parse_events

    def overflowing(data: bytes) -> list[object]:
        events = real(data)
        return [events[0]._replace(wd=-1, mask=notifier.OVERFLOW, name="")]

    monkeypatch.setattr(notifier, "parse_events", overflowing)
    (root / "f").write_bytes(b"1")
    await changes_to(source, 0, b"f")
    monkeypatch.undo()
    await source.settled()
    assert source.status.overflows_total >= 1
    assert source.status.scans_total >= 2


async def test_without_watches_rescans_find_changes(
    root: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scarce(notifier.INotify):
        def add_watch(self, path: str, mask: int) -> int:
            if os.readlink(path) != str(root):
                raise OSError(28, "No space left on device")
            return super().add_watch(path, mask)

    monkeypatch.setattr(notifier, "INotify", Scarce)
    monkeypatch.setattr(watcher, "_UNWATCHED_RESCAN_S", 0.05)
    (root / "d").mkdir()
    source = await served.start(rescan_interval_s=0)
    assert (source.status.watches, source.status.unwatched) == (1, 1)
    head = source.head_revision
    (root / "d" / "f").write_bytes(b"1")
    await changes_to(source, head, b"d/f")


async def test_without_inotify_the_periodic_rescan_finds_changes(
    root: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(**_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(notifier, "INotify", none)
    source = await served.start(rescan_interval_s=0.05)
    (root / "f").write_bytes(b"1")
    await changes_to(source, 0, b"f")


async def test_a_lost_root_is_not_an_empty_one(root: Path, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_HOLD_RETRY_S", 0.02)
    (root / "f").write_bytes(b"1")
    source = await served.start()
    before, head = await tree(source), source.head_revision
    away = root.with_name("away")
    root.rename(away)
    with pytest.raises(SourceReadError, match="cannot be reached"):
        await source.rescan()
    root.mkdir()  # an empty directory in its place, as an unmounted one leaves
    with pytest.raises(SourceReadError, match="no longer the directory"):
        await source.settled()
    assert source.status.held is not None
    (away / "g").write_bytes(b"2")
    with pytest.raises(SourceReadError):
        await source.recheck(b"g")
    assert (await tree(source), source.head_revision) == (before, head)
    root.rmdir()
    away.rename(root)
    await changes_to(source, head, b"g")  # found without being asked
    await source.settled()
    assert source.status.held is None
    assert set(await tree(source)) == {b"f", b"g"}


async def test_a_root_deleted_for_good_holds_what_is_left(root: Path, served: Served) -> None:
    source = await served.start()
    (root / "f").write_bytes(b"1")
    await source.settled()
    head = source.head_revision
    await served.stop()
    shutil.rmtree(root)
    with pytest.raises(UsageError, match="cannot open"):
        await served.start()
    root.with_name("filler").mkdir()
    root.mkdir()  # the mount point without its mount
    source = await served.start()
    if source.status.held is None:
        pytest.skip("the file system gave the new directory the old inode number")
    assert source.head_revision == head
    assert set(await tree(source)) == {b"f"}


async def test_an_unreadable_directory_keeps_its_entries(
    root: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "d").mkdir()
    (root / "d" / "f").write_bytes(b"1")
    source = await served.start()
    before = await tree(source)
    real = os.scandir

    def failing(fd: int):  # root reads everything, so the refusal must be made
        if os.readlink(f"/proc/self/fd/{fd}").endswith("/d"):
            raise PermissionError(13, "Permission denied")
        return real(fd)

    monkeypatch.setattr(os, "scandir", failing)
    await source.rescan()
    assert await tree(source) == before
    monkeypatch.undo()
    (root / "d" / "f").unlink()
    await source.rescan()
    assert set(await tree(source)) == {b"d"}


async def test_special_files_are_counted(root: Path, served: Served) -> None:
    os.mkfifo(root / "fifo")
    source = await served.start()
    assert await tree(source) == {}
    assert source.status.skipped == (("fifo", 1),)


async def test_a_directory_moved_out_is_no_longer_watched(root: Path, served: Served, tmp_path: Path) -> None:
    (root / "d" / "e").mkdir(parents=True)
    source = await served.start()
    assert source.status.watches == 3
    (root / "d").rename(tmp_path / "out")
    await source.settled()
    assert source.status.watches == 1
    (tmp_path / "out" / "e" / "f").write_bytes(b"1")
    await source.settled()
    assert await tree(source) == {}


async def test_a_failing_catalog_is_told_and_made_good(
    root: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_FAILED_RETRY_S", 0.02)
    source = await served.start()
    real = source._catalog.apply
    may_go_on = threading.Event()

    def failing(*arguments):
        if not may_go_on.is_set():
            raise DiskError("the disk of the catalog is full")
        return real(*arguments)

    monkeypatch.setattr(source._catalog, "apply", failing)
    (root / "f").write_bytes(b"1")
    with pytest.raises(DiskError, match="is full"):
        await source.recheck(b"f")
    assert source.held is not None, "spokes are told that names are old"
    assert "is full" in source.held.reason
    may_go_on.set()
    await changes_to(source, 0, b"f")
    await source.settled()
    assert source.held is None


async def test_a_dead_watcher_fails_those_who_wait(root: Path, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    source = await served.start()
    waiting = asyncio.create_task(source.wait_beyond(source.head_revision), name="waiting")
    await asyncio.sleep(0)

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(source._watcher._scanner, "observe_paths", broken)
    with pytest.raises(HeadraceError, match="a bug"):
        await source.recheck(b"f")
    with pytest.raises(HeadraceError, match="died"):
        await waiting
    with pytest.raises(HeadraceError, match="died"):
        await source.settled()


async def test_state_inside_the_dataset_is_refused(root: Path) -> None:
    with pytest.raises(UsageError, match="lies in dataset"):
        await HubSource("ds", root, root / "sub" / "state").start()
    assert list(root.iterdir()) == []


async def test_a_closed_source_says_so(served: Served) -> None:
    source = await served.start()
    waiting = asyncio.create_task(source.wait_beyond(source.head_revision), name="waiting")
    await asyncio.sleep(0)
    await served.stop()
    await source.close()
    with pytest.raises(DiskError):
        await waiting
    with pytest.raises(DiskError):
        await source.settled()
