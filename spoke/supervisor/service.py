"""The supervisor's line to systemd: signs of life, and the descriptors that systemd keeps for the next supervisor.

With ``FileDescriptorStoreMax=`` in the unit (systemd 254 or newer says so in $FDSTORE) the device and the ledger lie with systemd as
well. A supervisor that is restarted, or dies, leaves the mount as it is, and the next one gets both back.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from common.limits import SERVICE_JOBS_TIMEOUT_S
from common.notify import message, socket_address, watchdog_s

FD_NAMES = ("headrace-device", "headrace-ledger")
_FIRST_FD = 3  # SD_LISTEN_FDS_START of sd_listen_fds(3)


class Service:
    """Made once: it takes the variables away, so that no worker speaks in our name."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self.watchdog_s = watchdog_s(environ, os.getpid())
        self._address = socket_address(environ.get("NOTIFY_SOCKET", ""))
        stored_max = environ.get("FDSTORE", "")
        self.keeps_descriptors = (
            self._address is not None and stored_max.isdecimal() and int(stored_max) >= len(FD_NAMES)
        )
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "FDSTORE"):
            environ.pop(name, None)

    @property
    def listens(self) -> bool:
        return self._address is not None

    def tell(self, fds: Sequence[int] = (), **fields: str | int) -> None:
        """Never raises: what systemd misses it asks for, or the next sign brings."""
        if self._address is None:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
            speaker.settimeout(1.0)
            speaker.connect(self._address)
            socket.send_fds(speaker, [message(**fields)], list(fds))

    def store(self, fds: Sequence[int]) -> None:
        if self.keeps_descriptors:
            for name, fd in zip(FD_NAMES, fds, strict=True):
                self.tell([fd], FDSTORE=1, FDNAME=name)

    def forget_stored(self) -> None:
        if self.keeps_descriptors:
            for name in FD_NAMES:
                self.tell(FDSTOREREMOVE=1, FDNAME=name)

    def restart_is_queued(self) -> bool:
        """systemd stops this unit only to start it again. False also when it does not say in time."""
        unit = _unit(Path("/proc/self/cgroup"))
        if not self.keeps_descriptors or not unit:
            return False
        try:
            done = subprocess.run(
                ["systemctl", "list-jobs", "--no-legend", "--no-pager", "--plain"],
                capture_output=True, text=True, timeout=SERVICE_JOBS_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return False
        return is_restarting(done.stdout, unit)


def is_restarting(jobs: str, unit: str) -> bool:
    """``jobs``: lines of ``systemctl list-jobs``: number, unit, type, state."""
    return any(line.split()[1:3] in ([unit, "restart"], [unit, "try-restart"]) for line in jobs.splitlines())


def _unit(cgroup_file: Path) -> str:
    override = os.environ.get("HEADRACE_UNIT", "")
    if override:
        return override
    with contextlib.suppress(OSError):
        for part in reversed(cgroup_file.read_text("utf-8", "replace").strip().split("/")):
            if part.endswith(".service"):
                return part
    return ""


def stored_descriptors(environ: MutableMapping[str, str]) -> list[int] | None:
    """Device and ledger as systemd gives them back (sd_listen_fds(3)); None: it has none of ours. Others it gave are left alone."""
    if environ.get("LISTEN_PID") != str(os.getpid()) or not environ.get("LISTEN_FDS", "").isdecimal():
        return None
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    found = {name: _FIRST_FD + index for index, name in enumerate(names[: int(environ["LISTEN_FDS"])])}
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        environ.pop(name, None)
    ours = [found[name] for name in FD_NAMES if name in found]
    for fd in ours:
        os.set_inheritable(fd, False)
    if len(ours) != len(FD_NAMES):
        for fd in ours:
            os.close(fd)
        return None
    return ours
