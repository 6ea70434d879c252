"""Cached files that the kernel reads by itself: descriptors lent to it, and loans that an earlier process made.

A lent file is pinned, and stays as it is while it is lent. Nobody sees these reads: whether somebody else changed the file is
looked at when it is lent, and again now and then.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict, deque

from common.blocks import whole_file
from spoke.cache.cached_file import CachedFile, stamp_of, stamps_at
from spoke.cache.open_files import SHORT_OF
from spoke.cache.reader import BlocksMissing
from spoke.cache.shelf import Shelf


class Loans:
    """Of files on one shelf. ``open_max``: read-only descriptors kept open; the kernel has a reference of its own."""

    def __init__(self, shelf: Shelf, open_max: int) -> None:
        self._shelf = shelf
        self._disk = shelf.disk
        self._open_max = open_max
        self._open: OrderedDict[CachedFile, None] = OrderedDict()
        self._lent: dict[bytes, deque[CachedFile]] = {}
        self._held: dict[bytes, deque[CachedFile | None]] = {}
        self._closed = False

    def is_lent(self, version: bytes) -> bool:
        """The kernel reads it by itself now."""
        return version in self._lent or version in self._held

    def close(self) -> None:
        """Loans end with the process that reads; those that come back later are taken without a word."""
        self._closed = True
        self.close_idle(0)
        self._lent.clear()
        self._held.clear()

    # --- lent by us --------------------------------------------------------------------------------------

    def lend(self, file: CachedFile) -> int:
        """A read-only descriptor of a verified file. Raises BlocksMissing when it cannot be opened, or is not as it was left."""
        if file.borrow_fd < 0:
            try:
                self.close_idle(self._open_max - 1)
                file.borrow_fd = self._open_to_lend(file.version)
            except OSError as error:
                raise BlocksMissing([whole_file(file.size_bytes)]) from error
            self._open[file] = None
        if not self._shelf.is_as_left(file, stamp_of(self._disk, file.borrow_fd)):
            if not file.borrows and self._open.pop(file, True) is None:
                self._disk.close(file.borrow_fd)
                file.borrow_fd = -1
            raise BlocksMissing([whole_file(file.size_bytes)])
        file.borrows += 1
        self._lent.setdefault(file.version, deque()).append(file)
        self._shelf.pin(file.version, +1)
        return file.borrow_fd

    def _open_to_lend(self, version: bytes) -> int:
        path, _ = self._shelf.directory.paths(version)
        try:
            return self._disk.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno not in SHORT_OF:
                raise
            self._shelf.close_idle(0)
            self.close_idle(0)
            return self._disk.open(path, os.O_RDONLY | os.O_NOFOLLOW)

    def close_idle(self, keep_count: int) -> None:
        """The kernel has a reference of its own by now; the loans go on."""
        while len(self._open) > keep_count:
            file, _ = self._open.popitem(last=False)
            self._disk.close(file.borrow_fd)
            file.borrow_fd = -1

    def take_back(self, version: bytes) -> None:
        """End one loan. The reads it served were not seen: the whole file counts as used now."""
        loans = self._lent.get(version)
        if not loans:
            assert self._closed, "a loan taken back that was not given"
            return
        file = loans.popleft()
        if not loans:
            del self._lent[version]
        self._shelf.pin(version, -1)
        self._end_loan(file)
        if not file.removed and file.extents is not None:
            self._shelf.policy.touch(file.extents, 0, len(file.extents.ticks), file.size_bytes)

    # --- held for an earlier process ---------------------------------------------------------------------

    def hold(self, version: bytes) -> None:
        """A loan that an earlier process made: the kernel reads the file, and has its descriptor. Every one needs its ``let_go``."""
        file = self._shelf.files.get(version)
        if file is not None:
            file.borrows += 1
        self._held.setdefault(version, deque()).append(file)
        self._shelf.pin(version, +1)

    def let_go(self, version: bytes) -> None:
        """End one such loan."""
        loans = self._held.get(version)
        if not loans:
            assert self._closed, "a loan let go that was not held"
            return
        file = loans.popleft()
        if not loans:
            del self._held[version]
        self._shelf.pin(version, -1)
        if file is not None:
            self._end_loan(file)

    def _end_loan(self, file: CachedFile) -> None:
        if file.borrows == 1 and self._open.pop(file, True) is None:
            self._disk.close(file.borrow_fd)
            file.borrow_fd = -1
        file.borrows -= 1
        if file.borrows == 0:
            if file.removed:
                self._shelf.retire(file)
            else:
                self._shelf.remove_if_empty(file)

    # --- looking again -----------------------------------------------------------------------------------

    async def look_again(self) -> None:
        """Whether somebody else changed what the kernel reads by itself. Raises OSError."""
        lent: dict[CachedFile | None, None] = dict.fromkeys(loans[-1] for loans in self._lent.values())
        lent.update(dict.fromkeys(loans[-1] for loans in self._held.values()))
        files = [file for file in lent if file is not None and not file.removed and not file.own_writes]
        paths = {file: self._shelf.directory.paths(file.version)[0] for file in files if file.borrow_fd < 0}
        before = {file: file.stamp for file in paths}
        for file in files:
            if file not in paths:
                self._shelf.is_as_left(file, stamp_of(self._disk, file.borrow_fd))
        if not paths:
            return
        stamps = await asyncio.get_running_loop().run_in_executor(
            self._shelf.read_pool, stamps_at, self._disk, list(paths.values())
        )
        for file, stamp in zip(paths, stamps, strict=True):
            if stamp is not None and file.stamp is before[file] and file.borrows and not file.removed:
                self._shelf.is_as_left(file, stamp)
