"""``python -m bench.demo``: from text to a table, with a hub, 60 ms and a spoke in between.

Exit codes: 0 all done and every byte the same, 1 something failed, 2 wrong use or a machine that cannot mount.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench.demo import dataset, report
from bench.demo.summary import Sweep, difference
from bench.flags import add_link_flags, positive
from bench.lab import Lab, LabError, Metrics, Spoke, in_lab, ready
from bench.link import LinkShape
from bench.path import ROOT, describe
from common.errors import UsageError
from common.terminal import EXIT_USAGE
from common.units import parse_duration, parse_size

DATASET = "text"
JOB_TIMEOUT_S = 120.0
SMALL = {"size": 6_000_000, "batches": 120, "workers": 2}


@dataclass
class Demo:
    """What the steps share; ``out`` is where the results go."""

    arguments: argparse.Namespace
    console: Console
    lab: Lab
    out: Path

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Says what happens and how long it took; a spinner on a terminal, lines elsewhere."""
        started_s = time.monotonic()
        if self.console.is_terminal:
            with self.console.status(f"{what} …"):
                yield
        else:
            self.console.print(f"  {what} …")
            yield
        self.console.print(f"[green]✓[/] {what} [dim]({time.monotonic() - started_s:.1f} s)[/]")

    # --- the steps -------------------------------------------------------------------------------------------

    def tokenize(self, data: Path) -> int:
        """Returns the number of tokens."""
        from bench.demo import corpus  # tokenizers: not before wrong flags have been refused

        directories = [self.arguments.text] if self.arguments.text else corpus.default_directories()
        with self.step("collect text"):
            texts = corpus.collect(directories, self.arguments.size)
        with self.step(f"train a byte-level BPE of {corpus.VOCABULARY:,} tokens on a sample of it"):
            tokenizer = corpus.train(texts)
        columns = (SpinnerColumn(), TextColumn("tokenize"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as bar:
            task = bar.add_task("tokenize", total=len(texts))
            documents = corpus.encode(tokenizer, texts, lambda done: bar.update(task, completed=done))
        tokens = sum(map(len, documents))
        with self.step("write nanoGPT (.bin) and Megatron (.bin + .idx) files, uint16 and 4-byte"):
            dataset.build(data, documents)
            tokenizer.save(str(data / "tokenizer.json"))
        names = dataset.files_below(data)
        self.console.print(
            f"  {len(texts):,} documents, {sum(map(len, texts)) / 1e6:.1f} MB of text, {tokens:,} tokens; "
            f"{len(names)} files, {dataset.total_bytes(data, names) / 1e6:.1f} MB to serve"
        )
        return tokens

    def run_job(self, name: str, data: Path, *, step_s: float) -> Sweep:
        """The job in a process of its own, so that no run inherits another one's files or pages."""
        arguments = self.arguments
        out = self.lab.directory / "job.json"
        command = [
            *(sys.executable, "-m", "bench.demo.job", "--data", str(data), "--out", str(out)),
            *("--batch", str(arguments.batch), "--batches", str(arguments.batches)),
            *("--workers", str(arguments.workers), "--step", str(step_s)),
        ]
        with self.step(f"DataLoader job, {name}"):
            self.lab.run(f"job on {name}", command, JOB_TIMEOUT_S)
        return Sweep.from_json(json.loads(out.read_text()))

    def run_measured(self, spoke: Spoke, name: str, *, step_s: float) -> tuple[Sweep, Metrics]:
        """A job on the mount and what the spoke's counters gained by it."""
        before = spoke.numbers()
        sweep = self.run_job(name, spoke.mountpoint, step_s=step_s)
        return sweep, difference(before, spoke.numbers())

    def compare(self, data: Path, mountpoint: Path) -> int:
        """SHA-256 of every file on both sides. Returns how many files; raises LabError at the first difference."""
        names = dataset.files_below(data)
        with self.step(f"compare the SHA-256 of {len(names)} files"):
            if (seen := dataset.files_below(mountpoint)) != names:
                raise LabError(f"the mount shows other names: {sorted(set(seen) ^ set(names))}")
            pairs = zip(dataset.checksums(data, names), dataset.checksums(mountpoint, names), strict=True)
            for (name, wanted), (_, got) in pairs:
                if wanted != got:
                    raise LabError(f"{name} differs: SHA-256 {wanted} in the directory, {got} through the mount")
        return len(names)

    def run(self) -> None:
        arguments, lab = self.arguments, self.lab
        data = lab.directory / "data"
        shape = LinkShape(arguments.rtt, arguments.rate)
        tokens = self.tokenize(data)
        local = self.run_job("local directory", data, step_s=arguments.step)
        with self.step(f"start a hub, {describe(shape)} in front of it, and a spoke"):
            lab.start_hub(DATASET, data, shape, arguments.link)
            spoke = lab.mount(DATASET, "demo", "--cache-size", "4GiB", "--read-timeout", "60s")
        start = spoke.numbers()
        cold, cold_gained = self.run_measured(spoke, "mount, cold", step_s=arguments.step)
        warm, warm_gained = self.run_measured(spoke, "mount, warm", step_s=arguments.step)
        local_alone = self.run_job("local directory, no step", data, step_s=0)
        warm_alone, _ = self.run_measured(spoke, "mount, warm, no step", step_s=0)
        if len({sweep.checksum for sweep in (local, cold, warm, local_alone, warm_alone)}) != 1:
            raise LabError("the jobs did not see the same tokens: their checksums differ")
        files = self.compare(data, spoke.mountpoint)
        status = spoke.status()
        total_gained = difference(start, spoke.numbers())
        with self.step("unmount"):
            lab.unmount(spoke)
        names = dataset.files_below(data)
        result = report.Result(
            local=local,
            cold=cold,
            warm=warm,
            local_alone=local_alone,
            warm_alone=warm_alone,
            cold_gained=cold_gained,
            warm_gained=warm_gained,
            total_gained=total_gained,
            dataset_bytes=dataset.total_bytes(data, names),
            swept_bytes=dataset.total_bytes(data, [file.path for file in dataset.read_manifest(data)]),
            files=files,
            tokens=tokens,
            link=f"{describe(shape)} ({lab.link_kind})",
            rtt_s=shape.rtt_s,
            rate_bytes_per_s=shape.rate_bytes_per_s,
            step_s=arguments.step,
            workers=arguments.workers,
            status=status,
        )
        with self.step("draw"):
            written = report.write(result, self.out)
        report.show(result, self.console)
        for path in written:
            self.console.print(f"  {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}", highlight=False)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.demo", description="Train-like reads of real text across a long link, cold and warm."
    )

    parser.add_argument("--text", type=Path, help="a directory with text; default: Python's standard library")
    parser.add_argument("--size", type=parse_size, default=24_000_000, help="most text to use (default 24MB)")
    add_link_flags(parser)
    parser.add_argument("--workers", type=positive, default=4, help="of the DataLoader (default 4)")
    parser.add_argument("--batch", type=positive, default=16, help="samples a batch (default 16)")
    parser.add_argument("--batches", type=int, default=0, help="batches a run (default 0: all)")
    parser.add_argument(
        "--step", type=parse_duration, default=0.025, help="time a batch occupies the job (default 25ms)"
    )
    parser.add_argument("--small", action="store_true", help="a quick look: 6 MB of text, 120 batches, 2 workers")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out/demo", help="where JSON and picture go")
    parser.add_argument("--keep", action="store_true", help="leave the temporary directory")
    arguments = parser.parse_args(argv)
    if arguments.small:
        for name, value in SMALL.items():
            setattr(arguments, name, value)
    if arguments.text is not None and not arguments.text.is_dir():
        raise UsageError(f"--text {arguments.text} is not a directory")
    if not (math.isfinite(arguments.rate) and arguments.rate > 0):
        raise UsageError("--rate must be above 0, for example 1gbit")
    if arguments.batches < 0:
        raise UsageError("--batches must be 0 (all) or more")
    return arguments


def main() -> int:
    console = Console(highlight=False, soft_wrap=True)
    arguments = ready(console, parse)
    if arguments is None:
        return EXIT_USAGE
    return in_lab(console, lambda lab: Demo(arguments, console, lab, arguments.out).run(), keep=arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
