"""Getting a /dev/fuse descriptor that is mounted: by mount(2), or through the set-uid helper ``fusermount3``.

Blocking; the caller runs it in a thread. Nothing here touches the mounted directory.
"""

from __future__ import annotations

import array
import ctypes
import errno
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from common.errors import MountpointError
from common.limits import FUSE_MOUNT_TIMEOUT_S
from spoke.fuse.kernel import MAX_READ_BYTES
from spoke.fuse.mountpoint import FILE_SYSTEM_TYPE, fusermount, mounts_at

_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_DEVICE = "/dev/fuse"
_FUSE_CONF = Path("/etc/fuse.conf")
_COMMFD_VARIABLE = "_FUSE_COMMFD"


class Mounted(NamedTuple):
    """``fd``: the device, non-blocking, closed on exec. ``minor``: the connection's id. ``notes``: what the operator did not get."""

    fd: int
    path: str
    minor: int
    notes: tuple[str, ...]


def mount(path: str, dataset: str, allow_other: bool) -> Mounted:
    """Mount at a path that mountpoint.prepare gave. Raises MountpointError."""
    source = f"headrace:{dataset}"
    notes: tuple[str, ...] = ()
    fd = _mount_directly(path, source, allow_other) if os.geteuid() == 0 else None
    if fd is None:
        if allow_other and os.geteuid() != 0 and not _users_may_allow_other(_FUSE_CONF):
            allow_other = False
            notes = (f"only user {os.geteuid()} can read the mount: {_FUSE_CONF} lacks a line user_allow_other",)
        fd = _mount_by_helper(path, source, allow_other)
    os.set_blocking(fd, False)
    os.set_inheritable(fd, False)
    ours = [entry for entry in mounts_at(path) if entry.is_ours]
    if not ours:
        os.close(fd)
        raise MountpointError(f"{path} was mounted and is gone again")
    return Mounted(fd, path, ours[-1].minor, notes)


def _mount_directly(path: str, source: str, allow_other: bool) -> int | None:
    """None: not permitted here, the helper may be."""
    try:
        fd = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        return None
    except OSError as error:
        raise MountpointError(
            f"{_DEVICE}: {error.strerror}; load the kernel module fuse, or give the container this device"
        ) from error
    options = [
        f"fd={fd}",
        "rootmode=40000",
        f"user_id={os.geteuid()}",
        f"group_id={os.getegid()}",
        "default_permissions",
        f"max_read={MAX_READ_BYTES}",
        *(["allow_other"] if allow_other else []),
    ]
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.mount(
        source.encode("utf-8", "surrogateescape"),
        os.fsencode(path),
        FILE_SYSTEM_TYPE.encode(),
        ctypes.c_ulong(_MS_RDONLY | _MS_NOSUID | _MS_NODEV),
        ",".join(options).encode(),
    )
    if not failed:
        return fd
    code = ctypes.get_errno()
    os.close(fd)
    if code == errno.EPERM:
        return None
    raise MountpointError(f"cannot mount on {path}: {os.strerror(code)}")


def _mount_by_helper(path: str, source: str, allow_other: bool) -> int:
    helper = fusermount()
    if helper is None:
        raise MountpointError(
            f"cannot mount on {path}: this user may not mount (CAP_SYS_ADMIN), and fusermount3 is not installed (package fuse3)"
        )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [helper, "-o", helper_options(source, allow_other), "--", path]
        environment = {**os.environ, _COMMFD_VARIABLE: str(theirs.fileno())}
        try:
            done = subprocess.run(
                command,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=FUSE_MOUNT_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise MountpointError(f"cannot mount on {path}: {error}") from error
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip() or f"{helper} ended with {done.returncode}"
            raise MountpointError(f"cannot mount on {path}: {said}")
        theirs.close()
        ours.settimeout(FUSE_MOUNT_TIMEOUT_S)
        return _receive_fd(ours, path)


def _receive_fd(channel: socket.socket, path: str) -> int:
    try:
        _, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_LEN(array.array("i").itemsize))
    except OSError as error:
        raise MountpointError(f"cannot mount on {path}: no descriptor from fusermount3 ({error})") from error
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if not fds:
        raise MountpointError(f"cannot mount on {path}: no descriptor from fusermount3")
    return fds[0]


def helper_options(source: str, allow_other: bool) -> str:
    """The option string; a comma or backslash inside a value is escaped as fusermount3 reads it."""
    name = source.replace("\\", "\\\\").replace(",", "\\,")
    subtype = FILE_SYSTEM_TYPE.partition(".")[2]
    options: Sequence[str] = [
        "ro",
        "nosuid",
        "nodev",
        "default_permissions",
        f"max_read={MAX_READ_BYTES}",
        f"fsname={name}",
        f"subtype={subtype}",
        *(["allow_other"] if allow_other else []),
    ]
    return ",".join(options)


def _users_may_allow_other(configuration: Path) -> bool:
    try:
        lines = configuration.read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)
