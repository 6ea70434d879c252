"""What a million names cost, from the hub's first scan to a walk of the mount: ``python -m bench.metadata``.

Makes a tree of real, tiny files, serves it, replicates it over the delay proxy, and measures: the scan, the first
replication, the spoke's memory, ``find`` with the link held still, restarts of either daemon with changes in between,
how long a change takes to show at the mount, and what reads and names suffer in a burst of changes. Every stage ends with the
mount's names compared with the directory's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.cpu_time import cpu_time
from bench.lab import free_port, raise_on_sigterm, why_no_mount
from common.errors import HeadraceError, UsageError
from common.terminal import EXIT_FAILED, EXIT_USAGE
from common.units import format_size, parse_duration
from spoke import control
from spoke.fuse.mountpoint import mounts_at
from spoke.places import runtime_dir

ROOT = Path(__file__).resolve().parent.parent
DATASET = "names"
READY_TIMEOUT_S = 300.0
SETTLE_TIMEOUT_S = 300.0
LATENCY_SAMPLES = 21
DOWNTIME_CHANGES = 1000
COLD_FILE_BYTES = 64 << 20


class Failed(HeadraceError):
    """A daemon or a comparison did not do what the measurement needs."""


# --- the tree ----------------------------------------------------------------------------------------------


def directory_name(number: int) -> str:
    return f"part-{number:05d}"


def file_name(directory: int, number: int) -> str:
    return f"shard-{directory:05d}-{number:06d}.bin"


def make_tree(root: Path, files: int, directories: int) -> float:
    """Real files of a few bytes each, spread evenly; seconds it took."""
    started_s = time.perf_counter()
    for directory in range(directories):
        path = root / directory_name(directory)
        path.mkdir(parents=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for number in range(files * directory // directories, files * (directory + 1) // directories):
                _write_at(fd, file_name(directory, number), b"%d\n" % number)
        finally:
            os.close(fd)
    return time.perf_counter() - started_s


def _write_at(fd: int, name: str, data: bytes) -> None:
    file = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644, dir_fd=fd)
    os.write(file, data)
    os.close(file)


def listing(root: Path) -> dict[str, tuple[int, int]]:
    """Path to (size, mtime in ns) of every regular file below ``root``."""
    found: dict[str, tuple[int, int]] = {}
    stack = [""]
    while stack:
        directory = stack.pop()
        with os.scandir(root / directory) as entries:
            for entry in entries:
                path = f"{directory}/{entry.name}" if directory else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if path != ".headrace":
                        stack.append(path)
                else:
                    seen = entry.stat(follow_symlinks=False)
                    found[path] = (seen.st_size, seen.st_mtime_ns)
    return found


# --- processes ---------------------------------------------------------------------------------------------


class Daemon:
    """A process whose first line on stdout says that it is ready; ``ready_s``: from its start to that line."""

    def __init__(self, name: str, arguments: list[str], log: Path) -> None:
        self.name, self.log = name, log
        started_s = time.perf_counter()
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
                cwd=ROOT,
            )
        assert self.process.stdout is not None
        timer = threading.Timer(READY_TIMEOUT_S, self.process.kill)
        timer.start()
        self.line = self.process.stdout.readline().strip()
        timer.cancel()
        self.ready_s = time.perf_counter() - started_s
        if not self.line:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
            raise Failed(f"the {name} ended with exit code {self.process.wait()}:\n{tail}")

    @property
    def working_pid(self) -> int:
        """Of the process that does the work: a spoke's worker, the only child of its supervisor."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if self.name == "spoke" and children else pid

    def cpu_s(self) -> float:
        return cpu_time(self.working_pid).total_s

    def memory_bytes(self) -> dict[str, int]:
        """``now`` and ``peak`` resident memory."""
        lines = Path(f"/proc/{self.working_pid}/status").read_text().splitlines()
        sizes = {
            line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(("VmRSS", "VmHWM"))
        }
        return {"now": sizes["VmRSS"], "peak": sizes["VmHWM"]}

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Rig:
    """The daemons of one run, in a directory of their own; ``close`` ends whatever is left."""

    def __init__(self, tree: Path, work: Path, rtt_s: float) -> None:
        self.tree, self.work = tree, work
        self.mountpoint = work / "mnt"
        self.mountpoint.mkdir()
        self._rtt_s = rtt_s
        self._hub_port = free_port()
        self._daemons: list[Daemon] = []
        self.far_hub = ""
        self.hub: Daemon
        self.proxy: Daemon
        self.spoke: Daemon

    def start_hub(self) -> Daemon:
        self.hub = self._start(
            "hub",
            "hub.cli", "serve", "--dataset", f"{DATASET}={self.tree}", "--state-dir", str(self.work / "hub-state"),
            "--listen", f"127.0.0.1:{self._hub_port}", "--metrics", "127.0.0.1:0",
        )  # fmt: skip
        return self.hub

    def start_proxy(self) -> None:
        self.proxy = self._start(
            "proxy", "bench.delay_proxy", "--target", f"127.0.0.1:{self._hub_port}", "--rtt", f"{self._rtt_s}s"
        )
        self.far_hub = self.proxy.line.removeprefix("listening on ")

    def start_spoke(self, *flags: str) -> Daemon:
        self.spoke = self._start(
            "spoke",
            "spoke.cli", "mount", str(self.mountpoint), "--hub", self.far_hub, "--dataset", DATASET, "--cache-dir",
            str(self.work / "cache"), "--cache-size", "1GiB", "--metrics", "127.0.0.1:0", "--connect-timeout", "120s", *flags,
        )  # fmt: skip
        return self.spoke

    def status(self) -> dict[str, Any]:
        path = control.socket_path(runtime_dir(), str(self.mountpoint.resolve()))
        facts = control.ask_once(path, {"command": "status"}, timeout_s=60.0)
        assert isinstance(facts, dict)
        return facts

    def watched(self) -> dict[str, int]:
        """How often the hub scanned everything, and how often the kernel's event queue overflowed."""
        with urllib.request.urlopen(f"http://{self.hub.line.split()[-1]}/status", timeout=60) as answer:
            dataset = json.load(answer)["datasets"][DATASET]
        return {"scans": dataset["scans"], "overflows": dataset["overflows"]}

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            with contextlib.suppress(ProcessLookupError):
                daemon.signal(signal.SIGCONT)
            daemon.stop()
        if mounts_at(str(self.mountpoint)):
            subprocess.run(["umount", "-l", str(self.mountpoint)], check=False, capture_output=True)

    def _start(self, name: str, *arguments: str) -> Daemon:
        daemon = Daemon(name, list(arguments), self.work / f"{name}.log")
        self._daemons.append(daemon)
        return daemon


