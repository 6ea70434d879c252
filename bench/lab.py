"""A hub, a long link and a spoke on this machine, in a temporary directory, and gone again at the end.

Whatever happens, leaving the lab unmounts, ends the processes it started (known by pid, or by a mark in their
environment once they are detached) and removes the directory. Daemons are started by their real command lines.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.markup import escape

from bench.link import LinkShape
from bench.path import ROOT, Kind, Way, make_way
from common.errors import HeadraceError, UsageError
from common.terminal import EXIT_FAILED, EXIT_USAGE
from common.units import format_address, parse_address
from spoke.fuse.mountpoint import detach, fusermount, mounts_at

MARK_VARIABLE = "BENCH_LAB_MARK"
HUB_READY_TIMEOUT_S = 30.0
COMMAND_TIMEOUT_S = 60.0
LOG_TAIL_LINES = 12

_CONTAINER_HELP = "start a container with --device /dev/fuse --cap-add SYS_ADMIN"

Metrics = dict[str, float]


class LabError(HeadraceError):
    """A daemon or command did not do what the lab needed; the message has its last words."""


def why_no_mount() -> str | None:
    """What keeps this machine from mounting, or None."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except FileNotFoundError:
        return f"there is no /dev/fuse; {_CONTAINER_HELP}"
    except OSError as error:
        if error.errno == errno.EACCES and os.geteuid() != 0:
            return "this user may not open /dev/fuse; as root: chmod 666 /dev/fuse"
        return f"/dev/fuse cannot be opened ({error.strerror}); {_CONTAINER_HELP}"
    if os.geteuid() != 0 and fusermount() is None:
        return (
            "fusermount3 is not installed; without root it is needed to mount (Debian, Ubuntu: apt-get install fuse3)"
        )
    return None


