"""One run of chaos: starts the rig, lets the faults come as planned, watches everything that could hang, and counts."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.chaos.faults import FAULTS, Fault, Skipped
from bench.chaos.judge import Broken, Judge, bound_s, longest_by_kind
from bench.chaos.ledger import Ledger
from bench.chaos.rig import Rig, processes_below
from bench.chaos.schedule import Planned, plan

READERS = ("sequential", "random", "random", "mmap", "small", "open_close", "walk", "loader")
FEW_READERS = ("sequential", "random", "mmap", "small", "walk")
FINAL_CALM_S = 20.0
WATCH_EVERY_S = 0.25
READERS_READY_S = 60.0
FAILURES_KEPT = 200


@dataclass(slots=True)
class Report:
    """What a run found; written as JSON."""

    seed: int
    planned_s: float
    kinds: list[str]
    cache_disk: str = ""
    took_s: float = 0.0
    faults: list[dict[str, Any]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    bytes_checked: int = 0
    calls: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    longest_s: dict[str, float] = field(default_factory=dict)
    readers_killed: int = 0
    longest_death_s: float = 0.0
    failures: list[dict[str, Any]] = field(default_factory=list)
    failure_counts: dict[str, int] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def kinds_done(self) -> Counter[str]:
        return Counter(fault["kind"] for fault in self.faults)

    @property
    def passed(self) -> bool:
        return not self.failure_counts and not self.interrupted


class Run:
    """``say``: gets a line for each thing that happens."""

    def __init__(
        self,
        seed: int,
        length_s: float,
        kinds: Sequence[str],
        *,
        read_timeout_s: float = 10.0,
        readers: Sequence[str] = READERS,
        scale: float = 1.0,
        rest_s: float = 0.01,
        extra: Sequence[str] = (),
        say: Callable[[str], object] = lambda _line: None,
    ) -> None:
        self.report = Report(seed, length_s, list(kinds))
        self._say = say
        self._read_timeout_s, self._readers = read_timeout_s, readers
        self._chosen: dict[str, Fault] = {kind: FAULTS[kind] for kind in kinds}
        self.plan = plan(seed, {kind: fault.shape for kind, fault in self._chosen.items()}, length_s)
        self.rig = Rig(seed, read_timeout_s=read_timeout_s, cache_size="96MiB", scale=scale, rest_s=rest_s, extra=extra)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._broken: list[Broken] = []
        self._began_s = time.monotonic()
        self._hung: set[tuple[int, float]] = set()

    # --- the run -----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """As soon as may be; from a signal handler."""
        self._stop.set()
        self.rig.stopping = True
        self.report.interrupted = True

    def __call__(self, out: Path | None = None, *, keep: bool = False) -> Report:
        """To the end, or until :meth:`stop`; everything is taken down whatever happens."""
        rig, report = self.rig, self.report
        report.cache_disk = rig.disk.kind
        rig.note = self._log
        threads: list[threading.Thread] = []
        try:
            rig.data.fill(random.Random(report.seed))
            rig.start_hub()
            rig.start_proxy()
            rig.start_spoke()
            rig.start_readers(self._readers)
            self._until_all_read()
            self._began_s = time.monotonic()
            self._log(f"{len(self.plan)} faults of {len(self._chosen)} kinds, cache on {rig.disk.kind}, in {rig.work}")
            threads = [
                threading.Thread(target=self._keep_writing, name="writer"),
                threading.Thread(target=self._keep_breaking, name="faults"),
            ]
            for thread in threads:
                thread.start()
            while threads[1].is_alive() and not self._stop.is_set():
                self._watch()
                time.sleep(WATCH_EVERY_S)
            self._calm_end()
        except BaseException as error:  # noqa: BLE001 told, and all is taken down
            self._fail("harness", f"{type(error).__name__}: {error}", trace=traceback.format_exc())
            if not isinstance(error, Exception):
                report.interrupted = True
        finally:
            self._stop.set()
            rig.stopping = True
            for thread in threads:
                thread.join(120.0)
                if thread.is_alive():
                    self._fail("harness", f"the thread {thread.name} does not end")
            self._count()
            for left in rig.close(keep=True):
                self._fail("leaked", left)
            if still := list(processes_below(rig.work)):
                self._fail("leaked", f"processes {still} still run")
                for pid in still:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            report.took_s = time.monotonic() - self._began_s
            if out is not None:
                out.mkdir(parents=True, exist_ok=True)
                self._save(out, logs=not report.passed)
            if not keep:
                rig.close(keep=False)
        return report

    def _until_all_read(self) -> None:
        """There is something to damage, and somebody to see it."""
        slots = self.rig.slots
        assert slots is not None
        end_s = time.monotonic() + READERS_READY_S
        while time.monotonic() < end_s and not self._stop.wait(0.1):
            if all(slots.see(number).operations > 20 for number in range(slots.count)):
                return
        if not self._stop.is_set():
            self._fail("harness", f"not every reader reads {READERS_READY_S:g} s after its start")

    def _keep_writing(self) -> None:
        dice = random.Random(self.report.seed + 1)
        while not self._stop.wait(dice.uniform(0.1, 0.7)):
            try:
                self.rig.data.some_change(dice)
            except Exception as error:  # noqa: BLE001 a thread: told in the report
                self._fail("harness", f"the writer: {error}", trace=traceback.format_exc())
                return

    def _keep_breaking(self) -> None:
        running: list[threading.Thread] = []
        for planned in self.plan:
            if self._stop.wait(max(0.0, self._began_s + planned.start_s - time.monotonic())):
                break
            # One that took longer than planned still has what this one needs: wait for it, and the plan slips.
            for thread in running:
                if self._chosen[thread.name].shape.uses & self._chosen[planned.kind].shape.uses:
                    thread.join()
            if self._stop.is_set():
                break
            running = [thread for thread in running if thread.is_alive()]
            running.append(threading.Thread(target=self._break, args=(planned,), name=planned.kind))
            running[-1].start()
        for thread in running:
            thread.join()

    def _break(self, planned: Planned) -> None:
        from_s = time.monotonic()
        lasts_s = planned.end_s - planned.start_s
        at = len(self._broken)
        with self._lock:
            at = len(self._broken)
            self._broken.append(Broken(planned.kind, from_s, float("inf")))
        facts: dict[str, Any] = {"kind": planned.kind, "seed": planned.seed, "from_s": from_s - self._began_s}
        self._log(f"{planned.kind}, {lasts_s:.1f} s")
        steps = self._chosen[planned.kind].begin(self.rig, random.Random(planned.seed))
        try:
            facts["did"] = next(steps)
            self._log(f"{planned.kind}: {facts['did'] or 'begun'}")
            self._stop.wait(max(0.0, from_s + lasts_s - time.monotonic()))
            next(steps, None)
        except Skipped as reason:
            self.report.skipped[planned.kind] = str(reason)
        except Exception as error:  # noqa: BLE001 a thread: told in the report
            if not self._stop.is_set():
                self._fail("harness", f"{planned.kind}: {error}", trace=traceback.format_exc())
        else:
            with self._lock:
                self.report.faults.append({**facts, "to_s": time.monotonic() - self._began_s})
        finally:
            steps.close()  # type: ignore[attr-defined]
            with self._lock:
                self._broken[at] = Broken(planned.kind, from_s, time.monotonic())
            self._log(f"{planned.kind} over after {time.monotonic() - from_s:.1f} s")

    def _calm_end(self) -> None:
        """Nothing is broken any more: within this time every reader must get on."""
        slots = self.rig.slots
        assert slots is not None
        end_s = time.monotonic() + FINAL_CALM_S
        before = [slots.see(slot).bytes_checked for _, slot in self.rig.reader_kinds]
        waiting = list(zip(self.rig.reader_kinds, before, strict=True))
        while waiting and not self._stop.is_set():
            waiting = [one for one in waiting if one[0][0] != "walk" and slots.see(one[0][1]).bytes_checked == one[1]]
            if time.monotonic() > end_s:
                break
            self._watch()
            time.sleep(WATCH_EVERY_S)
        for (kind, slot), _ in [] if self._stop.is_set() else waiting:
            self._fail(
                "no recovery",
                f"{kind} read nothing in the {FINAL_CALM_S:g} s after the last fault; at {slots.see(slot).text}",
            )

    # --- watching ----------------------------------------------------------------------------------------

    def _watch(self) -> None:
        rig, slots = self.rig, self.rig.slots
        assert slots is not None
        now_s = time.monotonic()
        for number in range(slots.count):
            seen = slots.see(number)
            since_s = seen.busy_since_s
            if (
                since_s
                and now_s - since_s > bound_s(self._read_timeout_s) + self._down_s(since_s, now_s)
                and (number, since_s) not in self._hung
            ):
                self._hung.add((number, since_s))
                self._fail("hang", f"slot {number} (process {seen.pid}) in {seen.text} for {now_s - since_s:.1f} s", stack=_stack(seen.pid),
                           status=self._status())  # fmt: skip
                rig.abort_mount()
        for index, popen in list(rig.readers.items()):
            code = popen.poll()
            if code is not None and rig.readers[index] is popen:
                kind, slot = rig.reader_kinds[index]
                seen = slots.see(slot)
                if code != -signal.SIGKILL:
                    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                    self._event({"kind": "died", "what": kind, "path": seen.text.rpartition(" ")[2], "signal": name,
                                 "from_s": seen.busy_since_s or now_s, "to_s": now_s})  # fmt: skip
                    rig.start_reader(index)
        if self._stop.is_set():
            return
        if not rig.spoke_meant_down and rig.spoke.poll() is not None:
            with rig._spoke_lock:
                if not rig.spoke_meant_down and rig.spoke.poll() is not None:
                    self._fail("spoke died", f"exit code {rig.spoke.poll()}", log=_tail(rig.work / "spoke.log"))
                    rig.restart_spoke()
        elif not rig.spoke_meant_down and not rig.minors():
            time.sleep(0.5)
            if not rig.spoke_meant_down and not rig.minors():
                self._fail("mount gone", "the spoke runs and nothing is mounted", log=_tail(rig.work / "spoke.log"))
                rig.restart_spoke()
        if not rig.hub_meant_down and rig.hub.poll() is not None:
            self._fail("hub died", f"exit code {rig.hub.poll()}", log=_tail(rig.work / "hub.log"))
            rig.start_hub()

    def _status(self) -> Any:
        try:
            return self.rig.facts(5.0)
        except Exception as error:  # noqa: BLE001 it is only told
            return str(error)

    def _down_s(self, from_s: float, to_s: float) -> float:
        return sum(max(0.0, min(to_s, high) - max(from_s, low)) for low, high in self.rig.downs)

    def _event(self, event: dict[str, Any]) -> None:
        with self._lock, self.rig.events_path.open("a") as events:
            events.write(json.dumps(event) + "\n")

    # --- what came of it ---------------------------------------------------------------------------------

    def _log(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began_s:7.1f} s  {text}")

    def _fail(self, kind: str, what: str, **more: Any) -> None:
        with self._lock:
            counts = self.report.failure_counts
            counts[kind] = counts.get(kind, 0) + 1
            if counts[kind] <= FAILURES_KEPT:
                self.report.failures.append(
                    {"kind": kind, "what": what, "at_s": time.monotonic() - self._began_s, **more}
                )
        self._log(f"FAILURE {kind}: {what}")

    def _count(self) -> None:
        rig, report = self.rig, self.report
        ledger = Ledger(rig.ledger_path)
        ledger.refresh()
        judge = Judge(self._read_timeout_s, ledger, self._broken, rig.downs)
        errors: Counter[str] = Counter()
        slow = []
        with rig.events_path.open() as lines:
            for line in lines:
                event = json.loads(line)
                verdict = judge.of(event)
                if event["kind"] == "error":
                    errors[os.strerror(event["errno"])] += 1
                elif event["kind"] == "slow":
                    slow.append(event)
                if verdict.failure:
                    at = [event["from_s"] - self._began_s, event["to_s"] - self._began_s]
                    near = [f"{one.kind} {one.from_s - self._began_s:.1f}-{one.to_s - self._began_s:.1f}" for one in self._broken
                            if one.from_s <= event["to_s"] and one.to_s + 20 >= event["from_s"]]  # fmt: skip
                    self._fail(verdict.failure, verdict.what, event=event, at=at, near=near)
        ledger.close()
        report.errors = dict(errors.most_common())
        report.longest_s = {kind: round(longest, 2) for kind, longest in longest_by_kind(slow, self._broken).items()}
        report.longest_death_s = rig.longest_death_s
        report.readers_killed = report.kinds_done["reader_killed"]
        if rig.slots is not None:
            seen = [rig.slots.see(number) for number in range(rig.slots.count)]
            report.bytes_checked, report.calls = (
                sum(one.bytes_checked for one in seen),
                sum(one.operations for one in seen),
            )

    def _save(self, out: Path, *, logs: bool) -> None:
        (out / f"chaos-{self.report.seed}.json").write_text(
            json.dumps({**asdict(self.report), "plan": [asdict(one) for one in self.plan]}, indent=1)
        )
        if logs:
            for path in (*self.rig.work.glob("*.log"), self.rig.ledger_path, self.rig.events_path):
                with contextlib.suppress(OSError):
                    (out / f"chaos-{self.report.seed}-{path.name}").write_bytes(path.read_bytes())


def _tail(path: Path) -> list[str]:
    return path.read_text(errors="backslashreplace").splitlines()[-12:]


def _stack(pid: int) -> str:
    found = []
    for name in ("wchan", "stack"):
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/{name}").read_text())
    return "\n".join(found)
