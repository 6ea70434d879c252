"""The faults: what each does, and how it is undone. Each is a generator: to the ``yield`` it begins, after it it ends.

A fault that this machine cannot do raises :class:`Skipped` with the reason. What a fault chooses, it chooses with its own dice.
Damage to the bytes of cached files is done while the spoke is dead, to copies that take their place: what the kernel reads by
itself (passthrough) is not verified at each read (SEMANTICS.md), so it is the restart that must find it.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.chaos.rig import ROOT, Rig, RigError
from bench.chaos.schedule import Shape

Steps = Iterator[str]
"""What the fault did, in words, for the log of faults."""

BLOCK_BYTES = 4096
UMOUNT_S = 30.0
ENOUGH_PAIRS, FILLING_S = 10, 8.0


class Skipped(Exception):
    """This machine cannot do it; the message says why."""


@dataclass(frozen=True, slots=True)
class Fault:
    shape: Shape
    begin: Callable[[Rig, random.Random], Steps]


FAULTS: dict[str, Fault] = {}

BEYOND = ("wire_flip_map",)
"""Not part of a run unless named: on a plain connection only TCP's checksum guards the maps of frames (SEMANTICS.md, last section).
File data and names have digests of their own."""


def usual() -> list[str]:
    """The kinds of a run that names none."""
    return [kind for kind in FAULTS if kind not in BEYOND]


def fault(uses: str, least_s: float, most_s: float) -> Callable[[Callable[[Rig, random.Random], Steps]], Any]:
    """``uses``: words; no two faults that share one overlap."""

    def note(function: Callable[[Rig, random.Random], Steps]) -> Any:
        FAULTS[function.__name__] = Fault(Shape(frozenset(uses.split()), (least_s, most_s)), function)
        return function

    return note


# --- the link ----------------------------------------------------------------------------------------------


def _on_the_wire(rig: Rig, **effects: Any) -> Steps:
    before = rig.network(effects)
    try:
        yield ""
    finally:
        after = rig.network({})
        if after != before:
            rig.note(f"{after - before} pieces damaged")


@fault("wire", 1, 3)
def wire_reset(rig: Rig, dice: random.Random) -> Steps:
    for _ in range(dice.randint(1, 4)):
        rig.network("reset")
        time.sleep(dice.uniform(0.05, 0.4))
    yield "all connections reset"


@fault("wire", 2, 16)
def wire_blackhole(rig: Rig, dice: random.Random) -> Steps:
    yield from _on_the_wire(rig, hold_up=True, hold_down=True, swallow=True)


@fault("wire", 2, 14)
def wire_blackhole_to_spoke(rig: Rig, dice: random.Random) -> Steps:
    yield from _on_the_wire(rig, hold_down=True)


@fault("wire", 2, 14)
def wire_blackhole_to_hub(rig: Rig, dice: random.Random) -> Steps:
    yield from _on_the_wire(rig, hold_up=True)


@fault("wire", 3, 14)
def wire_drip(rig: Rig, dice: random.Random) -> Steps:
    yield from _on_the_wire(rig, drip=True)


@fault("wire", 3, 8)
def wire_flip_data(rig: Rig, dice: random.Random) -> Steps:
    yield from _on_the_wire(rig, flip=["data"], flip_chance=dice.choice((0.01, 0.1, 0.5)))


@fault("wire", 3, 8)
def wire_flip_header(rig: Rig, dice: random.Random) -> Steps:
    yield from _on_the_wire(rig, flip=["header"], flip_chance=dice.choice((0.01, 0.1)))


@fault("wire", 3, 8)
def wire_flip_map(rig: Rig, dice: random.Random) -> Steps:
    """What is said about data, names and the hub's state."""
    yield from _on_the_wire(rig, flip=["map"], flip_chance=dice.choice((0.01, 0.1)))


@fault("wire", 3, 8)
def wire_flip_names(rig: Rig, dice: random.Random) -> Steps:
    """The rows of changes and snapshots themselves."""
    yield from _on_the_wire(rig, flip=["names"], flip_chance=0.5)


@fault("wire", 3, 8)
def wire_garbage(rig: Rig, dice: random.Random) -> Steps:
    yield from _on_the_wire(rig, garbage_chance=dice.choice((0.02, 0.3)))


