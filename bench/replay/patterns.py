"""All patterns by name, and the transforms that go across them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.replay import lanes, places, shards, sweeps, tokens
from bench.replay.pages import Scale
from bench.replay.trace import Process, Trace
from common.errors import UsageError

Pattern = Callable[[Scale], Trace]

PATTERNS: dict[str, Pattern] = {
    "megatron": tokens.megatron,
    "blended": tokens.blended,
    "megatron-file": tokens.megatron_file,
    "nanogpt": tokens.nanogpt,
    "olmo": tokens.olmo,
    "mds": shards.mds,
    "mds-copy": shards.mds_copy,
    "litdata": shards.litdata,
    "litdata-window": shards.litdata_window,
    "webdataset": shards.webdataset,
    "webdataset-resampled": shards.webdataset_resampled,
    "hf-arrow": places.hf_arrow,
    "hf-parquet": shards.hf_parquet,
    "tensorstore": shards.tensorstore,
    "jsonl": shards.jsonl,
    "checkpoint": places.checkpoint,
    "checkpoint-shards": places.checkpoint_shards,
    "checkpoint-zip": places.checkpoint_zip,
    "warmup": places.warmup,
    "sweep-workers": places.sweep_workers,
    **sweeps.SWEEPS,
    "small-files": places.small_files,
    "interleaved": places.interleaved,
    "lanes": lanes.lanes,
    "lanes-many": lanes.lanes_many,
    "lanes-uneven": lanes.lanes_uneven,
    "lanes-faults": lanes.lanes_faults,
    "lanes-uneven-faults": lanes.lanes_uneven_faults,
    "strided": places.strided,
    "strided-near": places.strided_near,
    "backward": places.backward,
    "reordered": places.reordered,
    "fault-lanes": places.fault_lanes,
    "random": places.random_faults,
}

MEANING = {
    "megatron": "P1", "blended": "P1", "megatron-file": "P2", "nanogpt": "P3", "olmo": "P4", "mds": "P5", "mds-copy": "P6",
    "litdata": "P7", "litdata-window": "P8", "webdataset": "P9", "webdataset-resampled": "P9b", "hf-arrow": "P10",
    "hf-parquet": "P11", "tensorstore": "P12", "jsonl": "P13", "checkpoint": "P14", "checkpoint-shards": "P14",
    "checkpoint-zip": "P14", "warmup": "P15",
}  # fmt: skip


def make(name: str, scale: Scale) -> Trace:
    """The trace of ``pattern`` or ``pattern+transform+…``. Raises UsageError for a name that is not there."""
    pattern, *wanted = name.split("+")
    if pattern not in PATTERNS:
        raise UsageError(f"no pattern {pattern!r}; there are: {', '.join(PATTERNS)}")
    for word in wanted:
        if word not in TRANSFORMS:
            raise UsageError(f"no transform {word!r} in {name!r}; there are: {', '.join(TRANSFORMS)}")
    trace = PATTERNS[pattern](scale)
    for word in wanted:
        trace = TRANSFORMS[word](trace, scale)
    trace.name = name
    return trace


# --- transforms ----------------------------------------------------------------------------------------------


def burst(trace: Trace, scale: Scale) -> Trace:
    """(a) Many workers and a deep queue: at the start and at each epoch's edge all of it is asked for at once."""
    for process in trace.processes:
        process.workers, process.prefetch_batches = max(16, process.workers), 4
    return trace


def resume(trace: Trace, scale: Scale, *, share: float = 0.4) -> Trace:
    """(b) A job that begins again after ``share`` of its batches: what it reads at the start, then on from there."""
    processes = []
    for process in trace.processes:
        first = int(process.batch_count * share)
        resumed = process.like(
            epochs=tuple(epoch - first + 1 for epoch in process.epochs if epoch > first),
            pauses={batch - first + 1: pause for batch, pause in process.pauses.items() if batch > first},
        )
        if first:
            resumed.take(process, [0])  # index files and headers are read as at any start
        resumed.take(process, range(first, process.batch_count))
        processes.append(resumed)
    return Trace(trace.name, trace.files, processes)


def validation(trace: Trace, scale: Scale, *, every: int = 40, count: int = 8) -> Trace:
    """(c) Every so many batches some from another, smaller dataset: always the same ones, in order, in READs of 128 KiB."""
    from bench.replay.pages import READ
    from bench.replay.trace import TraceFile

    size_bytes = count * scale.batch * READ
    file = len(trace.files)
    processes = []
    for process in trace.processes:
        mixed = process.like()
        edges = set(process.epochs)
        for number in range(process.batch_count):
            if number in edges:
                mixed.new_epoch()
            mixed.take(process, [number])
            if number % every == every - 1:
                for at in range(0, size_bytes, READ):
                    mixed.add(file, at, READ)
                mixed.end_batches(scale.batch)
        processes.append(mixed)
    return Trace(trace.name, [*trace.files, TraceFile(b"validation.bin", size_bytes)], processes)


def rescale(trace: Trace, scale: Scale) -> Trace:
    """(d) Stopped half way, and gone on with twice as many processes, which share the rest batch by batch."""
    processes: list[Process] = []
    last = max(trace.phases)
    for process in trace.processes:
        if process.phase != last:
            processes.append(process)
            continue
        half = process.batch_count // 2
        before = process.like(epochs=tuple(epoch for epoch in process.epochs if epoch < half))
        before.take(process, range(half))
        processes.append(before)
        for part in range(2):
            after = process.like(phase=last + 1)
            after.take(process, range(half + part, process.batch_count, 2))
            processes.append(after)
    return Trace(trace.name, trace.files, processes)


def pauses(trace: Trace, scale: Scale, *, every: int = 50, pause_s: float = 60.0) -> Trace:
    """(e) An evaluation or a checkpoint every so many batches: no reads for a minute."""
    for process in trace.processes:
        process.pauses = dict.fromkeys(range(every, process.batch_count, every), pause_s)
    return trace


def again(trace: Trace, scale: Scale) -> Trace:
    """The same job a second time, in the same order."""
    shift = max(trace.phases) + 1
    return Trace(trace.name, trace.files, [*trace.processes, *(_copied(process, shift) for process in trace.processes)])


def _copied(process: Process, shift: int) -> Process:
    copy = process.like(phase=process.phase + shift, epochs=process.epochs, pauses=process.pauses)
    copy.take(process, range(process.batch_count))
    return copy


TRANSFORMS: dict[str, Callable[[Trace, Scale], Trace]] = {
    "burst": burst, "resume": resume, "validation": validation, "rescale": rescale, "pauses": pauses, "again": again,
}  # fmt: skip


def expand(words: Sequence[str]) -> list[str]:
    """``all`` stands for every pattern."""
    return [name for word in words for name in (PATTERNS if word == "all" else (word,))]
