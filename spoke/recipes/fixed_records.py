"""The recipe ``fixed-records``: records of one size under ``torch.utils.data.DistributedSampler``.

The records of all files lie one after the other, each file beginning with ``header_bytes`` that are none. Batches go round robin over
a rank's workers, so a rank's records keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common import limits
from common.errors import UsageError
from spoke.recipes.files import MountedFiles
from spoke.recipes.model import Epoch, Int64s, Steps
from spoke.recipes.options import Options, rank_set
from spoke.recipes.torch_random import torch_permutation


class FixedRecords:
    """Records in lanes, one for each rank asked for."""

    epochs: int | None = None
    is_mapped = False

    def __init__(self, options: Options, files: MountedFiles) -> None:
        self._files = files
        names = [files.relative(word) for word in options.words("files", "paths") or []]
        if not names:
            raise options.missing("files")
        self._record = options.need("record-bytes", least=1)
        self._header = options.count("header-bytes", default=0)
        counts = [max(0, files.facts(name).size_bytes - self._header) // self._record for name in names]
        self._ends = np.cumsum(np.asarray(counts, np.int64))
        held = int(self._ends[-1])
        if not held:
            raise UsageError(f"no whole record of {self._record} bytes lies in {', '.join(names[:3])}")
        self._count = options.count("records", default=held, least=1)
        if not 0 < self._count <= min(held, limits.RECIPE_MAX_SAMPLES):
            raise UsageError(f"{self._count} records of {self._record} bytes; {held} lie in {len(names)} files")
        self.paths = [name.encode("utf-8", "surrogateescape") for name in names]
        self._world = options.count("world-size", "num-replicas", default=1, least=1)
        self._ranks = rank_set(options.text("ranks"), self._world)
        self._shuffle = options.flag("shuffle", default=True)
        self._seed = options.count("seed", default=0)
        self._drop_last = options.flag("drop-last")
        self._first_epoch = options.count("epoch", default=0)
        self._fixed_epoch = options.flag("no-set-epoch")
        self.name = f"fixed-records:seed={self._seed}"

    @property
    def lanes(self) -> Sequence[str]:
        return [f"rank {rank}" for rank in self._ranks]

    def epoch(self, number: int) -> Epoch:
        return _Epoch(self, self._first_epoch + (0 if self._fixed_epoch else number))

    def record_steps(self, records: Int64s) -> Steps:
        files = np.searchsorted(self._ends, records, side="right")
        first = np.concatenate([np.zeros(1, np.int64), self._ends[:-1]])
        offsets = self._header + (records - first[files]) * self._record
        return Steps(files, offsets, np.full(len(records), self._record, np.int64))


class _Epoch:
    def __init__(self, recipe: FixedRecords, number: int) -> None:
        self._recipe = recipe
        self._order: Int64s | None = None
        if recipe._shuffle:
            self._order = torch_permutation(recipe._count, recipe._seed + number, recipe._files.scratch)
        world, count = recipe._world, recipe._count
        if recipe._drop_last and count % world:
            self._each = -(-(count - world) // world)
        else:
            self._each = -(-count // world)

    def samples(self, lane: int) -> int:
        del lane
        return self._each

    def steps(self, lane: int, begin: int, end: int) -> Steps:
        recipe = self._recipe
        places = np.arange(begin, end, dtype=np.int64) * recipe._world + recipe._ranks[lane]
        places %= recipe._count  # what is missing at the end is filled up from the beginning
        return recipe.record_steps(places if self._order is None else self._order[places])
