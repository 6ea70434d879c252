"""Looks at the exported directory: whole subtrees, or exactly the names that may have changed.

Yields :class:`Listing`, what one directory holds, in an order that has a parent before its children. Works with
descriptors and one fstatat a name; iterates, so that depth costs no stack. What cannot be looked at is never reported as
gone. Blocking; runs in a thread.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from common.entries import PATH_MAX_BYTES
from common.log import get_logger
from hub.export import Export, join_path, split_path
from hub.mounts import is_headrace_mount
from hub.versions import DIRECTORY, Facts, directory_facts, file_facts, symlink_facts

log = get_logger(__name__)

_FS_ENCODING = sys.getfilesystemencoding()
_OPEN_ANCESTORS_MAX = 32
"""Descriptors of directories just listed: their children open relative to them, so depth does not cost its square."""
_NAMES_BETWEEN = 256
_COMPLAINTS_MAX = 1000
"""Paths remembered as complained about, so that each is logged once and not at every rescan."""

VANISHED_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE})
"""The name is gone or something else took its place."""

_SPECIAL_KINDS = {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


@dataclass(slots=True)
class Listing:
    """What was seen of the directory ``path``.

    ``entries``: name to facts, None for a name that is gone. ``complete``: names not in it are gone as well, but for
    those in ``unknown``, which are there and could not be looked at.
    """

    path: bytes
    entries: dict[bytes, Facts | None]
    complete: bool
    unknown: set[bytes] = field(default_factory=set)


class Look(NamedTuple):
    """``facts``: None when nothing that is served stands there."""

    facts: Facts | None


class DirectoryVanished(Exception):
    """The directory to look into is not there (any more)."""


class Scanner:
    """``on_directory(path, fd)`` is called before a directory is listed: the place to watch it, so that nothing falls between.

    ``meanwhile`` is called between names when single names are looked at, of which there may be many.
    """

    def __init__(
        self,
        export: Export,
        on_directory: Callable[[bytes, int], None] | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self._export = export
        self._on_directory = on_directory
        self._meanwhile = meanwhile
        self._complaints: set[bytes] = set()
        self._said_skipped: set[str] = set()
        self.skipped: Counter[str] = Counter()
        self.unreadable = 0
        """Paths that could not be looked at since the last walk of everything began."""

    def walk(self, top: bytes = b"") -> Iterator[Listing]:
        """Every directory from ``top`` down, each as a complete listing (incomplete if not read to its end).

        Before it comes a listing of its own name, where its facts have moved since its parent was listed.

        A directory that is gone or cannot be opened yields nothing. Raises OSError only when the export's root itself
        cannot be listed.
        """
        if not top:
            self.skipped.clear()
            self.unreadable = 0
        with _OpenDirectories(self._export) as opened:
            stack: list[tuple[bytes, Facts | None]] = [(top, None)]
            while stack:
                path, expected = stack.pop()
                try:
                    fd = opened.open(path)
                except OSError as error:
                    if not path:
                        raise
                    self._complain(path, error)
                    continue
                if self._on_directory is not None:
                    self._on_directory(path, fd)
                # Its parent's listing saw it before it was watched: what came into it in between moved its mtime unseen.
                facts = directory_facts(os.fstat(fd), self._export.device)
                if path and facts != expected:
                    parent, name = split_path(path)
                    yield Listing(parent, {name: facts}, complete=False)
                listing = self._list(path, fd)
                children = [
                    (join_path(path, name), seen)
                    for name, seen in listing.entries.items()
                    if seen is not None and seen.kind == DIRECTORY
                ]
                children.sort(reverse=True)
                stack.extend(children)
                yield listing

    def observe(self, path: bytes, names: Iterable[bytes]) -> Listing:
        """Look at just these names of the directory ``path``. Raises DirectoryVanished when there is no such directory."""
        listing = Listing(path, {}, complete=False)
        try:
            fd = self._export.open_directory(path)
        except OSError as error:
            if error.errno in VANISHED_ERRNOS:
                raise DirectoryVanished from error
            self._complain(path, error)
            listing.unknown.update(names)
            return listing
        try:
            for number, name in enumerate(names):
                if number % _NAMES_BETWEEN == 0:
                    self._meanwhile()
                try:
                    seen = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    facts = self._facts(fd, path, name, seen)
                except OSError as error:
                    if error.errno in VANISHED_ERRNOS:
                        listing.entries[name] = None
                    else:
                        listing.unknown.add(name)
                        self._complain(join_path(path, name), error)
                else:
                    listing.entries[name] = facts
        finally:
            os.close(fd)
        return listing

    def look_at(self, path: bytes) -> Look | None:
        """What stands at this name now; None when it could not be looked at, or not where it should be."""
        parent, name = split_path(path)
        try:
            listing = self.observe(parent, [name])
        except DirectoryVanished:
            return Look(None)
        return Look(listing.entries[name]) if name in listing.entries else None

    def observe_paths(self, paths: set[bytes]) -> list[Listing]:
        """Look at exactly these names; where their directory is gone, at the nearest name above that tells. Parents first."""
        names: dict[bytes, set[bytes]] = {}
        for path in sorted(paths):
            if path:
                parent, name = split_path(path)
                names.setdefault(parent, set()).add(name)
        listings: dict[bytes, Listing] = {}
        while names:
            path, wanted = names.popitem()
            try:
                listing = self.observe(path, sorted(wanted))
            except DirectoryVanished:
                if path:
                    parent, name = split_path(path)
                    names.setdefault(parent, set()).add(name)
                continue
            known = listings.setdefault(path, listing)
            known.entries.update(listing.entries)
        return [listings[path] for path in sorted(listings)]

    def _list(self, path: bytes, fd: int) -> Listing:
        listing = Listing(path, {}, complete=True)
        entries = listing.entries
        root_device = self._export.device
        name_room_bytes = PATH_MAX_BYTES - len(path) - 1
        try:
            with os.scandir(fd) as found:
                for item in found:
                    name = item.name.encode(_FS_ENCODING, "surrogateescape")
                    try:
                        seen = item.stat(follow_symlinks=False)
                        if stat.S_ISREG(seen.st_mode) and len(name) <= name_room_bytes:
                            entries[name] = file_facts(seen, root_device)
                        else:
                            facts = self._facts(fd, path, name, seen)
                            if facts is not None:
                                entries[name] = facts
                    except OSError as error:
                        if error.errno not in VANISHED_ERRNOS:
                            listing.unknown.add(name)
                            self._complain(join_path(path, name), error)
        except OSError as error:
            if not path:
                raise
            listing.complete = False
            self._complain(path, error)
        else:
            self._complaints.discard(path)
        return listing

    def _facts(self, fd: int, path: bytes, name: bytes, seen: os.stat_result) -> Facts | None:
        """Facts of what is served; None for what is not (special files, paths too long for a replica to hold)."""
        root_device = self._export.device
        mode = seen.st_mode
        if len(path) + 1 + len(name) > PATH_MAX_BYTES:
            self._skip("path too long", path, name)
            return None
        if stat.S_ISREG(mode):
            return file_facts(seen, root_device)
        if stat.S_ISDIR(mode):
            if seen.st_dev != root_device and seen.st_dev != os.fstat(fd).st_dev and is_headrace_mount(seen.st_dev):
                self._skip("mount of Headrace", path, name)
                return None
            return directory_facts(seen, root_device)
        if stat.S_ISLNK(mode):
            return symlink_facts(seen, root_device, os.readlink(name, dir_fd=fd))
        self._skip(_SPECIAL_KINDS.get(stat.S_IFMT(mode), "unknown"), path, name)
        return None

    def _skip(self, kind: str, path: bytes, name: bytes) -> None:
        self.skipped[kind] += 1
        if kind not in self._said_skipped:
            self._said_skipped.add(kind)
            log.warning("not served, further ones of this kind are only counted", kind=kind, path=join_path(path, name))

    def _complain(self, path: bytes, error: OSError) -> None:
        if error.errno in VANISHED_ERRNOS:
            return
        self.unreadable += 1
        if path in self._complaints:
            return
        if len(self._complaints) < _COMPLAINTS_MAX:
            self._complaints.add(path)
        log.error("cannot look at this path, what is known of it stays", path=path or b".", error=error.strerror)


class _OpenDirectories:
    """Descriptors of the directories opened last; the least recently used are closed."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self._fds: OrderedDict[bytes, int] = OrderedDict()

    def __enter__(self) -> _OpenDirectories:
        return self

    def __exit__(self, *_: object) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])

    def open(self, path: bytes) -> int:
        parent, name = split_path(path)
        parent_fd = self._fds.get(parent) if path else None
        if parent_fd is not None:
            self._fds.move_to_end(parent)
            fd = self._export.open_directory(name, dir_fd=parent_fd)
        else:
            fd = self._export.open_directory(path)
        stale_fd = self._fds.pop(path, None)
        if stale_fd is not None:
            os.close(stale_fd)
        self._fds[path] = fd
        if len(self._fds) > _OPEN_ANCESTORS_MAX:
            os.close(self._fds.popitem(last=False)[1])
        return fd
