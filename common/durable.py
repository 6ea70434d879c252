"""Small files that are whole or not at all, also over a power cut."""

from __future__ import annotations

import os
from pathlib import Path

NEW_SUFFIX = ".new"
"""Of what is being written beside a file; one that a crash left is written over next time."""


def replace_file(path: Path, text: str) -> None:
    """Put ``text`` (UTF-8) where ``path`` is; readable by its owner alone. Blocks for the disk. Raises OSError."""
    fresh = path.with_name(path.name + NEW_SUFFIX)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    os.replace(fresh, path)
    _sync(path.parent)


def sync_file(path: Path) -> None:
    """What is at ``path`` is on the disk after this, and so is its name. Blocks for the disk. Raises OSError."""
    _sync(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
