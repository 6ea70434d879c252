"""What an operator got wrong, or could not know, was answered with a traceback, a riddle or litter."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from spoke.launch import _holders
from spoke.places import runtime_dir
from tests.system.ready_made import run


def mount(cwd: Path, *extra: str, hub: str = "127.0.0.1:1", cache: str = "cache") -> subprocess.CompletedProcess[str]:
    (cwd / "mnt").mkdir(exist_ok=True)
    return run(
        "spoke.cli", "mount", "mnt", "--hub", hub, "--dataset", "data", "--cache-dir", cache,
        "--metrics", "127.0.0.1:0", "--connect-timeout", "200ms", *extra, cwd=cwd,
    )  # fmt: skip


def said(answer: subprocess.CompletedProcess[str], *texts: str, code: int = 2) -> None:
    assert answer.returncode == code, answer.stderr
    assert "Traceback" not in answer.stderr
    for text in texts:
        assert text in answer.stderr


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("hub = 5", "hub (from the file): 5 is not understood"),
        ('dataset = ["a"]', "dataset (from the file): ['a'] is not"),
    ],
)
def test_a_value_of_the_wrong_type_in_the_file_is_named(tmp_path: Path, line: str, text: str) -> None:
    (tmp_path / "spoke.toml").write_text(line + '\ncache-dir = "c"\n')
    (tmp_path / "mnt").mkdir()
    said(run("spoke.cli", "mount", "mnt", "--config", "spoke.toml", cwd=tmp_path), text)


@pytest.mark.parametrize("name", ["", "a/b", os.fsdecode(b"\xff"), "x" * 101])
def test_a_dataset_name_that_no_hub_can_have_is_refused_at_once(tmp_path: Path, name: str) -> None:
    said(mount(tmp_path, "--dataset", name), "dataset name", "letters, digits")
    assert not (tmp_path / "cache").exists()


def test_a_umask_that_is_not_octal_is_named(tmp_path: Path) -> None:
    said(mount(tmp_path, "--umask", "999"), "umask (from the flag): '999' is not octal")


@pytest.mark.parametrize("cache", ["mnt", "mnt/cache"])
def test_a_cache_below_the_mountpoint_is_refused_and_nothing_is_left_there(tmp_path: Path, cache: str) -> None:
    said(mount(tmp_path, cache=cache), "lie in each other")
    said(mount(tmp_path, "--background", cache=cache), "lie in each other")
    assert list((tmp_path / "mnt").iterdir()) == []


def test_a_background_spoke_does_not_import_what_the_working_directory_holds(tmp_path: Path) -> None:
    for name in ("common", "spoke", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not ours')\n")
    said(mount(tmp_path, "--background"), "no hub within 0.2 s")


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"version": "0.1.0", "pid": 1}')

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def other_page() -> Iterator[str]:
    """The address of an HTTP server that is not a hub's, for example a spoke's metrics."""
    with HTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_hub_status_of_something_else_is_said_to_be_no_hub(tmp_path: Path, other_page: str) -> None:
    said(run("hub.cli", "status", "--metrics", other_page, cwd=tmp_path), "is not a hub")


def test_a_peer_that_is_no_hub_is_named_with_its_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        thread = threading.Thread(target=_speak_http, args=(server,), daemon=True)
        thread.start()
        answer = mount(tmp_path, "--connect-timeout", "10s", hub=address)
    said(answer, f"what answers at {address} does not speak Headrace's protocol", code=1)


def _speak_http(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def test_status_of_no_mount_names_the_path(tmp_path: Path) -> None:
    said(run("spoke.cli", "status", "mnt", cwd=tmp_path), f"{tmp_path.resolve()}/mnt: no spoke of this user")


def test_a_runtime_directory_in_tmp_that_is_not_ours_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from common.errors import UsageError

    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_001)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_001)
    squatted = Path("/tmp/headrace-4000001")
    assert runtime_dir() == squatted
    squatted.symlink_to(tmp_path)
    try:
        with pytest.raises(UsageError, match="not a directory of this user alone"):
            runtime_dir()
    finally:
        squatted.unlink()


def test_a_process_of_any_name_that_uses_a_mount_is_named(tmp_path: Path) -> None:
    command = tmp_path / os.fsdecode(b"job\xff")
    shutil.copy("/bin/sleep", command)
    process = subprocess.Popen([command, "60"], cwd=tmp_path)
    try:
        assert list(_holders(str(tmp_path))) == [f"{process.pid} (job\\xff)"]
    finally:
        process.kill()
        process.wait()
