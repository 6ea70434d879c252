"""Whose directory it is: made, taken over, refused, emptied; what a killed spoke leaves."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from cache_support import EXTENT_BYTES, FaultyDisk, File, disk_usage

from common.blocks import BlockRange
from common.errors import CacheDirectoryError, CacheWriteError
from spoke.cache.disk import Disk
from spoke.cache.recovery import DIRECTORY_FORMAT, CacheDirectory, open_directory, open_existing

ROOT = Path(__file__).resolve().parents[4]


def snapshot(path: Path) -> dict[str, bytes]:
    return {str(found.relative_to(path)): found.read_bytes() for found in path.rglob("*") if found.is_file()}


def test_a_new_directory_is_private(tmp_path: Path) -> None:
    directory = open_directory(tmp_path / "a" / "b")
    path = tmp_path / "a" / "b"
    assert os.stat(path).st_mode & 0o7777 == 0o700
    identity = json.loads((path / "headrace-cache.json").read_text())
    assert identity["format"] == DIRECTORY_FORMAT
    assert identity["uuid"] == directory.uuid
    directory.close()
    again = open_directory(path)
    assert again.uuid == directory.uuid
    again.close()


def test_an_existing_empty_directory_becomes_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "lost+found").mkdir()
    open_directory(tmp_path).close()
    assert os.stat(tmp_path).st_mode & 0o7777 == 0o700


def test_files_are_private(tmp_path: Path) -> None:
    assert oct(os.umask(0o022)) is not None
    directory = open_directory(tmp_path / "c")
    for path in (tmp_path / "c").rglob("*"):
        assert os.stat(path).st_mode & 0o077 == 0 or path.name == "headrace-cache.json"
    directory.close()


def test_a_foreign_directory_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("five years")
    (tmp_path / "versions").mkdir()
    with pytest.raises(CacheDirectoryError, match=r"thesis\.tex"):
        open_directory(tmp_path)
    assert snapshot(tmp_path) == {"thesis.tex": b"five years"}


def test_a_start_cut_short_is_taken_up(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"")
    (tmp_path / "headrace-cache.json.new").write_text("{")
    open_directory(tmp_path).close()
    assert json.loads((tmp_path / "headrace-cache.json").read_text())["format"] == DIRECTORY_FORMAT


VERSION = "ab" + "0" * 30
REMAINS = ("lock", "probe", "scrub.json", "scrub.new", "retention.json", "retention.json.new", f"versions/ab/{VERSION}.data",
           "names/c4%2Fx/names.snapshot", "names/c4%2Fx/names.snapshot.new", "names/c4%2Fx/names.12.log",
           "pins/c4.json", "orders/learned-1.order")  # fmt: skip


def put(path: Path, content: bytes = b"12345") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_what_is_left_of_a_removed_cache_does_not_block_a_start(tmp_path: Path) -> None:
    """rm -rf fails where the spoke makes a file meanwhile; the identity is gone by then, and so is what the rest was worth."""
    (tmp_path / "versions" / "cd").mkdir(parents=True)
    for name in REMAINS:
        put(tmp_path / name)
    directory = open_directory(tmp_path)
    assert list(directory.scan(Disk())) == []
    assert not list(tmp_path.glob("names/*/*"))
    assert {"pins/c4.json", "orders/learned-1.order"} <= set(snapshot(tmp_path)), "what people asked for"
    directory.close()


@pytest.mark.parametrize(
    ("name", "shown"),
    [("versions/photo.jpg", ""), (f"versions/ab/{VERSION}.txt", ""), ("versions/abc/x", "versions/abc/"), ("orders/order", ""),
     ("names/notes/thesis.tex", ""), ("pins/x/y.json", "pins/x/"), ("pins", ""), ("versions", "")],
)  # fmt: skip
def test_a_foreign_file_below_our_names_is_refused_untouched(tmp_path: Path, name: str, shown: str) -> None:
    for remains in REMAINS:
        if not remains.startswith(f"{name}/"):
            put(tmp_path / remains)
    put(tmp_path / name)
    before = snapshot(tmp_path)
    with pytest.raises(CacheDirectoryError, match=f"'{shown or name}'"):
        open_directory(tmp_path)
    assert snapshot(tmp_path) == before


def test_a_link_below_our_names_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "cache" / "versions").mkdir(parents=True)
    put(tmp_path / "elsewhere" / f"{VERSION}.data")
    (tmp_path / "cache" / "versions" / "ab").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheDirectoryError, match="'versions/ab'"):
        open_directory(tmp_path / "cache")
    assert (tmp_path / "elsewhere" / f"{VERSION}.data").exists()


@pytest.mark.parametrize("left", [b"", bytes(100)])
async def test_an_identity_that_a_power_cut_left_empty_counts_as_none(open_store, tmp_path: Path, left: bytes) -> None:
    """A directory put back from a backup was not on the disk yet when the power went: length or not, no byte of it."""
    store = open_store()
    file = File(1, 9000)
    await file.put(store)
    await store.close()
    identity = tmp_path / "cache" / "headrace-cache.json"
    identity.write_bytes(left)
    keepsake = tmp_path / "cache" / "notes.txt"
    keepsake.write_text("not ours")
    with pytest.raises(CacheDirectoryError, match=r"'notes\.txt'"):
        open_store()
    keepsake.unlink()
    store = open_store()
    assert file.state(store) == "absent"  # nothing said which format it was of
    await file.put(store)
    await file.check(store)
    assert json.loads(identity.read_text())["format"] == DIRECTORY_FORMAT


def test_an_identity_put_back_from_a_backup_is_on_the_disk_before_it_is_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_directory(tmp_path / "c").close()
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    open_directory(tmp_path / "c").close()
    assert synced == [str(tmp_path / "c" / "headrace-cache.json"), str(tmp_path / "c")]


async def test_a_directory_removed_while_a_file_is_made_in_it(open_store, tmp_path: Path, disk: FaultyDisk) -> None:
    store = open_store()
    file = File(1, 9000)
    cache = tmp_path / "cache"

    def removed_before_the_file_is_made() -> None:
        disk.gates.clear()
        for name in ("headrace-cache.json", "lock"):
            (cache / name).unlink()

    disk.gates["open"] = removed_before_the_file_is_made
    with contextlib.suppress(CacheWriteError):
        await file.put(store)
    await store.close()
    assert {path.name for path in cache.iterdir()} == {"versions"}
    store = open_store()
    assert file.state(store) == "absent"
    await file.put(store)
    await file.check(store)


def test_a_second_spoke_is_refused(tmp_path: Path) -> None:
    first = open_directory(tmp_path / "c")
    with pytest.raises(CacheDirectoryError, match="in use"):
        open_directory(tmp_path / "c")
    first.close()
    open_directory(tmp_path / "c").close()


@pytest.mark.parametrize("opens", [open_directory, open_existing])
def test_a_lock_that_another_spoke_put_out_of_the_way_meanwhile_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: Callable[[Path], CacheDirectory]
) -> None:
    open_directory(tmp_path).close()

    def replaced(fd: int, how: int) -> None:
        (tmp_path / "lock").unlink()
        (tmp_path / "lock").touch()
        flock(fd, how)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", replaced)
    with pytest.raises(CacheDirectoryError, match="in use by another spoke"):
        opens(tmp_path)


def test_what_the_kernel_keeps_of_a_dead_spoke_does_not_keep_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = open_directory(tmp_path)
    monkeypatch.setattr("common.remains.is_held_by_fuse", lambda pid: pid == os.getpid())
    successor = open_directory(tmp_path)
    monkeypatch.undo()
    with pytest.raises(CacheDirectoryError, match="in use by another spoke"):
        open_directory(tmp_path)
    dead.close()  # the kernel lets go of it
    with pytest.raises(CacheDirectoryError, match="in use by another spoke"):
        open_directory(tmp_path)
    successor.close()
    open_directory(tmp_path).close()


def test_a_newer_format_is_refused_untouched(tmp_path: Path) -> None:
    open_directory(tmp_path / "c").close()
    identity = tmp_path / "c" / "headrace-cache.json"
    identity.write_text(json.dumps({"format": DIRECTORY_FORMAT + 1, "uuid": "x"}))
    before = snapshot(tmp_path)
    with pytest.raises(CacheDirectoryError, match="newer headrace"):
        open_directory(tmp_path / "c")
    assert snapshot(tmp_path) == before


async def test_an_older_format_is_emptied(open_store, tmp_path: Path) -> None:
    store = open_store()
    file = File(1, 9000)
    await file.put(store)
    await store.close()
    identity = tmp_path / "cache" / "headrace-cache.json"
    identity.write_text(json.dumps({"format": 0, "uuid": "kept"}))
    keepsake = tmp_path / "cache" / "versions" / "00" / "notes.txt"
    keepsake.write_text("not ours")
    store = open_store()
    assert file.state(store) == "absent"
    assert json.loads(identity.read_text())["uuid"] == "kept"
    assert json.loads(identity.read_text())["format"] == DIRECTORY_FORMAT
    assert keepsake.read_text() == "not ours"
    await file.put(store)
    await file.check(store)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"format": "1", "uuid": "x"}', b'{"uuid": "x"}', b"\xff\xfe"])
def test_a_damaged_identity_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "headrace-cache.json").write_bytes(content)
    with pytest.raises(CacheDirectoryError, match="damaged"):
        open_directory(tmp_path)


def test_places_that_cannot_be_a_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/cache")):
        with pytest.raises(CacheDirectoryError, match="cannot be used"):
            open_directory(path)


def test_scan_lists_pairs_and_removes_only_our_orphans(tmp_path: Path) -> None:
    directory = open_directory(tmp_path / "c")
    folder = tmp_path / "c" / "versions" / "ab"
    folder.mkdir()
    whole, orphan, other_folder = "ab" + "0" * 30, "ab" + "1" * 30, "cd" + "2" * 30
    for name in (f"{whole}.data", f"{whole}.index", f"{orphan}.data", "README", "ab.data", f"{other_folder}.index"):
        (folder / name).write_bytes(b"12345")
    found = list(directory.scan(Disk()))
    assert [(entry.version.hex(), entry.size_bytes) for entry in found] == [(whole, 5)]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [f"{whole}.data", f"{whole}.index", "README", "ab.data"]
    )
    directory.close()


FILLER = """
import asyncio, sys
sys.path[:0] = [{root!r}, {tests!r}]
from random import Random
from cache_support import File
from spoke.cache.store import Store
from common.blocks import BlockRange

