"""Mounts that stay at one revision, and mounts that ask the hub at each open."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path

import pytest
from pair import Pair, Spoke, ask, eventually, run

from spoke.fuse.mountpoint import mounts_at

pytestmark = pytest.mark.mount


def replace_file(path: Path, data: bytes) -> None:
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(data)
    beside.rename(path)


def snapshot(pair: Pair, *arguments: str) -> str:
    done = run("hub.cli", "snapshot", *arguments, "--state-dir", str(pair.work_dir / "hub-state"))
    assert done.returncode == 0, done.stderr
    return done.stdout


def names(mountpoint: Path) -> set[str]:
    return {entry.name for entry in os.scandir(mountpoint)}


def test_a_mount_stays_at_a_snapshot_whatever_happens_at_the_hub(pair: Pair) -> None:
    (pair.data / "kept").write_bytes(b"one")
    (pair.data / "going").write_bytes(b"two")
    (pair.data / "warmed").write_bytes(b"three")
    (pair.data / "d").mkdir()
    hub = pair.hub()
    assert "v1" in snapshot(pair, "create", "v1")
    assert [found["name"] for found in json.loads(snapshot(pair, "list", "--json"))] == ["v1"]
    spoke = pair.spoke(hub.address, extra=("--snapshot", "v1"))
    follower = pair.spoke(hub.address, "follower", "follower-cache")
    assert (spoke.mountpoint / "kept").read_bytes() == b"one"
    assert ask("warm", str(spoke.mountpoint), "warmed", "--quiet").returncode == 0
    replace_file(pair.data / "kept", b"another")
    (pair.data / "going").unlink()
    (pair.data / "warmed").unlink()
    (pair.data / "d").rename(pair.data / "e")
    eventually(lambda: names(follower.mountpoint) == {"kept", "e"})
    assert names(spoke.mountpoint) == {"kept", "going", "warmed", "d"}
    assert (spoke.mountpoint / "warmed").read_bytes() == b"three"
    assert (spoke.mountpoint / "kept").read_bytes() == b"one"  # cached
    with pytest.raises(OSError) as raised:
        (spoke.mountpoint / "going").read_bytes()  # never read, and gone at the hub
    assert raised.value.errno == errno.ESTALE
    assert spoke.facts()["names"]["pinned"] == "snapshot 'v1'"
    # A mount that comes later gets the same tree, and so does this one after a restart without the hub.
    late = pair.spoke(hub.address, "late", "late-cache", extra=("--snapshot", "v1"))
    assert names(late.mountpoint) == {"kept", "going", "warmed", "d"}
    snapshot(pair, "drop", "v1")
    spoke.terminate()
    hub.kill(signal.SIGKILL)
    again = pair.spoke(hub.address, extra=("--snapshot", "v1"))
    assert names(again.mountpoint) == {"kept", "going", "warmed", "d"}
    assert (again.mountpoint / "kept").read_bytes() == b"one"


@pytest.mark.slow
def test_a_revision_is_given_while_the_hub_keeps_it_and_refused_with_what_there_is(pair: Pair) -> None:
    (pair.data / "f").write_bytes(b"one")
    hub = pair.hub()
    follower = pair.spoke(hub.address, "follower", "follower-cache")
    revision = follower.facts()["names"]["revision"]
    (pair.data / "g").write_bytes(b"two")
    eventually(lambda: names(follower.mountpoint) == {"f", "g"})
    back = pair.spoke(hub.address, "back", "back-cache", extra=("--revision", str(revision)))
    assert names(back.mountpoint) == {"f"}
    assert back.facts()["names"]["revision"] == revision
    for flags, said in (
        (("--revision", "999999"), "revision 999999 of dataset 'data' is not kept; the hub can give revisions 0 to"),
        (("--snapshot", "none"), "no snapshot 'none'"),
    ):
        where = pair.work_dir / "refused"
        where.mkdir(exist_ok=True)
        refused = run(
            "spoke.cli", "mount", str(where), "--hub", hub.address, "--dataset", "data", "--cache-dir",
            str(pair.work_dir / "refused-cache"), "--cache-size", "1GiB", "--metrics", "127.0.0.1:0", *flags,
        )  # fmt: skip
        assert refused.returncode == 2, refused.stderr
        assert said in refused.stderr.replace("\n", " ")
        assert not mounts_at(str(where))


@pytest.mark.slow
def test_a_mount_goes_back_to_an_older_revision_and_forward_again(pair: Pair) -> None:
    (pair.data / "f").write_bytes(b"one")
    hub = pair.hub()
    snapshot(pair, "create", "old")
    (pair.data / "g").write_bytes(b"two")
    spoke = pair.spoke(hub.address)
    eventually(lambda: names(spoke.mountpoint) == {"f", "g"})
    spoke.terminate()
    spoke = pair.spoke(hub.address, extra=("--snapshot", "old"))
    assert names(spoke.mountpoint) == {"f"}
    spoke.terminate()
    spoke = pair.spoke(hub.address)
    eventually(lambda: names(spoke.mountpoint) == {"f", "g"})


def strict(pair: Pair, address: str, *flags: str) -> Spoke:
    return pair.spoke(address, extra=("--consistency", "strict", *flags))


def test_a_strict_open_sees_what_was_written_before_it(pair: Pair) -> None:
    path = pair.data / "d" / "f"
    path.parent.mkdir()
    path.write_bytes(b"0")
    spoke = strict(pair, pair.hub().address)
    for number in range(1, 16):
        replace_file(path, b"%d" % number)
        assert (spoke.mountpoint / "d" / "f").read_bytes() == b"%d" % number
    path.unlink()
    with pytest.raises(FileNotFoundError):
        (spoke.mountpoint / "d" / "f").read_bytes()
    assert spoke.facts()["names"]["opens_confirmed"] >= 16


def test_a_strict_open_without_a_hub_fails_in_bounded_time_and_works_again(pair: Pair) -> None:
    (pair.data / "f").write_bytes(b"bytes")
    hub = pair.hub()
    spoke = strict(pair, hub.address, "--read-timeout", "1s")
    assert (spoke.mountpoint / "f").read_bytes() == b"bytes"
    hub.kill()
    with pytest.raises(OSError) as raised:
        (spoke.mountpoint / "f").read_bytes()
    assert raised.value.errno == errno.EIO
    assert (spoke.mountpoint / "f").stat().st_size == 5
    pair.hub(hub.port)
    eventually(lambda: spoke.facts()["hub"]["connected"])
    assert (spoke.mountpoint / "f").read_bytes() == b"bytes"
