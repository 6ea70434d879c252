"""Numbers kept on disk instead of in memory: arrays over files that have no name and vanish with the process.

A permutation of a billion samples takes 4 GB; the kernel may write such pages out and take the memory back, which it cannot
do with an ordinary array. The room is reserved before the first write: a full disk is an error here and never a SIGBUS.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from common import limits
from common.errors import DiskError


class Scratch:
    """Makes arrays; those below RECIPE_MEMORY_ARRAY_BYTES are ordinary ones. ``directory``: on a disk, not a tmpfs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def empty(self, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """Zeros or noise, one dimension. Raises DiskError when the disk has no room for it."""
        kind = np.dtype(dtype)
        size_bytes = count * kind.itemsize
        if size_bytes < limits.RECIPE_MEMORY_ARRAY_BYTES:
            return np.zeros(count, kind)
        try:
            with tempfile.TemporaryFile(dir=self._directory) as file:
                os.posix_fallocate(file.fileno(), 0, size_bytes)
                memory = mmap.mmap(file.fileno(), size_bytes)
        except OSError as error:
            raise DiskError(
                f"a recipe needs {size_bytes} bytes of scratch in {self._directory}: {error.strerror}; "
                "free some, or name another directory with --work-dir"
            ) from error
        return np.frombuffer(memory, kind)

    def arange(self, begin: int, end: int, dtype: DTypeLike) -> NDArray[Any]:
        numbers = self.empty(end - begin, dtype)
        for first in range(0, end - begin, limits.RECIPE_PIECE_ROWS):
            last = min(end - begin, first + limits.RECIPE_PIECE_ROWS)
            numbers[first:last] = np.arange(begin + first, begin + last)
        return numbers
