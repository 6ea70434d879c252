"""``python -m bench.foresight``: what DESIGN asks of prefetch, measured on a real mount behind a long link, as ratios within one run.

Loads (``--loads``): ``sweep`` (a DataLoader in order, 1 to 64 workers), ``recipes`` (megatron-core's and MosaicML's own loaders, cold),
``plan`` (a global shuffle that its sampler announces, four times the cache), ``again`` (the same shuffle each epoch, a process each),
``anew`` (another shuffle each epoch, beside a spoke without prefetch), ``streams`` (16 on one descriptor, beside one), ``told`` (streams,
a sweep and a shuffle along the order that another spoke learned, beside guesses). Every job's checksum is compared with the local one's.
Exit codes: 0 measured (targets missed or not), 1 failed, 2 wrong use.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.experiment.measures import FETCHED
from bench.flags import add_link_flags
from bench.foresight import figures
from bench.foresight.figures import GRAIN_BYTES, Figure
from bench.foresight.job import Asked
from bench.lab import Lab, LabError, Spoke, eventually, in_lab, read_metrics, ready
from bench.link import LinkShape
from bench.path import ROOT, GivenWay, describe
from bench.replay.recorded import read_trace
from bench.replay.runs import Bench
from bench.replay.simulator import World
from bench.replay.sweeps import BATCH_BYTES, sweep_of
from bench.replay.trace import Trace, TraceFile
from common.errors import UsageError
from common.terminal import EXIT_USAGE
from common.units import format_size, parse_size

DATASET = "foresight"
MIB = 1 << 20
JOB_TIMEOUT_S = 280.0
SHARE_OF_LINK = 0.5
"""What the job asks for: the link is twice as fast."""
SWEEP_WORKERS = (1, 4, 16, 64)
SWEEP_FILE, SWEEP_BYTES = "sweep.bin", 256 * MIB
SWEEP_LEAST_BATCHES, SWEEP_BATCHES_A_WORKER = 192, 8
"""A loader of W workers asks for 2 W batches when it starts, which no READ can hit: the sweep is to go on well after them."""
SEQ_LENGTH = 2048
DOCUMENT_TOKENS = 1200
RECIPE_BATCHES = 200
ORDERS_TIMEOUT_S = 30.0


class Measuring:
    """What the loads share."""

    def __init__(self, lab: Lab, arguments: argparse.Namespace, console: Console) -> None:
        self.lab = lab
        self.arguments = arguments
        self.console = console
        self.rtt_s: float = arguments.rtt
        self.rate_bytes_per_s: float = arguments.rate
        self.size_bytes: int = arguments.size
        self.figures: list[Figure] = []
        self.data = lab.directory / "data"
        self._runs = 0

    # --- the parts -----------------------------------------------------------------------------------------

    def make_data(self, loads: Sequence[str]) -> None:
        self.data.mkdir()
        files = {"records.bin": self.size_bytes} if set(loads) != {"sweep"} else {}
        if "sweep" in loads:
            files[SWEEP_FILE] = SWEEP_BYTES
        dice = Random(1)
        for name, size_bytes in files.items():
            with (self.data / name).open("wb") as file:
                for _ in range(size_bytes // MIB):
                    file.write(dice.randbytes(MIB))
        if "recipes" in loads:
            self._make_loaders_data()

    def _make_loaders_data(self) -> None:
        import numpy as np

        from bench.demo.formats import write_megatron

        dice = np.random.default_rng(2)
        left, documents = self.size_bytes // 2, []
        while left > 0:
            documents.append(dice.integers(0, 50_000, int(dice.integers(1, 2 * DOCUMENT_TOKENS)), dtype=np.uint16))
            left -= len(documents[-1])
        write_megatron(self.data / "p", documents, "uint16")
        script = (
            "import random, sys; from streaming import MDSWriter; dice = random.Random(3)\n"
            "with MDSWriter(out=sys.argv[1], columns={'x': 'bytes'}, size_limit=1 << 23) as out:\n"
            "    for _ in range(int(sys.argv[2])): out.write({'x': dice.randbytes(dice.randrange(4096, 12288))})\n"
        )
        count = str(self.size_bytes // 2 // 8192)
        self.lab.run("write mds", [self.arguments.python, "-c", script, str(self.data / "d"), count], JOB_TIMEOUT_S)

    def step_s(self, batch_bytes: int) -> float:
        return batch_bytes / (SHARE_OF_LINK * self.rate_bytes_per_s)

    def job(self, spoke: Spoke | None, asked: Asked, expected: str = "") -> dict[str, Any]:
        """Run it on the mount, or on the local directory. Raises LabError, also when what it read is not ``expected``."""
        self._runs += 1
        work = self.lab.directory / f"work-{self._runs}"
        work.mkdir()
        result = self.lab.directory / f"result-{self._runs}.json"
        root = self.data if spoke is None else spoke.mountpoint
        asked = asked._replace(root=str(root), metrics="" if spoke is None else spoke.metrics, work=str(work))
        command = [self.arguments.python, "-m", "bench.foresight.job", json.dumps(asked._asdict()), str(result)]
        self.lab.run(f"job-{self._runs}", command, JOB_TIMEOUT_S)
        run: dict[str, Any] = json.loads(result.read_text())
        if expected and run["digest"] != expected:
            raise LabError(f"{asked.kind} on {root}: what was read is not what lies at the hub")
        return run

    def say(
        self, load: str, what: str, value: float | None, *, least: float | None = None, most: float | None = None
    ) -> None:
        self.figures.append(Figure(load, what, value, least, most))
        shown = "never" if value is None else f"{value:.3f}"
        self.console.print(f"  {load}: {what} {shown} {self.figures[-1].target}")

    def mounted(self, name: str, *flags: str) -> Spoke:
        """It follows what it learns itself, unless the flags say more."""
        return self.lab.mount(DATASET, name, "--no-share-orders", *flags)

    def end(self, spoke: Spoke) -> None:
        self.lab.unmount(spoke)
        self.lab.drop(spoke)

    # --- the loads -----------------------------------------------------------------------------------------

    def sweep(self) -> None:
        for workers in self.arguments.workers:
            load = f"sweep, {workers} workers"
            batches = max(SWEEP_LEAST_BATCHES, SWEEP_BATCHES_A_WORKER * workers)
            asked = Asked(
                "records", "", "", workers, step_s=self.step_s(8 * 64 * 1024), batches=batches, file=SWEEP_FILE
            )
            local = self.job(None, asked)
            spoke = self.mounted(f"sweep-{workers}", "--cache-size", "4GiB")
            cold = self.job(spoke, asked, local["digest"])
            self._paced(load, cold, local, most_rtts=3, least_hits=0.995)
            self._bound(load, workers, batches)
            self.end(spoke)

    def _bound(self, load: str, workers: int, batches: int) -> None:
        """What no spoke could better: the READs of the first rush wait for the link, whatever is known."""
        size_bytes = batches * BATCH_BYTES
        trace = Trace(load, [TraceFile(SWEEP_FILE.encode(), size_bytes)], [sweep_of(workers, size_bytes)])
        trace.at_load(SHARE_OF_LINK * self.rate_bytes_per_s)
        known = Bench(trace, World(self.rtt_s, self.rate_bytes_per_s, 4 << 30), 1).run("foremost")
        self.say(load, "hits after 2 batches of who knows all (simulated)", known.hit_share_after_2)
        self.say(load, "stall, round trips, of who knows all (simulated)", known.waited_s / self.rtt_s)

    def _paced(
        self, load: str, cold: dict[str, Any], local: dict[str, Any], *, most_rtts: float, least_hits: float
    ) -> None:
        local_batch_s = (local["took_s"] - local["batch_s"][0]) / (len(local["batch_s"]) - 1)
        self.say(load, "batches to full speed", figures.batches_to_full_speed(cold["batch_s"], local_batch_s), most=2)
        self.say(load, "hits after 2 batches", figures.hits(cold, "marked"), least=least_hits)
        self.say(load, "hits once the loader's queue is full", figures.hits(cold, "settled"), least=least_hits)
        self.say(load, "stall, round trips", figures.waited_rtts(cold, local, self.rtt_s), most=most_rtts)
        self.say(load, "local time / time", figures.local_share(cold, local))

    def recipes(self) -> None:
        for name in self.arguments.recipes:
            {"megatron": self._megatron, "mds": self._mds}[name]()

    def _megatron(self) -> None:
        batch, length_bytes = 8, 2 * (SEQ_LENGTH + 1)
        count = min(RECIPE_BATCHES, self.size_bytes // 4 // length_bytes // batch)
        self._recipe(
            "megatron",
            Asked(
                "megatron", "", "", batch=batch, step_s=self._random_step_s(batch), batches=count, seq_length=SEQ_LENGTH
            ),
            (
                "--prefix",
                "p",
                "--seed",
                "1234",
                "--split",
                "1,0,0",
                "--seq-length",
                str(SEQ_LENGTH),
                "--num-samples",
                str(count * batch),
            ),
        )

    def _mds(self) -> None:
        self._recipe(
            "mds",
            Asked("mds", "", "", step_s=self._random_step_s(8), batches=RECIPE_BATCHES),
            ("--dir", "d", "--shuffle-block-size", "4000", "--epochs", "1"),
        )

    def _random_step_s(self, batch: int) -> float:
        """A sample costs up to two faults of 128 KiB while nothing is cached; the job asks for half of the link then."""
        return self.step_s(batch * 2 * GRAIN_BYTES)

    def _recipe(self, name: str, asked: Asked, words: Sequence[str]) -> None:
        load = f"recipe {name}"
        local = self.job(None, asked)
        trace = self.lab.directory / f"{name}.trace"
        spoke = self.mounted(name, "--cache-size", "4GiB", "--no-passthrough", "--record", str(trace))
        words = [str(spoke.mountpoint / "p") if word == "p" else word for word in words]
        self.lab.run(
            f"plan-{name}",
            [sys.executable, "-m", "spoke.cli", "plan", str(spoke.mountpoint), "--recipe", name, *words],
            JOB_TIMEOUT_S,
        )
        cold = self.job(spoke, asked, local["digest"])
        self.lab.unmount(spoke)
        self._paced(load, cold, local, most_rtts=5, least_hits=0.99)
        seen = read_trace(trace)
        reads = [
            read
            for process in seen.processes
            for read in zip(process.files, process.offsets, process.lengths, strict=True)
        ]
        fetched = cold["after"].get(FETCHED, 0.0)  # before the job begins its first samples are there
        self.say(load, "fetched / asked for, in 128 KiB", fetched / figures.unique_bytes(reads, GRAIN_BYTES), most=1.05)
        read_bytes = figures.unique_bytes(reads, figures.BLOCK_BYTES)
        self.say(load, "fetched / asked for, in 4 KiB", fetched / read_bytes)
        self.say(load, "fetched and not read when the job stopped, MiB", (fetched - read_bytes) / MIB)
        self.lab.drop(spoke)

    def plan(self) -> None:
        """As fast as it comes by half: what the link cannot bring is the stall that must be."""
        batch_bytes = 8 * 64 * 1024
        asked = Asked("records", "", "", step_s=batch_bytes / (2 * self.rate_bytes_per_s), shuffle_seed=5)
        local = self.job(None, asked)
        # What the link brings, by one stream in order on a mount of its own.
        spoke = self.mounted("plan-rate", "--cache-size", "4GiB")
        one = self.job(spoke, Asked("streams", "", "", size_bytes=self.size_bytes))
        self.end(spoke)
        spoke = self.mounted("plan", "--cache-size", str(self.size_bytes // 4))
        cold = self.job(spoke, asked._replace(announce=True), local["digest"])
        stall_s = cold["took_s"] - local["took_s"]
        bound_s = self.size_bytes / self.rate_bytes_per_s - local["took_s"]
        stream_bound_s = one["took_s"] - local["took_s"]
        self.say("plan, data 4 x cache", "stall / bound by the link's rate", stall_s / bound_s, most=1.1)
        # Beside it, what no spoke could spare the job: the loader starts its workers before it draws an order that could be announced,
        # then there is a round trip, and frames and digests take some of the link.
        framing_bytes = max(0.0, figures.received_bytes(cold) - figures.fetched_bytes(cold))
        fair_bound_s = bound_s + cold["order_s"] + self.rtt_s + framing_bytes / self.rate_bytes_per_s
        self.say(
            "plan, data 4 x cache", "stall / that and the loader's start, a round trip, framing", stall_s / fair_bound_s
        )
        self.say("plan, data 4 x cache", "seconds until the loader draws an order", cold["order_s"])
        for share, which in (
            (0.0, "first batch"),
            (0.1, "first tenth"),
            (0.5, "first half"),
            (0.9, "first nine tenths"),
            (1.0, "end"),
        ):
            behind_s = figures.behind_link_s(cold, share, batch_bytes, self.rate_bytes_per_s)
            self.say("plan, data 4 x cache", f"seconds behind the link at the {which}", behind_s)
        self.say("plan, data 4 x cache", "misses / READs", figures.misses(cold))
        self.say("plan, data 4 x cache", "stall / what one stream in order would stall", stall_s / stream_bound_s)
        self.say("plan, data 4 x cache", "amplification", figures.fetched_bytes(cold) / self.size_bytes)
        self.end(spoke)

    def again(self) -> None:
        for access in ("pread", "mmap"):
            for share, name in ((2, "a cache of half the data"), (0.25, "a cache of four times the data")):
                load = f"same order again, {access}, {name}"
                asked = Asked("records", "", "", step_s=self.step_s(8 * 64 * 1024), shuffle_seed=5, access=access)
                local = self.job(None, asked)
                spoke = self.mounted(
                    f"again-{access}", "--cache-size", str(int(self.size_bytes / share)), "--no-passthrough"
                )
                first = self.job(spoke, asked, local["digest"])
                self.say(load, "hits of epoch 1", figures.hits(first))
                for epoch in (2, 3):
                    run = self.job(spoke, asked, local["digest"])
                    self.say(load, f"hits of epoch {epoch}", figures.hits(run), least=0.95)
                    self.say(load, f"local time / time, epoch {epoch}", local["took_s"] / run["took_s"])
                self.end(spoke)

    def anew(self) -> None:
        asked = Asked("records", "", "", step_s=self.step_s(8 * 64 * 1024), shuffle_seed=1)
        flags = ("--cache-size", str(self.size_bytes // 4), "--no-passthrough")
        with_it = self.mounted("anew", *flags)
        without = self.mounted("anew-without", *flags, "--no-prefetch")
        took_s = {with_it: 0.0, without: 0.0}
        fetched = {with_it: 0.0, without: 0.0}
        for seed in (1, 2, 3):  # they take turns
            for spoke in (with_it, without):
                run = self.job(spoke, asked._replace(shuffle_seed=seed))
                if seed > 1:
                    took_s[spoke] += run["took_s"]
                    fetched[spoke] += figures.fetched_bytes(run)
        load = "a new order each epoch"
        self.say(load, "amplification", fetched[with_it] / (2 * self.size_bytes), most=1.05)
        self.say(load, "amplification without prefetch", fetched[without] / (2 * self.size_bytes))
        self.say(load, "time without prefetch / time", took_s[without] / took_s[with_it], least=0.98)
        self.end(with_it)
        self.end(without)

    def streams(self) -> None:
        runs: dict[int, list[dict[str, Any]]] = {1: [], 16: []}
        for turn in range(3):  # they take turns
            for streams, found in runs.items():
                spoke = self.mounted(f"streams-{streams}-{turn}", "--cache-size", "4GiB")
                found.append(self.job(spoke, Asked("streams", "", "", size_bytes=self.size_bytes, streams=streams)))
                self.end(spoke)
        pairs = list(zip(runs[16], runs[1], strict=True))
        self.say(
            "streams",
            "one: rate / link",
            median(self.size_bytes / one["took_s"] for one in runs[1]) / self.rate_bytes_per_s,
        )
        whole = median(one["took_s"] / many["took_s"] for many, one in pairs)
        self.say("streams", "16 interleaved: rate / rate of one", whole, least=0.8)
        after = median(many["rate_after_start"] / one["rate_after_start"] for many, one in pairs)
        self.say("streams", "the same without the first MiB of each", after, least=0.8)

    def told(self) -> None:
        """What was read is told when a spoke ends; the next one, with an empty cache, has all the orders told so far to choose from."""
        step_s = self.step_s(8 * 64 * 1024)
        loads = {
            "16 streams": Asked("streams", "", "", size_bytes=self.size_bytes, streams=16),
            "a sweep": Asked("records", "", "", step_s=step_s),
            "a shuffle": Asked("records", "", "", step_s=step_s, shuffle_seed=5),
        }
        for name, asked in loads.items():
            digest = self.job(None, asked)["digest"]
            for share, size in ((0.5, "all"), (2, "half")):
                flags = ("--cache-size", str(int(self.size_bytes / share)), "--no-passthrough")
                if share < 1:
                    self._tell(asked, digest, *flags)
                took_s: dict[bool, list[float]] = {True: [], False: []}
                for _ in range(self.arguments.turns):  # they take turns
                    for follows, found in took_s.items():
                        sharing = "--share-orders" if follows else "--no-share-orders"
                        spoke = self.mounted(f"told-{follows}", *flags, sharing)
                        if follows:
                            self._wait_for_orders(spoke)
                        found.append(self.job(spoke, asked, digest)["took_s"])
                        self.end(spoke)
                load = f"{name} as told, a cache of {size}"
                ratio = median(
                    guessed / followed for followed, guessed in zip(took_s[True], took_s[False], strict=True)
                )
                self.say(load, "time of guesses / time", ratio, least=0.95)

    def _tell(self, asked: Asked, digest: str, *flags: str) -> None:
        spoke = self.mounted("told-first", *flags, "--share-orders")
        self.job(spoke, asked, digest)
        self.end(spoke)

    def _wait_for_orders(self, spoke: Spoke) -> None:
        eventually(
            lambda: bool(read_metrics(spoke.metrics).get('headrace_spoke_learned_orders{origin="hub"}')),
            "an order of another spoke",
            timeout_s=ORDERS_TIMEOUT_S,
            pause_s=0.1,
        )
        time.sleep(1.0)  # others may follow the first


RECIPES = ("megatron", "mds")
LOADS = ("sweep", "recipes", "plan", "again", "anew", "streams", "told")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.foresight", description="What fetching ahead is worth on a real mount."
    )
    add_link_flags(parser)
    parser.set_defaults(rate=37.5e6)
    parser.add_argument("--size", type=parse_size, default=96 * MIB, help="of the data (default 96MiB)")
    parser.add_argument("--loads", default=",".join(LOADS), help=f"of {', '.join(LOADS)} (default all)")
    parser.add_argument("--workers", type=lambda text: [int(word) for word in text.split(",")], default=list(SWEEP_WORKERS),
                        help="of the sweeps (default 1,4,16,64)")  # fmt: skip
    parser.add_argument("--recipes", type=lambda text: text.split(","), default=list(RECIPES),
                        help="of the load recipes (default megatron,mds)")  # fmt: skip
    parser.add_argument("--turns", type=int, default=3, help="of the load told (default 3)")
    parser.add_argument(
        "--python", default=sys.executable, help="an interpreter that has torch, megatron-core and mosaicml-streaming"
    )
    parser.add_argument(
        "--hub-exec",
        help="command prefix that runs the hub at the other end of a given link; --rtt and --rate say what it is",
    )
    parser.add_argument("--hub-address", help="where the hub is then reached")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out/foresight", help="where the JSON goes")
    parser.add_argument("--keep", action="store_true", help="keep the lab's directory")
    arguments = parser.parse_args()
    arguments.loads = [word.strip() for word in arguments.loads.split(",")]
    if unknown := sorted(set(arguments.loads) - set(LOADS)):
        raise UsageError(f"--loads: there is no {', '.join(unknown)}; there are {', '.join(LOADS)}")
    if unknown := sorted(set(arguments.recipes) - set(RECIPES)):
        raise UsageError(f"--recipes: there is no {', '.join(unknown)}; there are {', '.join(RECIPES)}")
    if bool(arguments.hub_exec) != bool(arguments.hub_address):
        raise UsageError("a given link needs both --hub-exec and --hub-address")
    if arguments.size < 16 * MIB:
        raise UsageError(f"--size {format_size(arguments.size)}: at least 16 MiB")
    if importlib.util.find_spec("torch") is None and arguments.python == sys.executable:
        raise UsageError("the jobs are PyTorch's: pip install 'headrace[demo]', or name an interpreter with --python")
    return arguments


def show(found: Sequence[Figure], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("load", "figure", "value", "target", ""):
        table.add_column(column, justify="right" if column == "value" else "left")
    for figure in found:
        value = "never" if figure.value is None else f"{figure.value:.3f}"
        table.add_row(
            figure.load, figure.what, value, figure.target, {True: "met", False: "MISSED", None: ""}[figure.is_met]
        )
    console.print(table)


def main() -> int:
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 140)
    arguments = ready(console, parse)
    if arguments is None:
        return EXIT_USAGE

    def work(lab: Lab) -> None:
        measuring = Measuring(lab, arguments, console)
        measuring.make_data(arguments.loads)
        if arguments.hub_exec:
            way = GivenWay("a given link", shlex.split(arguments.hub_exec), arguments.hub_address)
            lab.start_hub_at(way, DATASET, measuring.data)
        else:
            lab.start_hub(DATASET, measuring.data, LinkShape(arguments.rtt, arguments.rate), arguments.link)
        console.print(
            f"  {describe(LinkShape(arguments.rtt, arguments.rate))}, {lab.link_kind}; {os.cpu_count()} cores"
        )
        for load in arguments.loads:
            getattr(measuring, load)()
        show(measuring.figures, console)
        facts = {
            "rtt_s": arguments.rtt, "rate_bytes_per_s": arguments.rate, "size_bytes": arguments.size, "link": lab.link_kind,
            "figures": [{**asdict(figure), "is_met": figure.is_met} for figure in measuring.figures],
        }  # fmt: skip
        (arguments.out / "foresight.json").write_text(json.dumps(facts, indent=1) + "\n")

    return in_lab(console, work, keep=arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
