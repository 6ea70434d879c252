"""The runs of the experiment, in the order in which they interleave, and what each leaves behind.

Local runs stand between the others; each run is held against the local ones next to it in time, so that a slow minute of
the machine does not look like a slow mount. What fails is noted and the next run begins; so is a run whose tokens or
losses differ from the local ones.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bench.experiment import copying, tokens
from bench.experiment.instruments import Cut, Jobs, Watch
from bench.experiment.job import rank_file
from bench.experiment.measures import Epoch, Pair, Phase, Second, gained_between
from bench.experiment.progress import Progress
from bench.lab import Lab, LabError, Spoke
from bench.link import LinkShape
from bench.path import ROOT, make_way
from common import limits
from common.errors import HeadraceError
from common.units import parse_address

DATASET = "experiment"
SEEN_TIMEOUT_S = 30.0
JOB_START_S = 1.5
MOUNT_S = 4.0
"""What a job and a mount take to start, for the time that is left to be told."""


class Speaker(Protocol):
    """Who tells people what happens. ``progress``: of the whole, once it is known."""

    progress: Progress | None

    def say(self, what: str) -> contextlib.AbstractContextManager[None]: ...
    def fail(self, what: str) -> None: ...


class Failure(NamedTuple):
    run: str
    why: str


class Step(NamedTuple):
    """``expected_s``: roughly how long it takes. ``asked``: the word of ``--runs`` that chooses it; None: always."""

    title: str
    expected_s: float
    asked: str | None
    work: Callable[[], None]


@dataclass
class Runs:
    """``local_runs``: by mode, (how many phases there were before it, its epoch). ``failures``: what did not come to its end."""

    arguments: argparse.Namespace
    lab: Lab
    data: Path
    shape: LinkShape
    speaker: Speaker
    jobs: Jobs
    phases: list[Phase] = field(default_factory=list)
    local_runs: dict[str, list[tuple[int, Epoch]]] = field(default_factory=dict)
    pairs: list[Pair] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    _main: Spoke | None = None

    def all(self) -> None:
        """Every run that was asked for. Raises LabError when there is no hub or not one local run."""
        (self.arguments.out / "failures.txt").unlink(missing_ok=True)
        with self.say("start the hub and the link"):
            self.lab.start_hub(DATASET, self.data, self.shape, self.arguments.link)
        with self.say("import PyTorch"):
            self.jobs.ready()
        steps = self.plan()
        progress = self.speaker.progress = Progress([step.expected_s for step in steps])
        for step in steps:
            began_s = time.monotonic()
            self._attempt(step)
            progress.step_done(time.monotonic() - began_s)
            if not self.lab.hub_runs:
                self.failures.append(Failure("everything after it", "the hub ended by itself"))
                break
        if not any(phase.name == "local" for phase in self.phases):
            raise LabError("no local run came to its end, so there is nothing to hold the others against")

    def finished(self) -> list[Phase]:
        """The runs so far, each with the local ones beside it; those without any are left out."""
        beside = [self._beside(number, phase) for number, phase in enumerate(self.phases)]
        return [phase for phase in beside if phase.local or phase.name.startswith("local")]

    def plan(self) -> list[Step]:
        """In the order in which they run: a local run between each two others."""
        arguments = self.arguments
        count, step_s = arguments.batches, arguments.step_time
        run_s = count * (step_s or 0.05) + JOB_START_S
        bare_s = min(arguments.bare_batches, count) * (step_s + 1.0) + JOB_START_S
        cold_s = min(arguments.cold_batches, count) * (step_s or 0.05) + JOB_START_S + MOUNT_S
        model_s = 3 * (2 * arguments.model_batches * 0.3 + JOB_START_S) + MOUNT_S
        pair_s = 2 * arguments.pairs * (count * 0.03 + JOB_START_S)
        local = Step("local directory", run_s, None, self.local)
        starts = [
            Step(f"cold start {number}", cold_s, "cold", lambda number=number: self.cold_again(number))  # type: ignore[misc]
            for number in range(2, arguments.cold_starts + 1)
        ]
        steps = [
            local,
            Step("cold, then warm", 2 * run_s + MOUNT_S, "warm", self.cold_and_warm),
            local,
            Step("job restarted", run_s, "warm", self.job_restarted),
            Step("spoke restarted", run_s + MOUNT_S, "warm", self.spoke_restarted),
            local,
            Step("link cut", run_s + arguments.cut + MOUNT_S, "cut", self.cut),
            local,
            *starts[0::2],
            Step("checkpoints, local", run_s, "checkpoints", lambda: self.local(checkpoint=True)),
            Step("checkpoints, mount", run_s + MOUNT_S, "checkpoints", self.checkpoints),
            local,
            Step("small cache", 2 * run_s + MOUNT_S, "small-cache", self.small_cache),
            local,
            Step("prefetch off", bare_s + MOUNT_S, "no-prefetch", self.no_prefetch),
            Step("copy first", run_s + 6, "copy-first", self.copy_first),
            local,
            *starts[1::2],
            Step("pairs without a step", pair_s, "pairs", self.take_turns),
            Step("source changed", run_s + 2, "changed", self.changed),
            Step("local directory, after the change", run_s, "changed", self.local),
        ]
        if not arguments.train:
            steps.append(Step("losses", model_s, "losses", self.losses))
        chosen = set(arguments.runs)
        if "warm" in chosen or "pairs" in chosen or "changed" in chosen:
            chosen.add("warm")  # what needs the warm mount needs the runs that warm it
        steps = [step for step in steps if step.asked is None or step.asked in chosen]
        # Local runs that came to stand side by side are one.
        return [step for number, step in enumerate(steps) if not number or step.title != steps[number - 1].title]

    def _attempt(self, step: Step) -> None:
        try:
            step.work()
        except Exception as error:  # noqa: BLE001 whatever it was: it must not take the other runs with it
            told = str(error) if isinstance(error, (HeadraceError, OSError)) else repr(error)
            self.failures.append(Failure(step.title, told))
            self.speaker.fail(f"{step.title}: {told}; the others go on")
            said = "".join(f"{one.run}: {one.why}\n" for one in self.failures)
            (self.arguments.out / "failures.txt").write_text(f"{said}\n{self.lab.last_words()}\n")
            self.jobs.restart()
            if self._main is not None and not os.path.ismount(self._main.mountpoint):
                spoke, self._main = self._main, None
                self.lab.abandon(spoke)

    def say(self, what: str) -> contextlib.AbstractContextManager[None]:
        return self.speaker.say(what)

    # --- the runs, one by one -------------------------------------------------------------------------------

    def cold_and_warm(self) -> None:
        spoke = self.mount("main")
        try:
            self.on_mount("cold", "mount, cold", spoke, epochs=2, again=("warm", "mount, warm, same process"))
        except BaseException:
            self.lab.abandon(spoke)
            raise
        self._main = spoke

    def job_restarted(self) -> None:
        self.on_mount("warm-job", "mount, warm, job restarted", self._warm())

    def spoke_restarted(self) -> None:
        spoke = self._warm()
        with self.say("restart the spoke"):
            self.lab.unmount(spoke)
        self._main = None
        self._main = self.mount("main")
        self.on_mount("warm-spoke", "mount, warm, spoke restarted", self._main)

    def _warm(self) -> Spoke:
        if self._main is None:
            raise LabError("left out: the mount that should be warm did not come so far")
        return self._main

    def cold_again(self, number: int) -> None:
        with self.mounted(f"cold-{number}") as spoke:
            batches = min(self.arguments.cold_batches, self.arguments.batches)
            self.on_mount(f"cold-{number}", f"mount, cold, start {number}", spoke, batches=batches)

    def checkpoints(self) -> None:
        with self.mounted("checkpoints") as spoke:
            self.on_mount("checkpoints", "mount, cold, checkpoints written meanwhile", spoke, checkpoint=True)

    def no_prefetch(self) -> None:
        with self.mounted("bare", "--no-prefetch") as spoke:
            batches = min(self.arguments.bare_batches, self.arguments.batches)
            self.on_mount("no-prefetch", "mount, cold, prefetch off", spoke, batches=batches)

    def take_turns(self) -> None:
        """Local and mount, mount and local, and so on: two runs without a step right after each other make a pair."""
        spoke = self._warm()
        for number in range(self.arguments.pairs):
            levels: dict[Path, float] = {}
            for directory in (self.data, spoke.mountpoint)[:: -1 if number % 2 else 1]:
                where = "mount, warm" if directory == spoke.mountpoint else "local directory"
                (epoch,) = self.job(f"{where}, no step", directory, step_s=0.0, train=False)
                levels[directory] = epoch.sweep.level_samples_per_s
            self.pairs.append(Pair(levels[self.data], levels[spoke.mountpoint]))

    # --- kinds of runs -------------------------------------------------------------------------------------

    def mount(self, name: str, *flags: str) -> Spoke:
        sized = () if "--cache-size" in flags else ("--cache-size", self.arguments.cache_size)
        with self.say(f"mount, cache {name!r}"):
            return self.lab.mount(DATASET, name, *sized, "--read-timeout", "120s", *flags)

    @contextlib.contextmanager
    def mounted(self, name: str, *flags: str) -> Iterator[Spoke]:
        """A fresh spoke with an empty cache, gone again afterwards, its cache too, also when something failed."""
        spoke = self.mount(name, *flags)
        try:
            yield spoke
            self.lab.unmount(spoke)
        finally:
            self.lab.abandon(spoke)

    def local(self, *, checkpoint: bool = False, model: bool = False) -> None:
        """One run on the local directory; two epochs where the model trains, for its second one has other losses."""
        name = "local-checkpoints" if checkpoint else "local-model" if model else "local"
        title = "local directory" + (", checkpoints" if checkpoint else ", the model" if model else "")
        trains = model or self.arguments.train
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

    def changed(self) -> None:
        """One file replaced at the source, while the mount has all of it; how long until the mount shows it."""
        spoke = self._warm()
        files = tokens.find(self.data, self.arguments.dtype)
        file = files[len(files) // 2]
        path = file.path
        with self.say(f"replace {path.name} at the source"):
            tokens.change(file)
            replaced_s = time.monotonic()
            wanted = path.stat().st_mtime_ns
            while (spoke.mountpoint / path.name).stat().st_mtime_ns != wanted:
                if time.monotonic() > replaced_s + SEEN_TIMEOUT_S:
                    raise LabError(f"the mount did not show the new {path.name} within {SEEN_TIMEOUT_S:g} s")
                time.sleep(0.01)
            notes = {"seen_after_s": time.monotonic() - replaced_s, "changed_bytes": path.stat().st_size}
        self.on_mount("changed", "mount, warm, one file changed at the source", spoke, notes=notes)

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
        model: bool = False, step_s: float | None = None, train: bool | None = None,
    ) -> list[Epoch]:  # fmt: skip
        """In a process of its own (one a rank), so that no run inherits another one's files or pages."""
        arguments = self.arguments
        trains = model or (arguments.train if train is None else train)
        world = arguments.model_ranks if trains else arguments.ranks
        out = self.lab.directory / "job.json"
        flags = [
            *("--data", str(directory), "--out", str(out)),
            *("--order", arguments.order, "--seed", str(arguments.seed)),
            *("--window", str(arguments.model_window if trains else arguments.window), "--epochs", str(epochs)),
            *("--batch", str(arguments.model_batch if trains else arguments.batch)),
            *("--gpus", str(world if trains else arguments.gpus)),
            *("--batches", str(batches or (arguments.model_batches if model else arguments.batches))),
            *("--workers", str(arguments.workers), "--world", str(world)),
            *("--step-time", str(arguments.step_time if step_s is None else step_s)),
            *("--vocabulary", str(arguments.vocabulary), "--dim", str(arguments.dim)),
            *("--layers", str(arguments.layers), "--heads", str(arguments.heads)),
        ]
        if trains:
            flags.append("--train")
        if arguments.dtype is not None:
            flags += ["--dtype", arguments.dtype]
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
        trains = model or self.arguments.train
        mode = f"model, epoch {epoch + 1}" if trains else "timed step" if self.arguments.step_time else "no step"
        return f"{mode}{', checkpoints' if checkpoint else ''}"

    def _beside(self, number: int, phase: Phase) -> Phase:
        """The phase with the local run before it and the one after it, and whether it saw the same data as they did."""
        runs = self.local_runs.get(phase.mode, [])
        before = [epoch for at, epoch in runs if at < number][-1:]
        after = [epoch for at, epoch in runs if at > number][:1]
        if phase.name.startswith("local"):
            return phase
        # What the source held then: the local run after a change, and the one before all else.
        version = after if phase.name == "changed" else before
        return replace(phase, local=[*before, *after], same=all(phase.epoch.same_data(epoch) for epoch in version))
