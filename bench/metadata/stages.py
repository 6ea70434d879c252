"""What is measured, one function each, of a hub, a link and a spoke in a lab; every value in the units of its name."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.cpu_time import cpu_time
from bench.lab import Lab, LabError, Spoke, eventually
from bench.link import LinkShape
from bench.metadata.reads import COLD_FILE_BYTES, Reads, summary
from bench.metadata.tree import change_some, directory_name, listing, make_burst

DATASET = "names"
SETTLE_TIMEOUT_S = 300.0
LATENCY_SAMPLES = 21
DOWNTIME_CHANGES = 1000
IDLE_READS_S = 5.0
FIND_TIMEOUT_S = 600.0


class Names:
    """A directory, and the mount that shows it. Every method raises LabError."""

    def __init__(self, lab: Lab, tree: Path) -> None:
        self.lab, self.tree = lab, tree
        self.spoke: Spoke

    def start_hub(self, rtt_s: float) -> None:
        self.lab.start_hub(DATASET, self.tree, LinkShape(rtt_s), "proxy")

    def mount(self) -> float:
        """Seconds from the command to the mounted tree."""
        started_s = time.perf_counter()
        self.spoke = self.lab.mount(DATASET, DATASET, "--cache-size", "1GiB", "--connect-timeout", "120s")
        return time.perf_counter() - started_s

    def hub_cpu_s(self) -> float:
        return cpu_time(self.lab.hub_pid()).total_s

    def spoke_cpu_s(self) -> float:
        return cpu_time(self.spoke.status()["pid"]).total_s

    def hub_memory_bytes(self) -> dict[str, int]:
        return memory_bytes(self.lab.hub_pid())

    def spoke_memory_bytes(self) -> dict[str, int]:
        return memory_bytes(self.spoke.status()["pid"])

    def watched(self) -> dict[str, int]:
        """How often the hub scanned everything, and how often the kernel's event queue overflowed."""
        with urllib.request.urlopen(f"http://{self.lab.hub_metrics}/status", timeout=60) as answer:
            dataset = json.load(answer)["datasets"][DATASET]
        return {"scans": dataset["scans"], "overflows": dataset["overflows"]}

    def shown(self, path: str) -> bool:
        """The mount shows this path as the directory has it."""
        try:
            here, there = (self.spoke.mountpoint / path).stat(), (self.tree / path).stat()
        except FileNotFoundError:
            return False
        return (here.st_size, here.st_mtime_ns) == (there.st_size, there.st_mtime_ns)

    def all_shown(self, paths: Iterable[str]) -> Callable[[], bool]:
        return lambda: all(self.shown(path) for path in paths)

    def compare(self) -> int:
        """Raises LabError unless the mount shows the directory; the number of files."""
        there, here = listing(self.tree), listing(self.spoke.mountpoint)
        if there != here:
            lost, extra = there.keys() - here.keys(), here.keys() - there.keys()
            other = [path for path in there.keys() & here.keys() if there[path] != here[path]]
            raise LabError(
                f"the mount differs: {len(lost)} lost, {len(extra)} too many, {len(other)} of other size or time"
            )
        return len(there)


def memory_bytes(pid: int) -> dict[str, int]:
    """``now`` and ``peak`` resident memory."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    sizes = {words[0]: int(words[1]) * 1024 for words in lines if words[0] in ("VmRSS:", "VmHWM:")}
    return {"now": sizes["VmRSS:"], "peak": sizes["VmHWM:"]}


def settled_s(condition: Callable[[], bool], what: str, pause_s: float = 0.002) -> float:
    """Seconds until the names show it. Raises LabError."""
    return eventually(condition, what, timeout_s=SETTLE_TIMEOUT_S, pause_s=pause_s)


def _between(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    """What two statuses of one spoke say of the time between."""
    return {
        "received_bytes": after["hub"]["received_bytes"] - before["hub"]["received_bytes"],
        "resyncs": after["names"]["resyncs"] - before["names"]["resyncs"],
    }


# --- the measurements --------------------------------------------------------------------------------------


def scan(names: Names, rtt_s: float) -> dict[str, Any]:
    """The hub's first look at the directory."""
    names.start_hub(rtt_s)
    return {
        "ready_s": names.lab.hub_ready_s,
        "cpu_s": names.hub_cpu_s(),
        "hub_memory_bytes": names.hub_memory_bytes(),
    }


def first_replication(names: Names) -> dict[str, Any]:
    """From the command to the mounted tree."""
    hub_cpu_s = names.hub_cpu_s()
    mount_ready_s = names.mount()
    status = names.spoke.status()
    return {
        "mount_ready_s": mount_ready_s,
        "spoke_cpu_s": names.spoke_cpu_s(),
        "hub_cpu_s": names.hub_cpu_s() - hub_cpu_s,
        "received_bytes": status["hub"]["received_bytes"],
        "entries": status["names"]["entries"],
    }


