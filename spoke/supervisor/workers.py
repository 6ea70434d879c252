"""One worker as its supervisor sees it: a process, a channel, and when it last gave a sign of life."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

from common import limits
from spoke.supervisor.channel import Channel

CHANNEL_VARIABLE = "HEADRACE_SUPERVISOR_FD"
"""In a worker's environment: its end of the channel."""


class Worker:
    """``answered``: it answers the kernel. ``served``: it has come up whole. ``standby``: it waits for the word to take over."""

    def __init__(self, pid: int, channel: Channel, now_s: float, *, standby: bool = False) -> None:
        self.pid = pid
        self.channel = channel
        self.pidfd = os.pidfd_open(pid)
        self.started_s = now_s
        self.alive_s = now_s
        self.began_s = now_s
        """When it was told to take the mount, or made."""
        self.standby = standby
        self.prepared = False
        self.answered = False
        self.served = False
        self.failure = ""
        self.exit_code = 1
        self.aborted_s: float | None = None
        self.looked_s = now_s
        """When it was last looked at, what is left of it."""

    @classmethod
    def start(cls, command: Sequence[str], now_s: float, *, standby: bool) -> Worker:
        """Raises OSError: the interpreter is gone, or there is no memory."""
        ours, theirs = Channel.pair()
        fd = theirs.detach()
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                pass_fds=[fd],
                env={**os.environ, CHANNEL_VARIABLE: str(fd)},
                process_group=0,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(fd)
        process.returncode = 0  # reaped by us: its destructor need not
        return cls(process.pid, ours, now_s, standby=standby)

    @property
    def look_s(self) -> float:
        """When to look whether it is dead, if it stays silent: its end is not told while the kernel holds a thread of it."""
        return max(self.alive_s, self.looked_s) + limits.SUPERVISED_LOOK_AFTER_S

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def reap(self) -> int:
        """Its exit code, negative for a signal; call it when the pidfd is readable."""
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return 1
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        self.channel.close()
        os.close(self.pidfd)


def how_it_ended(code: int) -> str:
    """For people."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
