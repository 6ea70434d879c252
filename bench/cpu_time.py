"""CPU time of a process, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CpuTime(NamedTuple):
    user_s: float
    system_s: float

    @property
    def total_s(self) -> float:
        return self.user_s + self.system_s


def cpu_time(pid: int) -> CpuTime:
    """Of all threads of a process so far, its children not counted (proc_pid_stat(5), fields 14 and 15). Raises OSError."""
    fields = Path("/proc", str(pid), "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return CpuTime(int(fields[11]) / _TICKS_PER_S, int(fields[12]) / _TICKS_PER_S)
