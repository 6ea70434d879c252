"""The dataset as the mount shows it: names, versions, sizes, and bounded reads of the index files a recipe needs.

Every read goes through the mount, so that what a recipe needs is cached for the job, which needs it too. A file's version is
taken from the descriptor its bytes are read from, so that no order is computed from one version and meant for another.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import DTypeLike, NDArray

from common import limits
from common.errors import HeadraceError, UsageError
from spoke.prefetch.chains import FileFacts
from spoke.recipes.scratch import Scratch

_VERSION = "user.headrace.version"


class MountedFiles:
    """``mountpoint``: resolved. ``seen_as``: where the job sees it (another path inside a container), or the same."""

    def __init__(self, mountpoint: str, seen_as: str | None, scratch: Scratch) -> None:
        self.mountpoint = mountpoint
        self.scratch = scratch
        self._roots = [os.path.normpath(root) for root in (seen_as, mountpoint) if root]
        self._facts: dict[str, FileFacts] = {}

    def relative(self, path: str) -> str:
        """A path as the job names it (or relative to the mount) as relative to the mount. Raises UsageError outside of it."""
        if not os.path.isabs(path):
            inside = os.path.normpath(path)
        else:
            path = os.path.normpath(path)
            root = next((root for root in self._roots if path == root or path.startswith(root.rstrip("/") + "/")), None)
            if root is None:
                raise UsageError(
                    f"{path} is not below the mount {' or '.join(self._roots)}; if the job sees the mount elsewhere, say where "
                    "with --seen-as"
                )
            inside = os.path.relpath(path, root)
        if inside.split("/")[0] == "..":
            raise UsageError(f"{path} leads out of the mount")
        return inside

    def is_file(self, path: str) -> bool:
        return os.path.isfile(self._at(path))

    def names(self, directory: str) -> list[str]:
        """What a directory holds, sorted. Raises UsageError when it is none."""
        try:
            return sorted(os.listdir(self._at(directory)))
        except OSError as error:
            raise UsageError(f"{directory}: {error.strerror}") from None

    def facts(self, path: str) -> FileFacts:
        """Path, version and size as of the first time they were asked for. Raises UsageError for what is not a file here."""
        known = self._facts.get(path)
        if known is None:
            try:
                version = self._version(self._at(path))
                size_bytes = os.stat(self._at(path)).st_size
            except OSError as error:
                raise self._missing(path, error) from None
            known = self._facts[path] = FileFacts(os.fsencode(path), version, size_bytes)
        return known

    @contextmanager
    def opened(self, path: str, *, random: bool = False) -> Iterator[int]:
        """A descriptor of the version that ``facts`` tells. ``random``: no readahead for what is read here and there."""
        try:
            descriptor = os.open(self._at(path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._missing(path, error) from None
        try:
            if self._version(descriptor) != self.facts(path).version:
                raise HeadraceError(f"{path} changed at the hub while the recipe was computed; start it again")
            if random:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            yield descriptor
        except OSError as error:
            raise HeadraceError(f"{path} cannot be read: {error.strerror}") from error
        finally:
            os.close(descriptor)

    def read(self, path: str, max_bytes: int) -> bytes:
        """A small file whole. Raises UsageError when it is larger than ``max_bytes``."""
        size_bytes = self.facts(path).size_bytes
        if size_bytes > max_bytes:
            raise UsageError(f"{path} has {size_bytes} bytes; what a recipe reads of its kind has at most {max_bytes}")
        with self.opened(path) as descriptor:
            return read_at(descriptor, path, 0, size_bytes)

    def array(self, path: str, offset_bytes: int, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """``count`` numbers from a file, in scratch, read in order and in pieces. Raises UsageError when the file is shorter."""
        numbers = self.scratch.empty(count, dtype)
        size_bytes = self.facts(path).size_bytes
        if offset_bytes + numbers.nbytes > size_bytes:
            raise UsageError(
                f"{path} has {size_bytes} bytes, and its header announces {offset_bytes + numbers.nbytes}: it is cut short or "
                "not what it is taken for"
            )
        target = memoryview(numbers.data).cast("B") if count else memoryview(b"")
        with self.opened(path) as descriptor:
            for begin in range(0, numbers.nbytes, limits.RECIPE_READ_BYTES):
                end = min(numbers.nbytes, begin + limits.RECIPE_READ_BYTES)
                target[begin:end] = read_at(descriptor, path, offset_bytes + begin, end - begin)
        return numbers

    def _version(self, file: str | int) -> bytes:
        """Of a path or a descriptor."""
        return bytes.fromhex(os.getxattr(file, _VERSION).decode())

    def _at(self, path: str) -> str:
        return os.path.join(self.mountpoint, path)

    def _missing(self, path: str, error: OSError) -> UsageError:
        return UsageError(f"{path} in {self.mountpoint}: {error.strerror}")


def read_at(descriptor: int, path: str, offset_bytes: int, length_bytes: int) -> bytes:
    """Exactly these bytes. Raises HeadraceError when the file ends before."""
    piece = os.pread(descriptor, length_bytes, offset_bytes)
    if len(piece) != length_bytes:
        raise HeadraceError(
            f"{path} ends at {offset_bytes + len(piece)}; {length_bytes} bytes were wanted at {offset_bytes}"
        )
    return piece
