"""Names and what stands behind them: the vocabulary of the catalog, the change feed and the replica.

A path is bytes, relative to the dataset's root, components joined by ``b"/"``; the root is ``b""``. Names are
bytes because Linux names are: they need not be UTF-8.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

VERSION_BYTES = 16
NAME_MAX_BYTES = 255
PATH_MAX_BYTES = 4095


class Kind(IntEnum):
    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """One name's attributes. ``mode``: the 12 permission bits. ``version``: 16 bytes for a file, else empty.

    ``version`` names the bytes (DESIGN: by content identity), so two names with one version share cached blocks.
    ``target``: a symlink's target, else empty.
    """

    kind: Kind
    mode: int
    size_bytes: int
    mtime_ns: int
    version: bytes = b""
    target: bytes = b""


class Change(NamedTuple):
    """One step of the change log: at ``revision``, ``path`` became ``entry``, or was removed (None) with all below it.

    An entry of another kind replaces what stood there, with all below it.
    """

    revision: int
    path: bytes
    entry: Entry | None


def is_safe_name(name: bytes) -> bool:
    """A single path component that can stand in a tree: not empty, not ``.`` or ``..``, no NUL, no slash, ≤ 255 bytes."""
    return 0 < len(name) <= NAME_MAX_BYTES and name not in (b".", b"..") and b"/" not in name and b"\0" not in name


def is_safe_path(path: bytes) -> bool:
    """A relative path made of safe names (the root ``b""`` included), ≤ 4,095 bytes."""
    return path == b"" or (len(path) <= PATH_MAX_BYTES and all(map(is_safe_name, path.split(b"/"))))