def eventually(condition: Callable[[], bool], what: str, pause_s: float = 0.002) -> float:
    """Seconds until it held. Raises Failed."""
    started_s = time.perf_counter()
    while not condition():
        if time.perf_counter() - started_s > SETTLE_TIMEOUT_S:
            raise Failed(f"not within {SETTLE_TIMEOUT_S:g} s: {what}")
        time.sleep(pause_s)
    return time.perf_counter() - started_s


# --- stages ------------------------------------------------------------------------------------------------


def first_replication(rig: Rig) -> dict[str, Any]:
    hub_cpu_s = rig.hub.cpu_s()
    spoke = rig.start_spoke()
    names = rig.status()["names"]
    return {
        "mount_ready_s": spoke.ready_s,
        "spoke_cpu_s": spoke.cpu_s(),
        "hub_cpu_s": rig.hub.cpu_s() - hub_cpu_s,
        "received_bytes": rig.status()["hub"]["received_bytes"],
        "entries": names["entries"],
    }


def walk(rig: Rig) -> dict[str, Any]:
    """``find`` while nothing can cross the link: the proxy is stopped."""
    rig.proxy.signal(signal.SIGSTOP)
    try:
        times_s = []
        for _ in range(2):
            started_s = time.perf_counter()
            out = subprocess.run(["find", str(rig.mountpoint)], capture_output=True, check=True, timeout=600).stdout
            times_s.append(time.perf_counter() - started_s)
        started_s = time.perf_counter()
        subprocess.run(["find", str(rig.mountpoint), "-size", "+1G"], capture_output=True, check=True, timeout=600)
        with_stat_s = time.perf_counter() - started_s
    finally:
        rig.proxy.signal(signal.SIGCONT)
    return {"find_s": times_s, "find_with_stat_s": with_stat_s, "names": out.count(b"\n") - 1, "link": "stopped"}