@fault("wire", 3, 8)
def wire_duplicate(rig: Rig, dice: random.Random) -> Steps:
    yield from _on_the_wire(rig, duplicate_chance=dice.choice((0.02, 0.3)))


@fault("wire", 3, 14)
def wire_half_open(rig: Rig, dice: random.Random) -> Steps:
    rig.network("freeze")
    try:
        yield "connections there were carry nothing, new ones work"
    finally:
        rig.network("reset")


@fault("wire", 3, 8)
def wire_delay(rig: Rig, dice: random.Random) -> Steps:
    end_s = time.monotonic() + 2
    while time.monotonic() < end_s:
        rig.network({"delay_s": dice.choice((0.0, 0.05, 0.4, 1.0))})
        time.sleep(0.3)
    yield from _on_the_wire(rig, delay_s=0.3)


@fault("wire", 4, 14)
def wire_one_megabit(rig: Rig, dice: random.Random) -> Steps:
    yield from _on_the_wire(rig, rate_bytes_per_s=125_000)


# --- the hub -----------------------------------------------------------------------------------------------


def _hub_away(rig: Rig, number: signal.Signals, between: Callable[[], object] = lambda: None) -> Steps:
    with rig.hub_away():
        rig.end_hub(number)
        between()
        try:
            yield number.name
        finally:
            rig.start_hub()


@fault("hub", 0.5, 5)
def hub_killed(rig: Rig, dice: random.Random) -> Steps:
    yield from _hub_away(rig, signal.SIGKILL)


@fault("hub", 0.5, 5)
def hub_terminated(rig: Rig, dice: random.Random) -> Steps:
    yield from _hub_away(rig, signal.SIGTERM)


@fault("hub", 1, 5)
def hub_state_lost(rig: Rig, dice: random.Random) -> Steps:
    yield from _hub_away(rig, signal.SIGKILL, lambda: shutil.rmtree(rig.work / "hub-state"))


@fault("hub", 2, 16)
def hub_stopped(rig: Rig, dice: random.Random) -> Steps:
    rig.hub.send_signal(signal.SIGSTOP)
    try:
        yield "SIGSTOP"
    finally:
        rig.hub.send_signal(signal.SIGCONT)


# --- the spoke ---------------------------------------------------------------------------------------------


@fault("spoke", 1, 4)
def spoke_killed(rig: Rig, dice: random.Random) -> Steps:
    """The process that serves. Where another keeps the mount, that must go on by itself; else it is started again here."""
    worker = rig.worker_pid()
    if worker != rig.spoke.pid:
        before = rig.minors()
        os.kill(worker, signal.SIGKILL)
        yield f"worker {worker} killed"
        if rig.minors() != before:
            raise RigError(f"the mount did not outlive its worker: {before} became {rig.minors()}")
        return
    rig.restart_spoke()
    yield "killed, started again"


@fault("spoke", 1, 6)
def spoke_stopped(rig: Rig, dice: random.Random) -> Steps:
    worker = rig.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    try:
        yield f"SIGSTOP to {worker}"
    finally:
        os.kill(worker, signal.SIGCONT)


@fault("spoke", 1, 3)
def spoke_terminated(rig: Rig, dice: random.Random) -> Steps:
    rig.restart_spoke(signal.SIGTERM)
    yield "SIGTERM, started again"


@fault("spoke", 1, 3)
def umount_force(rig: Rig, dice: random.Random) -> Steps:
    with rig.spoke_away():
        done = subprocess.run(
            [sys.executable, "-m", "spoke.cli", "umount", "--force", str(rig.mountpoint)],
            capture_output=True, text=True, timeout=UMOUNT_S, check=False, cwd=ROOT,
        )  # fmt: skip
        if done.returncode or rig.minors():
            raise RigError(
                f"umount --force ended with {done.returncode}, mounts left {rig.minors()}: {done.stderr.strip()}"
            )
        rig.end_spoke()
        rig.start_spoke()
    yield done.stdout.strip()


