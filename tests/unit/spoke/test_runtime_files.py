"""What dead spokes left goes, what may belong to a living one stays."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from common import limits
from common.errors import UsageError
from spoke.fuse.mountpoint import Owner
from spoke.places import made_runtime_dir
from spoke.runtime_files import bound_log, sweep

LATER_S = limits.RUNTIME_FILE_SWEPT_AFTER_S + 5
MUCH_LATER_S = limits.LOG_KEPT_S + 5


def later(by_s: float = LATER_S) -> float:
    return time.time() + by_s


def listener(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(os.fspath(path))
    sock.listen(1)
    return sock


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Unix socket's path has 107 bytes."""
    return tmp_path_factory.mktemp("r")


def test_sockets_nobody_listens_on_go_and_those_of_the_living_stay(short: Path) -> None:
    listener(short / "dead.sock").close()
    with closing(listener(short / "live.sock")), closing(socket.socket(socket.AF_UNIX)) as queued:
        queued.connect(os.fspath(short / "live.sock"))
        assert sweep(short, time.time()) == []  # too young to be judged
        assert sweep(short, later()) == ["dead.sock"]
        assert sweep(short, later()) == []
    assert sorted(path.name for path in short.iterdir()) == ["live.sock"]


def test_records_of_owners_that_are_gone_and_whose_mount_is(tmp_path: Path) -> None:
    alive = Owner.this_process(str(tmp_path / "mnt"), 7)
    records = {
        "mount-a.json": json.dumps(asdict(alive)),
        "mount-b.json": json.dumps(asdict(replace(alive, start_ticks=1))),
        "mount-c.json": json.dumps(asdict(replace(alive, pid_namespace="pid:[1]"))),  # not to be told from here
        "mount-d.json": "{not json",
        "mount-e.json": "[]",
        "mount-f.123.new": "",
        "else.json": "",
    }
    for name, text in records.items():
        (tmp_path / name).write_text(text)
    assert sweep(tmp_path, later()) == ["mount-b.json", "mount-d.json", "mount-e.json", "mount-f.123.new"]


def test_a_log_outlives_its_spoke_by_a_week(short: Path) -> None:
    for name in ("a.log", "a.log.1", "b.log"):
        (short / name).write_text("x")
    with closing(listener(short / "b.sock")):
        assert sweep(short, later()) == []
        assert sweep(short, later(MUCH_LATER_S)) == ["a.log", "a.log.1"]


def test_a_long_log_is_put_aside_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_MAX_BYTES", 10)
    path = tmp_path / "a.log"
    bound_log(path)  # none yet
    path.write_text("short")
    bound_log(path)
    assert path.read_text() == "short"
    for text in ("first, which is long", "second, which is long"):
        path.write_text(text)
        bound_log(path)
        assert not path.exists()
        assert (tmp_path / "a.log.1").read_text() == text


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert sweep(tmp_path / "none", later()) == []


def test_a_place_for_sockets_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    with pytest.raises(
        UsageError, match="file/headrace, where a spoke keeps its sockets, cannot be made: Not a directory"
    ):
        made_runtime_dir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "new"))
    assert made_runtime_dir().stat().st_mode & 0o777 == 0o700
