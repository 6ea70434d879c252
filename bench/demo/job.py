"""The training job of the demonstration, a process of its own: a PyTorch DataLoader over windows of tokens.

``python -m bench.demo.job --data DIR --out FILE``: sweeps the files of the manifest in order, as the published
reference job does. A sample is a window of 4,096 tokens plus one (input and target are its two shifted views), read
through ``numpy.memmap`` by the loader's worker processes. A step touches every token of the batch and then waits
until ``--step`` seconds are over: it stands for the GPU, and leaves the CPU to the loader. Knows nothing of Headrace.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import json
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from bench.demo.dataset import TokenFile, read_manifest

PREFETCH_FACTOR = 4


class TokenWindows(Dataset[torch.Tensor]):
    """Windows of ``window_tokens`` + 1 over all files in order; each process maps a file when it first needs it."""

    def __init__(self, directory: Path, files: list[TokenFile], window_tokens: int) -> None:
        self._directory = directory
        self._files = files
        self._window_tokens = window_tokens
        self._ends = list(itertools.accumulate((file.tokens - 1) // window_tokens for file in files))
        self._maps: dict[int, np.memmap[Any, Any]] = {}

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> torch.Tensor:
        number = bisect.bisect_right(self._ends, index)
        first = self._ends[number - 1] if number else 0
        start = (index - first) * self._window_tokens
        window = self._map(number)[start : start + self._window_tokens + 1]
        return torch.from_numpy(window.astype(np.int64))

    def _map(self, number: int) -> np.memmap[Any, Any]:
        found = self._maps.get(number)
        if found is None:
            file = self._files[number]
            found = self._maps[number] = np.memmap(self._directory / file.path, dtype=file.dtype, mode="r")
        return found


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """One sweep; times in seconds, one entry a batch."""
    torch.set_num_threads(1)
    windows = TokenWindows(arguments.data, read_manifest(arguments.data), arguments.window)
    loader = DataLoader(
        windows,
        batch_size=arguments.batch,
        shuffle=False,
        drop_last=True,
        num_workers=arguments.workers,
        prefetch_factor=PREFETCH_FACTOR,
    )
    wait_s: list[float] = []
    batch_s: list[float] = []
    checksum = 0
    started_s = time.perf_counter()
    batches = iter(loader)
    before_s = started_s
    for _ in range(min(arguments.batches or len(loader), len(loader))):
        batch = next(batches)
        arrived_s = time.perf_counter()
        inputs, targets = batch[:, :-1], batch[:, 1:]
        checksum = zlib.crc32(int((inputs * 31 + targets).sum()).to_bytes(8, "little"), checksum)
        left_s = arguments.step - (time.perf_counter() - arrived_s)
        if left_s > 0:
            time.sleep(left_s)
        now_s = time.perf_counter()
        wait_s.append(arrived_s - before_s)
        batch_s.append(now_s - before_s)
        before_s = now_s
    return {"wait_s": wait_s, "batch_s": batch_s, "batch": arguments.batch, "checksum": f"{checksum:08x}"}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.demo.job", description="Sweep token files with a DataLoader."
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--window", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--batches", type=int, default=0, help="0: all")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--step", type=float, default=0.025, help="seconds a batch occupies the job")
    arguments = parser.parse_args()
    arguments.out.write_text(json.dumps(run(arguments)))


if __name__ == "__main__":
    main()
