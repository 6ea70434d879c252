"""The recipe ``olmo-core``: rows of a fixed number of tokens in raw NumPy files, permuted anew each epoch.

Files are cut into rows of ``sequence_length`` tokens, what is left at their ends is not read. A global batch is a run of the
permutation; rank r reads its rows r, r + R, r + 2R ... Workers take whole batches in turn, so a rank's rows keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common import limits
from common.errors import UsageError
from spoke.recipes.files import MountedFiles
from spoke.recipes.model import Epoch, Int64s, Steps
from spoke.recipes.options import Options, rank_set

_TOKEN_BYTES = {"uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8}


class OlmoCore:
    """Rows in lanes, one for each data-parallel rank asked for."""

    epochs: int | None = None
    is_mapped = False

    def __init__(self, options: Options, files: MountedFiles) -> None:
        self._files = files
        names = [files.relative(word) for word in options.words("paths") or []]
        if not names:
            raise options.missing("paths")
        masks = [files.relative(word) for word in options.words("label-mask-paths") or []]
        if masks and len(masks) != len(names):
            raise UsageError(f"{len(masks)} label masks for {len(names)} files: there must be one for each")
        kind = options.choice("dtype", among=tuple(_TOKEN_BYTES), default="uint16")
        self._sequence = options.need("sequence-length", least=1)
        whole = options.integer("max-target-sequence-length", least=1) or self._sequence
        if whole % self._sequence:
            raise UsageError(f"--max-target-sequence-length {whole} is not a multiple of {self._sequence}")
        self._token_bytes = _TOKEN_BYTES[kind]
        rows = [
            files.facts(name).size_bytes // (self._token_bytes * whole) * (whole // self._sequence) for name in names
        ]
        self._row_ends = np.cumsum(np.asarray(rows, np.int64))
        self._count = int(self._row_ends[-1])
        if not 0 < self._count <= limits.RECIPE_MAX_SAMPLES:
            raise UsageError(
                f"{self._count} rows of {self._sequence} tokens in {len(names)} files; at least one is needed"
            )
        self._file_count = len(names)
        self._has_masks = bool(masks)
        self.paths = [name.encode("utf-8", "surrogateescape") for name in (*names, *masks)]
        tokens = options.need("global-batch-size", least=1)
        if tokens % self._sequence:
            raise UsageError(
                f"--global-batch-size {tokens} (tokens) is not a multiple of the sequence length {self._sequence}"
            )
        self._batch = tokens // self._sequence
        self._world = options.count("data-parallel-size", "world-size", default=1, least=1)
        if self._batch % self._world:
            raise UsageError(f"a batch of {self._batch} rows does not divide into {self._world} ranks")
        self._ranks = rank_set(options.text("ranks"), self._world)
        self._seed = options.count("seed", default=0)
        self._shuffle = options.flag("shuffle", default=True)
        self._chunk = options.count("chunk-size", default=1, least=1)
        self._first_epoch = options.count("epoch", default=1, least=1)
        self._passed = options.count("batches-processed", default=0)
        self.name = f"olmo-core:seed={self._seed}"

    @property
    def lanes(self) -> Sequence[str]:
        return [f"rank {rank}" for rank in self._ranks]

    def epoch(self, number: int) -> Epoch:
        return _Epoch(self, number)

    def order(self, epoch: int) -> Int64s:
        """All rows as epoch ``epoch`` (the loader's number, from 1) goes through them."""
        scratch = self._files.scratch
        random = np.random.Generator(np.random.PCG64(seed=self._seed + epoch)) if self._shuffle else None
        if self._chunk == 1:
            rows = scratch.arange(0, self._count, np.uint32)
            if random is not None:
                random.shuffle(rows)
            return rows
        chunks = scratch.arange(0, self._count // self._chunk, np.uint32)
        if random is not None:
            random.shuffle(chunks)
        rows = scratch.empty(len(chunks) * self._chunk, np.uint32)
        for begin in range(0, len(chunks), limits.RECIPE_PIECE_ROWS):
            some = chunks[begin : begin + limits.RECIPE_PIECE_ROWS].astype(np.int64)
            rows[begin * self._chunk : (begin + len(some)) * self._chunk] = (
                some[:, None] * self._chunk + np.arange(self._chunk)
            ).ravel()
        return rows

    def row_steps(self, rows: Int64s) -> Steps:
        """One read for each row, and one of its label mask where there are masks."""
        files = np.searchsorted(self._row_ends, rows, side="right")
        first = np.concatenate([np.zeros(1, np.int64), self._row_ends[:-1]])
        tokens = (rows - first[files]) * self._sequence
        offsets, length = tokens * self._token_bytes, self._sequence * self._token_bytes
        if not self._has_masks:
            return Steps(files, offsets, np.full(len(rows), length, np.int64))
        return Steps(
            np.stack([files, files + self._file_count], axis=1).ravel(),
            np.stack([offsets, tokens], axis=1).ravel(),
            np.tile(np.array([length, self._sequence], np.int64), len(rows)),
        )


class _Epoch:
    def __init__(self, recipe: OlmoCore, number: int) -> None:
        self._recipe = recipe
        self._order = recipe.order(recipe._first_epoch + number)
        self._batches = len(self._order) // recipe._batch
        self._begin = min(recipe._passed, self._batches) if number == 0 else 0

    def samples(self, lane: int) -> int:
        del lane
        return (self._batches - self._begin) * (self._recipe._batch // self._recipe._world)

    def steps(self, lane: int, begin: int, end: int) -> Steps:
        recipe = self._recipe
        per_batch = recipe._batch // recipe._world
        batch, place = np.divmod(np.arange(begin, end, dtype=np.int64), per_batch)
        at = (self._begin + batch) * recipe._batch + place * recipe._world + recipe._ranks[lane]
        return recipe.row_steps(self._order[at].astype(np.int64))
