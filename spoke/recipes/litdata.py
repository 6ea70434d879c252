"""The recipe ``litdata``: LitData's StreamingDataset over uncompressed chunks read where they lie.

A lane is one worker of one rank: a worker stays inside one chunk for a long time. With the loader of items the table of a chunk is
read when the worker comes to it, then item after item, or in windows of several rows that are decoded together; with the loader of
tokens a block is computed from its number and no table is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from common import limits
from common.errors import UsageError
from spoke.recipes.files import MountedFiles
from spoke.recipes.litdata_order import (
    CHUNK_WINDOW,
    ITEM_WINDOW,
    Interval,
    Job,
    dealt_evenly,
    full_shuffle,
    item_order,
    window_shuffle,
)
from spoke.recipes.model import Epoch, Int64s, Steps, joined, no_steps
from spoke.recipes.options import Options, rank_set
from spoke.recipes.tables import Tables

_TOKEN_BYTES = {
    "no_header_tensor": (4, 4, 8, 8, 8, 8, 16, 16, 2, 2, 2, 1, 1, 2, 2, 4, 4, 8, 8, 1, 2),
    "no_header_numpy": (1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 8, 16, 1),
}
"""Bytes of a token by kind and number, as LitData's formats name them."""


class Litdata:
    """Items in lanes: workers of the ranks asked for, rank by rank."""

    epochs: int | None = None
    is_mapped = True

    def __init__(self, options: Options, files: MountedFiles) -> None:
        directory = options.text("dir", "input-dir")
        if directory is None:
            raise options.missing("dir")
        inside = files.relative(directory)
        chunks, config = _index(files, inside)
        names = [f"{inside}/{chunk['filename']}" if inside != "." else str(chunk["filename"]) for chunk in chunks]
        self.paths = [name.encode("utf-8", "surrogateescape") for name in names]
        self._stored = [int(chunk["chunk_size"]) for chunk in chunks]
        self._block_size = options.integer("block-size", least=1)
        if self._block_size is None:
            self.sizes = list(self._stored)
            self._tables = Tables(files, names, self._stored)
            self._decode_rows = options.count("decode-rows", default=1, least=0)
        else:
            self._token_bytes = _token_bytes(config)
            self.sizes = [int(chunk["dim"] or 0) // self._block_size for chunk in chunks]
        if sum(self.sizes) == 0:
            raise UsageError(f"no items in the {len(chunks)} chunks of {directory}")
        self.shuffle = options.choice("shuffle", among=("full", "window", "none"), default="full")
        self.seed = options.count("seed", default=42)
        world = options.count("world-size", default=1, least=1)
        nodes = options.count(
            "nodes", "num-nodes", default=max(1, world // (options.integer("local-world-size") or world)), least=1
        )
        if world % nodes:
            raise UsageError(f"a world of {world} ranks does not divide into {nodes} nodes")
        self.job = Job(
            world,
            nodes,
            max(1, options.count("num-workers", default=1)),
            options.count("batch-size", default=1, least=1),
            options.flag("drop-last", default=world > 1),
        )
        self.item_window = options.count("item-window", "item-shuffle-window", default=ITEM_WINDOW)
        self.chunk_window = options.count("chunk-window", "posix-shuffle-window", default=CHUNK_WINDOW, least=1)
        self.node_fits = not options.flag("larger-than-node-cache")
        self.first_epoch = options.count("epoch", default=1, least=1)
        self._ranks = rank_set(options.text("ranks"), world)
        self.name = f"litdata:{self.shuffle}:seed={self.seed}"

    @property
    def lanes(self) -> Sequence[str]:
        return [f"rank {rank} worker {worker}" for rank in self._ranks for worker in range(self.job.workers)]

    def worker(self, lane: int) -> int:
        """Of all workers of the job."""
        place, worker = divmod(lane, self.job.workers)
        return self._ranks[place] * self.job.workers + worker

    def epoch(self, number: int) -> Epoch:
        return _Epoch(self, self.first_epoch + number)

    def visit_steps(self, chunk: int, items: Iterable[int], *, begins: bool) -> Steps:
        """The reads of some items of a chunk, in this order. ``begins``: the worker has just come to it."""
        wanted = np.fromiter(items, np.int64)
        if self._block_size is not None:
            length = self._token_bytes * self._block_size
            offsets = 4 * (self._stored[chunk] + 2) + wanted * length
            return _in_chunk(chunk, offsets, np.full(len(wanted), length, np.int64))
        if self._decode_rows > 1:
            rows = wanted // self._decode_rows
            first_of_run = np.concatenate([np.ones(min(1, len(rows)), bool), rows[1:] != rows[:-1]])
            begin = rows[first_of_run] * self._decode_rows
            end = np.minimum(begin + self._decode_rows, self._stored[chunk])
            offsets, _ = self._tables.ranges(np.full(len(begin), chunk), begin)
            last_offset, last_length = self._tables.ranges(np.full(len(end), chunk), end - 1)
            steps = _in_chunk(chunk, offsets, last_offset + last_length - offsets)
        else:
            steps = _in_chunk(chunk, *self._tables.ranges(np.full(len(wanted), chunk), wanted))
        if not begins:
            return steps
        table = np.array([0]), np.array([4 * (self._stored[chunk] + 2)])
        return joined([_in_chunk(chunk, *table), steps])


class _Epoch:
    def __init__(self, recipe: Litdata, number: int) -> None:
        self._recipe = recipe
        self._number = number
        self._last: tuple[Interval, list[int]] | None = None
        sizes, job = recipe.sizes, recipe.job
        if recipe.shuffle == "full":
            parts = full_shuffle(sizes, job, recipe.seed, number, node_fits=recipe.node_fits)
        elif recipe.shuffle == "window":
            parts = window_shuffle(sizes, job, recipe.seed, number, recipe.chunk_window)
        else:
            parts = dealt_evenly(range(len(sizes)), sizes, job)
        self._visits = {lane: parts[recipe.worker(lane)] for lane in range(len(recipe.lanes))}
        self._ends = {
            lane: np.cumsum([0, *(visit.end - visit.first for visit in visits)])
            for lane, visits in self._visits.items()
        }

    def samples(self, lane: int) -> int:
        return int(self._ends[lane][-1])

    def steps(self, lane: int, begin: int, end: int) -> Steps:
        recipe, ends = self._recipe, self._ends[lane]
        parts: list[Steps] = [no_steps()]
        first = int(np.searchsorted(ends, begin, side="right")) - 1
        for place in range(first, len(self._visits[lane])):
            if ends[place] >= end:
                break
            visit = self._visits[lane][place]
            low, high = (
                max(begin, int(ends[place])) - int(ends[place]),
                min(end, int(ends[place + 1])) - int(ends[place]),
            )
            items = self._items(visit)[low:high]
            parts.append(recipe.visit_steps(visit.chunk, items, begins=low == 0))
        return joined(parts)

    def _items(self, visit: Interval) -> list[int]:
        if self._last is None or self._last[0] != visit:
            self._last = visit, self._ordered(visit)
        return self._last[1]

    def _ordered(self, visit: Interval) -> list[int]:
        recipe = self._recipe
        if recipe.shuffle == "none":
            return list(range(visit.first, visit.end))
        return item_order(visit, len(recipe.sizes), recipe.seed, self._number, recipe.item_window)


def _in_chunk(chunk: int, offsets: Int64s, lengths: Int64s) -> Steps:
    wanted = lengths > 0
    return Steps(np.full(int(wanted.sum()), chunk, np.int64), offsets[wanted], lengths[wanted])


def _index(files: MountedFiles, directory: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    path = f"{directory}/index.json"
    try:
        index = json.loads(files.read(path, limits.RECIPE_INDEX_MAX_BYTES))
        chunks, config = index["chunks"], index["config"]
        if config.get("compression") or config.get("encryption"):
            raise UsageError(
                f"{path}: compressed or encrypted chunks are copied whole by the loader; this recipe is for plain ones"
            )
        for chunk in chunks:
            if not isinstance(chunk["filename"], str) or "/" in chunk["filename"] or int(chunk["chunk_size"]) < 0:
                raise UsageError(f"{path}: a chunk is {chunk!r}")
        return chunks, config
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not the index of a LitData dataset: {error!r}") from None


def _token_bytes(config: dict[str, Any]) -> int:
    """Bytes of a token, from a format such as ``no_header_tensor:16``."""
    kind, _, code = str((config.get("data_format") or [""])[0]).partition(":")
    try:
        return _TOKEN_BYTES[kind][int(code)]
    except (ValueError, KeyError, IndexError):
        raise UsageError(
            f"blocks of tokens need data of no_header_tensor or no_header_numpy, not {kind}:{code}"
        ) from None
