"""Whatever is said on the control sockets of a spoke and its supervisor is answered in words, and the mount goes on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pair import Pair

from spoke import control
from spoke.asked_fields import FIELDS
from spoke.places import runtime_dir

pytestmark = pytest.mark.mount

VALUES = (
    b"-1", b"0", b"1", b"0.5", b"NaN", b"-Infinity", b"1e999", b"9" * 30, b"9" * 5000, b"true", b"false", b"null", b'""', b'"zz"', b'"00"',
    b'"\\ud800"', b'"a\\u0000b"', b'"' + b"x" * 70_000 + b'"', b"[]", b"[1]", b'["zz"]', b'["00"]', b"[[]]", b"{}", b"[" * 900 + b"]" * 900,
    b"[" * 400_000 + b"]" * 400_000, b'"\xff\xfe"',
)  # fmt: skip


def test_what_cannot_be_written_out_is_an_error_in_words(pair: Pair) -> None:
    spoke = pair.spoke(pair.hub().address)
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "spoke.cli", "status", str(spoke.mountpoint)]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "error: what this says could not be written: No space left on device\n",
    )


def said(path: Path, line: bytes) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(path))
        connection.sendall(line + b"\n")
        with connection.makefile("rb") as lines:
            answers = [json.loads(answer) for answer in lines]
    return dict(answers[-1])


def test_no_request_is_an_internal_error(pair: Pair) -> None:
    (pair.data / "f.bin").write_bytes(os.urandom(100_000))
    spoke = pair.spoke(pair.hub().address)
    path = control.socket_path(runtime_dir(), str(spoke.mountpoint.resolve()))
    for command, fields in FIELDS.items():
        for field in fields:
            for value in VALUES:
                answer = said(path, b'{"command": "%s", "%s": %s}' % (command.encode(), field.encode(), value))
                assert answer.get("code") != "internal", (command, field, value[:60], answer)
                assert "error" not in answer or len(answer["error"]) < 500, (command, field, value[:60])
    for value in VALUES:
        answer = said(path, b'{"command": %s}' % value)
        assert answer["exit"] == 2, (value[:60], answer)
    assert "a control command failed" not in spoke.log()
    assert (spoke.mountpoint / "f.bin").read_bytes() == (pair.data / "f.bin").read_bytes()

    above = control.supervisor_socket_path(runtime_dir(), str(spoke.mountpoint.resolve()))
    for value in VALUES:
        answer = said(above, b'{"command": %s}' % value[:3800])
        assert answer["exit"] == 2, (value[:60], answer)
    assert said(above, b'{"command": "%s"}' % (b"x" * 6000))["error"] == "a request of more than 4096 bytes"
    assert said(above, b'{"command": "state"}')["result"]["serving"]