def compare(rig: Rig) -> int:
    """Raises Failed unless the mount shows the directory; the number of files."""
    there, here = listing(rig.tree), listing(rig.mountpoint)
    if there != here:
        lost, extra = there.keys() - here.keys(), here.keys() - there.keys()
        other = [path for path in there.keys() & here.keys() if there[path] != here[path]]
        raise Failed(f"the mount differs: {len(lost)} lost, {len(extra)} too many, {len(other)} of other size or time")
    return len(there)


def shown(rig: Rig, path: str) -> bool:
    """The mount shows this path as the directory has it."""
    try:
        here, there = (rig.mountpoint / path).stat(), (rig.tree / path).stat()
    except FileNotFoundError:
        return False
    return (here.st_size, here.st_mtime_ns) == (there.st_size, there.st_mtime_ns)


def change_some(rig: Rig, count: int, tag: str) -> list[str]:
    """Rewrite files all over the tree; their paths."""
    names = sorted(entry.name for entry in os.scandir(rig.tree) if entry.is_dir())
    changed = []
    for number in range(count):
        directory = names[number % len(names)]
        path = f"{directory}/{tag}-{number // len(names):06d}.new"
        (rig.tree / path).write_text(f"{tag} {number}\n")
        changed.append(path)
    return changed


def restarts(rig: Rig) -> dict[str, Any]:
    """Either daemon, with changes while it is away."""
    before = rig.status()
    rig.hub.stop()
    hub_changes = change_some(rig, DOWNTIME_CHANGES, "hub-away")
    hub = rig.start_hub()
    caught_up_s = eventually(
        lambda: all(shown(rig, path) for path in hub_changes), "changes made while the hub was away"
    )
    after = rig.status()
    result: dict[str, Any] = {
        "hub": {
            "ready_s": hub.ready_s,
            "cpu_s": hub.cpu_s(),
            "caught_up_s": caught_up_s,
            "received_bytes": after["hub"]["received_bytes"] - before["hub"]["received_bytes"],
            "resyncs": after["names"]["resyncs"] - before["names"]["resyncs"],
        }
    }
    rig.spoke.stop()
    spoke_changes = change_some(rig, DOWNTIME_CHANGES, "spoke-away")
    time.sleep(1.0)
    spoke = rig.start_spoke()
    caught_up_s = eventually(
        lambda: all(shown(rig, path) for path in spoke_changes), "changes made while the spoke was away"
    )
    after = rig.status()
    result["spoke"] = {
        "mount_ready_s": spoke.ready_s,
        "cpu_s": spoke.cpu_s(),
        "caught_up_s": caught_up_s,
        "received_bytes": after["hub"]["received_bytes"],
        "resyncs": after["names"]["resyncs"],
        "changes_meanwhile": DOWNTIME_CHANGES,
        "memory_bytes": spoke.memory_bytes(),
    }
    return result


def change_latency(rig: Rig) -> dict[str, Any]:
    """From the write at the hub's directory until the mount shows it, an inotify settling time included."""
    times_s = []
    for number in range(LATENCY_SAMPLES):
        path = f"{directory_name(number)}/latency.txt"
        (rig.tree / path).write_text("x" * (number + 1))
        times_s.append(eventually(lambda path=path: shown(rig, path), f"{path} at the mount", 0.001))  # type: ignore[misc]
        time.sleep(0.1)
    return {"median_s": statistics.median(times_s), "max_s": max(times_s), "samples": len(times_s)}


