"""Where a spoke's sockets and mount records live. Imports nothing: commands that only ask must start quickly."""

from __future__ import annotations

import os
from pathlib import Path


def runtime_dir() -> Path:
    """/run/headrace as root, else below XDG_RUNTIME_DIR or /tmp."""
    if os.geteuid() == 0:
        return Path("/run/headrace")
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "headrace" if base else Path(f"/tmp/headrace-{os.getuid()}")
