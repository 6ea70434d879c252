"""A bug report holds what helps, bounded, readable by its owner alone, and never a secret."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from common.errors import HeadraceError
from spoke import bugreport, control

TOKEN, KEY, PASSWORD = "tok-5f3a9c71e2", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKc", "hunter2-hunter2"


def status(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "hub.token").write_text(f"{TOKEN}\n")
    (tmp_path / "spoke.key").write_text(f"-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\n")
    settings = {"token_file": str(tmp_path / "hub.token"), "tls_key": str(tmp_path / "spoke.key"), "password": PASSWORD,
                "cache_dir": str(tmp_path), "hub": "10.0.0.1:7420"}  # fmt: skip
    return {
        "pid": 1, "metrics": None, "notes": [f"refused with {TOKEN}"], "hub": {"error": f"bad key {KEY}"},
        "settings": {name: {"value": value, "source": "file"} for name, value in settings.items()},
    }  # fmt: skip


@pytest.fixture
def gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    facts = status(tmp_path)
    monkeypatch.setattr(
        control, "ask_once", lambda _path, request, **_: facts if request["command"] == "status" else {"said": [TOKEN]}
    )
    monkeypatch.setattr(bugreport, "_doctor", lambda _mountpoint: {"findings": [{"seen": f"token={TOKEN}"}]})
    monkeypatch.setattr(bugreport, "runtime_dir", lambda: tmp_path)
    log = control.socket_path(tmp_path, str(tmp_path)).with_suffix(".log")
    log.write_text(
        f'{{"event": "linked", "token": "{TOKEN}"}}\nAuthorization: Bearer {TOKEN}\n{PASSWORD}\n{KEY}\n'
        + "x" * 3_000_000
    )
    environ = {"HEADRACE_TOKEN": "only-in-the-environment", "HEADRACE_HUB": "10.0.0.1:7420", "PATH": "/bin"}
    with log.open("a") as lines:
        lines.write("\nonly-in-the-environment\nthe last line\n")
    target = tmp_path / "report.tar.gz"
    bugreport.pack(bugreport.gather(tmp_path, environ), target, 1e9)
    assert target.stat().st_mode & 0o777 == 0o600
    with tarfile.open(target) as archive:
        return {entry.name: archive.extractfile(entry).read().decode() for entry in archive}  # type: ignore[union-attr]


def test_no_token_no_key_no_password_is_in_any_file(gathered: dict[str, str]) -> None:
    for name, text in gathered.items():
        for secret in (TOKEN, KEY, PASSWORD, "only-in-the-environment"):
            assert secret not in text, name


def test_what_helps_is_there_and_bounded(gathered: dict[str, str]) -> None:
    files = {name.removeprefix("report/"): text for name, text in gathered.items()}
    assert sorted(files) == ["README.txt", "doctor.json", "explain.json", "host.json", "log.txt", "status.json"]
    shown = json.loads(files["status.json"])["settings"]
    assert shown["hub"] == {"value": "10.0.0.1:7420", "source": "file"}
    assert shown["token_file"] == {"value": "(left out)", "source": "file"}
    host = json.loads(files["host.json"])
    assert host["environment"] == ["HEADRACE_HUB", "HEADRACE_TOKEN"]
    assert "net.ipv4.tcp_rmem" in host["sysctl"]
    assert "MemTotal" in host["memory"]
    assert "cmdline" not in host["process"]
    assert "environ" not in host["process"]
    assert len(files["log.txt"]) < 2_200_000
    assert files["log.txt"].endswith("the last line\n")


def test_a_spoke_that_says_nothing_still_gives_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bugreport, "_doctor", lambda _mountpoint: {})
    with TemporaryDirectory() as short:  # a socket's path has at most 107 bytes
        monkeypatch.setattr(bugreport, "runtime_dir", lambda: Path(short))
        files = dict(bugreport.gather(tmp_path, {}))
    assert "could not be had: no spoke" in files["status.json"]
    assert "no log at" in files["log.txt"]


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    target = tmp_path / "report.tar.gz"
    target.write_text("mine")
    with pytest.raises(HeadraceError, match="File exists; give another --output"):
        bugreport.pack(iter([]), target, 0.0)
    assert target.read_text() == "mine"