@fault("spoke", 4, 8)
def spoke_small_cache(rig: Rig, dice: random.Random) -> Steps:
    """16 MiB: less than is being read."""
    usual, rig.cache_size = rig.cache_size, "16MiB"
    try:
        rig.restart_spoke(signal.SIGTERM)
        yield "cache of 16 MiB"
    finally:
        rig.cache_size = usual
        rig.restart_spoke(signal.SIGTERM)


@fault("spoke", 3, 8)
def spoke_few_descriptors(rig: Rig, dice: random.Random) -> Steps:
    worker = rig.worker_pid()
    before = resource.prlimit(worker, resource.RLIMIT_NOFILE)
    count = len(os.listdir(f"/proc/{worker}/fd"))
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (count + dice.randint(0, 4), before[1]))
    try:
        yield f"{count} descriptors open, hardly one more allowed"
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(worker, resource.RLIMIT_NOFILE, before)


# --- the cache ---------------------------------------------------------------------------------------------


def _pairs(rig: Rig) -> list[Path]:
    """Data files that hold something, largest last."""
    found = []
    for path in (rig.disk.cache / "versions").glob("*/*.data"):
        with contextlib.suppress(OSError):
            if path.stat().st_blocks:
                found.append((path.stat().st_size, path))
    return [path for _, path in sorted(found)]


def _damaged(rig: Rig, dice: random.Random, damage: Callable[[Path], object]) -> Steps:
    """Kill the spoke, damage a good part of the cached files, start it.

    The damaged file takes the place of the old one: a reader that has mapped that one through the dead mount (passthrough maps
    the cache's own file) keeps what it was given.
    """
    end_s = time.monotonic() + FILLING_S
    while len(_pairs(rig)) < ENOUGH_PAIRS and time.monotonic() < end_s and not rig.stopping:
        time.sleep(0.2)  # the cache is young: let it have something to lose
    with rig.spoke_away():
        rig.end_spoke()
        pairs = _pairs(rig)
        chosen = dice.sample(pairs, min(len(pairs), 3 + len(pairs) // 2))
        for path in chosen:
            for one in (path, path.with_suffix(".index")):
                draft = one.with_suffix(".copy")
                if not _run("cp", "--sparse=always", "--preserve=mode", str(one), str(draft)):
                    draft.replace(one)
            damage(path)
        rig.start_spoke()
    yield f"{len(chosen)} of {len(pairs)} cached files damaged"


def _flip(path: Path, dice: random.Random, count: int) -> None:
    with path.open("r+b") as file:
        size = path.stat().st_size
        for _ in range(count):
            at = dice.randrange(size)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << dice.randrange(8)]))


@fault("spoke cache", 1, 4)
def cache_data_flipped(rig: Rig, dice: random.Random) -> Steps:
    yield from _damaged(rig, dice, lambda path: _flip(path, dice, 40))


@fault("spoke cache", 1, 4)
def cache_index_flipped(rig: Rig, dice: random.Random) -> Steps:
    yield from _damaged(rig, dice, lambda path: _flip(path.with_suffix(".index"), dice, 20))


@fault("spoke cache", 1, 4)
def cache_blocks_swapped(rig: Rig, dice: random.Random) -> Steps:
    def swap(path: Path) -> None:
        blocks = path.stat().st_size // BLOCK_BYTES
        with path.open("r+b") as file:
            for _ in range(20 if blocks > 1 else 0):
                one = dice.randrange(blocks - 1)
                file.seek(one * BLOCK_BYTES)
                both = file.read(2 * BLOCK_BYTES)
                file.seek(one * BLOCK_BYTES)
                file.write(both[BLOCK_BYTES:] + both[:BLOCK_BYTES])

    yield from _damaged(rig, dice, swap)


@fault("spoke cache", 1, 4)
def cache_data_truncated(rig: Rig, dice: random.Random) -> Steps:
    def truncate(path: Path) -> None:
        size = path.stat().st_size
        os.truncate(path, dice.randrange(size))
        if dice.random() < 0.5:
            os.truncate(path, size)  # the length is right again, the end is zeros

    yield from _damaged(rig, dice, truncate)


@fault("spoke cache", 1, 4)
def cache_data_zeroed(rig: Rig, dice: random.Random) -> Steps:
    def zero(path: Path) -> None:
        size = path.stat().st_size
        start = dice.randrange(size)
        with path.open("r+b") as file:
            file.seek(start)
            file.write(bytes(min(size - start, dice.randint(1, 1 << 20))))

    yield from _damaged(rig, dice, zero)