def walk(names: Names) -> dict[str, Any]:
    """``find`` while nothing can cross the link."""

    def find(*tests: str) -> tuple[float, bytes]:
        command = ["find", str(names.spoke.mountpoint), *tests]
        started_s = time.perf_counter()
        out = subprocess.run(command, capture_output=True, check=True, timeout=FIND_TIMEOUT_S).stdout
        return time.perf_counter() - started_s, out

    names.lab.way.silence(on=True)
    try:
        (first_s, _), (second_s, out) = find(), find()
        with_stat_s, _ = find("-size", "+1G")
    finally:
        names.lab.way.silence(on=False)
    return {
        "find_s": [first_s, second_s],
        "find_with_stat_s": with_stat_s,
        "names": out.count(b"\n") - 1,
        "link": "silent",
    }


def change_latency(names: Names) -> dict[str, Any]:
    """From the write at the hub's directory until the mount shows it, an inotify settling time included."""
    times_s = []
    for number in range(LATENCY_SAMPLES):
        path = f"{directory_name(number)}/latency.txt"
        (names.tree / path).write_text("x" * (number + 1))
        times_s.append(settled_s(names.all_shown([path]), f"{path} at the mount", 0.001))
        time.sleep(0.1)
    return {"median_s": statistics.median(times_s), "max_s": max(times_s), "samples": len(times_s)}


def burst(names: Names, count: int) -> dict[str, Any]:
    """What reads and names suffer from so many changes made as fast as they can be."""
    cold = {name: f"cold-{name}.bin" for name in ("idle", "burst")}
    for name in cold.values():
        (names.tree / name).write_bytes(os.urandom(COLD_FILE_BYTES))
    (names.tree / "warm.bin").write_bytes(b"w" * 8192)
    settled_s(names.all_shown([*cold.values(), "warm.bin"]), "the read files")
    mountpoint = names.spoke.mountpoint
    (mountpoint / "warm.bin").read_bytes()
    with Reads(mountpoint / cold["idle"], mountpoint / "warm.bin") as idle:
        time.sleep(IDLE_READS_S)
    before, watched = names.spoke.status(), names.watched()
    hub_cpu_s, spoke_cpu_s = names.hub_cpu_s(), names.spoke_cpu_s()
    with Reads(mountpoint / cold["burst"], mountpoint / "warm.bin") as busy:
        started_s = time.perf_counter()
        wanted = make_burst(names.tree, count)
        made_s = time.perf_counter() - started_s

        def settled() -> bool:
            return names.shown("burst-end") and set(os.listdir(mountpoint / "burst")) == wanted

        settled_s(settled, "the burst at the mount", 0.1)
        all_s = time.perf_counter() - started_s
    return {
        "changes": count,
        **{name: count - watched[name] for name, count in names.watched().items()},
        "made_s": made_s,
        "all_shown_s": all_s,
        "hub_cpu_s": names.hub_cpu_s() - hub_cpu_s,
        "spoke_cpu_s": names.spoke_cpu_s() - spoke_cpu_s,
        **_between(before, names.spoke.status()),
        "cold_reads_idle": summary(idle.cold_s),
        "cold_reads_in_burst": summary(busy.cold_s),
        "warm_reads_idle": summary(idle.warm_s),
        "warm_reads_in_burst": summary(busy.warm_s),
    }


def hub_restart(names: Names) -> dict[str, Any]:
    """With changes while it is away."""
    before = names.spoke.status()
    names.lab.stop_hub()
    changed = change_some(names.tree, DOWNTIME_CHANGES, "hub-away")
    names.lab.restart_hub()
    caught_up_s = settled_s(names.all_shown(changed), "changes made while the hub was away")
    return {
        "ready_s": names.lab.hub_ready_s,
        "cpu_s": names.hub_cpu_s(),
        "caught_up_s": caught_up_s,
        **_between(before, names.spoke.status()),
    }


def spoke_restart(names: Names) -> dict[str, Any]:
    """With changes while it is away."""
    names.lab.unmount(names.spoke)
    changed = change_some(names.tree, DOWNTIME_CHANGES, "spoke-away")
    time.sleep(1.0)
    mount_ready_s = names.mount()
    caught_up_s = settled_s(names.all_shown(changed), "changes made while the spoke was away")
    status = names.spoke.status()
    return {
        "mount_ready_s": mount_ready_s,
        "cpu_s": names.spoke_cpu_s(),
        "caught_up_s": caught_up_s,
        "received_bytes": status["hub"]["received_bytes"],
        "resyncs": status["names"]["resyncs"],
        "changes_meanwhile": DOWNTIME_CHANGES,
        "memory_bytes": names.spoke_memory_bytes(),
    }
