"""Where a spoke's sockets and mount records live. Imports next to nothing: commands that only ask must start quickly."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from common.errors import UsageError


def runtime_dir() -> Path:
    """/run/headrace as root, else below XDG_RUNTIME_DIR or /tmp."""
    if os.geteuid() == 0:
        return Path("/run/headrace")
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "headrace" if base else _below_tmp()


def made_runtime_dir() -> Path:
    """The same, there by now. Raises UsageError."""
    path = runtime_dir()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}, where a spoke keeps its sockets, cannot be made: {error.strerror}") from error
    return path


def _below_tmp() -> Path:
    """Anybody may make this name in /tmp: it is used only if it is not there yet or a directory of ours alone."""
    path = Path(f"/tmp/headrace-{os.getuid()}")
    try:
        found = path.lstat()
    except FileNotFoundError:
        return path
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise UsageError(f"{path} is not a directory of this user alone; set XDG_RUNTIME_DIR, or take it away")
    return path
