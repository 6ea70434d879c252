"""What a run of the experiment is made with: jobs in processes of their own, a watch on the spoke's counters, a link that is cut."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from bench.lab import Lab, LabError, Metrics, Spoke
from bench.path import ROOT

LOOK_EVERY_S = 0.5
JOB_TIMEOUT_S = 600.0


class Watch:
    """Looks at a spoke's counters twice a second, in a thread; ``on_look`` gets (monotonic time, counters) each time."""

    def __init__(self, spoke: Spoke, on_look: Callable[[float, Metrics], None] | None = None) -> None:
        self._spoke, self._on_look = spoke, on_look
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.looks: list[tuple[float, Metrics]] = []

    def __enter__(self) -> Watch:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(LabError):
            self._look()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            with contextlib.suppress(LabError):  # a spoke that just ends; the run itself tells
                self._look()

    def _look(self) -> None:
        numbers = self._spoke.numbers()
        self.looks.append((time.monotonic(), numbers))
        if self._on_look is not None:
            self._on_look(*self.looks[-1])

    def during(self, start_s: float, end_s: float) -> list[tuple[float, Metrics]]:
        """The last look before ``start_s``, all until ``end_s``, and the first after it."""
        before = [look for look in self.looks if look[0] <= start_s][-1:]
        within = [look for look in self.looks if start_s < look[0] < end_s]
        return [*before, *within, *[look for look in self.looks if look[0] >= end_s][:1]]


class Jobs:
    """Starts jobs, each in a fresh process, from one that has imported PyTorch already; a context manager."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._log = lab.logs["jobs"] = lab.directory / "jobs.log"

    def __enter__(self) -> Jobs:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.experiment.job", "--serve"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, env=self._lab.environ,
                start_new_session=True,
            )  # fmt: skip
        self._is_ready = False
        return self

    def __exit__(self, *_error: object) -> None:
        """The ranks and their workers too: they are in the group of what forked them."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def restart(self) -> None:
        """Whatever a failed job left running is gone afterwards."""
        self.__exit__()
        self.__enter__()

    def ready(self) -> None:
        """Wait until jobs can start: no job's time shall have the import in it. Raises LabError."""
        assert self._process.stdout is not None
        if not self._is_ready and self._process.stdout.readline() != "ready\n":
            raise LabError(f"PyTorch could not be imported; exit code {self._process.wait()}")
        self._is_ready = True

    def run(self, title: str, flags: Sequence[str]) -> None:
        """To its end. Raises LabError when it fails or takes too long, at once when a daemon ends meanwhile."""
        self.ready()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(list(flags)) + "\n")
        process.stdin.flush()
        deadline_s = time.monotonic() + JOB_TIMEOUT_S
        while not select.select([process.stdout], [], [], 0.2)[0]:
            self._lab.check_daemons()
            if time.monotonic() > deadline_s:
                raise LabError(f"the job on {title} did not end within {JOB_TIMEOUT_S:g} s")
        if (answer := process.stdout.readline().strip()) != "0":
            raise LabError(f"the job on {title} ended with exit code {answer or process.wait()}")


class Cut:
    """Lets nothing through for ``cut_s``, once, ``after_s`` after the first read at the mount was seen: amid a cold run."""

    def __init__(self, lab: Lab, cut_s: float, after_s: float) -> None:
        self._lab, self._cut_s, self._after_s = lab, cut_s, after_s
        self._first_read_s: float | None = None
        self.marks: list[tuple[float, str]] = []

    def look(self, now_s: float, numbers: Metrics) -> None:
        reads = sum(value for name, value in numbers.items() if name.startswith("headrace_spoke_reads_total"))
        if reads and self._first_read_s is None:
            self._first_read_s = now_s
        if self._first_read_s is None:
            return
        if not self.marks and now_s >= self._first_read_s + self._after_s:
            self._lab.way.silence(on=True)
            self.marks.append((time.monotonic(), "link cut"))
        elif len(self.marks) == 1 and now_s >= self.marks[0][0] + self._cut_s:
            self._mend()

    def close(self) -> None:
        if len(self.marks) == 1:
            self._mend()

    def _mend(self) -> None:
        self._lab.way.silence(on=False)
        self.marks.append((time.monotonic(), "link back"))
