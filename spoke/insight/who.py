"""Names for who reads: a process, its cgroup, the pod and container in it, its rank in a job. Pure.

Only the process id comes with a READ, and 0 when the reader's namespace is not below the spoke's; the rest is read from
/proc by :mod:`spoke.insight.processes`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})")
_CONTAINER = re.compile(r"([0-9a-f]{64})")
_RANK_MAX = 1 << 20
_SHORT = 12


@dataclass(frozen=True, slots=True)
class Process:
    """``pid``: of the process, not the thread; 0: nothing is known. ``started_ticks`` tells it from a later one of the same pid.

    ``group``: its cgroup's path. ``pod``: the pod's name where its environment has it, else its uid. ``ancestors``: nearest first.
    """

    pid: int
    started_ticks: int = 0
    name: str = "unknown"
    group: str = "unknown"
    pod: str = ""
    container: str = ""
    rank: int | None = None
    ancestors: tuple[int, ...] = ()

    def __hash__(self) -> int:
        return hash((self.pid, self.started_ticks))

    @property
    def label(self) -> str:
        return f"{self.name} (pid {self.pid})" if self.pid else "unknown"

    @property
    def group_label(self) -> str:
        """The pod if it is in one, else the cgroup."""
        return f"pod {self.pod}" if self.pod else self.group


UNKNOWN = Process(0)
"""The reader's pid says nothing here (another pid namespace, or the kernel itself), or it ended before it could be looked at."""


def group_of(cgroup_text: str) -> tuple[str, str, str]:
    """(path, pod uid, container id) from /proc/PID/cgroup; version 2's line, else the first; empty where there is none."""
    lines = [line.split(":", 2) for line in cgroup_text.splitlines()]
    paths = [fields[2] for fields in lines if len(fields) == 3]
    unified = [fields[2] for fields in lines if len(fields) == 3 and fields[0] == "0"]
    path = next((found for found in (*unified, *paths) if found != "/"), "/")
    # Hybrid hierarchies keep the container's path in the version 1 lines only.
    for candidate in (path, *paths):
        pod, container = _POD.search(candidate), _CONTAINER.search(candidate)
        if pod or container:
            return candidate, pod[1].replace("_", "-") if pod else "", container[1][:_SHORT] if container else ""
    return path, "", ""


def rank_from(text: str | None) -> int | None:
    """``RANK`` as launchers set it, or None."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and int(text) < _RANK_MAX else None
