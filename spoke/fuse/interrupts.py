"""When a waiting READ is given up because its reader is: INTERRUPT, judged.

The kernel sends INTERRUPT for any signal with a handler, once, and then waits for the answer whatever else happens.
No ordinary signal ends a read of a local file, and programs rely on it (where a page fault waits for its READ like
this, an EINTR would reach the job as SIGBUS), so none ends a read here; a SIGKILL must, at once. The killed thread shows
SIGKILL pending in /proc, also when the kill comes after another signal: so it is looked at until then. A reader that
cannot be seen (another pid namespace) gets a grace in which most reads end by themselves.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

CHECK_INTERVAL_S = 0.2
UNSEEN_GRACE_S = 0.7
_PENDING_FIELDS = ("SigPnd:", "ShdPnd:")


def is_killed(task_id: int, process_files: Path = Path("/proc")) -> bool:
    """The thread is gone, or has a SIGKILL coming."""
    try:
        status = (process_files / str(task_id) / "status").read_text("utf-8", "replace")
    except OSError:
        return True
    return any(
        int(line.split()[1], 16) >> (signal.SIGKILL - 1) & 1
        for line in status.splitlines()
        if line.startswith(_PENDING_FIELDS)
    )


class Interrupts:
    """Which waiting READs were interrupted; calls ``give_up(unique)`` for those whose reader is killed."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, give_up: Callable[[int], None], killed: Callable[[int], bool] = is_killed
    ) -> None:
        self._loop = loop
        self._give_up = give_up
        self._killed = killed
        self._task_ids: dict[int, int] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def started(self, unique: int, task_id: int) -> None:
        """A READ begins to wait."""
        self._task_ids[unique] = task_id

    def finished(self, unique: int) -> None:
        self._task_ids.pop(unique, None)
        timer = self._timers.pop(unique, None)
        if timer is not None:
            timer.cancel()

    def arrived(self, unique: int) -> None:
        """The kernel sent INTERRUPT for a waiting READ."""
        if unique in self._timers or unique not in self._task_ids:
            return
        if self._task_ids[unique] == 0:
            self._timers[unique] = self._loop.call_later(UNSEEN_GRACE_S, self._give_up, unique)
        else:
            self._look(unique)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _look(self, unique: int) -> None:
        if self._killed(self._task_ids[unique]):
            self._give_up(unique)
        else:
            self._timers[unique] = self._loop.call_later(CHECK_INTERVAL_S, self._look, unique)
