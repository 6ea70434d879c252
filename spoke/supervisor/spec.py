"""What a supervisor is started with, and how it logs."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

Say = Callable[..., None]


@dataclass
class Spec:
    """What the command hands over. ``command`` starts a worker; ``take_away`` unmounts by force. ``ready_fd``: where a background
    start is reported, -1: on stdout. ``device_fd`` and ``ledger_fd``: of a mount to go on with, -1 without one. ``log_path``: our
    stderr, where it is ours to bound and remove; else empty."""

    mountpoint: str
    command: list[str]
    take_away: list[str]
    control_path: str
    worker_pid: int
    channel_fd: int
    ready_fd: int = -1
    device_fd: int = -1
    ledger_fd: int = -1
    log_path: str = ""
    log_json: bool = True
    hangup_stops: bool = False
    hangup_ignored: bool = False


def make_say(as_json: bool) -> Say:
    """Lines like those of common.log, which needs more than the standard library."""

    def say(level: str, event: str, **facts: object) -> None:
        shown = {name: value for name, value in facts.items() if value is not None}
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + f".{time.time_ns() // 1000 % 1_000_000:06d}Z"
        if as_json:
            line = json.dumps(
                {**shown, "module": "spoke.supervisor", "event": event, "level": level, "timestamp": stamp}
            )
        else:
            line = f"{stamp} [{level:<8}] {event} " + " ".join(f"{name}={value}" for name, value in shown.items())
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    return say
