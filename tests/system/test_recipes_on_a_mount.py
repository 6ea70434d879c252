"""Recipes on a real mount: what an unmodified job reads there is what its recipe told, and the spoke found the job in it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="recipes need NumPy")
pytest.importorskip("torch", reason="jobs here are PyTorch's")

from pair import Pair, Process, Spoke, eventually
from recipe_support import document_lengths, lane_steps, write_mds, write_megatron, write_rows

from spoke import control
from spoke.places import runtime_dir
from spoke.recipes.command import make
from spoke.recipes.files import MountedFiles
from spoke.recipes.options import Options
from spoke.recipes.scratch import Scratch

pytestmark = [pytest.mark.mount, pytest.mark.torch]

MIB = 1024 * 1024
TESTS = Path(__file__).resolve().parent.parent
PYTHONPATH = f"{TESTS}:{TESTS.parent}"
JOB_TIMEOUT_S = 100.0
WINDOW = 128 * 1024

Step = tuple[str, int, int]


class TracedSpoke(Spoke):
    """Writes each READ to ``trace``."""

    def __init__(self, mountpoint: Path, address: str, cache_dir: Path) -> None:
        self.mountpoint = mountpoint
        self.trace = mountpoint.with_suffix(".trace")
        mountpoint.mkdir(exist_ok=True)
        Process.__init__(
            self,
            ["traced_spoke", "mount", str(mountpoint), "--hub", address, "--dataset", "data", "--cache-dir",
             str(cache_dir), "--cache-size", "2GiB", "--metrics", "127.0.0.1:0", "--no-passthrough"],
            mountpoint.with_suffix(".log"),
            {"PYTHONPATH": PYTHONPATH, "READ_TRACE": str(self.trace)},
        )  # fmt: skip

    def reads(self) -> list[tuple[str, int, int, str]]:
        return [tuple(json.loads(line)) for line in self.trace.read_text().splitlines()]


def command(spoke: Spoke, recipe: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "spoke.recipes", str(spoke.mountpoint), "--recipe", recipe, *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def job(script: str, *arguments: Path | str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True, text=True, timeout=JOB_TIMEOUT_S, check=False,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )  # fmt: skip
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def told(spoke: Spoke, scratch: Path, name: str, **options: str) -> list[Step]:
    """The steps of a recipe with one lane, from the mount."""
    asked = Options(name, {key.replace("_", "-"): value for key, value in options.items()})
    recipe = make(name, asked, MountedFiles(str(spoke.mountpoint), None, Scratch(scratch)))
    return lane_steps(recipe, 0, piece=500)


def ask(spoke: Spoke, what: str) -> dict:
    return control.ask_once(control.socket_path(runtime_dir(), str(spoke.mountpoint.resolve())), {"command": what})


def assert_reads_are_the_steps(reads: list[tuple[str, int, int, str]], steps: list[Step]) -> None:
    """Every READ touches a step (as far as the kernel reads around), and every byte of the steps was read."""
    of_file: dict[str, list[tuple[int, int]]] = {}
    for path, offset, length in steps:
        of_file.setdefault(path, []).append((offset, offset + length))
    read: dict[str, bytearray] = {}
    for path, offset, length, _ in reads:
        blocks = read.setdefault(path, bytearray(1 << 16))
        first, end = offset // 4096, -(-(offset + length) // 4096)
        blocks[first:end] = b"\1" * (end - first)
    for path, ranges in of_file.items():
        for begin, end in ranges:
            assert read[path].find(0, begin // 4096, -(-end // 4096)) == -1, (path, begin, end)
    for path, offset, length, _ in reads:
        near = any(begin < offset + length + WINDOW and offset - WINDOW < end for begin, end in of_file.get(path, []))
        assert near, (path, offset, length)


def assert_followed(spoke: Spoke, step_count: int, displaced: int) -> None:
    """The spoke found the job in the order and is at its end, but for what its workers displace."""
    eventually(lambda: ask(spoke, "orders")["orders"][0]["lanes"][0]["position"] >= step_count - displaced)
    (order,) = ask(spoke, "orders")["orders"]
    assert order["state"] in ("locked", "done")
    assert order["reason"] == "recipe"


RECORDS = """
import os, sys
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Records(Dataset):
    def __len__(self):
        return 3000
    def __getitem__(self, index):
        file = os.open(f"{sys.argv[1]}/r.bin", os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        data = os.pread(file, 8192, 8192 * index)
        os.close(file)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).sum()

sampler = DistributedSampler(Records(), num_replicas=2, rank=1, seed=5)
loader = DataLoader(Records(), batch_size=8, sampler=sampler, num_workers=4, multiprocessing_context="fork")
print(sum(int(batch.sum()) for batch in loader))
"""


def test_fixed_records_under_a_distributed_sampler(pair: Pair, tmp_path: Path) -> None:
    write_rows(pair.data / "r.bin", 3000 * 8192)
    spoke = TracedSpoke(pair.work_dir / "mnt", pair.hub().address, pair.work_dir / "cache")
    try:
        spoke.ready()
        options = {
            "files": "r.bin",
            "record-bytes": "8192",
            "seed": "5",
            "world-size": "2",
            "ranks": "1",
            "epochs": "1",
        }
        said = command(
            spoke, "fixed-records", *(word for name, value in options.items() for word in (f"--{name}", value))
        )
        assert "fixed-records:seed=5: 1 lanes, 1500 reads" in said
        del options["epochs"]
        steps = told(spoke, tmp_path, "fixed-records", **options)
        job(RECORDS, spoke.mountpoint)
        assert sorted(step[1] for step in steps) == sorted({read[1] for read in spoke.reads()})
        assert_reads_are_the_steps(spoke.reads(), steps)
        assert_followed(spoke, len(steps), displaced=64)
        # The last reads come from what was fetched ahead of them.
        assert sum(read[3] == "hit" for read in spoke.reads()[-500:]) >= 450
    finally:
        spoke.clean_up()


MEGATRON = """
import sys
import torch
from pathlib import Path
from real_loaders import megatron_dataset, one_process

