import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.entries import is_safe_path
from hub.export import Export
from hub.scan import Look, Scanner
from hub.versions import DIRECTORY, FILE, SYMLINK


def test_everything_is_seen_once_parents_first(root: Path) -> None:
    for path in ("b/x/y", "a", "b/w"):
        (root / path).mkdir(parents=True, exist_ok=True)
        (root / path / "f").write_bytes(b"12345")
    (root / "l").symlink_to("nowhere")
    listings = list(Scanner(Export(root, "ds")).walk())
    assert [listing.path for listing in listings] == [b"", b"a", b"b", b"b/w", b"b/x", b"b/x/y"]
    assert all(listing.complete for listing in listings)
    top = listings[0].entries
    assert {name: facts.kind for name, facts in top.items() if facts} == {
        b"a": DIRECTORY,
        b"b": DIRECTORY,
        b"l": SYMLINK,
    }
    link, file = top[b"l"], listings[1].entries[b"f"]
    assert link is not None
    assert link.target == b"nowhere"
    assert file is not None
    assert (file.kind, file.size_bytes, file.link_count, file.device) == (FILE, 5, 1, 0)
    assert file.ctime_ns == (root / "a" / "f").stat().st_ctime_ns


@pytest.fixture
def memory_root(root: Path) -> Iterator[Path]:
    """On tmpfs where there is one: thousands of mkdirs take seconds on a busy disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else root) as directory:
        yield Path(directory)


def test_a_tree_deeper_than_any_stack_and_longer_than_a_path(memory_root: Path) -> None:
    root = memory_root
    depth = 2100  # two bytes a level: paths pass 4,095 bytes, and the interpreter's stack is shorter
    assert depth > sys.getrecursionlimit()
    fd = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    scanner = Scanner(Export(root, "ds"))
    listings = list(scanner.walk())
    assert len(listings) == 2049  # the root, and "d/d/…" up to 4,095 bytes
    assert all(is_safe_path(listing.path) for listing in listings)
    assert scanner.skipped == {"path too long": 1}
    remove_deep(root)


def remove_deep(root: Path) -> None:
    """shutil.rmtree recurses: shorten the chain from its top instead."""
    while (root / "d" / "d").exists():
        (root / "d" / "d").rename(root / "rest")
        (root / "d").rmdir()
        (root / "rest").rename(root / "d")


def test_special_files_are_counted_and_left_out(root: Path) -> None:
    os.mkfifo(root / "fifo1")
    os.mkfifo(root / "fifo2")
    (root / "file").write_bytes(b"")
    scanner = Scanner(Export(root, "ds"))
    (listing,) = scanner.walk()
    assert list(listing.entries) == [b"file"]
    assert listing.unknown == set()
    assert scanner.skipped == {"fifo": 2}


def test_names_are_looked_at_one_by_one(root: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "here").write_bytes(b"1")
    os.mkfifo(root / "d" / "fifo")
    listing = Scanner(Export(root, "ds")).observe(b"d", [b"here", b"gone", b"fifo"])
    assert not listing.complete
    assert listing.entries[b"gone"] is None
    assert listing.entries[b"fifo"] is None
    assert listing.entries[b"here"] is not None


def test_a_directory_is_announced_before_it_is_listed(root: Path) -> None:
    (root / "d").mkdir()
    seen: list[bytes] = []

    def announce(path: bytes, fd: int) -> None:
        seen.append(path)
        if path == b"d":
            os.close(os.open("late", os.O_CREAT | os.O_WRONLY, dir_fd=fd))

    listings = list(Scanner(Export(root, "ds"), announce).walk())
    assert seen == [b"", b"d"]
    top, again, inside = listings
    assert list(inside.entries) == [b"late"]
    # and what came into it moved its mtime after its parent was listed
    assert (again.path, again.complete) == (b"", False)
    assert again.entries[b"d"] != top.entries[b"d"]


def test_between_many_names_the_caller_is_let_in(tmp_path: Path) -> None:
    for number in range(600):
        (tmp_path / f"f{number}").touch()
    calls: list[int] = []
    scanner = Scanner(Export(tmp_path, "ds"), meanwhile=lambda: calls.append(1))
    (listing,) = scanner.observe_paths({b"f%d" % number for number in range(600)})
    assert len(listing.entries) == 600
    assert len(calls) >= 2
    assert scanner.look_at(b"f1") == Look(listing.entries[b"f1"])
    assert scanner.look_at(b"none") == scanner.look_at(b"none/below") == Look(None)