async def main():
    dice = Random({seed})
    store = Store.open({cache!r}, 32 << 20, 0, 0, Random(1))
    files = [File(number, 6 << 20) for number in range(3)]
    spans = [(file, first) for file in files for first in range(0, 1536, 48)]
    dice.shuffle(spans)
    async def lane(mine):
        for file, first in mine:
            await file.put(store, BlockRange(first, 48))
            print("wrote", files.index(file), first, flush=True)
    await asyncio.gather(*(lane(spans[number::4]) for number in range(4)))
    print("full", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("seed", range(2))
async def test_a_killed_spoke_keeps_what_it_committed(open_store, tmp_path: Path, seed: int) -> None:
    script = FILLER.format(root=str(ROOT), tests=str(ROOT / "tests"), seed=seed, cache=str(tmp_path / "cache"))
    kill_after = Random(seed).randrange(20, 80)
    committed: list[tuple[int, int]] = []
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("wrote "):
                committed.append((int(line.split()[1]), int(line.split()[2])))
            if len(committed) >= kill_after:
                break
        child.send_signal(signal.SIGKILL)
        for line in child.stdout:  # what it had said before it died
            if line.startswith("wrote ") and line.endswith("\n"):
                committed.append((int(line.split()[1]), int(line.split()[2])))
    assert len(committed) >= kill_after

    store = open_store(32 << 20)
    files = [File(number, 6 << 20) for number in range(3)]
    kept = 0
    for number, first_block in committed:
        file = files[number]
        assert store.missing(file.version, file.size_bytes, BlockRange(first_block, 48)) == []
        await file.check(store, first_block * 4096, 48 * 4096)
        kept += 1
    assert kept >= 0.99 * len(committed)
    readable = sum([await file.right_bytes(store) for file in files])
    assert readable >= len(committed) * 48
    assert abs(store.usage().used_bytes - disk_usage(tmp_path / "cache")) <= 64 * 1024
    for file in files:
        await file.put(store)
        await file.check(store, 0, EXTENT_BYTES)
