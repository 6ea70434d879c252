"""The edge of a process: the event loop, the clock, signals, threads' names.

Only this module (and the daemons that call it) reads a clock; everything below is told what time it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

import uvloop

from common import limits
from common.buffers import EXTENT_BUFFERS

ResultT = TypeVar("ResultT")

now_s: Callable[[], float] = time.monotonic
"""Seconds on a clock that never goes back; comparable only within this process."""


sleep: Callable[[float], None] = time.sleep
"""For commands that have no event loop."""


def wall_time_s() -> float:
    """Seconds since the epoch, for showing to people only."""
    return time.time()


def thread_cpu_s() -> float:
    """CPU time of the thread that asks, in seconds."""
    return time.thread_time()


# mallopt(3): parameter numbers from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory(trim_threshold_bytes: int) -> None:
    """Let malloc keep what is freed for the next buffer, up to ``trim_threshold_bytes`` at the top of the heap.

    Buffers of 1 MiB come and go a thousand times a second; given back to the kernel and asked for again each time, their
    page faults cost as much as the copying. ``give_back_memory`` undoes it when a daemon has become idle.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc: nothing to tune
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_THRESHOLD, 32 * 1024 * 1024)
        libc.mallopt(_M_TRIM_THRESHOLD, trim_threshold_bytes)


def give_back_memory() -> None:
    """Return free heap memory to the kernel (malloc_trim(3)), kept buffers too; some milliseconds."""
    EXTENT_BUFFERS.forget()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def allow_all_descriptors() -> None:
    """Raise the soft limit on open files to the hard one: connections, cached files and what is lent to the kernel all take some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_descriptors() -> tuple[int, int]:
    """How many this process has, and how many it may have."""
    try:
        count = len(os.listdir("/proc/self/fd"))
    except OSError:
        count = 0
    return count, resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a daemon's main coroutine on a uvloop event loop until it ends."""
    allow_all_descriptors()
    keep_freed_memory(limits.HEAP_KEPT_BYTES)
    gc.set_threshold(*limits.COLLECTOR_THRESHOLDS)
    sys.setswitchinterval(limits.THREAD_SWITCH_S)
    return uvloop.run(main)


def leave_threads_behind() -> NoReturn:
    """End the process in order although a thread is inside a call that does not return (a disk that hangs)."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def stop_on_signals(stop: asyncio.Event) -> None:
    """Set ``stop`` at the first SIGTERM, SIGINT or SIGHUP; a second one of the same kind kills as usual.

    A SIGHUP that is ignored from the start (nohup, a daemon without a terminal) stays ignored.
    """
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        stop.set()
        loop.remove_signal_handler(number)

    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    for number in (signal.SIGTERM, signal.SIGINT, *hangup):
        loop.add_signal_handler(number, on_signal, number)


def settle_memory() -> None:
    """Take what is loaded now out of the garbage collector's sight.

    A tree of a million names makes a full collection take 0.3 to 0.9 s, and all readers wait meanwhile; frozen, it costs
    microseconds. What is frozen is still freed by reference counts.
    """
    gc.collect()
    gc.freeze()


async def cancel_and_wait(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until they have ended; their own errors were somebody else's to report."""
    pending = [task for task in tasks if task is not None and not task.done()]
    for task in pending:
        task.cancel()
    for task in pending:
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


def settle(future: asyncio.Future[None], error: Exception | None) -> None:
    """End a future that somebody may have stopped waiting for already."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # retrieved: nobody need be waiting
