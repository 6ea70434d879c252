"""What the kernel keeps of a dead process, told from /proc."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from common.remains import is_flock_of_remains, is_held_by_fuse


def process(proc: Path, state: str, *waits: str) -> Path:
    own = proc / "7"
    own.mkdir()
    (own / "stat").write_text(f"7 (odd) name) {state} 1 7 7 0")
    for number, wait in enumerate(waits):
        (own / "task" / str(7 + number)).mkdir(parents=True)
        (own / "task" / str(7 + number) / "wchan").write_text(wait)
    return proc


@pytest.mark.parametrize(
    ("state", "waits", "held"),
    [
        ("Z", ("0", "fuse_reverse_inval_entry"), True),
        ("S", ("do_epoll_wait", "fuse_reverse_inval_entry"), False),  # alive
        ("Z", ("0",), False),  # nothing left, but nobody has asked for its exit code
        ("Z", ("0", "folio_wait_bit_common"), False),  # a disk that hangs would hang the next one too
        ("Z", ("0", "0"), False),  # the kernel does not say
    ],
)
def test_only_the_dead_are_held_and_only_in_fuse(
    tmp_path: Path, state: str, waits: tuple[str, ...], held: bool
) -> None:
    assert is_held_by_fuse(7, process(tmp_path, state, *waits)) is held


def test_what_is_gone_is_not_held(tmp_path: Path) -> None:
    assert not is_held_by_fuse(7, tmp_path)


@pytest.fixture
def we_are_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.remains.is_held_by_fuse", lambda pid: pid == os.getpid())


def flocks_of_remains(directory: Path) -> list[bool]:
    """Before it is taken, while it is held (by another descriptor of the file), of another file, and once it is given back."""
    with (
        (directory / "lock").open("w") as file,
        (directory / "lock").open() as other,
        (directory / "b").open("w") as unlike,
    ):
        seen = [is_flock_of_remains(other.fileno())]
        fcntl.flock(file, fcntl.LOCK_EX)
        seen += is_flock_of_remains(other.fileno()), is_flock_of_remains(unlike.fileno())
        fcntl.flock(file, fcntl.LOCK_UN)
        return [*seen, is_flock_of_remains(other.fileno())]


@pytest.mark.usefixtures("we_are_remains")
def test_a_lock_of_remains_is_told_by_the_file_that_it_is_of(tmp_path: Path) -> None:
    assert flocks_of_remains(tmp_path) == [False, True, False, False]


def test_a_lock_of_who_lives_is_none_of_remains(tmp_path: Path) -> None:
    assert flocks_of_remains(tmp_path) == [False, False, False, False]


@pytest.mark.mount
@pytest.mark.usefixtures("we_are_remains")
def test_also_where_a_file_system_numbers_its_devices_in_two_ways(tmp_path: Path) -> None:
    """On an overlay over two file systems stat(2) gives one device for its files, and /proc/locks another; on btrfs always."""
    where = {name: tmp_path / name for name in ("lower", "upper", "work", "merged")}
    for path in where.values():
        path.mkdir()
    options = ",".join(f"{name}dir={where[name]}" for name in ("lower", "upper", "work"))
    with contextlib.ExitStack() as mounts:
        for command in (
            ["mount", "-t", "tmpfs", "lower", where["lower"]],
            ["mount", "-t", "overlay", "overlay", "-o", options, where["merged"]],
        ):
            if subprocess.run(command, check=False, capture_output=True).returncode:
                pytest.skip(f"{command[2]} cannot be mounted here")
            mounts.callback(subprocess.run, ["umount", command[-1]], check=True)
        with (where["merged"] / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            found = os.fstat(file.fileno())
            told = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino} "
            assert told not in Path("/proc/locks").read_text(), "here one number would do"
        assert flocks_of_remains(where["merged"]) == [False, True, False, False]