@fault("spoke cache", 1, 4)
def cache_data_older(rig: Rig, dice: random.Random) -> Steps:
    """Another version's bytes, under this one's name and length."""

    def older(path: Path) -> None:
        # Asked for here, not before: the cache may have been empty then, and have filled while the fault waited for that.
        size, other = path.stat().st_size, dice.choice(_pairs(rig))
        if other != path and other.exists():
            shutil.copyfile(other, path)
            os.truncate(path, size)

    yield from _damaged(rig, dice, older)


@fault("spoke cache", 3, 8)
def cache_put_back(rig: Rig, dice: random.Random) -> Steps:
    """The whole directory, from a backup taken some seconds ago: names, index and data, all right once."""
    backup = rig.work / "backup"
    with rig.spoke_away():
        rig.end_spoke()
        shutil.copytree(rig.disk.cache, backup, dirs_exist_ok=True)
        rig.start_spoke()
    try:
        yield "copied"
        with rig.spoke_away():
            rig.end_spoke()
            shutil.rmtree(rig.disk.cache)
            shutil.copytree(backup, rig.disk.cache)
            os.chmod(rig.disk.cache, 0o700)
            rig.start_spoke()
    finally:
        shutil.rmtree(backup, ignore_errors=True)


@fault("cache", 1, 4)
def cache_files_deleted(rig: Rig, dice: random.Random) -> Steps:
    pairs = _pairs(rig)
    chosen = dice.sample(pairs, len(pairs) // 2)
    for path in chosen:
        for name in (path, path.with_suffix(".index")):
            if dice.random() < 0.7:
                name.unlink(missing_ok=True)
    yield f"some of {len(chosen)} pairs unlinked under the running spoke"


@fault("spoke cache", 2, 6)
def cache_removed(rig: Rig, dice: random.Random) -> Steps:
    end_s = time.monotonic() + FILLING_S
    while rig.disk.cache.exists() and time.monotonic() < end_s:  # the spoke may write while it is removed
        shutil.rmtree(rig.disk.cache, ignore_errors=True)
    yield "removed under the running spoke"
    rig.restart_spoke(signal.SIGTERM)


@fault("cache", 3, 8)
def cache_disk_full(rig: Rig, dice: random.Random) -> Steps:
    if rig.disk.kind == "directory":
        raise Skipped("needs a file system of its own for the cache (root)")
    ballast = rig.disk.root / "ballast"
    with ballast.open("wb") as file:
        step = 8 << 20
        while step >= 4096:
            try:
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), step)
            except OSError:
                step //= 2
    try:
        yield f"{ballast.stat().st_size >> 20} MiB of ballast"
    finally:
        ballast.unlink()


@fault("cache", 3, 8)
def cache_disk_read_only(rig: Rig, dice: random.Random) -> Steps:
    """A remount where nobody has a file open for writing; else every file and directory immutable, which refuses the same."""
    if rig.disk.kind == "directory":
        raise Skipped("needs a file system of its own for the cache (root)")
    if not _run("mount", "-o", "remount,ro", str(rig.disk.root)):
        try:
            yield "remounted read-only"
        finally:
            _run("mount", "-o", "remount,rw", str(rig.disk.root))
        return
    if rig.disk.kind != "ext4":
        raise Skipped("files are open for writing, and tmpfs knows no immutable ones")
    _run("chattr", "-R", "-f", "+i", str(rig.disk.cache))
    try:
        yield "all immutable"
    finally:
        _run("chattr", "-R", "-f", "-i", str(rig.disk.cache))


@fault("spoke cache", 2, 5)
def cache_power_cut(rig: Rig, dice: random.Random) -> Steps:
    """The disk answers EIO to everything for a while; what was not on it is lost; then the spoke and the disk start anew."""
    if rig.disk.kind != "ext4":
        raise Skipped("needs ext4 on a loop device (root, mkfs.ext4)")
    rig.disk.cut_power()
    try:
        yield "every access is EIO"
    finally:
        with rig.spoke_away():
            rig.end_spoke()
            rig.disk.unmount()
            if rig.disk.mount():
                raise RigError("the cache's disk cannot be mounted again")
            _run(
                "chattr", "-R", "-f", "-i", str(rig.disk.cache)
            )  # that it was mutable again may be among what was lost
            rig.start_spoke()


