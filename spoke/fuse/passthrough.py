"""Kernel passthrough: an open of a whole, verified version is handed to the kernel as a backing file.

Owns the backing ids (one for each version, counted by open handles) and the verdict whether passthrough is live, or
why not. A verdict against it stands for the life of the mount; the plain path then serves every open.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from pathlib import Path
from typing import NamedTuple, Protocol

from common.limits import FUSE_BACKING_IDS_SEARCHED
from common.log import get_logger
from spoke.fuse.kernel import BACKING_CLOSE, BACKING_OPEN, pack_backing_id, pack_backing_map

log = get_logger(__name__)

_CAP_SYS_ADMIN = 21
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EBADF, errno.EINTR, errno.ENOSPC})
"""Failures of one attempt; any other errno of BACKING_OPEN is about this kernel, these rights or this file system."""

_REASONS = {
    errno.EPERM: "the kernel refuses: CAP_SYS_ADMIN in the initial user namespace is needed",
    errno.EOPNOTSUPP: "the kernel or the cache's file system does not support it",
    errno.ENOTTY: "the kernel does not know the ioctl (Linux 6.9 or newer is needed)",
    errno.ELOOP: "the cache directory is on a stacked file system (overlayfs); put it on a plain one",
}


class PassthroughStatus(NamedTuple):
    """``reason``: why not; empty when live."""

    live: bool
    reason: str


class Backing(Protocol):
    """The two ioctls. ``open`` raises OSError."""

    def open(self, fd: int) -> int: ...

    def close(self, backing_id: int) -> None: ...


class DeviceBacking:
    """The ioctls on a /dev/fuse descriptor, which stays its owner's."""

    def __init__(self, device_fd: int) -> None:
        self._device_fd = device_fd

    def open(self, fd: int) -> int:
        # A mutable argument makes fcntl.ioctl return the call's own result: the backing id.
        return int(fcntl.ioctl(self._device_fd, BACKING_OPEN, pack_backing_map(fd), True))

    def close(self, backing_id: int) -> None:
        fcntl.ioctl(self._device_fd, BACKING_CLOSE, pack_backing_id(backing_id), True)


class _Held:
    __slots__ = ("backing_id", "opens")

    def __init__(self, backing_id: int) -> None:
        self.backing_id = backing_id
        self.opens = 0


class Passthrough:
    """Off, with a reason, until :meth:`probe` succeeds."""

    def __init__(self, backing: Backing, off_because: str = "") -> None:
        self._backing = backing
        self._reason = off_because or "not probed yet"
        self._live = False
        self._ruled_out = bool(off_because)
        self._held: dict[bytes, _Held] = {}
        self._granted_before: set[bytes] = set()

    def status(self) -> PassthroughStatus:
        return PassthroughStatus(self._live, "" if self._live else self._reason)

    @property
    def wished(self) -> bool:
        """Worth asking the kernel for in INIT."""
        return not self._ruled_out

    @property
    def open_versions(self) -> int:
        return len(self._held)

    def probe(self, negotiated: bool, probe_fd: int, taken_over: bool = False) -> None:
        """Try it on a file beside the cached ones; ``negotiated``: the kernel agreed in INIT. ``taken_over``: an earlier worker
        may have left ids that nobody uses."""
        if self._ruled_out:
            return
        if not negotiated:
            self.rule_out("the kernel does not offer it (Linux 6.9 or newer is needed)")
            return
        try:
            probe_id = self._backing.open(probe_fd)
            self._backing.close(probe_id)
        except OSError as error:
            self.rule_out(_reason(error))
            return
        self._live = True
        if taken_over:
            self._close_orphans(probe_id)

    def restore(self, version: bytes, backing_id: int) -> None:
        """One open of ``version`` that an earlier worker granted."""
        self._held.setdefault(version, _Held(backing_id)).opens += 1
        self._granted_before.add(version)

    def _close_orphans(self, below_id: int) -> None:
        """Ids that a worker killed between two instructions wrote down nowhere. The kernel counts them up, so they are below."""
        known = {held.backing_id for held in self._held.values()}
        for backing_id in range(max(1, below_id - FUSE_BACKING_IDS_SEARCHED), below_id):
            if backing_id not in known:
                with contextlib.suppress(OSError):  # there is none of this number, mostly
                    self._backing.close(backing_id)

    def granted_before(self, version: bytes) -> bool:
        """An earlier worker granted it, and it is open since."""
        return version in self._granted_before and version in self._held

    def acquire(self, version: bytes, fd: int | None) -> int | None:
        """A backing id for one more open of ``version``, or None: then open it the plain way. ``fd`` None: only if there is one."""
        if not self._live:
            return None
        held = self._held.get(version)
        if held is None and fd is None:
            return None
        if held is None:
            assert fd is not None
            try:
                held = self._held[version] = _Held(self._backing.open(fd))
            except OSError as error:
                if error.errno not in _PASSING:
                    self.rule_out(_reason(error))
                return None
        held.opens += 1
        return held.backing_id

    def release(self, version: bytes) -> None:
        """One open of ``version`` is gone; the last one gives the id back."""
        held = self._held[version]
        held.opens -= 1
        if held.opens:
            return
        del self._held[version]
        self._granted_before.discard(version)
        try:
            self._backing.close(held.backing_id)
        except OSError as error:  # only when the connection is gone, and the id with it
            log.debug("backing id not closed", error=str(error))

    def rule_out(self, reason: str) -> None:
        """Off for the life of the mount."""
        self._live = False
        self._ruled_out = True
        self._reason = reason
        log.info("passthrough is off", reason=reason)


def _reason(error: OSError) -> str:
    code = error.errno or 0
    return _REASONS.get(code, f"{errno.errorcode.get(code, code)}: {os.strerror(code)}")


def has_admin_capability() -> bool:
    """CAP_SYS_ADMIN in the effective set of this process (of its own user namespace; the probe asks the kernel itself)."""
    for line in Path("/proc/self/status").read_text("utf-8", "replace").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


def why_not(enabled: bool, probe_directory: Path | None) -> str:
    """The reason that is known before the kernel is asked, or an empty string."""
    if not enabled:
        return "turned off by configuration"
    if probe_directory is None:
        return "no cache directory to read from"
    if not has_admin_capability():
        return "CAP_SYS_ADMIN is needed"
    return ""


def open_probe_file(directory: Path) -> int:
    """A nameless file on the cache's file system; the caller closes it. Raises OSError."""
    with tempfile.TemporaryFile(dir=directory) as file:
        return os.dup(file.fileno())
