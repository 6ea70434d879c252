"""A real hub and real spokes as processes of their own, for tests; everything is taken down, whatever happened."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from spoke import control
from spoke.cli import app
from spoke.places import runtime_dir
from tests.system import ready_made
from tests.system.ready_made import run  # noqa: F401 (for the tests)

START_TIMEOUT_S = 30.0
END_TIMEOUT_S = 15.0


class Process:
    """A daemon whose first line on stdout says that it is ready; its log goes to a file."""

    def __init__(self, arguments: Sequence[str], log_path: Path, env: dict[str, str] | None = None) -> None:
        self.log_path = log_path
        self._log = log_path.open("ab")
        self.popen: ready_made.Started | subprocess.Popen[bytes]
        if env is None:
            self.popen = ready_made.start(*arguments, stderr=self._log)
            return
        self.popen = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **env},
        )

    def first_line(self) -> str:
        """Blocks until the daemon is ready; fails with its log when it ends instead."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline().decode()
        if not line:
            raise AssertionError(f"exit code {self.popen.wait()}:\n{self.log()}")
        return line.strip()

    def log(self) -> str:
        return self.log_path.read_text(errors="backslashreplace")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        code = self.popen.wait(END_TIMEOUT_S)
        self._close()
        return code

    def terminate(self) -> int:
        return self.kill(signal.SIGTERM)

    def _close(self) -> None:
        self._log.close()
        if self.popen.stdout is not None:
            self.popen.stdout.close()


class Hub(Process):
    def __init__(
        self,
        work_dir: Path,
        datasets: dict[str, Path],
        port: int = 0,
        extra: Sequence[str] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        named = [argument for name, path in datasets.items() for argument in ("--dataset", f"{name}={path}")]
        super().__init__(
            ["hub.cli", "serve", *named, "--listen", f"127.0.0.1:{port}", "--metrics", "127.0.0.1:0",
             "--state-dir", str(work_dir / "hub-state"), "--log-format", "json", *extra],
            work_dir / "hub.log",
            env,
        )  # fmt: skip
        # listening on HOST:PORT, metrics on HOST:PORT
        words = self.first_line().replace(",", "").split()
        self.address, self.metrics = words[2], words[5]
        self.port = int(self.address.rsplit(":", 1)[1])

    def status(self) -> dict[str, Any]:
        return _get_json(f"http://{self.metrics}/status")


class Spoke(Process):
    def __init__(
        self,
        mountpoint: Path,
        hub_address: str,
        cache_dir: Path,
        dataset: str | None = "data",
        extra: Sequence[str] = (),
    ) -> None:
        self.mountpoint = mountpoint
        with contextlib.suppress(
            FileExistsError
        ):  # exist_ok would stat() it: a dead mount that this spoke will replace
            mountpoint.mkdir()
        super().__init__(
            ["spoke.cli", "mount", str(mountpoint), "--hub", hub_address,
             *(["--dataset", dataset] if dataset is not None else []),
             "--cache-dir", str(cache_dir), "--cache-size", "2GiB", "--metrics", "127.0.0.1:0",
             "--log-format", "json", *extra],
            mountpoint.with_suffix(".log"),
        )  # fmt: skip

    def ready(self) -> Spoke:
        assert self.first_line().startswith("mounted ")
        return self

    def status(self) -> dict[str, Any]:
        return json.loads(ask("status", str(self.mountpoint), "--json").stdout)

    def facts(self) -> dict[str, Any]:
        """What ``status`` shows, without a process of its own: cheap enough to ask again and again."""
        path = control.socket_path(runtime_dir(), str(self.mountpoint.resolve()))
        return control.ask_once(path, {"command": "status"})

    def metrics(self) -> dict[str, float]:
        """All samples without labels, by name. A worker that has just taken over opens its page after it answers the kernel."""
        eventually(lambda: self.facts()["metrics"] is not None)
        with urllib.request.urlopen(f"http://{self.facts()['metrics']}/metrics", timeout=10) as response:
            families = list(text_string_to_metric_families(response.read().decode()))
        return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}

    def settled(self) -> Spoke:
        """Once all that has arrived is in the cache."""
        eventually(lambda: self.facts()["cache"]["write_backlog_bytes"] == 0)
        return self

    def worker_pid(self) -> int:
        pid: int = self.facts()["supervision"]["worker_pid"]
        return pid

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        """SIGKILL: as a host that loses power would, all at once. Another signal goes to the supervisor alone."""
        others = children(self.popen.pid) if number == signal.SIGKILL else []
        if others:
            self.popen.send_signal(signal.SIGSTOP)  # so that it starts no other
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        code = super().kill(number)
        for pid in others:
            eventually(lambda pid=pid: not is_running(pid))
        return code

    def clean_up(self) -> None:
        """SIGTERM, then harder; the mount must be gone in the end."""
        try:
            self.terminate()
        except subprocess.TimeoutExpired:
            self.kill()
        subprocess.run(["umount", "-l", str(self.mountpoint)], capture_output=True, check=False)


def ask(*words: str) -> subprocess.CompletedProcess[str]:
    """A command of the spoke's that only asks, in this process: a tenth of what a process of its own costs."""
    result = CliRunner().invoke(app, words, prog_name="headrace-spoke")
    return subprocess.CompletedProcess(words, result.exit_code, result.stdout, result.stderr)


def children(pid: int) -> list[int]:
    """Processes started by ``pid``."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def is_running(pid: int) -> bool:
    """A zombie that nobody has waited for does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def _get_json(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)


class Pair:
    """Makes hubs and spokes in one directory and takes all of them down at the end."""

    def __init__(self, work_dir: Path) -> None:
        self.work_dir = work_dir
        self.data = work_dir / "data"
        self.data.mkdir(exist_ok=True)
        self.hub_flags: tuple[str, ...] = ()
        """Given to every hub of this test."""
        self._hubs: list[Hub] = []
        self._spokes: list[Spoke] = []

    def hub(self, port: int = 0, extra: Sequence[str] = (), env: dict[str, str] | None = None) -> Hub:
        """``env``: what its environment has besides ours; such a hub is started anew, not forked from a ready one."""
        hub = Hub(self.work_dir, {"data": self.data}, port, (*self.hub_flags, *extra), env)
        self._hubs.append(hub)
        return hub

    def spoke(self, address: str, name: str = "mnt", cache: str = "cache", extra: Sequence[str] = ()) -> Spoke:
        spoke = Spoke(self.work_dir / name, address, self.work_dir / cache, extra=extra)
        self._spokes.append(spoke)
        return spoke.ready()

    def close(self) -> None:
        for spoke in self._spokes:
            spoke.clean_up()
        for hub in self._hubs:
            hub.kill(signal.SIGTERM if hub.popen.poll() is None else signal.SIGKILL)


@contextlib.contextmanager
def pair_in(work_dir: Path) -> Iterator[Pair]:
    pair = Pair(work_dir)
    try:
        yield pair
    finally:
        pair.close()


def eventually(condition: Any, timeout_s: float = 10.0) -> None:
    """For what only another process knows, and tells nobody: look again until it holds."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come about in time"
        time.sleep(0.02)
