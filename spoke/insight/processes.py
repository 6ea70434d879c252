"""Who a thread id is, read from /proc in a thread of its own, cached, bounded.

A reader is looked at while it waits, so that its id cannot have passed to another meanwhile; an answer older than
PROCESS_CHECK_S is looked at again before it is believed. Of an environment only RANK and, in a pod, HOSTNAME are kept;
command lines, which may hold secrets, are not read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import limits
from spoke.insight.who import UNKNOWN, Process, group_of, rank_from

_ANCESTORS = 4
_PROC = Path("/proc")


def look(task_id: int, proc: Path = _PROC) -> Process:
    """The process of a thread, UNKNOWN if it is gone. Blocking: reads /proc."""
    try:
        status = _fields(proc / str(task_id) / "status")
        pid = int(status["Tgid"])
        home = proc / str(pid)
        started_ticks = int((home / "stat").read_text(errors="replace").rpartition(")")[2].split()[19])
        name = (home / "comm").read_text(errors="replace").strip()
    except (OSError, KeyError, ValueError, IndexError):
        return UNKNOWN
    group, pod, container = "unknown", "", ""
    with contextlib.suppress(OSError):
        group, pod, container = group_of((home / "cgroup").read_text(errors="replace"))
    wanted = _environment(home / "environ")
    ancestors: list[int] = []
    parent = int(status.get("PPid", "0"))
    while parent > 1 and len(ancestors) < _ANCESTORS:
        ancestors.append(parent)
        try:
            parent = int(_fields(proc / str(parent) / "status")["PPid"])
        except (OSError, KeyError, ValueError):
            break
    if pod:
        pod = wanted.get("HOSTNAME") or pod
    return Process(pid, started_ticks, name, group, pod, container, rank_from(wanted.get("RANK")), tuple(ancestors))


def _fields(path: Path) -> dict[str, str]:
    lines = path.read_text(errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _environment(path: Path) -> dict[str, str]:
    """RANK and HOSTNAME alone; empty where another user's may not be read."""
    try:
        with path.open("rb") as file:
            data = file.read(limits.PROCESS_ENVIRONMENT_MAX_BYTES)
    except OSError:
        return {}
    found: dict[str, str] = {}
    for entry in data.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name in (b"RANK", b"HOSTNAME"):
            found[name.decode()] = value[:253].decode(errors="replace")
    return found


class Processes:
    """``known`` answers from memory; ``ask`` has a thread look, and tells ``on_known``. Of the event loop, but for the looking."""

    def __init__(
        self, clock: Callable[[], float], on_known: Callable[[int], None], see: Callable[[int], Process] = look
    ) -> None:
        self._clock = clock
        self._on_known = on_known
        self._see = see
        self._known: OrderedDict[int, tuple[float, Process]] = OrderedDict()
        self._asked: set[int] = set()
        self._pool: ThreadPoolExecutor | None = None

    def known(self, task_id: int) -> Process | None:
        """None: not looked at yet, or too long ago, and worth waiting for."""
        if task_id <= 0:
            return UNKNOWN
        if task_id in self._asked:
            return None
        found = self._known.get(task_id)
        return found[1] if found is not None else None

    def ask(self, task_id: int) -> None:
        """Have it looked at unless that was just done; call when the reader begins to wait."""
        if task_id <= 0 or task_id in self._asked:
            return
        found = self._known.get(task_id)
        if found is not None and self._clock() - found[0] < limits.PROCESS_CHECK_S:
            return
        if len(self._asked) >= limits.PROCESSES_ASKED_MAX:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "who reads")
        self._asked.add(task_id)
        looking = asyncio.get_running_loop().run_in_executor(self._pool, self._see, task_id)
        looking.add_done_callback(lambda done: self._seen(task_id, done))

    def _seen(self, task_id: int, done: asyncio.Future[Process]) -> None:
        self._asked.discard(task_id)
        if done.cancelled():
            return
        process = UNKNOWN if done.exception() is not None else done.result()
        known = self._known.pop(task_id, None)
        if process is UNKNOWN and known is not None and self._clock() - known[0] < 2 * limits.PROCESS_CHECK_S:
            process = known[1]  # it read a moment ago, and has ended since
        self._known[task_id] = (self._clock(), process)
        if len(self._known) > limits.PROCESSES_MAX:
            self._known.popitem(last=False)
        self._on_known(task_id)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
