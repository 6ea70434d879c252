"""MosaicML Streaming: the partition of samples over ranks and the shuffles py1e, py1br, py1s, py2s. Pure but for scratch.

Common to the four: the shards are shuffled by the run's seed, dealt out to the canonical nodes in equal parts (a shard may be cut),
and each node's parts are shuffled by seed + epoch. They differ in how samples of different shards are mixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UsageError
from spoke.recipes.model import Int64s
from spoke.recipes.scratch import Scratch

ALGORITHMS = ("py1e", "py1br", "py1s", "py2s")

Span = tuple[int, int]


class World(NamedTuple):
    """The job, as far as the order depends on it."""

    nodes: int
    ranks_per_node: int
    canonical_nodes: int


def shuffled(
    algorithm: str,
    shard_sizes: Sequence[int],
    canonical_nodes: int,
    seed: int,
    epoch: int,
    block: int,
    scratch: Scratch,
) -> Int64s:
    """Sample numbers (over all shards, in order) as the epoch goes through them."""
    if algorithm == "py2s":
        return _py2s(shard_sizes, canonical_nodes, seed, epoch, scratch)
    ends = np.cumsum(np.asarray(shard_sizes, np.int64)).tolist()
    spans: list[Span] = [(end - size, end) for end, size in zip(ends, shard_sizes, strict=True)]
    np.random.default_rng(seed).shuffle(spans)
    nodes = _deal([(span, None) for span in spans], ends[-1], canonical_nodes)
    random = np.random.default_rng(seed + epoch)
    parts: list[list[Span]] = []
    for node in nodes:
        part = [span for span, _ in node]
        random.shuffle(part)
        parts.append(part)
    out = scratch.empty(ends[-1], np.int64)
    if algorithm == "py1s":
        _within_spans([span for part in parts for span in part], out, random)
    elif algorithm == "py1br":
        _in_blocks(parts, out, random, block)
    else:
        _jittered(parts, out, random, block, scratch)
    return out


def _deal(spans: list[tuple[Span, int | None]], total: int, nodes: int) -> list[list[tuple[Span, int | None]]]:
    """In equal parts, in order; a span that crosses a border is cut. The second member goes with both pieces."""
    parts: list[list[tuple[Span, int | None]]] = []
    passed = 0
    place = 0
    rest = spans[0] if spans else None
    for node in range(nodes):
        border = total * (node + 1) // nodes
        part: list[tuple[Span, int | None]] = []
        while rest is not None:
            (begin, end), mark = rest
            room = border - passed
            if end - begin <= room:
                part.append(rest)
                passed += end - begin
                place += 1
                rest = spans[place] if place < len(spans) else None
                continue
            if room > 0:
                part.append(((begin, begin + room), mark))
                rest = (begin + room, end), mark
                passed += room
            break
        parts.append(part)
    return parts


def _within_spans(spans: list[Span], out: Int64s, random: np.random.Generator) -> None:
    filled = 0
    for begin, end in spans:
        piece = out[filled : filled + end - begin]
        piece[:] = np.arange(begin, end)
        random.shuffle(piece)
        filled += end - begin


def _in_blocks(parts: list[list[Span]], out: Int64s, random: np.random.Generator, block: int) -> None:
    """py1br: blocks of 0.75 to 1.25 times the block size, staggered by node, each shuffled in itself."""
    staggers = random.integers(0, int(0.75 * block), (len(parts),))
    filled = 0
    for part, stagger in zip(parts, staggers, strict=True):
        first = filled
        for begin, end in part:
            out[filled : filled + end - begin] = np.arange(begin, end)
            filled += end - begin
        blocks: list[Span] = []
        at = first
        while at < filled:
            size = random.integers(int(0.75 * block), int(1.25 * block))
            begin, end = max(int(at - stagger), first), min(int(at + size - stagger), filled)
            blocks.append((begin, end))
            at += end - begin
        for begin, end in blocks:
            random.shuffle(out[begin:end])


def _jittered(parts: list[list[Span]], out: Int64s, random: np.random.Generator, block: int, scratch: Scratch) -> None:
    """py1e: each sample moves by up to half of what its block is larger than its span, then all are put in order.

    A sample moves by less than 0.625 blocks, so what lies further back than that is in its place for good: the sorting is
    done in pieces, and memory does not grow with the node's share.
    """
    filled = 0
    for part in parts:
        total = sum(end - begin for begin, end in part)
        if total == 0:
            raise UsageError(
                f"{len(parts)} canonical nodes are more than there are samples; give fewer --num-canonical-nodes"
            )
        numbers = scratch.empty(total, np.int64)
        _within_spans(part, numbers, random)
        reach = 0.625 * block + 1
        held_at: list[NDArray[np.float64]] = []
        held: list[Int64s] = []
        held_rows = 0
        offset = 0
        for begin, end in part:
            size = end - begin
            room = max(0, (random.integers(int(0.75 * block), int(1.25 * block)) - size) / 2)
            shifts = random.uniform(low=max(-room, -offset), high=min(room, total - offset - size), size=size)
            held_at.append(np.arange(offset, offset + size).astype(np.float64) + shifts)
            held.append(numbers[offset : offset + size])
            held_rows += size
            offset += size
            if held_rows > 4 * block or offset == total:
                at, waiting = np.concatenate(held_at), np.concatenate(held)
                order = np.argsort(at)
                ready = len(at) if offset == total else int(np.searchsorted(at[order], offset - reach))
                out[filled : filled + ready] = waiting[order[:ready]]
                filled += ready
                later = order[ready:]
                held_at, held, held_rows = [at[later]], [waiting[later]], len(later)


def _py2s(shard_sizes: Sequence[int], canonical_nodes: int, seed: int, epoch: int, scratch: Scratch) -> Int64s:
    """Samples are shuffled within their shard twice: for the run, and again for each epoch."""
    ends = np.cumsum(np.asarray(shard_sizes, np.int64)).tolist()
    shards = [((end - size, end), number) for number, (end, size) in enumerate(zip(ends, shard_sizes, strict=True))]
    fixed = np.random.default_rng(seed)
    fixed.shuffle(shards)
    run = scratch.empty(ends[-1], np.int64)
    laid: list[tuple[Span, int | None]] = []
    filled = 0
    for (begin, end), number in shards:
        piece = run[filled : filled + end - begin]
        piece[:] = np.arange(begin, end)
        fixed.shuffle(piece)
        laid.append(((filled, filled + end - begin), number))
        filled += end - begin
    random = np.random.default_rng(seed + epoch)
    out = scratch.empty(ends[-1], np.int64)
    filled = 0
    for part in _deal(laid, ends[-1], canonical_nodes):
        random.shuffle(part)
        for (begin, end), _ in part:
            piece = run[begin:end]
            random.shuffle(piece)
            out[filled : filled + len(piece)] = piece
            filled += len(piece)
    return out


class Partition:
    """Which sample each rank reads when, before any shuffle: canonical nodes in turn, then physical nodes, then their ranks.

    ``samples_passed``: where in the epoch the job begins (its resumption state).
    """

    def __init__(self, sample_count: int, world: World, samples_passed: int = 0) -> None:
        small, large = sorted((world.canonical_nodes, world.nodes))
        if large % small:
            raise UsageError(
                f"{world.canonical_nodes} canonical nodes and {world.nodes} nodes: one must be a multiple of the other"
            )
        self._count = sample_count
        self._world = world
        self._passed = samples_passed - samples_passed % world.nodes
        self._per_node = -(-sample_count // world.canonical_nodes)
        self._ratio = world.nodes // world.canonical_nodes if world.nodes > world.canonical_nodes else 0
        self._padding = -self._per_node % self._ratio if self._ratio else 0
        self._columns = self._per_node + self._padding
        self._repeats = not (
            sample_count > world.canonical_nodes
            or (sample_count == world.canonical_nodes and world.canonical_nodes >= world.nodes)
        )
        self._each = max(0, world.canonical_nodes * self._columns - self._passed) // world.nodes

    @property
    def samples_per_rank(self) -> int:
        return -(-self._each // self._world.ranks_per_node)

    def samples(self, rank: int, begin: int, end: int) -> Int64s:
        """The rank's samples ``begin`` to ``end`` of those it has left, as places in the epoch's order."""
        world = self._world
        node, inside = divmod(rank, world.ranks_per_node)
        place = np.arange(begin, end, dtype=np.int64) * world.ranks_per_node + inside
        overflow = self._each % world.ranks_per_node
        if overflow:  # the last row is filled up with samples from before it
            missing = world.ranks_per_node - overflow
            filled = place - self._each
            if world.ranks_per_node + missing - 1 <= self._each:
                instead = self._each - world.ranks_per_node - missing + 1 + filled
            else:
                instead = filled % self._each
            place = np.where(filled >= 0, instead, place)
        flat = place * world.nodes + node + self._passed
        column, row = np.divmod(flat, world.canonical_nodes)
        if self._repeats:
            return (row * self._columns + column) % self._count
        if self._padding:
            extra = column - self._per_node
            column = np.where(extra >= 0, self._per_node - self._ratio + 1 - self._padding + extra, column)
        first = row * self._count // world.canonical_nodes
        last = (row + 1) * self._count // world.canonical_nodes
        is_short = last - first < self._per_node
        real = np.where((column == self._per_node - 1) & is_short, column - 1, column)
        return first + real
