"""LitData: which items each worker takes, and in which order. Pure.

An interval is (chunk, first item, last item exclusive), items counted within the chunk. Chunk order and item order are drawn from
NumPy's legacy generator with lists of numbers as seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")

ITEM_WINDOW = 256
CHUNK_WINDOW = 16


class Interval(NamedTuple):
    chunk: int
    first: int
    end: int


class Job(NamedTuple):
    """``workers`` of one rank, at least 1 (the main process counts as one)."""

    world_size: int
    nodes: int
    workers: int
    batch_size: int
    drop_last: bool


def dealt_evenly(chunks: Sequence[int], sizes: Sequence[int], job: Job) -> list[list[Interval]]:
    """Items in equal parts over all workers, in order of the chunks; a chunk may be cut. One list for each worker of each rank."""
    total = sum(sizes[chunk] for chunk in chunks)
    batches_per_rank = total // job.batch_size // job.world_size
    each, more = divmod(batches_per_rank, job.workers)
    quota = [(each + (worker < more)) * job.batch_size for _ in range(job.world_size) for worker in range(job.workers)]
    if not job.drop_last:
        quota[(job.world_size - 1) * job.workers + more % job.workers] += total - sum(quota)
    parts: list[list[Interval]] = [[] for _ in quota]
    worker = 0
    for chunk in chunks:
        first, end = 0, sizes[chunk]
        while first < end:
            while worker < len(quota) and quota[worker] == 0:
                worker += 1
            if worker == len(quota):
                return parts
            taken = min(end - first, quota[worker])
            parts[worker].append(Interval(chunk, first, first + taken))
            quota[worker] -= taken
            first += taken
    return parts


def dealt_whole(sizes: Sequence[int], job: Job) -> list[list[Interval]]:
    """Whole chunks in stripes, as near to equal parts as they go."""
    workers = job.world_size * job.workers
    parts: list[list[Interval]] = [[] for _ in range(workers)]
    total = sum(sizes)
    passed = worker = 0
    for chunk, size in enumerate(sizes):
        while worker < workers - 1 and parts[worker] and passed + size / 2.0 > (worker + 1) * total / workers:
            worker += 1
        parts[worker].append(Interval(chunk, 0, size))
        passed += size
    if not job.drop_last:
        return parts
    lengths = [length for part in parts if (length := sum(end - first for _, first, end in part)) > 0]
    if not lengths:
        return parts
    cap = min(lengths)
    if job.batch_size > 1:
        cap = cap // job.batch_size * job.batch_size
    return [_cut(part, cap) for part in parts]


def _cut(part: list[Interval], cap: int) -> list[Interval]:
    kept = []
    for chunk, first, end in part:
        taken = min(end - first, cap)
        if taken > 0:
            kept.append(Interval(chunk, first, first + taken))
        cap -= taken
    return kept


def full_shuffle(sizes: Sequence[int], job: Job, seed: int, epoch: int, *, node_fits: bool) -> list[list[Interval]]:
    """All chunks permuted, then dealt out evenly. On several nodes each keeps its chunks of the first epoch while they fit its cache."""
    if job.nodes > 1 and epoch > 1 and node_fits:
        first = _global(sizes, job, seed, 1)
        ranks = job.world_size // job.nodes
        alone = Job(ranks, 1, job.workers, job.batch_size, job.drop_last)
        parts: list[list[Interval]] = []
        for node in range(job.nodes):
            mine = first[node * ranks * job.workers : (node + 1) * ranks * job.workers]
            chunks = list(dict.fromkeys(interval.chunk for part in mine for interval in part))
            if chunks:
                random = np.random.RandomState([seed, epoch, node])
                chunks = [int(chunk) for chunk in random.permutation(chunks)]
            parts.extend(dealt_evenly(chunks, sizes, alone))
        return parts
    return _global(sizes, job, seed, epoch)


def _global(sizes: Sequence[int], job: Job, seed: int, shift: int) -> list[list[Interval]]:
    order = np.random.RandomState([seed, shift]).permutation(range(len(sizes)))
    return dealt_evenly([int(chunk) for chunk in order], sizes, job)


def window_shuffle(sizes: Sequence[int], job: Job, seed: int, epoch: int, window: int) -> list[list[Interval]]:
    """Whole chunks in stripes, each worker's list mixed within a sliding window."""
    return [
        slid(part, window, np.random.RandomState([seed, epoch, worker]))
        for worker, part in enumerate(dealt_whole(sizes, job))
    ]


def slid(items: list[T], window: int, random: np.random.RandomState) -> list[T]:
    """Each place in turn swapped with one of the ``window`` from it on."""
    out = list(items)
    if len(out) < 2 or window <= 1:
        return out
    for place in range(len(out) - 1):
        other = int(random.randint(place, min(place + window, len(out))))
        out[place], out[other] = out[other], out[place]
    return out


def item_order(interval: Interval, chunks: int, seed: int, epoch: int, window: int) -> list[int]:
    """Items of one visit to a chunk: blocks of ``window`` items mixed in themselves and among each other; 0 or 1: all mixed."""
    items = list(range(interval.first, interval.end))
    random = np.random.RandomState([seed, chunks, epoch, interval.chunk])
    if len(items) < 2:
        return items
    if window <= 1:
        return [int(item) for item in random.permutation(items)]
    blocks = [items[first : first + window] for first in range(0, len(items), window)]
    for block in blocks:
        random.shuffle(block)
    if len(blocks) > 1:
        random.shuffle(blocks)
    return [item for block in blocks for item in block]
