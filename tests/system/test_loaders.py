"""The loaders people use, on files that are not cached yet: each gets the right bytes, and the link carries them once.

Every job runs in a process of its own, so that a read that hangs or a SIGBUS fails one test and not the run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from pair import Pair, Spoke

pytestmark = pytest.mark.mount

MIB = 1024 * 1024
JOB_TIMEOUT_S = 90.0

needs_numpy = pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="NumPy is not installed")


def job(script: str, *arguments: Path | str) -> str:
    """Run a script to its end and give back its output; its own assertions fail the test."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=JOB_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write(path: Path, size_bytes: int, seed: int) -> str:
    """Random bytes, written a piece at a time; their md5."""
    dice = Random(seed)
    pool = memoryview(dice.randbytes(MIB) * 2)
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("xb", buffering=0) as file:
        for start_bytes in range(0, size_bytes, MIB):
            turn = dice.randrange(MIB)
            piece = pool[turn : turn + min(MIB, size_bytes - start_bytes)]
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def mount(pair: Pair) -> Spoke:
    return pair.spoke(pair.hub().address, extra=["--read-timeout", "60s"])


@needs_numpy
def test_numpy_maps_cold_files(pair: Pair) -> None:
    write(pair.data / "tokens.bin", 16 * MIB + 2, 1)
    job("import numpy, sys; numpy.save(sys.argv[1], numpy.random.default_rng(1).standard_normal((700, 3001)))",
        pair.data / "array.npy")  # fmt: skip
    job(
        """
import sys
import numpy as np

local, mounted = sys.argv[1:]
theirs = np.memmap(f"{mounted}/tokens.bin", np.uint16, "r")
ours = np.fromfile(f"{local}/tokens.bin", np.uint16)
assert theirs.shape == ours.shape
dice = np.random.default_rng(7)
for start in dice.integers(0, len(ours) - 4097, 200):
    assert np.array_equal(theirs[start : start + 4097], ours[start : start + 4097])
assert np.array_equal(theirs[::-1], ours[::-1])

theirs = np.load(f"{mounted}/array.npy", mmap_mode="r")
ours = np.load(f"{local}/array.npy")
assert isinstance(theirs, np.memmap)
rows = dice.permutation(len(ours))[:300]
assert np.array_equal(theirs[rows], ours[rows])
assert np.array_equal(theirs[:, 17], ours[:, 17])
assert np.array_equal(theirs, ours)
""",
        pair.data,
        mount(pair).mountpoint,
    )


@needs_numpy
def test_safetensors_load_cold_files(pair: Pair) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    job(
        """
import sys
import numpy as np
from safetensors.numpy import save_file

dice = np.random.default_rng(3)
for name in ("whole", "parts"):
    tensors = {f"layer{n}.weight": dice.standard_normal((256 + n, 1024), np.float32) for n in range(12)}
    tensors["ids"] = dice.integers(0, 2**31, 70_001)
    tensors["empty"] = np.zeros((0, 4), np.float32)
    save_file(tensors, f"{sys.argv[1]}/{name}.safetensors")
""",
        pair.data,
    )
    job(
        """
import sys
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

local, mounted = sys.argv[1:]
ours, theirs = load_file(f"{local}/whole.safetensors"), load_file(f"{mounted}/whole.safetensors")
assert ours.keys() == theirs.keys()
assert all(np.array_equal(ours[key], theirs[key]) for key in ours)

with safe_open(f"{local}/parts.safetensors", "np") as ours, safe_open(f"{mounted}/parts.safetensors", "np") as theirs:
    assert set(ours.keys()) == set(theirs.keys())
    for key in reversed(list(ours.keys())):
        assert np.array_equal(ours.get_tensor(key), theirs.get_tensor(key))
    assert np.array_equal(ours.get_slice("layer7.weight")[100:110, ::3], theirs.get_slice("layer7.weight")[100:110, ::3])
""",
        pair.data,
        mount(pair).mountpoint,
    )


