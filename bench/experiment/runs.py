"""The runs of the experiment, in the order in which they interleave, and what each leaves behind.

Local runs stand between the others; each run is held against the local ones next to it in time, so that a slow minute of
the machine does not look like a slow mount. A run whose tokens or losses differ from the local ones ends the experiment.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.demo.formats import Tokens
from bench.experiment import copying, shards
from bench.experiment.job import rank_file
from bench.experiment.measures import Epoch, Phase, Second, gained_between
from bench.lab import Lab, LabError, Metrics, Spoke
from bench.link import LinkShape
from bench.path import ROOT, make_way
from common import limits
from common.units import parse_address

DATASET = "experiment"
LOOK_EVERY_S = 0.5
JOB_TIMEOUT_S = 600.0
SEEN_TIMEOUT_S = 30.0
CHANGED_SEED = 4711

Say = Callable[[str], contextlib.AbstractContextManager[None]]


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
            )  # fmt: skip
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()

    def run(self, title: str, flags: Sequence[str]) -> None:
        """To its end. Raises LabError when it fails or takes too long, at once when a daemon ends meanwhile."""
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


@dataclass
class Runs:
    """``local_runs``: by mode, (how many phases there were before it, its epoch)."""

    arguments: argparse.Namespace
    lab: Lab
    data: Path
    documents: Sequence[Tokens]
    shape: LinkShape
    say: Say
    jobs: Jobs
    phases: list[Phase] = field(default_factory=list)
    local_runs: dict[str, list[tuple[int, Epoch]]] = field(default_factory=dict)

    def all(self) -> list[Phase]:
        """Every run, each with the local runs beside it. Raises LabError, also when a run saw other data than the local one."""
        arguments = self.arguments
        with self.say("start the hub and the link"):
            self.lab.start_hub(DATASET, self.data, self.shape, arguments.link)
        self.local()
        spoke = self.mount("main")
        self.on_mount("cold", "mount, cold", spoke, epochs=2, again=("warm", "mount, warm, same process"))
        self.local()
        self.on_mount("warm-job", "mount, warm, job restarted", spoke)
        with self.say("restart the spoke"):
            self.lab.unmount(spoke)
        spoke = self.mount("main")
        self.on_mount("warm-spoke", "mount, warm, spoke restarted", spoke)
        self.local()
        self.cut()
        self.local(checkpoint=True)
        with self.mounted("checkpoints") as fresh:
            self.on_mount("checkpoints", "mount, cold, checkpoints written meanwhile", fresh, checkpoint=True)
        self.local()
        self.small_cache()
        with self.mounted("bare", "--no-prefetch") as fresh:
            batches = min(arguments.bare_batches, arguments.batches)
            self.on_mount("no-prefetch", "mount, cold, prefetch off", fresh, batches=batches)
        self.copy_first()
        self.local()
        self.changed(spoke)
        self.local()
        if arguments.step_time:
            self.losses()
        with self.say("unmount"):
            self.lab.unmount(spoke)
        return [self._beside(number, phase) for number, phase in enumerate(self.phases)]

    # --- kinds of runs -------------------------------------------------------------------------------------

    def mount(self, name: str, *flags: str) -> Spoke:
        sized = () if "--cache-size" in flags else ("--cache-size", self.arguments.cache_size)
        with self.say(f"mount, cache {name!r}"):
            return self.lab.mount(DATASET, name, *sized, "--read-timeout", "120s", *flags)

    @contextlib.contextmanager
    def mounted(self, name: str, *flags: str) -> Any:
        """A fresh spoke with an empty cache, gone again afterwards, its cache too."""
        spoke = self.mount(name, *flags)
        yield spoke
        self.lab.unmount(spoke)
        self.lab.drop(spoke)

    def local(self, *, checkpoint: bool = False, model: bool = False) -> None:
        """One run on the local directory; two epochs where the model trains, for its second one has other losses."""
        name = "local-checkpoints" if checkpoint else "local-model" if model else "local"
        title = "local directory" + (", checkpoints" if checkpoint else ", the model" if model else "")
        trains = model or not self.arguments.step_time
        made = self.job(title, self.data, epochs=2 if trains else 1, checkpoint=checkpoint, model=model)
        for number, epoch in enumerate(made):
            key = self._key(number, checkpoint=checkpoint, model=model)
            self.local_runs.setdefault(key, []).append((len(self.phases), epoch))
            again = ("-again", ", second epoch") if number else ("", "")
            self.phases.append(Phase(name + again[0], title + again[1], key, epoch))

    def on_mount(
        self, name: str, title: str, spoke: Spoke, *, epochs: int = 1, again: tuple[str, str] | None = None,
        batches: int | None = None, checkpoint: bool = False, model: bool = False, cut: Cut | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """One job on a mount; a second epoch is a phase of its own, named ``again``."""
        with Watch(spoke, cut.look if cut else None) as watch:
            made = self.job(title, spoke.mountpoint, epochs=epochs, batches=batches, checkpoint=checkpoint, model=model)
        if cut is not None:
            cut.close()
        names = [(name, title), *([again] if again else [])]
        for number, ((short, long), epoch) in enumerate(zip(names, made, strict=True)):
            key = self._key(number, checkpoint=checkpoint, model=model)
            looks = watch.during(epoch.started_s, epoch.started_s + epoch.seconds)
            seconds = [
                Second.of(at_s, numbers, numbers.get("headrace_spoke_prefetch_outstanding_bytes", 0.0))
                for at_s, numbers in looks
            ]
            gained = gained_between(looks[0][1], looks[-1][1])
            marks = tuple(cut.marks) if cut else ()
            self.phases.append(
                Phase(short, long, key, epoch, gained=gained, seconds=seconds, marks=marks, notes=notes or {})
            )

    def cut(self) -> None:
        with self.mounted("cut") as spoke:
            cut = Cut(self.lab, self.arguments.cut, self.arguments.cut_after)
            try:
                self.on_mount("cut", f"mount, cold, link cut for {self.arguments.cut:g} s", spoke, cut=cut)
            finally:
                cut.close()

    def small_cache(self) -> None:
        """A cache of half of what the job reads; left out, and said so, where that is less than a cache may be."""
        half_bytes = sum(path.stat().st_size for path in self.data.iterdir()) // 2
        if half_bytes < limits.CACHE_MIN_BYTES:
            with self.say(f"left out: a cache of half the data, {half_bytes} bytes, is smaller than any may be"):
                return
        with self.mounted("half", "--cache-size", str(half_bytes)) as spoke:
            again = ("half-again", "cache half the data, second epoch")
            self.on_mount("half", "cache half the data, cold", spoke, epochs=2, again=again)
        self.local()

    def changed(self, spoke: Spoke) -> None:
        """One shard replaced at the source, while the mount has all of it; how long until the mount shows it."""
        paths = sorted(self.data.glob("*.bin"))
        path = paths[len(paths) // 2]
        tokens = path.stat().st_size // 4 if self.arguments.dtype != "uint16" else path.stat().st_size // 2
        with self.say(f"replace {path.name} at the source"):
            shards.write_shard(path, self.documents, tokens, self.arguments.dtype, CHANGED_SEED)
            replaced_s = time.monotonic()
            wanted = path.stat().st_mtime_ns
            while (spoke.mountpoint / path.name).stat().st_mtime_ns != wanted:
                if time.monotonic() > replaced_s + SEEN_TIMEOUT_S:
                    raise LabError(f"the mount did not show the new {path.name} within {SEEN_TIMEOUT_S:g} s")
                time.sleep(0.01)
            notes = {"seen_after_s": time.monotonic() - replaced_s, "changed_bytes": path.stat().st_size}
        self.on_mount("changed", "mount, warm, one shard changed at the source", spoke, notes=notes)

    def copy_first(self) -> None:
        """All of the data over the same link into a directory, then the job on it."""
        target = self.lab.directory / "copy"
        far = [
            *(sys.executable, "-m", "bench.experiment.copying", str(self.data)),
            *("--listen", self.lab.way.hub_host),
        ]
        with contextlib.ExitStack() as stack:
            way = self.lab.way
            if self.lab.link_kind == "delay proxy":  # one proxy leads to one server
                way = stack.enter_context(
                    make_way("proxy", self.shape, self.lab.directory / "copy-proxy.log", self.lab.environ)
                )
            with self.say("copy all of it first"):
                sender = subprocess.Popen(
                    [*way.hub_prefix, *far], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=self.lab.environ
                )
                try:
                    assert sender.stdout is not None
                    words = sender.stdout.readline().split()
                    if words[:2] != ["listening", "on"]:
                        raise LabError("the sender of the copy did not start")
                    address = parse_address(way.open(parse_address(words[2])))
                    began_s = time.monotonic()
                    seen, copied_bytes = copying.receive(address, target)
                    took_s = time.monotonic() - began_s
                finally:
                    sender.kill()
                    sender.wait()
        (epoch,) = self.job("the copy", target)
        self.phases.append(
            Phase(
                "copy-first", "copy first, then local", self._key(0), epoch, before_s=took_s, before_bytes=copied_bytes,
                before_seen=[(at_s - began_s, done) for at_s, done in seen],
            )
        )  # fmt: skip
        self.lab.drop_directory(target)

    def losses(self) -> None:
        """The real model, with as many ranks as asked: local, cold, warm; ``_beside`` holds the losses against each other."""
        self.local(model=True)
        with self.mounted("model") as spoke:
            again = ("model-warm", "the model, mount, warm, same process")
            self.on_mount("model-cold", "the model, mount, cold", spoke, epochs=2, again=again, model=True)
        self.local(model=True)

    def job(
        self, title: str, directory: Path, *, epochs: int = 1, batches: int | None = None, checkpoint: bool = False,
        model: bool = False,
    ) -> list[Epoch]:  # fmt: skip
        """In a process of its own (one a rank), so that no run inherits another one's files or pages."""
        arguments = self.arguments
        trains = model or not arguments.step_time
        world = arguments.model_ranks if trains else arguments.ranks
        out = self.lab.directory / "job.json"
        flags = [
            *("--data", str(directory), "--out", str(out)),
            *("--order", arguments.order, "--dtype", arguments.dtype, "--seed", str(arguments.seed)),
            *("--window", str(arguments.model_window if trains else arguments.window), "--epochs", str(epochs)),
            *("--batch", str(arguments.model_batch if trains else arguments.batch * arguments.gpus // world)),
            *("--batches", str(batches or (arguments.model_batches if model else arguments.batches))),
            *("--workers", str(arguments.workers), "--world", str(world)),
            *("--step-time", "0" if trains else str(arguments.step_time)),
            *("--vocabulary", str(arguments.vocabulary), "--dim", str(arguments.dim)),
            *("--layers", str(arguments.layers), "--heads", str(arguments.heads)),
        ]
        if checkpoint:
            every = str(arguments.checkpoint_every)
            flags += ["--checkpoint-every", every, "--checkpoint-bytes", str(arguments.checkpoint_bytes)]
        with self.say(f"job: {title}"):
            self.jobs.run(title, flags)
        ranks = [json.loads(rank_file(out, rank).read_text()) for rank in range(world)]
        return [
            Epoch.of_ranks(ranks[0]["samples"], [rank["epochs"][number] for rank in ranks]) for number in range(epochs)
        ]

    # --- against the local runs ----------------------------------------------------------------------------

    def _key(self, epoch: int = 0, *, checkpoint: bool = False, model: bool = False) -> str:
        """What makes runs comparable. With the timed step all epochs are alike; a model goes on training."""
        trains = model or not self.arguments.step_time
        mode = f"model, epoch {epoch + 1}" if trains else "timed step"
        return f"{mode}{', checkpoints' if checkpoint else ''}"

    def _beside(self, number: int, phase: Phase) -> Phase:
        """The phase with the local run before it and the one after it. Raises LabError when the data were not the same."""
        runs = self.local_runs[phase.mode]
        before = [epoch for at, epoch in runs if at < number][-1:]
        after = [epoch for at, epoch in runs if at > number][:1]
        if phase.name.startswith("local"):
            return phase
        # What the source held then: the local run after a change, and the one before all else.
        version = after if phase.name == "changed" else before
        if not all(phase.epoch.same_data(epoch) for epoch in version):
            raise LabError(f"{phase.title}: the job did not see the tokens or the losses it had on the local directory")
        return replace(phase, local=[*before, *after])
