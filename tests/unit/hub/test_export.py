import errno
import os
import threading
from pathlib import Path

import pytest

from common.errors import UsageError
from hub.export import Export


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "secret").write_bytes(b"secret")
    return directory


def read(export: Export, path: bytes) -> bytes:
    fd = export.open_file(path)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def test_a_file_is_opened_by_its_path_whatever_its_bytes(root: Path) -> None:
    path = b"dir with space/\xff\n'\""
    (root / "dir with space").mkdir()
    with open(os.fsencode(root) + b"/" + path, "wb") as file:
        file.write(b"bytes")
    export = Export(root, "ds")
    assert read(export, path) == b"bytes"
    assert export.stat(path).st_size == 5
    assert export.scandir(b"dir with space") == [b"\xff\n'\""]
    assert export.scandir(b"") == [b"dir with space"]
    assert export.root_problem() is None


@pytest.mark.parametrize(
    "path",
    [
        b"../outside/secret",
        b"..",
        b".",
        b"a/../../outside/secret",
        b"/etc/passwd",
        b"a\0b",
        b"a//b",
        b"a/",
        b"x" * 5000,
    ],
)
def test_paths_that_are_not_plain_are_refused(root: Path, outside: Path, path: bytes) -> None:
    (root / "a").mkdir()
    export = Export(root, "ds")
    for operation in (export.open_file, export.open_directory, export.stat, export.readlink, export.scandir):
        with pytest.raises(OSError) as caught:
            operation(path)
        assert caught.value.errno == errno.EXDEV


def test_symlinks_are_entries_and_never_followed(root: Path, outside: Path) -> None:
    (root / "to_file").symlink_to(outside / "secret")
    (root / "to_dir").symlink_to(outside)
    (root / "inside").symlink_to("real")
    (root / "real").write_bytes(b"real")
    export = Export(root, "ds")
    assert export.readlink(b"to_file") == os.fsencode(outside / "secret")
    for path in (b"to_file", b"inside"):
        with pytest.raises(OSError, match="not a regular file"):
            export.open_file(path)
    for operation, path in ((export.open_file, b"to_dir/secret"), (export.open_directory, b"to_dir")):
        with pytest.raises(OSError) as caught:
            operation(path)
        assert caught.value.errno in {errno.ENOTDIR, errno.ELOOP}


def test_a_directory_swapped_for_a_symlink_never_leads_outside(root: Path, outside: Path) -> None:
    inner, aside = root / "dir", root / "aside"
    inner.mkdir()
    (inner / "secret").write_bytes(b"public")
    (root / "link").symlink_to(outside)
    export = Export(root, "ds")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            inner.rename(aside)
            (root / "link").rename(inner)
            inner.rename(root / "link")
            aside.rename(inner)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        outcomes: set[bytes] = set()
        tries = 0
        while tries < 3000 or (b"public" not in outcomes and tries < 1_000_000):
            tries += 1
            try:
                outcomes.add(read(export, b"dir/secret"))
            except OSError:
                outcomes.add(b"refused")
    finally:
        stop.set()
        thread.join()
    assert outcomes <= {b"public", b"refused"}
    assert b"public" in outcomes


def test_special_files_are_refused_at_once(root: Path) -> None:
    os.mkfifo(root / "fifo")
    export = Export(root, "ds")
    for path in (b"fifo", b""):
        with pytest.raises(OSError, match="not a regular file"):
            export.open_file(path)


def test_a_root_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="not a directory"):
        Export(tmp_path / "file", "ds")
    with pytest.raises(UsageError, match="No such file"):
        Export(tmp_path / "missing", "ds")


def test_a_root_that_was_replaced_is_noticed(root: Path) -> None:
    export = Export(root, "ds")
    root.rename(root.with_name("old"))
    assert "cannot be reached" in (export.root_problem() or "")
    root.mkdir()
    assert "no longer the directory" in (export.root_problem() or "")
    assert "restart the hub" in (export.root_problem() or "")
    root.rmdir()
    root.with_name("old").rename(root)
    assert export.root_problem() is None
