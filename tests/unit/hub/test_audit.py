"""The audit log: who opened what, once an hour; bounded, turned, and never in the way."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from common import limits
from common.errors import NotAllowed, UsageError
from common.serving.access import Access, Grant
from common.wire.messages import Hello
from hub.audit import STDERR, AuditFile, AuditTrail
from hub.identities import IdentitiesFile

HELLO = Hello((1,), "c4", "spoke-a", b"s" * 16)


class Place(NamedTuple):
    path: bytes


class Places:
    def __init__(self) -> None:
        self.asked = 0

    async def resolve(self, version: bytes) -> Any:
        self.asked += 1
        await asyncio.sleep(0)
        if version == b"broken":
            raise OSError("the disk is away")
        return Place(b"train/\xff.bin") if version == b"known" else None


class Trail:
    def __init__(self) -> None:
        self.lines: list[Any] = []
        self.now_s = 0.0
        self.places = Places()
        self.made = AuditTrail(self.lines.append, {"c4": self.places}, lambda: self.now_s, lambda: 1_700_000_000.0)


async def test_each_version_is_said_once_an_hour_with_its_path() -> None:
    trail = Trail()
    for _ in range(100):
        trail.made.opened("10.0.0.7:1", HELLO, b"known")
    await trail.made.close()
    assert trail.lines == [
        {
            "time": "2023-11-14T22:13:20.000+00:00", "event": "read", "address": "10.0.0.7:1", "identity": "spoke-a",
            "dataset": "c4", "spoke": HELLO.spoke_id.hex(), "version": b"known".hex(), "path": "train/\\xff.bin",
        }
    ]  # fmt: skip
    trail.now_s += limits.AUDIT_AGAIN_S
    trail.made.opened("10.0.0.7:1", HELLO, b"known")
    trail.made.opened("10.0.0.7:1", HELLO, b"broken")
    await trail.made.close()
    assert [line["path"] for line in trail.lines[1:]] == ["train/\\xff.bin", None]


async def test_who_came_and_who_was_refused() -> None:
    trail = Trail()
    for _ in range(13):
        trail.made.connected("10.0.0.7:1", HELLO, ("spoke-a", "spiffe://x"))
    for port in range(50):
        trail.made.refused(f"10.0.0.8:{port}", None, NotAllowed("no"))
    trail.now_s += limits.AUDIT_REFUSED_AGAIN_S
    trail.made.refused("10.0.0.8:1", HELLO, NotAllowed("no"))
    events = [(line["event"], line.get("names"), line.get("alike_not_shown")) for line in trail.lines]
    assert events == [("subscribed", ["spoke-a", "spiffe://x"], None), ("refused", None, 0), ("refused", None, 49)]


async def test_what_it_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AUDIT_REMEMBERED_MAX", 10)
    monkeypatch.setattr(limits, "AUDIT_RESOLVING_MAX", 3)
    trail = Trail()
    for number in range(100):
        trail.made.opened("10.0.0.7:1", HELLO, b"%d" % number)
    await trail.made.close()
    assert trail.places.asked == 3
    assert len(trail.lines) == 100
    assert len(trail.made._said) == 10


def test_the_file_is_turned_and_found_again_when_it_was_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AUDIT_FILE_MAX_BYTES", 1000)
    path = tmp_path / "audit"
    file = AuditFile(str(path))
    for number in range(200):
        file.emit({"n": number, "text": "x" * 50})
    file.close()
    kept = sorted(found.name for found in tmp_path.iterdir())
    assert kept == ["audit", *(f"audit.{number}" for number in range(1, limits.AUDIT_FILES_KEPT + 1))]
    assert path.stat().st_mode & 0o777 == 0o600
    assert all(found.stat().st_size <= 1100 for found in tmp_path.iterdir())

    file = AuditFile(str(path))
    path.rename(tmp_path / "moved")
    file.emit({"n": "after"})
    file.close()
    assert json.loads(path.read_text()) == {"n": "after"}


def test_lines_that_a_disk_does_not_take_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "d" / "audit"
    with pytest.raises(UsageError, match="give a file that can be written"):
        AuditFile(str(path))
    path.parent.mkdir()
    file = AuditFile(str(path))
    os.rename(path.parent, tmp_path / "away")
    for _ in range(5):
        file.emit({"n": 1})
    while file._lines.qsize():
        pass
    file.close()
    assert file.dropped_total == 5
    file = AuditFile(STDERR)
    file.emit({"n": 1})
    file.close()


def test_a_table_of_identities_that_changes(tmp_path: Path) -> None:
    path = tmp_path / "hub.toml"
    path.write_text('[identities."a"]\n')
    applied: list[Access] = []
    watched = IdentitiesFile(path, Access({"a": Grant()}), applied.append)

    def put(text: str) -> None:
        fresh = tmp_path / "new"
        fresh.write_text(text)
        fresh.rename(path)
        watched.look()

    put('[identities."a"]\ndatasets = ["c4", "t*"]\nweight = 2\nrate = "8mbit"\nconnections = 3\nrequests = 9\n')
    assert applied == [Access({"a": Grant(("c4", "t*"), 2.0, 1e6, 3, 9)})]
    row = '[identities."a"]\n'
    for wrong in ("colour = 1", "weight = 0", 'rate = "0bit"', 'datasets = "c4"', "connections = 0"):
        put(row + wrong)
    for wrong in ("[identities", "listen = 'x'"):
        put(wrong)
    path.unlink()
    watched.look()
    assert len(applied) == 1
    put('[identities."b"]\n')
    assert applied[1:] == [Access({"b": Grant()})]