mount, work, mapped = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "mmap"
options = {"prefix": "p", "split": "99,1,0", "seed": 1234, "seq-length": 512, "num-samples": 3000}
with one_process(work):
    dataset = megatron_dataset(options, work, mmap=mapped, seen_as=mount)
loader = torch.utils.data.DataLoader(
    dataset, batch_sampler=[range(n, n + 8) for n in range(0, 320, 8)], num_workers=4, multiprocessing_context="fork"
)
print(sum(int(batch["tokens"].sum()) for batch in loader))
"""


@pytest.mark.parametrize("reader", ["mmap", "file"])
def test_megatron(pair: Pair, tmp_path: Path, reader: str) -> None:
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed (pip install 'headrace[loaders]')")
    write_megatron(pair.data / "p", document_lengths(40_000, 3, 800))
    spoke = TracedSpoke(pair.work_dir / "mnt", pair.hub().address, pair.work_dir / "cache")
    try:
        spoke.ready()
        options = {
            "prefix": str(spoke.mountpoint / "p"),
            "split": "99,1,0",
            "seed": "1234",
            "seq-length": "512",
            "num-samples": "3000",
        }
        command(
            spoke, "megatron", *(word for name, value in options.items() for word in (f"--{name}", value)), "--once"
        )
        sum_of_tokens = job(MEGATRON, spoke.mountpoint, tmp_path, reader).strip()
        used = _steps_of_samples(spoke, tmp_path, options, 320)
        reads = [read for read in spoke.reads() if read[0] == "p.bin"]
        assert_reads_are_the_steps(reads, used)
        local = (pair.data / "p.bin").read_bytes()
        import numpy as np

        # The overlapping last token of each sample is no input of it.
        tokens = 0
        for sample in _samples(spoke, tmp_path, options, 320):
            text = np.concatenate(
                [np.frombuffer(local[offset : offset + length], np.uint16) for _, offset, length in sample]
            )
            tokens += int(text[:-1].astype(np.int64).sum())
        assert tokens == int(sum_of_tokens)
        # A mapped reader is not seen where the kernel has the pages already.
        assert_followed(spoke, len(used), displaced=len(used) // 3)
    finally:
        spoke.clean_up()


def _samples(spoke: Spoke, scratch: Path, options: dict[str, str], count: int) -> Iterator[list[Step]]:
    from recipe_support import rows

    recipe = make("megatron", Options("megatron", options), MountedFiles(str(spoke.mountpoint), None, Scratch(scratch)))
    epoch = recipe.epoch(0)
    for sample in range(count):
        yield rows(recipe, epoch.steps(0, sample, sample + 1))


def _steps_of_samples(spoke: Spoke, scratch: Path, options: dict[str, str], count: int) -> list[Step]:
    return [step for sample in _samples(spoke, scratch, options, count) for step in sample]


MDS = """
import sys
from torch.utils.data import DataLoader
from streaming import StreamingDataset
from streaming.base.util import clean_stale_shared_memory

if __name__ == "__main__":
    clean_stale_shared_memory()
    dataset = StreamingDataset(local=f"{sys.argv[1]}/d", shuffle=True, batch_size=8, shuffle_block_size=4000)
    loader = DataLoader(dataset, batch_size=8, num_workers=4, collate_fn=list, multiprocessing_context="fork")
    print(sum(sum(sample["x"]) for batch in loader for sample in batch))
"""


def test_mds(pair: Pair, tmp_path: Path) -> None:
    if importlib.util.find_spec("streaming") is None:
        pytest.skip("mosaicml-streaming is not installed (pip install 'headrace[loaders]')")
    write_mds(pair.data / "d", [400] * 10, sample_bytes=8000)
    spoke = TracedSpoke(pair.work_dir / "mnt", pair.hub().address, pair.work_dir / "cache")
    try:
        spoke.ready()
        command(spoke, "mds", "--dir", "d", "--shuffle-block-size", "4000", "--epochs", "1")
        sum_of_bytes = job(MDS, spoke.mountpoint).strip()
        steps = told(spoke, tmp_path, "mds", dir="d", shuffle_block_size="4000")
        reads = [read for read in spoke.reads() if read[0].endswith(".mds")]
        assert_reads_are_the_steps(reads, steps)
        shards = {path.name: path.read_bytes() for path in (pair.data / "d").glob("*.mds")}
        found = sum(
            sum(shards[Path(path).name][offset + 4 : offset + length]) for path, offset, length in steps if length != 8
        )
        assert found == int(sum_of_bytes)
        assert_followed(spoke, len(steps), displaced=200)
    finally:
        spoke.clean_up()
