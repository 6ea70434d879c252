"""A job whose reads are known to the bench: ``python -m bench.foresight.job JSON``. Knows nothing of Headrace but its scrape and its hints.

A PyTorch DataLoader over records of a file, or a loader library's own data set, with a step that takes ``step_s``; or streams that one
thread reads by turns from one descriptor. Prints one line of JSON: the time of each batch and of the wait for it, a checksum of all that
was read, and what the spoke counted up to batch 2, up to where the loader has filled its queue and emptied it once, and to the end.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import mmap
import os
import random
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from bench.megatron_data import gpt_dataset, one_process

MARK_BATCHES = 2
LOADER_BATCHES = 2
"""A worker of a DataLoader is asked for so many ahead; twice that much later the first rush is over."""
STREAM_READ_BYTES = 128 * 1024
STREAM_START_BYTES = 1 << 20
"""Of each stream: until then it is found, and its window grows."""


class Asked(NamedTuple):
    """``access``: ``pread`` or ``mmap``. ``metrics``: where the spoke is scraped, or "". ``batches``: 0 for all."""

    kind: str
    root: str
    metrics: str
    workers: int = 4
    batch: int = 8
    step_s: float = 0.0
    batches: int = 0
    record_bytes: int = 64 * 1024
    shuffle_seed: int = 0
    access: str = "pread"
    announce: bool = False
    streams: int = 1
    size_bytes: int = 0
    work: str = ""
    seq_length: int = 0
    file: str = "records.bin"


class Records:
    """Records of one file: a map-style data set. An item is the checksum of a record."""

    def __init__(self, path: str, record_bytes: int, access: str) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._record_bytes = record_bytes
        self._count = os.fstat(self._file).st_size // record_bytes
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)  # what the kernel kept of an epoch before
        self._map = mmap.mmap(self._file, 0, prot=mmap.PROT_READ) if access == "mmap" else None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        start_bytes = index * self._record_bytes
        if self._map is not None:
            return zlib.crc32(self._map[start_bytes : start_bytes + self._record_bytes])
        return zlib.crc32(os.pread(self._file, self._record_bytes, start_bytes))


class Order(list[int]):
    """Of the records; notes when a loader first asks for it, which is after it has started its workers."""

    asked_at_s: ClassVar[float] = 0.0

    def __iter__(self) -> Iterator[int]:
        Order.asked_at_s = Order.asked_at_s or time.monotonic()
        return super().__iter__()


def records_loader(asked: Asked) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    from spoke import hints

    path = os.path.join(asked.root, asked.file)
    records = Records(path, asked.record_bytes, asked.access)
    order = Order(range(len(records)))
    if asked.shuffle_seed:
        random.Random(asked.shuffle_seed).shuffle(order)
    sampler: Any = order
    if asked.announce:
        sampler = hints.announce(order, hints.records(path, asked.record_bytes))
    dataset: Any = records  # a map-style data set in all but its base class
    return DataLoader(
        dataset, batch_size=asked.batch, sampler=sampler, num_workers=asked.workers, collate_fn=list,
        multiprocessing_context="fork" if asked.workers else None,
    )  # fmt: skip


def megatron_loader(asked: Asked) -> Iterable[Any]:
    """megatron-core's own GPTDataset, mapped, its indices built beside the job."""
    import torch

    samples = asked.batches * asked.batch
    work = Path(asked.work)
    with one_process(work):
        dataset = gpt_dataset(
            [os.path.join(asked.root, "p")], samples, work / "cache", seed=1234, sequence_length=asked.seq_length, split="1,0,0"
        )  # fmt: skip
    batches: Any = [range(first, first + asked.batch) for first in range(0, samples, asked.batch)]
    return torch.utils.data.DataLoader(
        dataset, batch_sampler=batches, num_workers=asked.workers, multiprocessing_context="fork",
        collate_fn=lambda samples: [zlib.crc32(sample["tokens"].numpy().tobytes()) for sample in samples],
    )  # fmt: skip


def mds_loader(asked: Asked) -> Iterable[Any]:
    """MosaicML's own StreamingDataset over shards that lie on the mount."""
    from torch.utils.data import DataLoader

    streaming: Any = importlib.import_module("streaming")  # no dependency of ours, nor typed
    importlib.import_module("streaming.base.util").clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(
        local=os.path.join(asked.root, "d"), shuffle=True, batch_size=asked.batch, shuffle_block_size=4000
    )
    return DataLoader(
        dataset, batch_size=asked.batch, num_workers=asked.workers, multiprocessing_context="fork",
        collate_fn=lambda samples: [zlib.crc32(sample["x"]) for sample in samples],
    )  # fmt: skip


LOADERS = {"records": records_loader, "megatron": megatron_loader, "mds": mds_loader}


def scrape(asked: Asked) -> dict[str, float]:
    from bench.lab import read_metrics

    return read_metrics(asked.metrics) if asked.metrics else {}


def run_batches(asked: Asked) -> dict[str, Any]:
    """Batches from a loader, each followed by a step; the clock begins when the loader is asked for the first."""
    loader = LOADERS[asked.kind](asked)
    before = scrape(asked)
    marked: dict[str, float] = {}
    settled: dict[str, float] = {}
    settled_batches = 2 * LOADER_BATCHES * max(1, asked.workers)
    batch_s: list[float] = []
    wait_s: list[float] = []
    digest = hashlib.sha256()
    began_s = last_s = time.monotonic()
    for number, batch in enumerate(loader, start=1):
        now_s = time.monotonic()
        wait_s.append(now_s - last_s)
        digest.update(repr(list(batch)).encode())
        if number == MARK_BATCHES:
            marked = scrape(asked)
        if number == settled_batches:
            settled = scrape(asked)
        if (left_s := now_s + asked.step_s - time.monotonic()) > 0:
            time.sleep(left_s)
        batch_s.append(time.monotonic() - last_s)
        last_s = time.monotonic()
        if number == asked.batches:
            break
    order_s = max(0.0, Order.asked_at_s - began_s)
    return {"batch_s": batch_s, "wait_s": wait_s, "order_s": order_s, "took_s": last_s - began_s, "digest": digest.hexdigest(),
            "before": before, "marked": marked or before, "settled": settled or marked or before, "after": scrape(asked)}  # fmt: skip


def run_streams(asked: Asked) -> dict[str, Any]:
    """Equal parts of a file, each read in order, by turns, as fast as they come."""
    before = scrape(asked)
    file = os.open(os.path.join(asked.root, "records.bin"), os.O_RDONLY)
    part_bytes = asked.size_bytes // asked.streams
    digest = 0
    began_s = started_s = time.monotonic()
    for at_bytes in range(0, part_bytes, STREAM_READ_BYTES):
        if at_bytes == STREAM_START_BYTES:
            started_s = time.monotonic()
        for stream in range(asked.streams):
            data = os.pread(file, min(STREAM_READ_BYTES, part_bytes - at_bytes), stream * part_bytes + at_bytes)
            digest ^= zlib.crc32(data, stream * part_bytes + at_bytes)
    end_s = time.monotonic()
    after_start_bytes = asked.streams * (part_bytes - STREAM_START_BYTES)
    return {"took_s": end_s - began_s, "digest": str(digest), "before": before, "after": scrape(asked),
            "rate_after_start": after_start_bytes / (end_s - started_s)}  # fmt: skip


def main(words: Sequence[str]) -> int:
    asked = Asked(**json.loads(words[0]))
    result = run_streams(asked) if asked.kind == "streams" else run_batches(asked)
    Path(words[1]).write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