class SlowestRead:
    """A process that reads 4 KiB of a cold and of a cached file at the mount, again and again; keeps each one's time."""

    def __init__(self, rig: Rig, cold: str, warm: str) -> None:
        self.cold_s: list[float] = []
        self.warm_s: list[float] = []
        self._command = [
            sys.executable,
            "-m",
            "bench.metadata",
            "--reader",
            *(str(rig.mountpoint / name) for name in (cold, warm)),
        ]

    def __enter__(self) -> SlowestRead:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def __exit__(self, *_error: object) -> None:
        out, _ = self._process.communicate("stop\n", timeout=60)
        if self._process.returncode:
            raise Failed("a read at the mount failed")
        self.cold_s, self.warm_s = json.loads(out)


def read_until_told(cold: str, warm: str) -> int:
    """The process of :class:`SlowestRead`: until a line comes on stdin; prints the times in seconds."""
    cold_s: list[float] = []
    warm_s: list[float] = []
    cold_fd, warm_fd = os.open(cold, os.O_RDONLY), os.open(warm, os.O_RDONLY)
    os.posix_fadvise(cold_fd, 0, 0, os.POSIX_FADV_RANDOM)
    offset_bytes = 0
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        started_s = time.perf_counter()
        os.pread(cold_fd, 4096, offset_bytes)
        cold_s.append(time.perf_counter() - started_s)
        os.posix_fadvise(warm_fd, 0, 0, os.POSIX_FADV_DONTNEED)
        started_s = time.perf_counter()
        os.pread(warm_fd, 4096, 0)
        warm_s.append(time.perf_counter() - started_s)
        # Far apart, so that nothing is fetched ahead, and never twice the same.
        offset_bytes = (offset_bytes + 5 * (1 << 20) + 4096) % (COLD_FILE_BYTES - 4096)
    print(json.dumps([cold_s, warm_s]))
    return 0


def _reads(times_s: list[float]) -> dict[str, float | int]:
    ordered = sorted(times_s)
    return {
        "count": len(ordered),
        "median_ms": 1000 * statistics.median(ordered),
        "p99_ms": 1000 * ordered[int(0.99 * (len(ordered) - 1))],
        "max_ms": 1000 * ordered[-1],
    }


