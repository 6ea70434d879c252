"""The notifier's queue, passthrough's verdicts, and interrupts, each against a fake of what they drive."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spoke.fuse import interrupts, kernel, passthrough
from spoke.fuse.interrupts import Interrupts
from spoke.fuse.notifier import Notifier
from spoke.fuse.passthrough import Passthrough


class Device:
    """Takes notifications; ``errors`` are raised in turn; blocked while ``gate`` is clear."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.errors: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def write(self, data: bytes) -> None:
        self.entered.set()
        assert self.gate.wait(10)
        self.seen.append(data)
        if self.errors:
            code = self.errors.pop(0)
            if code:
                raise OSError(code, os.strerror(code))


def test_notifications_are_written_in_order() -> None:
    device = Device()
    notifier = Notifier(device.write)
    notifier.start(True, tuple)
    notifier.entry(1, b"a")
    notifier.attributes(5)
    notifier.deleted(1, 9, b"b")
    assert notifier.flush(5)
    assert device.seen == [kernel.notify_entry(1, b"a"), kernel.notify_attributes(5), kernel.notify_delete(1, 9, b"b")]
    assert notifier.close(5)


def test_what_is_not_cached_is_fine_and_a_directory_in_use_is_forgotten() -> None:
    device = Device()
    device.errors = [errno.ENOENT, errno.ENOTEMPTY, 0, errno.EINVAL]
    notifier = Notifier(device.write)
    notifier.start(True, tuple)
    notifier.entry(1, b"a")
    notifier.deleted(1, 9, b"d")
    notifier.attributes(3)
    notifier.entry(1, b"after an error that is our bug")
    assert notifier.flush(5)
    assert device.seen[1:3] == [kernel.notify_delete(1, 9, b"d"), kernel.notify_entry(1, b"d")]
    assert device.seen[4] == kernel.notify_entry(1, b"after an error that is our bug")
    assert notifier.close(5)


@pytest.mark.parametrize("epoch", [True, False])
def test_overflow_forgets_everything(epoch: bool) -> None:
    device = Device()
    device.gate.clear()
    notifier = Notifier(device.write, max_queued=3)
    notifier.start(epoch, lambda: [(1, b"x"), (1, b"y")])
    notifier.entry(1, b"first")
    assert device.entered.wait(5)  # taken, and stuck in the kernel
    for number in range(4):
        notifier.entry(1, b"%d" % number)
    device.gate.set()
    assert notifier.flush(5)
    everything = [kernel.notify_epoch()] if epoch else [kernel.notify_entry(1, b"x"), kernel.notify_entry(1, b"y")]
    assert device.seen == [kernel.notify_entry(1, b"first"), *everything, kernel.notify_entry(1, b"3")]
    assert notifier.overflows_total == 1
    assert notifier.close(5)


def test_a_connection_that_is_gone_ends_the_thread_and_nothing_piles_up() -> None:
    device = Device()
    device.errors = [errno.ENODEV]
    notifier = Notifier(device.write)
    notifier.start(True, tuple)
    notifier.entry(1, b"a")
    assert notifier.flush(5)
    notifier.entry(1, b"b")
    assert notifier.flush(5)
    assert device.seen == [kernel.notify_entry(1, b"a")]
    assert notifier.close(5)


def test_close_says_when_a_notification_hangs() -> None:
    device = Device()
    device.gate.clear()
    notifier = Notifier(device.write)
    notifier.start(True, tuple)
    notifier.entry(1, b"a")
    assert device.entered.wait(5)
    assert not notifier.close(0.02)
    device.gate.set()
    assert notifier.close(5)


class Backing:
    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.closed: list[int] = []
        self.opened = 0

    def open(self, fd: int) -> int:
        code = self.codes.pop(0) if self.codes else 0
        if code:
            raise OSError(code, os.strerror(code))
        self.opened += 1
        return self.opened

    def close(self, backing_id: int) -> None:
        self.closed.append(backing_id)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.EPERM, "CAP_SYS_ADMIN"),
        (errno.EOPNOTSUPP, "does not support"),
        (errno.ELOOP, "overlayfs"),
        (errno.ENOSPC, "ENOSPC"),
    ],
)
def test_a_failed_probe_says_why(code: int, said: str) -> None:
    road = Passthrough(Backing(code))
    road.probe(True, 0)
    assert said in road.status().reason
    assert not road.wished
    road.probe(True, 0)  # for good
    assert not road.status().live


