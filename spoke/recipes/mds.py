"""The recipe ``mds``: MosaicML Streaming over uncompressed shards read where they lie (``local`` is the mount).

A sample is two reads: 8 bytes of the shard's table, then the sample. Batches go round robin over a rank's workers, so a rank's
samples keep their order whatever their number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from common import limits
from common.errors import UsageError
from spoke.recipes.files import MountedFiles
from spoke.recipes.mds_shuffle import ALGORITHMS, Partition, World, shuffled
from spoke.recipes.model import Epoch, Int64s, Steps
from spoke.recipes.options import Options, rank_set
from spoke.recipes.tables import Tables


class Mds:
    """Samples in lanes, one for each rank asked for."""

    epochs: int | None = None
    is_mapped = False

    def __init__(self, options: Options, files: MountedFiles) -> None:
        self._files = files
        directories = options.words("dir", "local")
        if not directories:
            raise options.missing("dir")
        split = options.text("split", default="")
        shard_paths: list[str] = []
        self._shard_sizes: list[int] = []
        for directory in directories:
            inside = "/".join(part for part in (files.relative(directory), split) if part and part != ".")
            for path, count in _shards(files, inside):
                shard_paths.append(path)
                self._shard_sizes.append(count)
        self._count = sum(self._shard_sizes)
        if not 0 < self._count <= limits.RECIPE_MAX_SAMPLES:
            raise UsageError(
                f"{self._count} samples in {', '.join(directories)}; 1 to {limits.RECIPE_MAX_SAMPLES} are expanded"
            )
        self._algorithm = options.choice("shuffle-algo", among=ALGORITHMS, default="py1e")
        self._shuffle = options.flag("shuffle", default=True)
        self._seed = options.count("seed", "shuffle-seed", default=9176)
        world = options.count("world-size", default=1, least=1)
        per_node = options.integer("ranks-per-node", "local-world-size", least=1) or world
        if world % per_node:
            raise UsageError(f"a world of {world} ranks does not divide into nodes of {per_node}")
        nodes = world // per_node
        canonical = options.integer("num-canonical-nodes", least=1) or nodes * (
            64 if self._algorithm in ("py1s", "py2s") else 1
        )
        self._world = World(nodes, per_node, canonical)
        self._block = options.integer("shuffle-block-size", least=2) or max(4_000_000 // canonical, 1 << 18)
        self._first_epoch = options.count("epoch", default=0)
        self._passed = options.count("sample-in-epoch", default=0)
        self._ranks = rank_set(options.text("ranks"), world)
        self.paths = [path.encode("utf-8", "surrogateescape") for path in shard_paths]
        self._tables = Tables(files, shard_paths, self._shard_sizes)
        self._shard_ends = np.cumsum(np.asarray(self._shard_sizes, np.int64))
        self.name = f"mds:{self._algorithm if self._shuffle else 'in order'}:seed={self._seed}"
        options.notes.update({"num-canonical-nodes": str(canonical), "shuffle-block-size": str(self._block)})

    @property
    def lanes(self) -> Sequence[str]:
        return [f"rank {rank}" for rank in self._ranks]

    def epoch(self, number: int) -> Epoch:
        return _Epoch(self, number)

    def sample_steps(self, samples: Int64s) -> Steps:
        """Two reads for each sample, numbered over all shards in the order of the index."""
        shards = np.searchsorted(self._shard_ends, samples, side="right")
        inside = samples - (self._shard_ends[shards] - np.asarray(self._shard_sizes, np.int64)[shards])
        begin, length = self._tables.ranges(shards, inside)
        offsets, lengths = np.empty(2 * len(samples), np.int64), np.empty(2 * len(samples), np.int64)
        offsets[0::2], offsets[1::2] = 4 + 4 * inside, begin
        lengths[0::2], lengths[1::2] = 8, length
        wanted = lengths > 0
        return Steps(np.repeat(shards, 2)[wanted], offsets[wanted], lengths[wanted])


class _Epoch:
    def __init__(self, recipe: Mds, number: int) -> None:
        self._recipe = recipe
        self._partition = Partition(recipe._count, recipe._world, recipe._passed if number == 0 else 0)
        self._order: Int64s | None = None
        if recipe._shuffle:
            self._order = shuffled(
                recipe._algorithm,
                recipe._shard_sizes,
                recipe._world.canonical_nodes,
                recipe._seed,
                recipe._first_epoch + number,
                recipe._block,
                recipe._files.scratch,
            )

    def samples(self, lane: int) -> int:
        del lane
        return self._partition.samples_per_rank

    def steps(self, lane: int, begin: int, end: int) -> Steps:
        places = self._partition.samples(self._recipe._ranks[lane], begin, end)
        return self._recipe.sample_steps(places if self._order is None else self._order[places])


def _shards(files: MountedFiles, directory: str) -> list[tuple[str, int]]:
    """(path, samples) of each shard, from ``index.json``. Raises UsageError for what is read otherwise than in place."""
    path = f"{directory}/index.json" if directory else "index.json"
    try:
        index = json.loads(files.read(path, limits.RECIPE_INDEX_MAX_BYTES))
        infos = index["shards"] if index["version"] == 2 else None
        if infos is None:
            raise UsageError(f"{path} has version {index['version']}; version 2 is known")
        found = []
        for info in infos:
            if info["format"] != "mds":
                raise UsageError(f"{path}: shards of format {info['format']}; only mds is known")
            if info.get("zip_data"):
                raise UsageError(
                    f"{path}: its shards are compressed ({info.get('compression')}); the loader copies such shards whole, in an "
                    "order that depends on its threads"
                )
            name = info["raw_data"]["basename"]
            if "/" in name or name in ("", ".", ".."):
                raise UsageError(f"{path}: a shard is called {name!r}")
            found.append((f"{directory}/{name}" if directory else name, int(info["samples"])))
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not the index of an MDS dataset: {error!r}") from None
    return found
