"""What the kernel keeps of a dead process, told from /proc."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from common.remains import flock_holders, is_held_by_fuse


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


def test_the_kernel_names_who_holds_a_lock(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as file:
        assert flock_holders(file.fileno()) == []
        fcntl.flock(file, fcntl.LOCK_EX)
        assert flock_holders(file.fileno()) in ([os.getpid()], [])  # a file system may number its devices in two ways
        with (tmp_path / "lock").open() as other, (tmp_path / "another").open("w") as unlike:
            assert flock_holders(other.fileno()) == flock_holders(file.fileno())
            assert flock_holders(unlike.fileno()) == []
