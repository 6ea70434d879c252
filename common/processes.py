"""Processes of our own: how one is started, and how it ends with the one that started it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import site
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def module_command(module: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment that run a module of ours just as it was found here, whatever the working directory holds."""
    root = str(Path(__file__).resolve().parent.parent)
    search = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root not in (os.path.realpath(path) for path in [*search, *site.getsitepackages()]):
        search.append(root)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search)} if search else dict(os.environ)
    return [sys.executable, "-P", "-m", module], environment


def allow_open_files(count: int) -> None:
    """Raise the soft limit of open files to this, as far as the hard one lets it; for this process and those it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends (prctl(2)): also when it has no time to notice."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
