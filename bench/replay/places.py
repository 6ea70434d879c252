"""Patterns P10, P14 and P15, and the plain shapes streams are recognised by: rows, checkpoints, sweeps, strides, lanes, faults."""

from __future__ import annotations

import numpy as np

from bench.replay.pages import KIB, MIB, PAGE, READ, PageCache, Scale, ladder, shard_files, sweep
from bench.replay.shards import PIECE
from bench.replay.trace import CLOSE, OPEN, Process, Trace, TraceFile

ARROW_BATCH = MIB
ARROW_ROWS = 100


def hf_arrow(scale: Scale) -> Trace:
    """P10: Arrow files: every record batch's header at load, files in threads; then each row is an offsets page and a data page."""
    count = max(2, min(16, scale.data_bytes // (16 * MIB)))
    batches = max(4, scale.data_bytes // count // ARROW_BATCH)
    files = shard_files("data-", ".arrow", count, batches * ARROW_BATCH)
    pages = [PageCache(file.size_bytes) for file in files]
    loads = []
    for number in range(count):
        load = Process(workers=1)
        for batch in range(batches):
            for place in (0, 4 * KIB):  # the header, then its metadata, which the same fault brings
                found = pages[number].fault(batch * ARROW_BATCH + place)
                if found is not None:
                    load.add(number, *found)
        load.end_batches(PIECE)
        loads.append(load)
    rows = count * batches * ARROW_ROWS
    processes = [Process(workers=scale.workers, phase=1) for _ in range(scale.processes)]
    per_epoch = max(scale.processes * scale.batch, scale.reads // scale.epochs // 2)
    for epoch in range(scale.epochs):
        order = np.random.default_rng(scale.seed + epoch).permutation(rows)[:per_epoch]
        for rank, process in enumerate(processes):
            if epoch:
                process.new_epoch()
            for number, row in enumerate(order[rank :: scale.processes].tolist()):
                batch, place = divmod(row, ARROW_ROWS)
                file, batch = divmod(batch, batches)
                offsets = pages[file].fault(batch * ARROW_BATCH + 512 + 4 * place)
                if offsets is not None:
                    process.add(file, *offsets)
                row_bytes = (ARROW_BATCH - 8 * KIB) // ARROW_ROWS
                start = max(0, (batch * ARROW_BATCH + 8 * KIB + place * row_bytes) // PAGE * PAGE - READ // 2)
                process.add(file, start, min(READ, files[file].size_bytes - start))
                if number % scale.batch == scale.batch - 1:
                    process.end_batch()
            process.end_batch()
    return Trace("hf-arrow", files, [*loads, *processes])


# --- checkpoints ---------------------------------------------------------------------------------------------

TENSOR = 4 * MIB
CHECKPOINT_READ = 256 * KIB


def checkpoint(scale: Scale) -> Trace:
    """P14: eight ranks load one safetensors file: its header, a page at each tensor, then all of it in READs of 256 KiB."""
    size_bytes = _checkpoint_bytes(scale, 1)
    files = [TraceFile(b"model.safetensors", size_bytes)]
    return Trace("checkpoint", files, [_safetensors(0, size_bytes) for _ in range(8)])


def checkpoint_shards(scale: Scale) -> Trace:
    """P14: eight ranks load a safetensors shard each."""
    size_bytes = _checkpoint_bytes(scale, 8)
    files = shard_files("model-", "-of-00008.safetensors", 8, size_bytes)
    return Trace("checkpoint-shards", files, [_safetensors(rank, size_bytes) for rank in range(8)])


def _checkpoint_bytes(scale: Scale, parts: int) -> int:
    return max(2, min(scale.data_bytes // parts, scale.reads * CHECKPOINT_READ // 8) // TENSOR) * TENSOR


def _safetensors(file: int, size_bytes: int) -> Process:
    process = Process(workers=1, depth=2)
    process.add(file, 0, 16 * KIB)
    starts = np.arange(TENSOR, size_bytes, TENSOR) + 64 * KIB  # boundaries lie where the header ends, not at MiBs
    process.extend(file, starts, 16 * KIB)
    process.end_batch()
    sweep(process, file, 0, size_bytes, CHECKPOINT_READ)
    process.end_batches(PIECE)
    return process


def checkpoint_zip(scale: Scale) -> Trace:
    """P14: torch.load of a zip, a file a rank: its end first, then each record's 8 KiB header and what follows, record by record."""
    size_bytes = _checkpoint_bytes(scale, 4)
    files = shard_files("rank", ".pt", 4, size_bytes)
    processes = []
    for file in range(4):
        process = Process(workers=1, depth=2)
        process.add(file, size_bytes - 8 * KIB, 8 * KIB)
        for record in range(0, size_bytes, TENSOR):
            process.add(file, record, 8 * KIB)
            sweep(process, file, record + 8 * KIB, min(record + TENSOR, size_bytes - 8 * KIB))
            process.end_batch()
        process.end_batch()
        processes.append(process)
    return Trace("checkpoint-zip", files, processes)


# --- sweeps and shapes ---------------------------------------------------------------------------------------


def _large(scale: Scale, share: int = 1) -> int:
    return max(4, min(scale.data_bytes, scale.reads * READ // share) // MIB) * MIB


def warmup(scale: Scale) -> Trace:
    """P15: files read front to back, one after another, by one process; every epoch the same."""
    size_bytes = _large(scale, scale.epochs)
    count = 8
    files = shard_files("tokens-", ".npy", count, max(MIB, size_bytes // count))
    process = Process(workers=1, depth=2)
    for epoch in range(scale.epochs):
        if epoch:
            process.new_epoch()
        for file in range(count):
            sweep(process, file, 0, files[file].size_bytes)
            process.end_batches(PIECE)
    return Trace("warmup", files, [process])


def sweep_workers(scale: Scale) -> Trace:
    """One large file in order, its batches shared out by a loader's workers through one mapping: windows of 1 MiB in turn."""
    files = [TraceFile(b"tokens.bin", _large(scale))]
    process = Process(workers=max(1, scale.workers * 2), depth=2)
    sweep(process, 0, 0, files[0].size_bytes)
    process.end_batches(PIECE)
    return Trace("sweep-workers", files, [process])


def small_files(scale: Scale) -> Trace:
    """Files of 256 KiB read whole in directory order, workers taking turns."""
    count = max(8, min(scale.data_bytes // (256 * KIB), scale.reads // 2))
    files = shard_files("images/", ".bin", count, 256 * KIB)
    process = Process(workers=scale.workers)
    for file in range(count):
        process.add(file, 0, READ, OPEN)
        process.add(file, READ, READ, CLOSE)
    process.end_batches(2 * scale.batch)
    return Trace("small-files", files, [process])


def interleaved(scale: Scale) -> Trace:
    """16 sequential streams on one descriptor, in turn, begun by the ladder."""
    lanes, size_bytes = 16, _large(scale)
    part = size_bytes // lanes // PAGE * PAGE
    process = Process(workers=lanes, depth=1)
    reads = [list(ladder((lane + 1) * part, lane * part)) for lane in range(lanes)]
    for place in range(max(map(len, reads))):
        for lane in range(lanes):
            if place < len(reads[lane]):
                process.add(0, *reads[lane][place])
            process.end_batch()
    return Trace("interleaved", [TraceFile(b"data.bin", size_bytes)], [process])


def _strided(scale: Scale, name: str, stride_bytes: int, read_bytes: int) -> Trace:
    count = min(scale.reads, scale.data_bytes * 4 // stride_bytes)
    process = Process(workers=1)
    process.extend(0, np.arange(count) * stride_bytes, read_bytes)
    process.end_batches(scale.batch)
    return Trace(name, [TraceFile(b"table.bin", count * stride_bytes)], [process])


def strided(scale: Scale) -> Trace:
    """One column of a table: 64 KiB every 1 MiB."""
    return _strided(scale, "strided", MIB, 64 * KIB)


def strided_near(scale: Scale) -> Trace:
    """128 KiB of every 384 KiB: one rank's part of a file that three read in turn."""
    return _strided(scale, "strided-near", 384 * KIB, READ)


def backward(scale: Scale) -> Trace:
    """One file from its end to its beginning, by aligned READs of 128 KiB."""
    size_bytes = _large(scale)
    process = Process(workers=1)
    starts = np.arange(0, size_bytes, READ)[::-1]
    process.extend(0, starts, READ)
    process.end_batches(PIECE)
    return Trace("backward", [TraceFile(b"log.bin", size_bytes)], [process])


def reordered(scale: Scale) -> Trace:
    """One sequential reader whose READs reach the daemon up to two places out of order."""
    size_bytes = _large(scale)
    starts = np.arange(0, size_bytes, READ)
    order = np.argsort(np.arange(len(starts)) + scale.dice(20).uniform(0, 2.5, len(starts)), kind="stable")
    process = Process(workers=1, depth=3)
    process.extend(0, starts[order], READ)
    process.end_batches(PIECE)
    return Trace("reordered", [TraceFile(b"data.bin", size_bytes)], [process])


def fault_lanes(scale: Scale) -> Trace:
    """Eight threads of one process go through parts of one mapping by page faults, in each part in order."""
    lanes, size_bytes = 8, _large(scale)
    part = size_bytes // lanes // PAGE * PAGE
    process = Process(workers=lanes)
    pages = PageCache(size_bytes)
    at = [lane * part + 20 * KIB * lane // PAGE * PAGE for lane in range(lanes)]
    while any(at[lane] < (lane + 1) * part for lane in range(lanes)):
        for lane in range(lanes):
            found = None
            while found is None and at[lane] < (lane + 1) * part:
                found = pages.fault(at[lane])
                at[lane] += 16 * KIB
            if found is not None:
                process.add(0, *found)
            process.end_batch()
    return Trace("fault-lanes", [TraceFile(b"data.bin", size_bytes)], [process])


def random_faults(scale: Scale) -> Trace:
    """READs of 128 KiB at uniform pages: nothing to learn."""
    processes = []
    pages = scale.data_bytes // PAGE
    for rank in range(scale.processes):
        process = Process(workers=scale.workers)
        starts = scale.dice(21, rank).integers(0, pages - READ // PAGE, scale.reads // scale.processes) * PAGE
        process.extend(0, starts, READ)
        process.end_batches(scale.batch)
        processes.append(process)
    return Trace("random", [TraceFile(b"data.bin", pages * PAGE)], processes)
