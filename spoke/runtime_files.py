"""What spokes leave in the runtime directory: sockets, mount records, notes about ports, logs. Sweeps what dead ones left.

Nothing young is touched: a spoke that is just starting has its socket before it listens. What cannot be told dead stays.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from pathlib import Path

from common import limits
from spoke.fuse.mountpoint import mounts_at, owner_from


def bound_log(path: Path) -> None:
    """Before it is opened for more: one over LOG_MAX_BYTES becomes ``….log.1``, and the one before that is gone."""
    with contextlib.suppress(OSError):  # none yet; or it only goes on growing
        if path.stat().st_size > limits.LOG_MAX_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))


def sweep(runtime_dir: Path, now_s: float) -> list[str]:
    """Remove what spokes that do not run any more left behind; returns the names. ``now_s``: Unix time, as files have it.

    Never raises: it is housekeeping.
    """
    removed: list[str] = []
    try:
        found = list(os.scandir(runtime_dir))
    except OSError:
        return removed
    names = {item.name for item in found}
    for item in found:
        with contextlib.suppress(OSError):
            age_s = now_s - item.stat(follow_symlinks=False).st_mtime
            if age_s > limits.RUNTIME_FILE_SWEPT_AFTER_S and _is_left_behind(Path(item.path), names, age_s):
                os.unlink(item.path)
                removed.append(item.name)
    return sorted(removed)


def _is_left_behind(path: Path, names: set[str], age_s: float) -> bool:
    if path.suffix == ".sock":
        return _nobody_listens(path)
    if path.suffix == ".json" and path.name.startswith("mount-"):
        return _owner_is_gone(path)
    if path.suffix == ".new" and (path.name.startswith("mount-") or path.name.endswith(".port.new")):
        return True  # a record that was never finished
    if path.suffix == ".port":
        return f"{path.stem}.sock" not in names and f"{path.stem}.super.sock" not in names
    if path.name.endswith((".log", ".log.1")):
        return age_s > limits.LOG_KEPT_S and f"{path.name.partition('.')[0]}.sock" not in names
    return False


def _nobody_listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        return probe.connect_ex(os.fspath(path)) == errno.ECONNREFUSED


def _owner_is_gone(path: Path) -> bool:
    """Also the mount: while that stands, the record tells the next spoke that it is stale."""
    try:
        owner = owner_from(json.loads(path.read_text()))
    except (ValueError, TypeError):
        return True
    return owner.is_alive() is False and not any(entry.is_ours for entry in mounts_at(owner.mountpoint))
