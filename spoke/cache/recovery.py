"""The cache directory itself: whose it is, who holds it, what is in it, and whether it is still there.

Refuses what is not ours, is newer than this program, or is in use; removes only files whose names this program
gives, under ``versions/``. Called in a thread: everything here blocks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from common import __version__
from common.durable import replace_file, sync_file
from common.entries import VERSION_BYTES
from common.errors import CacheDirectoryError
from common.log import get_logger
from common.remains import is_flock_of_remains
from spoke.cache.disk import Disk, allocated_bytes, write_full

log = get_logger(__name__)

DIRECTORY_FORMAT = 1
IDENTITY_NAME = "headrace-cache.json"
_LOCK_NAME = "lock"
_VERSIONS_NAME = "versions"
_NAMES_NAME = "names"
_PROBE_NAME = "probe"
# What may stand in a directory that becomes ours: a fresh file system, our own start cut short, or what a spoke was still writing
# while somebody removed or emptied the directory under it. All names that any room of the spoke gives, as paths below the directory.
_OURS = re.compile(
    rf"""lost\+found/|lock|probe|{IDENTITY_NAME}(\.new)?|(scrub|retention)\.(json|new|json\.new)
    |versions/([0-9a-f]{{2}}/([0-9a-f]{{{2 * VERSION_BYTES}}}\.(data|index))?)?
    |names/([^/]+/(names\.(snapshot(\.new)?|[0-9]+\.log))?)?
    |pins/([^/]+\.json(\.new)?)?
    |orders/([^/]+\.order(\.new)?)?""",
    re.VERBOSE | re.DOTALL,
)
_NOT_ENTERED = "lost+found/"
_OUR_FILE = re.compile(rf"([0-9a-f]{{{2 * VERSION_BYTES}}})\.(data|index)")
_OUR_FOLDER = re.compile(r"[0-9a-f]{2}")
_NAMED_AT_MOST = 8  # names shown in a refusal


class DirectoryLost(OSError):
    """The directory was removed, replaced or unmounted while we ran."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A version on disk, not opened yet: its size as the data file's length says, and what both files take."""

    version: bytes
    size_bytes: int
    allocated_bytes: int