@pytest.mark.torch
def test_a_data_loader_with_eight_forked_workers(pair: Pair) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    size_bytes = 32 * MIB
    write(pair.data / "tokens.bin", size_bytes, 5)
    spoke = mount(pair)
    job(
        """
import sys
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

WINDOW = 4096


class Windows(Dataset):
    def __init__(self, path):
        self.tokens = np.memmap(path, np.uint16, "r")

    def __len__(self):
        return (len(self.tokens) - 1) // WINDOW

    def __getitem__(self, index):
        window = self.tokens[index * WINDOW : (index + 1) * WINDOW + 1].astype(np.int64)
        return index, torch.from_numpy(window)


ours, theirs = (Windows(f"{path}/tokens.bin") for path in sys.argv[1:])
theirs[0]  # the mapping is made, and used, before the workers are forked
loader = DataLoader(
    theirs, batch_size=32, shuffle=True, num_workers=8, prefetch_factor=4, multiprocessing_context="fork",
    generator=torch.Generator().manual_seed(11),
)
seen = 0
for indices, windows in loader:
    for index, window in zip(indices.tolist(), windows):
        assert torch.equal(window, ours[index][1]), index
        seen += 1
assert seen == len(ours)
""",
        pair.data,
        spoke.mountpoint,
    )
    assert spoke.settled().metrics()["headrace_spoke_fetched_bytes_total"] <= 1.02 * size_bytes


@pytest.mark.torch
@pytest.mark.slow
def test_torch_load_maps_a_cold_checkpoint(pair: Pair) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    job(
        """
import sys
import torch

dice = torch.Generator().manual_seed(2)
state = {f"layer{n}": torch.randn(300 + n, 1111, generator=dice) for n in range(20)}
torch.save({**state, "step": torch.tensor(7), "half": torch.randn(9, 9, generator=dice).half()}, sys.argv[1])
""",
        pair.data / "checkpoint.pt",
    )
    job(
        """
import sys
import torch

ours = torch.load(f"{sys.argv[1]}/checkpoint.pt", weights_only=True)
theirs = torch.load(f"{sys.argv[2]}/checkpoint.pt", mmap=True, weights_only=True)
assert ours.keys() == theirs.keys()
assert all(torch.equal(ours[key], theirs[key]) for key in reversed(ours))
""",
        pair.data,
        mount(pair).mountpoint,
    )


def test_sixteen_readers_at_once_cost_the_link_one_copy(pair: Pair) -> None:
    size_bytes = 64 * MIB
    expected = write(pair.data / "shard.bin", size_bytes, 6)
    spoke = mount(pair)
    path = spoke.mountpoint / "shard.bin"
    readers = [subprocess.Popen(["md5sum", path], stdout=subprocess.PIPE, text=True) for _ in range(16)]
    try:
        for reader in readers:
            printed, _ = reader.communicate(timeout=JOB_TIMEOUT_S)
            assert (reader.returncode, printed.split()[0]) == (0, expected)
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
    metrics = spoke.settled().metrics()
    assert size_bytes <= metrics["headrace_spoke_fetched_bytes_total"] <= 1.02 * size_bytes
    assert metrics["headrace_spoke_wan_received_bytes_total"] <= 1.02 * size_bytes


def test_sixteen_threads_fault_at_random_in_eight_cold_files(pair: Pair) -> None:
    for number in range(8):
        write(pair.data / f"shard{number}", 24 * MIB + number * 1000, 20 + number)
    spoke = mount(pair)
    told = job(
        """
import hashlib, mmap, random, sys, threading
from concurrent.futures import ThreadPoolExecutor

local, mounted = sys.argv[1:]


def mapping(path, number):
    with open(f"{path}/shard{number}", "rb") as file:
        pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    if path == mounted and number % 2:
        pages.madvise(mmap.MADV_RANDOM)  # single pages, where the others ask for 128 KiB
    return memoryview(pages)


ours, theirs = ([mapping(path, number) for number in range(8)] for path in (local, mounted))
start = threading.Barrier(16)


def work(seed):
    dice = random.Random(seed)
    start.wait()
    for _ in range(60):
        number = dice.randrange(8)
        offset = dice.randrange(len(ours[number]) - 1)
        part = slice(offset, offset + dice.choice((2048, 5000, 70_000, 400_000)))
        # A hash of so many bytes lets go of the interpreter, so that the faults of all threads wait at once.
        if hashlib.sha256(theirs[number][part]).digest() != hashlib.sha256(ours[number][part]).digest():
            return f"file {number} differs in {part}"


with ThreadPoolExecutor(16) as pool:
    print([wrong for wrong in pool.map(work, range(16)) if wrong])
""",
        pair.data,
        spoke.mountpoint,
    )
    assert told.strip() == "[]"
    assert spoke.facts()["reads"]["waiting"] == 0
