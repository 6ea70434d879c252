"""The parts under test, as processes of their own: hub, bad network, spoke, mount, cache disk, readers. All gone again at the end.

The cache is on a file system of its own (ext4 on a loop device, else tmpfs) where that can be made, so that it can be filled,
made read-only and cut off without a scratch on anything else. The hub runs without the right to read what modes forbid.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.chaos.dataset import Dataset
from bench.chaos.ledger import LedgerWriter
from bench.chaos.readers import LOADER_WORKERS
from bench.chaos.slots import Slots
from common.errors import HeadraceError
from common.units import parse_address
from spoke import control
from spoke.fuse.mountpoint import abort, detach, mounts_at
from spoke.places import runtime_dir

ROOT = Path(__file__).resolve().parents[2]
READY_S, END_S = 40.0, 20.0
DISK_BYTES = 384 << 20
INODES = 40_000
_EXT4_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, _IOR('X', 125, __u32)."""
_SHUTDOWN_NO_LOG_FLUSH = 2


class RigError(HeadraceError):
    """A part did not come up or go away; the message has its last words."""


def _without_override() -> list[str]:
    """In front of the hub's command: also root may then read only what modes allow."""
    if os.geteuid() or not shutil.which("setpriv"):
        return []
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"]


class CacheDisk:
    """Where the cache lives. ``kind``: ``ext4``, ``tmpfs``, or ``directory`` where nothing can be mounted."""

    def __init__(self, work: Path) -> None:
        self.root = work / "disk"
        self.root.mkdir()
        self._image = work / "disk.img"
        self.kind = "directory"
        if os.geteuid() == 0:
            with self._image.open("wb") as image:
                image.truncate(DISK_BYTES)
            made = shutil.which("mkfs.ext4") and not _quiet(
                "mkfs.ext4", "-q", "-F", "-N", str(INODES), "-m", "0", "-E", "lazy_itable_init=0", str(self._image)
            )
            if made and not self.mount():
                self.kind = "ext4"
            elif not _quiet(
                "mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},nr_inodes={INODES}", "chaos", str(self.root)
            ):
                self.kind = "tmpfs"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def mount(self) -> int:
        return _quiet("mount", "-o", "loop", str(self._image), str(self.root))

    def unmount(self) -> None:
        """Raises RigError when somebody still holds it."""
        end_s = time.monotonic() + END_S
        while os.path.ismount(self.root) and _quiet("umount", str(self.root)):
            if time.monotonic() > end_s:
                raise RigError(f"{self.root} is still in use; who holds it must be found out")
            time.sleep(0.1)

    def cut_power(self) -> None:
        """From now on every access is EIO; what was not yet in the journal or on the disk is lost."""
        import fcntl

        fd = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _EXT4_SHUTDOWN, _SHUTDOWN_NO_LOG_FLUSH.to_bytes(4, "little"))
        finally:
            os.close(fd)

    def close(self) -> None:
        if self.kind != "directory":
            with contextlib.suppress(RigError):
                self.unmount()
                return
            _quiet("umount", "-l", str(self.root))


