"""Erasing cached blocks because somebody says so: of a running spoke, or of a cache directory that no spoke uses.

Files are emptied and removed, so that their space is the file system's again; whether a disk still holds what stood there is
the disk's affair (an encrypted one is the answer to that).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from common.errors import CacheDirectoryError, DiskError, UsageError
from common.log import get_logger
from spoke.cache.disk import Disk
from spoke.cache.recovery import IDENTITY_NAME, open_directory
from spoke.cache.store import Store
from spoke.fuse.mountpoint import standing_on
from spoke.namespace.tree import Tree
from spoke.selection import files_at

log = get_logger(__name__)

BESIDE = ("names", "orders", "pins", "retention.json")
"""What a cache directory holds besides blocks: names of files, and what was learned or asked of them."""


def chosen(tree: Tree, store: Store, paths: Sequence[bytes], everything: bool) -> set[bytes]:
    """The cached versions of what is named; ``everything``: also those of files that are no more. Raises UsageError."""
    cached = set(store.versions())
    if everything == bool(paths):
        raise UsageError("say what to erase: paths below the mount, or --all")
    if everything:
        return cached
    return cached & {node.entry.version for path in paths for node in files_at(tree, path)}


async def erase(store: Store, versions: Iterable[bytes]) -> dict[str, Any]:
    """``open``: files that the kernel reads by itself for somebody who has them open; they stay."""
    files = erased_bytes = still_open = 0
    for version in versions:
        freed_bytes = await store.erase(version)
        if freed_bytes is None:
            still_open += 1
        else:
            files += 1
            erased_bytes += freed_bytes
    log.warning("purged", files=files, erased_bytes=erased_bytes, still_open=still_open)
    return {"files": files, "bytes": erased_bytes, "open": still_open}


def check_unmounted(cache_dir: Path, runtime_dir: Path) -> None:
    """Between two workers of a mount nobody has its cache in use, and the kernel reads from it. Raises CacheDirectoryError."""
    mountpoint = standing_on(cache_dir, runtime_dir)
    if mountpoint is not None:
        raise CacheDirectoryError(
            f"{cache_dir} is the cache of {mountpoint}, in use by another spoke: name that instead of --cache-dir, or unmount it first"
        )


def look(cache_dir: Path) -> dict[str, Any]:
    """What a cache directory without a spoke holds. Raises CacheDirectoryError: not ours, or in use."""
    directory = _taken(cache_dir)
    try:
        found = list(directory.scan(Disk()))
        return {"files": len(found), "bytes": sum(file.allocated_bytes for file in found)}
    finally:
        directory.close()


def erase_all(cache_dir: Path) -> dict[str, Any]:
    """Every block, every name and what was learned; the directory stays a cache. Raises CacheDirectoryError, DiskError."""
    directory, disk = _taken(cache_dir), Disk()
    files = erased_bytes = 0
    try:
        for found in directory.scan(disk):
            data_path, index_path = directory.paths(found.version)
            for path in (index_path, data_path):
                _empty(path)
            files += 1
            erased_bytes += found.allocated_bytes
        for name in BESIDE:
            beside = directory.path / name
            if beside.is_dir() and not beside.is_symlink():
                shutil.rmtree(beside)
            else:
                beside.unlink(missing_ok=True)
    except OSError as error:
        raise DiskError(f"{error.filename or cache_dir}: {error.strerror}; {files} files were erased before") from None
    finally:
        directory.close()
    return {"files": files, "bytes": erased_bytes}


def _taken(cache_dir: Path) -> Any:
    if not (cache_dir / IDENTITY_NAME).exists():
        raise CacheDirectoryError(f"{cache_dir} is not a cache of headrace: no {IDENTITY_NAME} in it")
    return open_directory(cache_dir)


def _empty(path: str) -> None:
    """Give the blocks back at once, whoever has the file open or by another name, then the name."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)
        os.unlink(path)
