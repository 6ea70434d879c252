"""mountinfo, owner records, the stale-or-live rule, interrupts, notifier and passthrough verdicts: what needs no mount."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import MountpointError
from spoke.fuse import mounting, mountpoint
from spoke.fuse.mountpoint import Answer, Owner, Verdict


def test_mountinfo_is_parsed_with_its_escapes_and_optional_fields() -> None:
    text = (
        b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue\n"
        b"43 27 0:39 / /data/a\\040b\\134c ro - fuse.headrace headrace:x\\054y ro,user_id=0\n"
        b"garbage\n"
    )
    first, second = mountpoint.parse_mountinfo(text)
    assert (first.path, first.minor, first.fs_type, first.source, first.is_ours) == (
        "/mnt2",
        0,
        "ext3",
        "/dev/root",
        False,
    )
    assert (second.path, second.minor, second.source, second.is_ours) == ("/data/a b\\c", 39, "headrace:x,y", True)


@pytest.mark.parametrize(
    ("alive", "answer", "verdict"),
    [
        (True, None, Verdict.LIVE),
        (False, Answer.DISCONNECTED, Verdict.STALE),
        (False, Answer.SILENT, Verdict.STALE),
        (False, Answer.SERVED, Verdict.LIVE),
        (None, Answer.DISCONNECTED, Verdict.STALE),
        (None, Answer.SERVED, Verdict.LIVE),
        (None, Answer.SILENT, Verdict.UNKNOWN),
    ],
)
def test_the_rule(alive: bool | None, answer: Answer | None, verdict: Verdict) -> None:
    def ask() -> Answer:
        assert answer is not None, "a mount whose owner runs must not be touched"
        return answer

    assert mountpoint.judge(alive, ask) is verdict


def test_owner_records(tmp_path: Path) -> None:
    owner = Owner.this_process("/mnt/x", 7)
    assert owner.is_alive()
    mountpoint.write_owner(tmp_path / "run", owner)
    assert mountpoint.read_owner(tmp_path / "run", "/mnt/x") == owner
    assert mountpoint.read_owner(tmp_path / "run", "/mnt/y") is None
    mountpoint.remove_owner(tmp_path / "run", replace(owner, minor=8))
    assert mountpoint.read_owner(tmp_path / "run", "/mnt/x") == owner
    mountpoint.remove_owner(tmp_path / "run", owner)
    assert os.listdir(tmp_path / "run") == []
    for text in ("", "{}", "[]", '{"pid": 1}'):
        mountpoint.record_path(tmp_path / "run", "/mnt/x").write_text(text)
        assert mountpoint.read_owner(tmp_path / "run", "/mnt/x") is None


def test_who_is_alive() -> None:
    owner = Owner.this_process("/mnt/x", 7)
    assert replace(owner, start_ticks=owner.start_ticks + 1).is_alive() is False
    assert replace(owner, boot_id="another boot").is_alive() is False
    assert replace(owner, pid_namespace="pid:[1]").is_alive() is None
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie: dead, not yet reaped
    assert mountpoint._start_ticks(child.pid) is None
    child.wait()
    assert mountpoint._start_ticks(child.pid) is None


def test_bounded_calls() -> None:
    assert mountpoint.bounded(lambda: 3, 5) == 3
    with pytest.raises(KeyError):
        mountpoint.bounded(lambda: {}[1], 5)
    release = threading.Event()
    with pytest.raises(TimeoutError):
        mountpoint.bounded(release.wait, 0.02)
    release.set()


def test_a_directory_that_hangs_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(mountpoint, "FUSE_ANSWER_TIMEOUT_S", 0.02)
    monkeypatch.setattr(mountpoint, "_check_directory", lambda path: release.wait())
    with pytest.raises(MountpointError, match="does not answer"):
        mountpoint.prepare(tmp_path, tmp_path)
    release.set()


def test_options_for_the_helper_are_escaped() -> None:
    options = mounting.helper_options("headrace:a,b\\c", allow_other=False)
    assert "fsname=headrace:a\\,b\\\\c" in options
    assert "subtype=headrace" in options
    assert "allow_other" not in options
    assert mounting.helper_options("x", allow_other=True).endswith(",allow_other")


def test_user_allow_other(tmp_path: Path) -> None:
    assert not mounting._users_may_allow_other(tmp_path / "missing")
    (tmp_path / "conf").write_text("#user_allow_other\nmount_max = 5\n")
    assert not mounting._users_may_allow_other(tmp_path / "conf")
    (tmp_path / "conf").write_text("# x\n user_allow_other\n")
    assert mounting._users_may_allow_other(tmp_path / "conf")


def test_no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounting, "fusermount", lambda: None)
    with pytest.raises(MountpointError, match="fusermount3 is not installed"):
        mounting._mount_by_helper("/nowhere", "x", False)


def test_a_helper_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "helper"
    helper.write_text("#!/bin/sh\necho 'too many mounts' >&2; exit 1\n")
    helper.chmod(0o755)
    monkeypatch.setattr(mounting, "fusermount", lambda: str(helper))
    with pytest.raises(MountpointError, match="too many mounts"):
        mounting._mount_by_helper("/nowhere", "x", False)
    helper.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(MountpointError, match="no descriptor"):
        mounting._mount_by_helper("/nowhere", "x", False)


def test_detach_leaves_alone_what_is_not_ours() -> None:
    root = mountpoint.mounts_at("/")[-1]
    assert not root.is_ours
    assert mountpoint.detach("/", root.minor) is False
    assert mountpoint.detach("/nowhere", 1) is True
    assert mountpoint.mounts_at("/")[-1] == root
