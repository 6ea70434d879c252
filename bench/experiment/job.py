"""The job: a training run of one or more ranks, ``python -m bench.experiment.job``. Knows nothing of Headrace.

A step touches every token of the batch and then waits until ``--step-time`` is over: it stands for the GPUs, and leaves
the CPU to the loader; with 0 the job reads as fast as it can. With ``--train`` a step trains the decoder with AdamW,
gradients averaged over the ranks (gloo). Each rank writes JSON: for each epoch, for each batch, the wait for data, the
step, the loss and the checksum of all tokens so far, and each read's time.
Every epoch goes through the same order, so that "warm" means the same bytes in the same order.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
import traceback
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from bench.experiment.model import Decoder, Sizes
from bench.experiment.tokens import DTYPES, find
from bench.experiment.windows import ORDERS, GpuBatches, Windows

PREFETCH_FACTOR = 4
LEARNING_RATE = 3e-4


class TimedStep:
    """Stands for the GPUs: every token is touched, then the rest of ``step_s`` passes."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    def __call__(self, batch: Tensor, arrived_s: float) -> float | None:
        end_s = arrived_s + self._step_s
        batch.sum()
        if (left_s := end_s - time.monotonic()) > 0:
            time.sleep(left_s)
        return None

    def state(self) -> dict[str, Any]:
        return {}


class Training:
    """The decoder and AdamW; the ranks' gradients are averaged when there are several."""

    def __init__(self, sizes: Sizes, seed: int, world: int) -> None:
        torch.manual_seed(seed)
        self._decoder = Decoder(sizes)
        self._model: torch.nn.Module = DistributedDataParallel(self._decoder) if world > 1 else self._decoder
        self._optimizer = torch.optim.AdamW(self._decoder.parameters(), lr=LEARNING_RATE, weight_decay=0.1)

    def __call__(self, batch: Tensor, _arrived_s: float) -> float | None:
        tokens = batch.long() % self._decoder.sizes.vocabulary
        loss = self._model(tokens[:, :-1], tokens[:, 1:])
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        return float(loss.item())

    def state(self) -> dict[str, Any]:
        return {"model": self._decoder.state_dict(), "optimizer": self._optimizer.state_dict()}


class Checkpoints:
    """Every ``every`` batches, in a thread: the state and ``filler_bytes`` more, written and synced, the file replaced."""

    def __init__(self, path: Path, every: int, filler_bytes: int) -> None:
        self._path, self._every = path, every
        self._filler = torch.randint(0, 256, (filler_bytes,), dtype=torch.uint8)
        self._thread: threading.Thread | None = None
        self.written_bytes = 0

    def after(self, batch: int, state: dict[str, Any]) -> None:
        if self._every and batch % self._every == 0:
            self.close()
            self._thread = threading.Thread(target=self._write, args=(state,), name="checkpoint")
            self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _write(self, state: dict[str, Any]) -> None:
        partial = self._path.with_suffix(".partial")
        with partial.open("wb") as file:
            torch.save({**state, "filler": self._filler}, file)
            file.flush()
            os.fsync(file.fileno())
            self.written_bytes += file.tell()
        partial.replace(self._path)


def run(arguments: argparse.Namespace, rank: int, rendezvous: Path) -> dict[str, Any]:
    """The job as one rank; ``rendezvous``: a file that does not exist yet, by which several ranks find each other."""
    torch.set_num_threads(arguments.threads)
    world = arguments.world
    if world > 1:
        distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    step: TimedStep | Training = TimedStep(arguments.step_time)
    if arguments.train:
        sizes = Sizes(arguments.vocabulary, arguments.dim, arguments.layers, arguments.heads)
        step = Training(sizes, arguments.seed, world)
    per_rank = arguments.gpus // world
    started_s = time.monotonic()  # what building the dataset reads is part of the first wait
    windows = Windows(
        find(arguments.data, arguments.dtype), arguments.window, arguments.order, arguments.seed, readers=per_rank
    )
    own = range(rank * per_rank, (rank + 1) * per_rank)
    loader: DataLoader[Any] = DataLoader(
        windows,
        batch_sampler=GpuBatches(windows, arguments.gpus, own, arguments.batch, arguments.order, arguments.seed),
        num_workers=arguments.workers,
        prefetch_factor=PREFETCH_FACTOR if arguments.workers else None,
        persistent_workers=arguments.workers > 0 and arguments.epochs > 1,
    )
    checkpoints = Checkpoints(
        arguments.out.with_suffix(".checkpoint"), arguments.checkpoint_every, arguments.checkpoint_bytes
    )
    try:
        epochs = [
            one_epoch(loader, step, arguments.batches, checkpoints, None if number else started_s)
            for number in range(arguments.epochs)
        ]
    finally:
        checkpoints.close()
    if world > 1:
        distributed.destroy_process_group()
    return {"samples": arguments.batch * per_rank, "epochs": epochs, "checkpoint_bytes": checkpoints.written_bytes}


