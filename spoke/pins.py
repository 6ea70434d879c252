"""Pins: paths whose files stay cached until they are unpinned, kept on disk beside the cache, of one dataset.

A pinned path means what lies at and below it now; when names change it is looked at again. It says what must stay, not what must be
fetched: ``warm --pin`` does both. Pins are bounded by the files' whole sizes, so that what fits once goes on fitting.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import limits
from common.blocks import count_blocks
from common.durable import replace_file
from common.errors import DiskError, UsageError
from common.log import get_logger
from spoke.cache.store import Store
from spoke.namespace.tree import Tree
from spoke.selection import files_at
from spoke.warm import disk_bytes

log = get_logger(__name__)
_FORMAT = 1
_REST_FACTOR = 20  # a look at all names below the pins may take 1/20 of the time


class Pins:
    """``path``: the file that keeps them. ``load`` once the names are there, ``tend`` now and then."""

    def __init__(self, path: Path, tree: Tree, store: Store, clock: Callable[[], float]) -> None:
        self._path = path
        self._tree = tree
        self._store = store
        self._clock = clock
        self._paths: list[bytes] = []
        self._versions: dict[bytes, int] = {}
        self._left_out: dict[bytes, int] = {}
        self._absent = 0
        self._seen: object = None
        self._rest_until_s = 0.0
        self._lock = asyncio.Lock()
        self.failure: str | None = None

    @property
    def pinned_bytes(self) -> int:
        """On the cache disk, when all of it is there."""
        return sum(self._versions.values())

    def pinned_beside(self, versions: Collection[bytes]) -> int:
        """As ``pinned_bytes``, of other versions than these."""
        return sum(size for version, size in self._versions.items() if version not in versions)

    async def load(self) -> None:
        """Take in what was pinned before. Never raises: a file that cannot be read is left as it is, and said."""
        try:
            self._paths = await asyncio.to_thread(_read, self._path)
        except (OSError, ValueError, TypeError, KeyError) as error:
            self.failure = f"the pins in {self._path} cannot be read, so nothing is pinned: {error}"
            log.error("pins cannot be read; nothing is pinned", path=str(self._path), error=str(error))
        self._look()

    async def pin(self, paths: Sequence[bytes]) -> Mapping[str, Any]:
        """Pin these too; facts on all. Raises UsageError (not there, does not fit), DiskError (cannot be kept)."""
        async with self._lock:
            self._usable()
            wished = _without_nested([*self._paths, *(path.strip(b"/") for path in paths)])
            if len(wished) > limits.PIN_PATHS_MAX:
                raise UsageError(
                    f"{len(wished)} paths would be pinned, and {limits.PIN_PATHS_MAX} can be: pin the directories above them"
                )
            for path in paths:
                files_at(self._tree, path)
            self._check_room(wished)
            await self._keep(wished)
        return self.facts()

    async def unpin(self, paths: Sequence[bytes] | None) -> Mapping[str, Any]:
        """Let these go, None: all. Facts on what stays. Raises UsageError for one that is not pinned by itself, DiskError."""
        async with self._lock:
            self._usable()
            gone = {path.strip(b"/") for path in paths} if paths is not None else set(self._paths)
            for path in sorted(gone.difference(self._paths)):
                above = next((held for held in self._paths if _is_below(path, held)), None)
                raise UsageError(
                    f"{os.fsdecode(path)!r} is not pinned"
                    + (f" by itself, but with {os.fsdecode(above) or '.'!r}: unpin that" if above is not None else "")
                )
            await self._keep([path for path in self._paths if path not in gone])
        return self.facts()

    def tend(self) -> None:
        """Look again when names changed; not more often than that is cheap."""
        if self._paths and self._seen != self._now_seen() and self._clock() >= self._rest_until_s:
            self._look()

    def facts(self) -> Mapping[str, Any]:
        """For ``status``; sizes in bytes on the cache disk. ``left_out_files``: they fit no more since names changed."""
        return {
            "paths": [os.fsdecode(path) or "." for path in self._paths[: limits.PINS_SHOWN_MAX]],
            "path_count": len(self._paths),
            "absent_paths": self._absent,
            "files": len(self._versions),
            "bytes": self.pinned_bytes,
            "most_bytes": self._most_bytes(),
            "left_out_files": len(self._left_out),
            "left_out_bytes": sum(self._left_out.values()),
            "failure": self.failure,
        }

    # --- inside ------------------------------------------------------------------------------------------

    def _most_bytes(self) -> int:
        return int(self._store.usage().capacity_bytes * limits.PIN_MAX_SHARE)

    def _usable(self) -> None:
        if self.failure is not None:
            raise DiskError(f"{self.failure}; mend it, or remove it to begin anew, and mount again")

    def _check_room(self, paths: Iterable[bytes]) -> None:
        sizes, _ = self._sizes(paths)
        total_bytes, most_bytes = sum(sizes.values()), self._most_bytes()
        if total_bytes > most_bytes:
            raise UsageError(
                f"pinned would be {len(sizes)} files that take {total_bytes} bytes, {self.pinned_bytes} of them pinned already; "
                f"at most {most_bytes} can be, of a cache of {self._store.usage().capacity_bytes}: pin less, or give --cache-size more"
            )

    def _sizes(self, paths: Iterable[bytes]) -> tuple[dict[bytes, int], int]:
        """Bytes on disk by version, in the order of the paths; how many paths are not there."""
        sizes: dict[bytes, int] = {}
        absent = 0
        for path in paths:
            try:
                for node in files_at(self._tree, path):
                    sizes[node.entry.version] = disk_bytes(count_blocks(node.entry.size_bytes))
            except UsageError:
                absent += 1
        return sizes, absent

    async def _keep(self, paths: list[bytes]) -> None:
        try:
            await asyncio.to_thread(_write, self._path, paths)
        except OSError as error:
            raise DiskError(f"the pins cannot be kept in {self._path}: {error.strerror}") from None
        self._paths = paths
        self._look()

    def _now_seen(self) -> object:
        return self._tree.catalog_id, self._tree.revision

    def _look(self) -> None:
        """Pin the versions below the paths, as far as they fit, and let go of those that are there no more."""
        if self._tree.epoch % 2:
            return  # the names are being changed; the next look comes soon
        began_s = self._clock()
        sizes, self._absent = self._sizes(self._paths)
        room_bytes = self._most_bytes()
        kept: dict[bytes, int] = {}
        self._left_out = {}
        for version, size_bytes in sizes.items():
            room_bytes -= size_bytes
            (kept if room_bytes >= 0 else self._left_out)[version] = size_bytes
        for version in kept:
            if version not in self._versions:
                self._store.pin(version)
        for version in self._versions:
            if version not in kept:
                self._store.unpin(version)
        self._versions = kept
        self._seen = self._now_seen()
        self._rest_until_s = self._clock() + _REST_FACTOR * (self._clock() - began_s)
        if self._left_out:
            log.warning("pinned files fit no more", files=len(self._left_out), bytes=sum(self._left_out.values()))


def _is_below(path: bytes, top: bytes) -> bool:
    return not top or path.startswith(top + b"/")


def _without_nested(paths: Iterable[bytes]) -> list[bytes]:
    """Sorted; a path below another adds nothing."""
    kept: list[bytes] = []
    held: set[bytes] = set()
    for path in sorted(set(paths)):
        parts = path.split(b"/")
        if b"" in held or any(b"/".join(parts[:depth]) in held for depth in range(1, len(parts))):
            continue
        kept.append(path)
        held.add(path)
    return kept


def _read(file: Path) -> list[bytes]:
    try:
        found = json.loads(file.read_text("ascii"))
    except FileNotFoundError:
        return []
    if found["format"] != _FORMAT:
        raise ValueError(f"format {found['format']!r}, and this spoke knows {_FORMAT}")
    return [os.fsencode(path) for path in found["paths"]]


def _write(file: Path, paths: Sequence[bytes]) -> None:
    """Whole or not at all, also over a power cut."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    replace_file(file, json.dumps({"format": _FORMAT, "paths": [os.fsdecode(path) for path in paths]}))