def raise_on_sigterm() -> None:
    """Make SIGTERM, and SIGHUP where it is not ignored, an exception, so that what ``with`` holds is cleaned up."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup wants it to go on
        signal.signal(signal.SIGHUP, stop)


def ready(console: Console, parse: Callable[[], Namespace]) -> Namespace | None:
    """What ``parse`` gives, on a machine that can mount, with its ``out`` directory made; None once the reason why not is said."""
    raise_on_sigterm()
    try:
        arguments = parse()
        if reason := why_no_mount():
            raise UsageError(f"this machine cannot mount: {reason}")
        arguments.out.mkdir(parents=True, exist_ok=True)
    except UsageError as error:
        console.print(f"[red]error:[/] {escape(str(error))}")
        return None
    return arguments


class Lab:
    """Use as a context manager. ``keep``: leave the directory (not the daemons) behind.

    ``spoke_prefix``: put in front of the spokes' commands, to run them at an end that somebody else has made.
    ``ready_timeout_s``: for a hub to listen and a command of the spoke's to end; None: what small datasets need.
    """

    def __init__(
        self, *, keep: bool = False, spoke_prefix: Sequence[str] = (), ready_timeout_s: float | None = None
    ) -> None:
        self.keep = keep
        self._hub_timeout_s = ready_timeout_s or HUB_READY_TIMEOUT_S
        self._command_timeout_s = ready_timeout_s or COMMAND_TIMEOUT_S
        self._spoke_prefix = list(spoke_prefix)
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-"))
        self.mark = uuid.uuid4().hex
        self.environ = {**os.environ, MARK_VARIABLE: self.mark}
        self.logs: dict[str, Path] = {}
        self._stack = contextlib.ExitStack()
        self._way: Way | None = None
        self._hub: subprocess.Popen[str] | None = None
        self._mounts: list[Path] = []

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C must not leave a mount behind.
        main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
        try:
            for mountpoint in list(self._mounts):
                self._take_away(mountpoint)
            if self._hub is not None:
                _end(self._hub)
        finally:
            self._stack.close()
            self._end_marked()
            if not self.keep:
                shutil.rmtree(self.directory, ignore_errors=True)
            if before is not None:
                signal.signal(signal.SIGINT, before)

    # --- the parts ---------------------------------------------------------------------------------------

    def start_hub(self, dataset: str, directory: Path, shape: LinkShape, kind: Kind = "auto") -> None:
        """A hub that serves ``directory``, at the far end of a link of that shape. Raises LabError."""
        way = self._stack.enter_context(make_way(kind, shape, self._log("proxy"), self.environ))
        self.start_hub_at(way, dataset, directory)

    def start_hub_at(self, way: Way, dataset: str, directory: Path, *flags: str) -> None:
        """The same, over a link that is there already. Raises LabError."""
        self._way = way
        self._hub_command = [
            *(*way.hub_prefix, sys.executable, "-m", "hub.cli", "serve"),
            *("--dataset", f"{dataset}={directory}", "--state-dir", str(self.directory / "hub-state")),
            *("--metrics", f"{way.hub_host}:0", *flags),
            "--insecure",  # a lab's link is its own
        ]
        self._run_hub(f"{way.hub_host}:0")
        self.link_kind = way.kind
        self.far_hub = way.open(self.hub_address)

    def stop_hub(self) -> None:
        if self._hub is not None:
            _end(self._hub)
            self._hub = None

    def restart_hub(self) -> None:
        """The same again, at the same address. Raises LabError."""
        self._run_hub(format_address(*self.hub_address))

    def _run_hub(self, listen: str) -> None:
        started_s = time.perf_counter()
        with self._log("hub").open("ab") as log:
            self._hub = subprocess.Popen(
                [*self._hub_command, "--listen", listen],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=self.environ,
            )
        assert self._hub.stdout is not None
        readable, _, _ = select.select([self._hub.stdout], [], [], self._hub_timeout_s)
        line = self._hub.stdout.readline() if readable else ""
        words = line.replace(",", " ").split()  # "listening on HOST:PORT, metrics on HOST:PORT"
        if words[:2] != ["listening", "on"]:
            raise LabError(f"the hub was not ready within {self._hub_timeout_s:g} s; it said {line!r}")
        self.hub_ready_s = time.perf_counter() - started_s
        self.hub_address = parse_address(words[2])
        self.hub_metrics = words[5]

    def mount(self, dataset: str, name: str, *flags: str) -> Spoke:
        """A spoke with a cache and a mountpoint of its own, ``name``. Raises LabError."""
        mountpoint, cache = self.directory / f"mnt-{name}", self.directory / f"cache-{name}"
        mountpoint.mkdir(exist_ok=True)  # a spoke of that name may have been here before: its cache is then found again
        metrics = format_address("127.0.0.1", free_port())
        self._mounts.append(mountpoint)
        self._spoke_command(
            *("mount", str(mountpoint), "--hub", self.far_hub, "--dataset", dataset, "--cache-dir", str(cache)),
            *("--metrics", metrics, "--log-file", str(self._log(f"spoke-{name}")), "--background", *flags),
        )
        return Spoke(self, mountpoint, cache, metrics)

    def unmount(self, spoke: Spoke) -> None:
        """By the command that users have. Raises LabError."""
        self._spoke_command("umount", str(spoke.mountpoint))
        if mounts_at(str(spoke.mountpoint)):
            raise LabError(f"{spoke.mountpoint} is still mounted after umount")
        self._mounts.remove(spoke.mountpoint)

    def abandon(self, spoke: Spoke) -> None:
        """Take a mount away after something failed: by the command if it works, else by force; its cache too."""
        self._take_away(spoke.mountpoint)
        if spoke.mountpoint in self._mounts:
            self._mounts.remove(spoke.mountpoint)
        self.drop(spoke)

    @property
    def hub_runs(self) -> bool:
        return self._hub is not None and self._hub.poll() is None

    @property
    def way(self) -> Way:
        """The link, once the hub runs."""
        assert self._way is not None
        return self._way

    def drop(self, spoke: Spoke) -> None:
        """Remove the cache of a spoke that is unmounted."""
        self.drop_directory(spoke.cache)

    def drop_directory(self, path: Path) -> None:
        """Remove something of the lab's before its end: the disk may be small."""
        assert path.is_relative_to(self.directory)
        shutil.rmtree(path, ignore_errors=True)

    def run(self, name: str, command: list[str], timeout_s: float) -> None:
        """Run a command to its end, its output in a log of its own. Raises LabError, at once if a daemon ends meanwhile."""
        log = self._log(name)
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=ROOT, env=self.environ
            )
        deadline_s = time.monotonic() + timeout_s
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(timeout=0.2)
                    break
                self.check_daemons()
                if time.monotonic() > deadline_s:
                    raise LabError(f"{name} did not end within {timeout_s:g} s")
        finally:
            process.kill()
            process.wait()
        if code:
            raise LabError(f"{name} ended with exit code {code}")

    def hub_pid(self) -> int:
        """The hub itself, whatever was put in front of its command. Raises LabError."""
        for pid in _marked(self.mark):
            with contextlib.suppress(OSError):
                if b"hub.cli" in Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0"):
                    return pid
        raise LabError("the hub does not run")

    def last_words(self) -> str:
        """The ends of the daemons' logs, for a person who wants to know what went wrong."""
        tails = []
        for name, path in self.logs.items():
            lines = path.read_text("utf-8", "replace").splitlines() if path.exists() else []
            if lines:
                tails.append("\n".join([f"--- {name}, last lines of its log:", *lines[-LOG_TAIL_LINES:]]))
        return "\n".join(tails)

    # --- inside --------------------------------------------------------------------------------------------

    def check_daemons(self) -> None:
        """Raises LabError when the hub or a mount that should be there ended by itself."""
        if self._hub is not None and self._hub.poll() is not None:
            raise LabError(f"the hub ended by itself with exit code {self._hub.returncode}")
        for mountpoint in self._mounts:
            if not mounts_at(str(mountpoint)):
                raise LabError(f"the mount {mountpoint} went away: its spoke ended")

    def _log(self, name: str) -> Path:
        return self.logs.setdefault(name, self.directory / f"{name.replace(' ', '-')}.log")

    def _spoke_command(self, *arguments: str) -> str:
        command = [*self._spoke_prefix, sys.executable, "-m", "spoke.cli", *arguments]
        try:
            done = subprocess.run(
                command,
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                cwd=ROOT,
                env=self.environ,
                timeout=self._command_timeout_s,
            )
        except subprocess.TimeoutExpired:
            raise LabError(f"headrace-spoke {arguments[0]} did not end within {self._command_timeout_s:g} s") from None
        if done.returncode:
            said = done.stderr.strip() or done.stdout.strip()
            raise LabError(f"headrace-spoke {arguments[0]} ended with exit code {done.returncode}: {said}")
        return done.stdout

    def _take_away(self, mountpoint: Path) -> None:
        """At the end, also after failures: by the command if it works, else by force."""
        for flags in ([], ["--force"]):
            if not mounts_at(str(mountpoint)):
                break
            with contextlib.suppress(LabError):
                self._spoke_command("umount", str(mountpoint), *flags)
        for entry in mounts_at(str(mountpoint)):
            detach(entry.path, entry.minor, force=True)

    def _end_marked(self) -> None:
        """Detached daemons are no children: they are known by the mark that only this lab's processes carry."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in _marked(self.mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline_s = time.monotonic() + 5
            while _marked(self.mark) and time.monotonic() < deadline_s:
                time.sleep(0.05)


def eventually(condition: Callable[[], bool], what: str, *, timeout_s: float, pause_s: float) -> float:
    """Seconds until it held, looked at every ``pause_s``. Raises LabError."""
    started_s = time.perf_counter()
    while not condition():
        if time.perf_counter() - started_s > timeout_s:
            raise LabError(f"not within {timeout_s:g} s: {what}")
        time.sleep(pause_s)
    return time.perf_counter() - started_s


def in_lab(
    console: Console,
    work: Callable[[Lab], object],
    *,
    keep: bool = False,
    spoke_prefix: Sequence[str] = (),
    ready_timeout_s: float | None = None,
) -> int:
    """Do ``work`` in a lab of its own; returns the exit code, once what failed, and what the daemons said, is told."""
    started_s = time.monotonic()
    with Lab(keep=keep, spoke_prefix=spoke_prefix, ready_timeout_s=ready_timeout_s) as lab:
        try:
            work(lab)
        except KeyboardInterrupt:
            console.print("interrupted; cleaning up")
            return 130
        except UsageError as error:
            console.print(f"[red]error:[/] {escape(str(error))}")
            return EXIT_USAGE
        except (HeadraceError, OSError) as error:
            console.print(f"[red]failed:[/] {escape(str(error))}")
            console.print(lab.last_words(), markup=False)
            return EXIT_FAILED
        except Exception:  # noqa: BLE001 a bug of the bench itself: show it, and what the daemons said
            console.print_exception()
            console.print(lab.last_words(), markup=False)
            return EXIT_FAILED
        finally:
            if keep:
                console.print(f"  kept {lab.directory}")
    console.print(f"[green]done[/] in {time.monotonic() - started_s:.0f} s; nothing is left mounted or running")
    return 0


class Spoke:
    """A mounted spoke, seen from outside: its status, its metrics, its files."""

    def __init__(self, lab: Lab, mountpoint: Path, cache: Path, metrics: str) -> None:
        self.mountpoint = mountpoint
        self.cache = cache
        self._lab = lab
        self.metrics = metrics

    def status(self) -> dict[str, Any]:
        """What ``headrace-spoke status --json`` prints. Raises LabError."""
        facts = json.loads(self._lab._spoke_command("status", str(self.mountpoint), "--json"))
        assert isinstance(facts, dict)
        return facts

    def numbers(self) -> Metrics:
        return read_metrics(self.metrics)

    def warm(self, *paths: str) -> None:
        self._lab._spoke_command("warm", str(self.mountpoint), *paths, "--quiet")


def read_metrics(address: str) -> Metrics:
    """A scrape, as ``name{label="value",…}`` to number; labels in order of their names. Raises LabError."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            return parse_metrics(answer.read().decode())
    except OSError as error:
        raise LabError(f"no metrics at {address}: {error}") from None


def parse_metrics(text: str) -> Metrics:
    return {
        _series(sample.name, sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _series(name: str, labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{label}="{labels[label]}"' for label in sorted(labels))
    return f"{name}{{{inside}}}" if inside else name


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _marked(mark: str) -> list[int]:
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
    return found