class CacheDirectory:
    """A locked cache directory of our format. ``close`` gives the lock back."""

    def __init__(self, path: Path, cache_uuid: str, lock_fd: int, identity: tuple[int, int]) -> None:
        self.path = path
        self.uuid = cache_uuid
        self._lock_fd = lock_fd
        self._identity = identity
        self._identity_path = str(path / IDENTITY_NAME)
        self._versions_path = str(path / _VERSIONS_NAME)

    def close(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def paths(self, version: bytes) -> tuple[str, str]:
        """Where the data and the index of a version stand."""
        name = version.hex()
        stem = f"{self._versions_path}/{name[:2]}/{name}"
        return stem + ".data", stem + ".index"

    def check(self, disk: Disk) -> None:
        """Raise DirectoryLost when the identity file is no longer the one we opened."""
        try:
            found = disk.stat(self._identity_path)
        except FileNotFoundError:
            raise DirectoryLost(f"cache directory {self.path} was removed or unmounted") from None
        if (found.st_dev, found.st_ino) != self._identity:
            raise DirectoryLost(f"cache directory {self.path} was replaced or unmounted")

    def scan(self, disk: Disk, *, tidy: bool = True) -> Iterator[FoundFile]:
        """All complete pairs; with ``tidy`` a data file without index, or the reverse, is removed."""
        orphan_count = 0
        for folder in _entries(self._versions_path):
            if not folder.is_dir(follow_symlinks=False) or not _OUR_FOLDER.fullmatch(folder.name):
                continue
            pairs: dict[str, dict[str, os.stat_result]] = {}
            for entry in _entries(folder.path):
                match = _OUR_FILE.fullmatch(entry.name)
                if match is None or entry.is_dir(follow_symlinks=False):
                    continue
                if entry.is_file(follow_symlinks=False):
                    pairs.setdefault(match[1], {})[match[2]] = entry.stat(follow_symlinks=False)
                else:
                    orphan_count += 1  # a symlink or worse under one of our names: we never make those
                    if tidy:
                        disk.unlink(entry.path)
            for name, pair in pairs.items():
                if len(pair) == 2 and name.startswith(folder.name):
                    taken_bytes = allocated_bytes(pair["data"]) + allocated_bytes(pair["index"])
                    yield FoundFile(bytes.fromhex(name), pair["data"].st_size, taken_bytes)
                else:
                    orphan_count += 1
                    for kind in pair if tidy else ():
                        disk.unlink(f"{folder.path}/{name}.{kind}")
        if orphan_count and tidy:
            log.info("removed cached files left incomplete", count=orphan_count)

    def count_folders(self) -> int:
        return sum(1 for entry in _entries(self._versions_path) if _OUR_FOLDER.fullmatch(entry.name))


def try_to_write(disk: Disk, directory: CacheDirectory, size_bytes: int) -> None:
    """Write a file that has no name any more while it is written, and is gone after it. Raises OSError."""
    with _probe(disk, directory) as fd:
        write_full(disk, fd, bytes(size_bytes), 0)


def try_length(disk: Disk, directory: CacheDirectory, length_bytes: int) -> None:
    """Make a file of this length, as sparse as cached ones begin. Raises OSError."""
    with _probe(disk, directory) as fd:
        disk.ftruncate(fd, length_bytes)


@contextlib.contextmanager
def _probe(disk: Disk, directory: CacheDirectory) -> Iterator[int]:
    path = str(directory.path / _PROBE_NAME)
    fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        disk.unlink(path)
        yield fd
    finally:
        disk.close(fd)


def open_directory(path: Path) -> CacheDirectory:
    """Create or take over the cache directory at ``path``, mode 0700, and lock it.

    Raises CacheDirectoryError: foreign, newer format, damaged identity, in use, not a directory, not writable.
    """
    try:
        return _open_directory(path)
    except OSError as error:
        raise CacheDirectoryError(f"cache directory {path} cannot be used: {error.strerror or error}") from error


def open_existing(path: Path) -> CacheDirectory:
    """Lock the cache directory at ``path`` as it is: nothing in it is made or changed.

    Raises CacheDirectoryError: none is there, it is of another format, damaged, in use.
    """
    identity_path = path / IDENTITY_NAME
    try:
        if not identity_path.exists():
            raise CacheDirectoryError(f"{path} is no cache directory of headrace: there is no {IDENTITY_NAME} in it")
        identity = _read_identity(identity_path)
        if identity["format"] != DIRECTORY_FORMAT:
            raise CacheDirectoryError(
                f"cache directory {path} has format {identity['format']}, this program checks {DIRECTORY_FORMAT}"
            )
        lock_fd = os.open(path / _LOCK_NAME, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            _lock(lock_fd, path, "verify its mountpoint instead")
            found = os.stat(identity_path)
            return CacheDirectory(path.absolute(), identity["uuid"], lock_fd, (found.st_dev, found.st_ino))
        except BaseException:
            os.close(lock_fd)
            raise
    except OSError as error:
        raise CacheDirectoryError(f"cache directory {path} cannot be used: {error.strerror or error}") from error


def _lock(lock_fd: int, path: Path, advice: str) -> None:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(lock_fd, path / _LOCK_NAME):  # else somebody has put another in its place meanwhile, and has that
            return
    raise CacheDirectoryError(f"cache directory {path} is in use by another spoke: {advice}")


def _locked(path: Path) -> int:
    """A descriptor of the lock of cache directory ``path``, made where there is none. Raises CacheDirectoryError: it is in use.

    A process whose remains the kernel holds (:mod:`common.remains`) uses nothing any more: its lock is put out of the way.
    """
    while True:
        with contextlib.ExitStack() as stack:
            lock_fd = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            stack.callback(os.close, lock_fd)
            try:
                _lock(lock_fd, path, "stop it or choose another directory")
                stack.pop_all()
                return lock_fd
            except CacheDirectoryError:
                if not is_flock_of_remains(lock_fd):
                    raise
                _remove_lock(lock_fd, path)


def _remove_lock(lock_fd: int, path: Path) -> None:
    """Unless somebody did so meanwhile: one at a time, by the directory's own lock."""
    directory_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory_fd, fcntl.LOCK_EX)
        if _is_at(lock_fd, path / _LOCK_NAME):
            os.unlink(path / _LOCK_NAME)
    finally:
        os.close(directory_fd)


def _is_at(fd: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    return False


def _open_directory(path: Path) -> CacheDirectory:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
    path = path.resolve(strict=True)
    identity_path = path / IDENTITY_NAME
    foreign = [] if _has_identity(identity_path) else list(islice(_foreign(path), _NAMED_AT_MOST + 1))
    if foreign:
        shown = ", ".join(map(repr, sorted(foreign)[:_NAMED_AT_MOST])) + (
            ", …" if len(foreign) > _NAMED_AT_MOST else ""
        )
        raise CacheDirectoryError(
            f"cache directory {path} holds files that are not ours ({shown}) and no {IDENTITY_NAME}: "
            "give an empty directory or one made by headrace"
        )
    lock_fd = _locked(path)
    try:
        if stat.S_IMODE(os.stat(path).st_mode) != 0o700:
            os.chmod(path, 0o700)
        if not _has_identity(identity_path):
            _clear_remains(path)
            _write_identity(path, str(uuid.uuid4()))
        else:  # a copy put back from a backup may be in memory alone: a power cut would leave it empty
            sync_file(identity_path)
        identity = _read_identity(identity_path)
        if identity["format"] > DIRECTORY_FORMAT:
            raise CacheDirectoryError(
                f"cache directory {path} has format {identity['format']}, this program knows up to {DIRECTORY_FORMAT}: "
                "use a newer headrace, or another directory"
            )
        if identity["format"] < DIRECTORY_FORMAT:
            log.info("emptying a cache of an older format", path=str(path), format=identity["format"])
            _empty(path / _VERSIONS_NAME)
            _write_identity(path, identity["uuid"])
        (path / _VERSIONS_NAME).mkdir(mode=0o700, exist_ok=True)
        found = os.stat(identity_path)
        return CacheDirectory(path, identity["uuid"], lock_fd, (found.st_dev, found.st_ino))
    except BaseException:
        os.close(lock_fd)
        raise


def _has_identity(identity_path: Path) -> bool:
    """There is one. A file without a byte that is not 0 is what a power cut leaves of one that was not on the disk yet: none."""
    try:
        return bool(identity_path.read_bytes().strip(b"\0"))
    except FileNotFoundError:
        return False


def _read_identity(identity_path: Path) -> dict[str, Any]:
    try:
        identity = json.loads(identity_path.read_bytes())
        if isinstance(identity, dict) and type(identity["format"]) is int and isinstance(identity["uuid"], str):
            return identity
        raise ValueError("format and uuid are missing")
    except (ValueError, KeyError) as error:
        raise CacheDirectoryError(
            f"{identity_path} is damaged ({error}): if the directory is a headrace cache, empty it and start again"
        ) from error


def _write_identity(path: Path, cache_uuid: str) -> None:
    """Whole or not at all: the one file that is synced, since a cache without it is refused."""
    content = {"format": DIRECTORY_FORMAT, "uuid": cache_uuid, "created_by": f"headrace {__version__}"}
    replace_file(path / IDENTITY_NAME, json.dumps(content, indent=1) + "\n")


def _foreign(path: Path) -> Iterator[str]:
    """Paths below a directory that no room of ours gives; a link is none of ours, whatever its name."""
    folders = [""]
    while folders:
        below = folders.pop()
        for entry in _entries(str(path / below)):
            is_folder = entry.is_dir(follow_symlinks=False)
            name = below + entry.name + "/" * is_folder
            if not _OURS.fullmatch(name) or not (is_folder or entry.is_file(follow_symlinks=False)):
                yield name
            elif is_folder and name != _NOT_ENTERED:
                folders.append(name)


def _clear_remains(path: Path) -> None:
    """Of a cache whose identity is gone: blocks and names are not believed, since nothing says which format they are of.

    What people asked for (pins, orders) stays.
    """
    remains = [path / _VERSIONS_NAME, *(Path(entry.path) for entry in _entries(str(path / _NAMES_NAME)))]
    removed = _empty(remains[0])
    for folder in remains[1:]:
        for entry in _entries(str(folder)):
            os.unlink(entry.path)
            removed += 1
    if removed:
        log.warning(
            "what is left of a cache that was removed while it was in use is cleared away",
            path=str(path),
            files=removed,
        )


def _empty(versions_path: Path) -> int:
    """Remove cached files by their names only; anything else stays where it is. Returns how many there were."""
    count = 0
    for folder in _entries(str(versions_path)):
        if folder.is_dir(follow_symlinks=False) and _OUR_FOLDER.fullmatch(folder.name):
            for entry in _entries(folder.path):
                if _OUR_FILE.fullmatch(entry.name):
                    os.unlink(entry.path)
                    count += 1
    return count


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as found:
            return list(found)
    except FileNotFoundError:
        return []
