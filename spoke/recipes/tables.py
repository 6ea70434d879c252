"""Offset tables of shards: u32 count, u32 offsets[count + 1], then the samples. MDS shards and LitData chunks both begin so.

Tables are read when a segment first needs them, several at once, and kept in scratch: 4 bytes a sample.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from common import limits
from common.errors import UsageError
from spoke.recipes.files import MountedFiles, read_at
from spoke.recipes.model import Int64s


class Tables:
    """``counts``: samples of each shard, as its index tells."""

    def __init__(self, files: MountedFiles, paths: Sequence[str], counts: Sequence[int]) -> None:
        self._files = files
        self._paths = paths
        self._counts = np.asarray(counts, np.int64)
        self._begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._counts + 1)])
        self._offsets = files.scratch.empty(int(self._begins[-1]), np.uint32)
        self._known = np.zeros(len(paths), bool)

    def ranges(self, shards: Int64s, samples: Int64s) -> tuple[Int64s, Int64s]:
        """Offset and length, in bytes, of each of these samples (counted within its shard)."""
        missing = [int(shard) for shard in np.unique(shards) if not self._known[shard]]
        if missing:
            for shard in missing:  # facts are asked for here: the threads only read
                self._files.facts(self._paths[shard])
            with ThreadPoolExecutor(limits.RECIPE_TABLE_READERS) as readers:
                list(readers.map(self._read, missing))
        at = self._begins[shards] + samples
        begin = self._offsets[at].astype(np.int64)
        return begin, self._offsets[at + 1].astype(np.int64) - begin

    def _read(self, shard: int) -> None:
        path, count = self._paths[shard], int(self._counts[shard])
        size_bytes = self._files.facts(path).size_bytes
        table_bytes = 4 * (count + 2)
        if size_bytes < table_bytes:
            raise UsageError(f"{path} has {size_bytes} bytes; {count} samples have a table of {table_bytes}")
        with self._files.opened(path, random=True) as descriptor:
            data = b"".join(
                read_at(descriptor, path, begin, min(limits.RECIPE_READ_BYTES, table_bytes - begin))
                for begin in range(0, table_bytes, limits.RECIPE_READ_BYTES)
            )
        told = struct.unpack_from("<I", data)[0]
        offsets = np.frombuffer(data, "<u4", offset=4)
        in_order = bool(np.all(offsets[1:] >= offsets[:-1]))
        if told != count or not in_order or offsets[0] < table_bytes or offsets[-1] > size_bytes:
            raise UsageError(
                f"{path}: its table tells {told} samples between {offsets[0]} and {offsets[-1]} of {size_bytes} bytes, and the "
                f"index {count}; they do not belong together, or the shard is damaged"
            )
        begin = int(self._begins[shard])
        self._offsets[begin : begin + count + 1] = offsets
        self._known[shard] = True
