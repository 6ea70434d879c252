"""A mount that stays at one revision: which one was asked for, and what is remembered of it on disk.

A revision is a number of one catalog; a snapshot's name is the hub's, and looked up there once. What it meant is
kept beside the names (``pinned.json``), so that a mount that has shown a snapshot shows the same tree after a restart,
whether the hub answers or not.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from common.durable import replace_file

RECORD_NAME = "pinned.json"


@dataclass(frozen=True, slots=True)
class Pin:
    """One of the two is set."""

    revision: int | None = None
    snapshot: str = ""

    def __str__(self) -> str:
        return f"snapshot {self.snapshot!r}" if self.snapshot else f"revision {self.revision}"


def remember(directory: Path, pin: Pin, catalog_id: bytes, revision: int) -> None:
    """Note what a snapshot's name meant. Raises OSError."""
    record = {"snapshot": pin.snapshot, "catalog_id": catalog_id.hex(), "revision": revision}
    replace_file(directory / RECORD_NAME, json.dumps(record) + "\n")


def is_at(directory: Path, pin: Pin, catalog_id: bytes, revision: int) -> bool:
    """Whether names on disk, at this revision of this catalog, are the tree that ``pin`` asks for."""
    if not catalog_id:
        return False
    if not pin.snapshot:
        return revision == pin.revision
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((directory / RECORD_NAME).read_text())
        return bool(found == {"snapshot": pin.snapshot, "catalog_id": catalog_id.hex(), "revision": revision})
    return False