def test_not_negotiated_or_known_before() -> None:
    road = Passthrough(Backing())
    road.probe(False, 0)
    assert "6.9" in road.status().reason
    road = Passthrough(Backing(), passthrough.why_not(False, Path("/")))
    assert (road.wished, road.status().reason) == (False, "turned off by configuration")
    assert passthrough.why_not(True, None) == "no cache directory to read from"


def test_one_failure_is_not_the_end_unless_it_is_about_the_kernel() -> None:
    backing = Backing(0, errno.EMFILE, 0, errno.EPERM)
    road = Passthrough(backing)
    road.probe(True, 0)
    assert road.acquire(b"v", 3) is None
    assert road.status().live
    assert road.acquire(b"v", 3) == road.acquire(b"v", 4) == 2
    assert road.acquire(b"w", 3) is None
    assert not road.status().live
    road.release(b"v")
    assert backing.closed == [1]
    road.release(b"v")
    assert backing.closed == [1, 2]
    assert road.open_versions == 0


class Timer:
    def __init__(self, timers: list[Any], timer: object) -> None:
        self.timers = timers
        self.timer = timer

    def cancel(self) -> None:
        if self.timer in self.timers:
            self.timers.remove(self.timer)


class Clock:
    """Collects timers; ``advance`` runs those that are due."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[..., None], tuple[object, ...]]] = []

    def call_later(self, delay_s: float, call: Callable[..., None], *arguments: object) -> asyncio.TimerHandle:
        timer = (self.now_s + delay_s, call, arguments)
        self.timers.append(timer)

        return Timer(self.timers, timer)  # type: ignore[return-value]

    def advance(self, duration_s: float) -> None:
        self.now_s += duration_s
        for timer in [timer for timer in self.timers if timer[0] <= self.now_s]:
            self.timers.remove(timer)
            timer[1](*timer[2])


def test_interrupts() -> None:
    clock, killed, given_up = Clock(), set[int](), list[int]()
    watch = Interrupts(clock, given_up.append, lambda task_id: task_id in killed)  # type: ignore[arg-type]
    for unique, task_id in ((1, 11), (2, 12), (3, 0), (4, 14)):
        watch.started(unique, task_id)
    killed.add(11)
    for unique in (1, 2, 3, 4, 99):
        watch.arrived(unique)
    assert given_up == [1]  # killed: at once
    watch.finished(4)
    killed.add(14)
    clock.advance(interrupts.CHECK_INTERVAL_S)
    assert given_up == [1]  # an ordinary signal does not end a read
    killed.add(12)
    clock.advance(interrupts.CHECK_INTERVAL_S)
    assert given_up == [1, 2]
    clock.advance(interrupts.UNSEEN_GRACE_S)
    assert given_up == [1, 2, 3]
    assert interrupts.UNSEEN_GRACE_S + interrupts.CHECK_INTERVAL_S < 1
    watch.close()
    assert not clock.timers


def test_who_is_killed(tmp_path: Path) -> None:
    def status(pending: int, shared: int) -> None:
        (tmp_path / "5").mkdir(exist_ok=True)
        (tmp_path / "5/status").write_text(
            f"Name:\tx\nSigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t0000000000000100\n"
        )

    status(0, 0)
    assert not interrupts.is_killed(5, tmp_path)
    status(1 << 9, 1 << 9)  # SIGUSR1
    assert not interrupts.is_killed(5, tmp_path)
    status(1 << 8, 0)
    assert interrupts.is_killed(5, tmp_path)
    status(0, 1 << 8)
    assert interrupts.is_killed(5, tmp_path)
    assert interrupts.is_killed(6, tmp_path)
    assert not interrupts.is_killed(os.getpid())