def burst(rig: Rig, count: int) -> dict[str, Any]:
    """So many changes as fast as they can be made: half new files, a quarter rewritten, a quarter removed again."""
    for name in ("idle", "burst"):
        with (rig.tree / f"cold-{name}.bin").open("wb") as file:
            file.write(os.urandom(COLD_FILE_BYTES))
    (rig.tree / "warm.bin").write_bytes(b"w" * 8192)
    eventually(
        lambda: all(shown(rig, name) for name in ("cold-idle.bin", "cold-burst.bin", "warm.bin")), "the read files"
    )
    (rig.mountpoint / "warm.bin").read_bytes()
    with SlowestRead(rig, "cold-idle.bin", "warm.bin") as idle:
        time.sleep(5)
    before, watched = rig.status(), rig.watched()
    hub_cpu_s, spoke_cpu_s = rig.hub.cpu_s(), rig.spoke.cpu_s()
    target = rig.tree / "burst"
    target.mkdir()
    fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    with SlowestRead(rig, "cold-burst.bin", "warm.bin") as busy:
        started_s = time.perf_counter()
        for number in range(count // 2):
            _write_at(fd, f"b{number:06d}", b"1\n")
        for number in range(count // 4):
            _write_at(fd, f"b{number:06d}", b"two\n")
        for number in range(count // 4):
            os.unlink(f"b{count // 2 - 1 - number:06d}", dir_fd=fd)
        (rig.tree / "burst-end").write_text("end\n")
        made_s = time.perf_counter() - started_s
        wanted = {entry.name for entry in os.scandir(target)}

        def settled() -> bool:
            return shown(rig, "burst-end") and set(os.listdir(rig.mountpoint / "burst")) == wanted

        eventually(settled, "the burst at the mount", 0.1)
        all_s = time.perf_counter() - started_s
    os.close(fd)
    after = rig.status()
    return {
        "changes": count,
        **{name: count - watched[name] for name, count in rig.watched().items()},
        "made_s": made_s,
        "all_shown_s": all_s,
        "hub_cpu_s": rig.hub.cpu_s() - hub_cpu_s,
        "spoke_cpu_s": rig.spoke.cpu_s() - spoke_cpu_s,
        "received_bytes": after["hub"]["received_bytes"] - before["hub"]["received_bytes"],
        "resyncs": after["names"]["resyncs"] - before["names"]["resyncs"],
        "cold_reads_idle": _reads(idle.cold_s),
        "cold_reads_in_burst": _reads(busy.cold_s),
        "warm_reads_idle": _reads(idle.warm_s),
        "warm_reads_in_burst": _reads(busy.warm_s),
    }


def clean(rig: Rig) -> None:
    """Take away what the stages added, so that a kept tree serves again."""
    shutil.rmtree(rig.tree / "burst", ignore_errors=True)
    for pattern in ("*/*-away-*.new", "*/latency.txt", "*.bin", "burst-end"):
        for path in rig.tree.glob(pattern):
            if not path.name.startswith("shard-"):
                path.unlink()


def measure(rig: Rig, arguments: argparse.Namespace, say: Callable[[str], None]) -> Iterator[tuple[str, Any]]:
    """(stage, what was seen) as the stages end; raises HeadraceError."""
    hub = rig.start_hub()
    yield "scan", {"ready_s": hub.ready_s, "cpu_s": hub.cpu_s(), "hub_memory_bytes": hub.memory_bytes()}
    rig.start_proxy()
    yield "first_replication", first_replication(rig)
    yield "spoke_memory_replicated_bytes", rig.spoke.memory_bytes()
    yield "walk", walk(rig)
    yield "spoke_memory_walked_bytes", rig.spoke.memory_bytes()
    say(f"the mount shows the directory's {compare(rig)} files")
    yield "change_latency", change_latency(rig)
    yield "burst", burst(rig, arguments.changes)
    say(f"the mount shows the directory's {compare(rig)} files")
    yield "restarts", restarts(rig)
    say(f"the mount shows the directory's {compare(rig)} files")
    yield "hub_memory_bytes", rig.hub.memory_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.metadata", description="Names by the million.")
    parser.add_argument("--files", type=int, default=1_000_000, help="(default 1,000,000)")
    parser.add_argument("--directories", type=int, default=1000, help="(default 1,000)")
    parser.add_argument("--changes", type=int, default=100_000, help="in the burst (default 100,000)")
    parser.add_argument("--rtt", type=parse_duration, default=0.060, help="round trip (default 60ms)")
    parser.add_argument("--tree", type=Path, help="made there if absent, and kept (default: a temporary one)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out", help="where the JSON goes")
    parser.add_argument("--reader", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reader:
        return read_until_told(*arguments.reader)
    raise_on_sigterm()
    if reason := why_no_mount():
        print(f"this machine cannot mount: {reason}", file=sys.stderr)
        return EXIT_USAGE
    work = Path(tempfile.mkdtemp(prefix="headrace-names-"))
    tree = (arguments.tree or work / "tree").absolute()
    result: dict[str, Any] = {
        "files": arguments.files,
        "directories": arguments.directories,
        "rtt_s": arguments.rtt,
        "machine": {"kernel": platform.release(), "python": platform.python_version(), "cores": os.cpu_count()},
    }
    rig = Rig(tree, work, arguments.rtt)

    def say(line: str) -> None:
        print(line, flush=True)

    try:
        if not tree.exists():
            say(f"made {arguments.files} files in {make_tree(tree, arguments.files, arguments.directories):.0f} s")
        clean(rig)
        for stage, seen in measure(rig, arguments, say):
            result[stage] = seen
            say(f"{stage}: {json.dumps(seen, default=str)}")
    except (HeadraceError, OSError, subprocess.SubprocessError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    finally:
        rig.close()
        if arguments.tree is not None and tree.exists():
            clean(rig)
        shutil.rmtree(work, ignore_errors=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    out = arguments.out / "metadata.json"
    out.write_text(json.dumps(result, indent=1) + "\n")
    say(f"spoke memory after the walk {format_size(result['spoke_memory_walked_bytes']['now'])}; {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
