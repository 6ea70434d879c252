"""What doctor says: one finding for each thing looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum


class Level(IntEnum):
    """Higher is worse. ``PROBLEM``: the mount does not work, or works at less than half of what the path gives."""

    OK = 0
    NOTE = 1
    WARNING = 2
    PROBLEM = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """``check``: its stable name. ``seen``, ``cost``, ``mend``: for people, one sentence each; the last two may be empty.

    ``figures``: the numbers behind the words, names with units (``cap_bytes_per_s``), for programs.
    """

    check: str
    level: Level
    seen: str
    cost: str = ""
    mend: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