def one_epoch(
    loader: DataLoader[Any],
    step: TimedStep | Training,
    limit: int,
    checkpoints: Checkpoints,
    began_s: float | None = None,
) -> dict[str, Any]:
    """Times in seconds, an entry a batch, from ``began_s`` or now; ``reads``: (began on the monotonic clock, took) of each sample."""
    started_s = before_s = time.monotonic() if began_s is None else began_s
    rows: list[tuple[float, float]] = []
    losses: list[str] = []
    reads: list[tuple[float, float]] = []
    checksums: list[int] = []
    checksum = 0
    batches = iter(loader)
    count = min(limit or len(loader), len(loader))
    for number in range(1, count + 1):
        tokens, read_s, took_s = next(batches)
        arrived_s = time.monotonic()
        checksum = zlib.crc32(tokens.numpy(), checksum)
        checksums.append(checksum)
        loss = step(tokens, arrived_s)
        reads.extend(zip(read_s.tolist(), took_s.tolist(), strict=True))
        if loss is not None:
            losses.append(loss.hex())
        checkpoints.after(number, step.state())
        now_s = time.monotonic()
        rows.append((arrived_s - before_s, now_s - arrived_s))
        before_s = now_s
    return {
        "started_s": started_s,
        "wait_s": [row[0] for row in rows],
        "step_s": [row[1] for row in rows],
        "losses": losses,
        "checksums": checksums,
        "reads": reads,
    }


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.experiment.job", description="A training run.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--order", choices=ORDERS, default="sweep")
    parser.add_argument("--dtype", choices=DTYPES, help="of .bin files without an index; default uint16")
    for name, default in {
        "world": 1, "gpus": 1, "seed": 1234, "window": 4096, "batch": 24, "batches": 0, "epochs": 1, "workers": 2, "threads": 1,
        "vocabulary": 32_000, "dim": 64, "layers": 2, "heads": 4, "checkpoint-every": 0, "checkpoint-bytes": 0,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--step-time", type=float, default=0.0, help="seconds; 0: as fast as it can read")
    parser.add_argument("--train", action="store_true", help="the model instead of the timed step")
    return parser.parse_args(argv)


def rank_file(out: Path, rank: int) -> Path:
    """Where a rank leaves its result."""
    return out.with_name(f"{out.name}.rank{rank}")


def start_ranks(arguments: argparse.Namespace) -> list[int]:
    """Fork a process for each rank, with nothing open but what is standard. Returns their pids."""
    rendezvous = arguments.out.with_suffix(".rendezvous")
    rendezvous.unlink(missing_ok=True)
    pids = []
    for rank in range(arguments.world):
        pid = os.fork()
        if pid:
            pids.append(pid)
            continue
        code = 1
        try:
            rank_file(arguments.out, rank).write_text(json.dumps(run(arguments, rank, rendezvous)))
            code = 0
        except BaseException:  # noqa: BLE001 a rank ends here, whatever happens: it must not go on as its parent
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pids


def wait_for(pids: list[int]) -> int:
    """The first exit code that is not 0, after which the others are killed; 0 when all were well."""
    left = set(pids)
    failed = 0
    while left:
        pid, status = os.wait()
        if pid in left:
            left.discard(pid)
            if code := os.waitstatus_to_exitcode(status):
                failed = failed or code
                for other in left:
                    os.kill(other, signal.SIGKILL)
    return failed


def main() -> int:
    """A job from the flags; with ``--serve`` one from each line of stdin (flags as a JSON list), each answered with its exit code.

    Before the first it says "ready". Served jobs are forks of a process that has imported PyTorch and done nothing else:
    importing takes seconds of CPU, which on a small machine would be most of what is run.
    """
    torch.use_deterministic_algorithms(True)  # before the fork: it imports hundreds of modules
    if sys.argv[1:] != ["--serve"]:
        return wait_for(start_ranks(parse()))
    print("ready", flush=True)
    for line in sys.stdin:
        print(wait_for(start_ranks(parse(json.loads(line)))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