class Rig:
    """``read_timeout_s``: of the spoke. ``extra``: flags for its ``mount``."""

    def __init__(
        self,
        seed: int,
        *,
        read_timeout_s: float,
        cache_size: str,
        scale: float,
        rest_s: float,
        extra: Sequence[str] = (),
    ) -> None:
        self.work = Path(tempfile.mkdtemp(prefix="headrace-chaos-")).resolve()
        self.read_timeout_s, self.cache_size, self._extra, self._rest_s = (
            read_timeout_s,
            cache_size,
            list(extra),
            rest_s,
        )
        self.seed = seed
        self.mountpoint = self.work / "mnt"  # has no links: nothing of ours touches it but the readers
        self.mountpoint.mkdir()
        (self.work / "data").mkdir()
        (self.work / "drafts").mkdir()
        self.events_path = self.work / "events.jsonl"
        self.events_path.touch()
        self.ledger_path = self.work / "ledger.jsonl"
        self._ledger = LedgerWriter(self.ledger_path)
        self.data = Dataset(self.work / "data", self.work / "drafts", self._ledger, scale)
        self.disk = CacheDisk(self.work)
        self.reader_kinds: list[tuple[str, int]] = []
        self.slots: Slots | None = None
        self.readers: dict[int, subprocess.Popen[bytes]] = {}
        self._spawned = 0
        self._hub: subprocess.Popen[str] | None = None
        self._hub_port = 0
        self._proxy: subprocess.Popen[str] | None = None
        self._spoke: subprocess.Popen[str] | None = None
        self._spoke_lock = threading.RLock()
        self.downs: list[list[float]] = []
        """[from, to] of the times the mount was taken away or not yet back, by us; to is inf while it lasts."""
        self.spoke_meant_down = self.hub_meant_down = 0
        self.longest_death_s = 0.0
        self.note: Callable[[str], object] = lambda _text: None
        self.stopping = False

    @contextlib.contextmanager
    def spoke_away(self) -> Iterator[None]:
        """Its end is no failure meanwhile."""
        self.spoke_meant_down += 1
        self.mount_goes()
        try:
            yield
        finally:
            self.spoke_meant_down -= 1

    @contextlib.contextmanager
    def hub_away(self) -> Iterator[None]:
        self.hub_meant_down += 1
        try:
            yield
        finally:
            self.hub_meant_down -= 1

    # --- hub and network ---------------------------------------------------------------------------------

    def start_hub(self) -> None:
        with (self.work / "hub.log").open("ab") as log:
            self._hub = subprocess.Popen(
                [*_without_override(), sys.executable, "-m", "hub.cli", "serve", "--dataset", f"data={self.work / 'data'}", "--listen",
                 f"127.0.0.1:{self._hub_port}", "--metrics", "127.0.0.1:0", "--state-dir", str(self.work / "hub-state"),
                 "--log-format", "json"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, start_new_session=True,
            )  # fmt: skip
        line = _first_line(self._hub, READY_S, self.work / "hub.log")
        self._hub_port = parse_address(line.replace(",", "").split()[2])[1]

    @property
    def hub(self) -> subprocess.Popen[str]:
        assert self._hub is not None
        return self._hub

    def end_hub(self, number: signal.Signals) -> None:
        _end(self.hub, number)

    def start_proxy(self) -> None:
        self._proxy = subprocess.Popen(
            [sys.executable, "-m", "bench.chaos.proxy", "--target", f"127.0.0.1:{self._hub_port}", "--seed", str(self.seed)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(self.work / "proxy.log").open("ab"), text=True, cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip
        self._address = _first_line(self._proxy, READY_S, self.work / "proxy.log")

    def network(self, order: Any) -> int:
        """Effects as the proxy takes them; returns how much it has damaged so far."""
        assert self._proxy is not None
        assert self._proxy.stdin is not None
        assert self._proxy.stdout is not None
        self._proxy.stdin.write(json.dumps(order) + "\n")
        self._proxy.stdin.flush()
        return int(self._proxy.stdout.readline() or 0)

    # --- spoke -------------------------------------------------------------------------------------------

    def start_spoke(self, *, patience_s: float = 120.0) -> None:
        """Again and again until it mounts: a spoke that lost its names needs the hub. Raises RigError when it does not."""
        with self._spoke_lock:
            end_s = time.monotonic() + patience_s
            while True:
                try:
                    self._start_spoke_once()
                    break
                except RigError:
                    if time.monotonic() > end_s or self.stopping:
                        raise
                    time.sleep(0.5)
            for down in self.downs:
                down[1] = min(down[1], time.monotonic())

    def _start_spoke_once(self) -> None:
        with (self.work / "spoke.log").open("ab") as log:
            self._spoke = subprocess.Popen(
                [sys.executable, "-m", "spoke.cli", "mount", str(self.mountpoint), "--hub", self._address, "--dataset", "data",
                 "--cache-dir", str(self.disk.cache), "--cache-size", self.cache_size, "--cache-free-floor", "8MiB",
                 "--read-timeout", f"{self.read_timeout_s}s", "--metrics", "127.0.0.1:0", "--log-format", "json", *self._extra],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, start_new_session=True,
            )  # fmt: skip
        try:
            _first_line(self._spoke, READY_S, self.work / "spoke.log")
        except RigError:
            _end(self._spoke, signal.SIGKILL)
            self._detach()
            raise

    @property
    def spoke(self) -> subprocess.Popen[str]:
        assert self._spoke is not None
        return self._spoke

    def facts(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """What ``status --json`` shows."""
        path = control.socket_path(runtime_dir(), str(self.mountpoint))
        answer = control.ask_once(path, {"command": "status"}, timeout_s=timeout_s)
        assert isinstance(answer, dict)
        return answer

    def worker_pid(self) -> int:
        """The process that serves: another than the one that keeps the mount, where there are two."""
        with contextlib.suppress(HeadraceError, KeyError, OSError):
            facts = self.facts()
            return int((facts.get("supervision") or {}).get("worker_pid") or facts["pid"])
        return self.spoke.pid

    def ask(self, command: str) -> None:
        """If there is somebody to ask."""
        with contextlib.suppress(HeadraceError, OSError):
            control.ask_once(control.socket_path(runtime_dir(), str(self.mountpoint)), {"command": command})

    def mount_goes(self) -> None:
        """From now on, until a spoke is ready again, there may be no mount."""
        self.downs.append([time.monotonic(), float("inf")])

    def end_spoke(self, number: signal.Signals = signal.SIGKILL) -> None:
        """The whole of it, and its mount. Waits for both."""
        with self._spoke_lock:
            worker = self.worker_pid() if number == signal.SIGKILL else self.spoke.pid
            _end(self.spoke, number)
            if worker != self.spoke.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
            self._detach()

    def _detach(self) -> None:
        path = str(self.mountpoint)
        for entry in reversed(mounts_at(path)):
            if entry.is_ours:
                abort(entry.minor)
                detach(path, entry.minor, force=True)

    def restart_spoke(self, number: signal.Signals = signal.SIGKILL) -> None:
        with self._spoke_lock, self.spoke_away():
            self.end_spoke(number)
            self.start_spoke()

    def minors(self) -> list[int]:
        return [entry.minor for entry in mounts_at(str(self.mountpoint)) if entry.is_ours]

    def abort_mount(self) -> None:
        """Everybody who waits in it gets an error: the last resort against a hang."""
        for minor in self.minors():
            abort(minor)

    def scrape(self) -> int:
        """Bytes of /metrics and /status."""
        address = self.facts()["metrics"]
        count = 0
        for page in ("metrics", "status", "healthz"):
            with (
                contextlib.suppress(urllib.error.HTTPError),
                urllib.request.urlopen(f"http://{address}/{page}", timeout=10) as answer,
            ):
                count += len(answer.read())
        return count

    # --- readers -----------------------------------------------------------------------------------------

    def start_readers(self, kinds: Sequence[str]) -> None:
        slot = 0
        for kind in kinds:
            self.reader_kinds.append((kind, slot))
            slot += LOADER_WORKERS if kind == "loader" else 1
        self.slots = Slots(self.work / "slots", slot)
        for index in range(len(self.reader_kinds)):
            self.start_reader(index)

    def start_reader(self, index: int) -> None:
        assert self.slots is not None
        kind, slot = self.reader_kinds[index]
        self._spawned += 1
        with (self.work / f"reader-{slot}-{kind}.log").open("ab") as log:
            self.readers[index] = subprocess.Popen(
                [sys.executable, "-m", "bench.chaos.readers", "--kind", kind, "--slot", str(slot), "--count", str(self.slots.count),
                 "--mount", str(self.mountpoint), "--ledger", str(self.ledger_path), "--slots", str(self.work / "slots"),
                 "--events", str(self.events_path), "--seed", str(self.seed * 1000 + self._spawned), "--rest", str(self._rest_s)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, start_new_session=True,
            )  # fmt: skip

    def kill_reader(self, index: int) -> float:
        """SIGKILL to it and its children; returns how long it took to die. Raises RigError when it does not."""
        popen = self.readers[index]
        began_s = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(popen.pid, signal.SIGKILL)
        try:
            popen.wait(END_S)
        except subprocess.TimeoutExpired:
            raise RigError(f"reader {self.reader_kinds[index]} (process {popen.pid}) does not die of SIGKILL") from None
        return time.monotonic() - began_s

    # --- the end -----------------------------------------------------------------------------------------

    def close(self, *, keep: bool) -> list[str]:
        """Ends all, and removes it unless ``keep``; returns what would not go. May be called again."""
        self.stopping = True
        left: list[str] = []
        for index in self.readers:
            try:
                self.kill_reader(index)
            except RigError as error:
                left.append(str(error))
                self.abort_mount()
        spoke, hub, proxy = self._spoke, self._hub, self._proxy
        if spoke is not None:
            if spoke.poll() is None:
                spoke.send_signal(signal.SIGCONT)
                worker = self.worker_pid()
                _end(spoke, signal.SIGTERM)
                if worker != spoke.pid and _runs(worker):
                    left.append(f"worker {worker} outlived its spoke")
                    os.kill(worker, signal.SIGKILL)
            self._detach()
        for popen in (hub, proxy):
            if popen is not None:
                with contextlib.suppress(ProcessLookupError):
                    popen.send_signal(signal.SIGCONT)
                _end(popen, signal.SIGTERM)
        if self.minors():
            left.append(f"{self.mountpoint} is still mounted")
        try:
            self.disk.close()
        finally:
            self._ledger.close()
        self.readers.clear()
        self._spoke = self._hub = self._proxy = None
        if not keep and not self.minors():
            shutil.rmtree(self.work, ignore_errors=True)
        return left


def processes_below(work: Path) -> Iterator[int]:
    """Processes that have this run's directory in their command lines."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                if os.fsencode(work) in Path("/proc", entry, "cmdline").read_bytes():
                    yield int(entry)


def _quiet(*command: str) -> int:
    return subprocess.run(command, capture_output=True, check=False).returncode


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _first_line(popen: subprocess.Popen[str], timeout_s: float, log: Path) -> str:
    assert popen.stdout is not None
    ready, _, _ = select.select([popen.stdout], [], [], timeout_s)
    line = popen.stdout.readline().strip() if ready else ""
    if not line:
        tail = "\n".join(log.read_text(errors="backslashreplace").splitlines()[-5:])
        raise RigError(f"no first line within {timeout_s:g} s (exit code {popen.poll()}); its log ends:\n{tail}")
    return line


def _end(popen: subprocess.Popen[str], number: signal.Signals) -> None:
    """With ``number``, then harder. Always waits."""
    if popen.poll() is None:
        popen.send_signal(number)
        try:
            popen.wait(END_S)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait(END_S)
            if popen.stdout is not None:
                popen.stdout.close()
            raise RigError(f"process {popen.pid} did not end within {END_S:g} s of {number.name}") from None
    if popen.stdout is not None:
        popen.stdout.close()