# --- the files at the hub ----------------------------------------------------------------------------------


@fault("data", 1, 4)
def data_rewritten(rig: Rig, dice: random.Random) -> Steps:
    paths = dice.sample(rig.data.big, 3)
    for path in paths:
        rig.data.rewrite(path)
    yield f"rewrote {', '.join(paths)} in place"


@fault("data", 1, 4)
def data_truncated(rig: Rig, dice: random.Random) -> Steps:
    path = dice.choice(rig.data.big)
    size = rig.data.size_bytes(path)
    rig.data.truncate(path, dice.randrange(size // 2, size))
    yield f"truncated {path}"
    rig.data.append(path, size // 4)


@fault("data", 1, 4)
def data_replaced(rig: Rig, dice: random.Random) -> Steps:
    for path in rig.data.big:
        rig.data.replace(path, rig.data.size_bytes(path) if dice.random() < 0.5 else dice.randint(1 << 20, 12 << 20))
    yield "all big files replaced by rename, some of the same size"


@fault("data", 2, 6)
def data_permission_lost(rig: Rig, dice: random.Random) -> Steps:
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        raise Skipped("needs setpriv (util-linux): root reads whatever the mode")
    paths = [rig.data.root / path for path in (*dice.sample(rig.data.big, 2), *rig.data.steady[:1])]
    for path in paths:
        path.chmod(0)
    try:
        yield f"mode 000 on {', '.join(path.name for path in paths)}"
    finally:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                path.chmod(0o644)


@fault("data", 2, 6)
def data_mass_deletion(rig: Rig, dice: random.Random) -> Steps:
    gone = [path for path in rig.data.small if rig.data.exists(path) and dice.random() < 0.9]
    for path in gone:
        rig.data.remove(path) if rig.data.exists(path) else None
    yield f"{len(gone)} names deleted at once"
    for path in gone:
        if not rig.data.exists(path):
            rig.data.replace(path, dice.choice((100, 4096, 20_000)))
    time.sleep(0.5)
    rig.ask("accept")


@fault("data", 1, 3)
def data_clock_jump(rig: Rig, dice: random.Random) -> Steps:
    """What a clock that jumps leaves behind: times in the far past and future, on unchanged bytes."""
    for path in (*rig.data.big, *dice.sample(rig.data.small, 30)):
        rig.data.jump_mtime(path, dice.choice((0.0, 1e9, 4e9)))
    yield "mtimes in 1970, 2001 and 2096"


# --- those who look on -------------------------------------------------------------------------------------


@fault("readers", 2, 6)
def reader_killed(rig: Rig, dice: random.Random) -> Steps:
    """While it waits, if one does."""
    assert rig.slots is not None
    end_s = time.monotonic() + 1.5
    index = dice.randrange(len(rig.reader_kinds))
    while time.monotonic() < end_s:
        waiting = [
            number
            for number, (_, slot) in enumerate(rig.reader_kinds)
            if 0 < rig.slots.see(slot).busy_since_s < time.monotonic() - 0.1
        ]
        if waiting:
            index = dice.choice(waiting)
            break
        time.sleep(0.01)
    took_s = rig.kill_reader(index)
    rig.note(f"reader {rig.reader_kinds[index][0]} died in {took_s * 1000:.0f} ms")
    rig.longest_death_s = max(rig.longest_death_s, took_s)
    rig.start_reader(index)
    yield ""


@fault("scrape", 2, 6)
def metrics_scraped(rig: Rig, dice: random.Random) -> Steps:
    """In a loop, while other things break."""
    end_s, pages, failed = time.monotonic() + 2, 0, 0
    while time.monotonic() < end_s:
        try:
            rig.scrape()
            pages += 3
        except Exception:  # noqa: BLE001 a spoke that is being restarted answers in many ways
            failed += 1
            time.sleep(0.2)
    yield f"{pages} pages, {failed} attempts without an answer"


def _run(*command: str) -> int:
    return subprocess.run(command, capture_output=True, check=False).returncode
