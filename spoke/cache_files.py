"""What of the dataset is on the cache disk, by file and by directory, and taking files out: the spoke's half of ``cache ls|du|evict``.

Names are walked in slices, so that a million of them delay no read; what changes meanwhile is seen or not.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from common import limits
from common.errors import UsageError
from spoke.cache.store import Store
from spoke.insight.stalls import text_of
from spoke.namespace.tree import Node, Tree
from spoke.recent import Recent

_NAMED_MOST = 20
_SUMMED = ("files", "cached_files", "size_bytes", "cached_bytes", "disk_bytes")


class CacheFiles:
    """Answers of one mount. Sizes in bytes; ``cached`` counts whole blocks, ``disk`` what the file system gave for them."""

    def __init__(self, tree: Tree, store: Store, recent: Recent) -> None:
        self._tree = tree
        self._store = store
        self._recent = recent

    async def list(self, paths: Sequence[bytes], *, sort: str, most: int, everything: bool) -> Mapping[str, Any]:
        """Files at and below these paths of which something is cached (``everything``: all). Raises UsageError."""
        rows: list[dict[str, Any]] = []
        files = cached_bytes = 0
        async for node in self._files(paths):
            entry = node.entry
            held = self._store.held(entry.version)
            if held is None and not everything:
                continue
            row = {
                "path": text_of(node.path()),
                "size_bytes": entry.size_bytes,
                "cached_bytes": held.cached_bytes if held is not None else 0,
                "disk_bytes": held.disk_bytes if held is not None else 0,
                "state": held.state if held is not None else "absent" if entry.size_bytes else "verified",
                "pinned": held is not None and held.pinned,
            }
            files += 1
            cached_bytes += held.cached_bytes if held is not None else 0
            rows.append(row)
            if len(rows) > 2 * limits.CACHE_LIST_MOST:
                rows = _best(rows, sort, limits.CACHE_LIST_MOST)
        return {"files": files, "cached_bytes": cached_bytes, "rows": _best(rows, sort, most)}

    async def sizes(self, path: bytes) -> Mapping[str, Any]:
        """What is cached of each entry of a directory, and of the whole. Raises UsageError."""
        top = self._tree.resolve(path.strip(b"/"))
        if top is None:
            raise UsageError(f"{os.fsdecode(path)!r} is not in the dataset")
        rows = [
            await self._sum(child)
            for child in (list(top.children.values()) if top.is_directory else [top])
            if child.is_directory or child.is_file
        ]
        total = {name: sum(row[name] for row in rows) for name in _SUMMED}
        usage = self._store.usage()
        return {
            "path": text_of(path.strip(b"/")),
            "rows": sorted(rows, key=lambda row: (-row["disk_bytes"], row["path"]))[: limits.CACHE_LIST_MAX],
            "total": total,
            "cache": {
                "used_bytes": usage.used_bytes,
                "capacity_bytes": usage.capacity_bytes,
                "files": usage.files,
                "outdated_files": sum(not self._tree.is_live(version) for version in self._store.versions()),
            },
        }

    async def evict(self, paths: Sequence[bytes]) -> Mapping[str, Any]:
        """Take what is cached of these out, but for pinned files and those the kernel reads by itself. Raises UsageError."""
        files = freed_bytes = 0
        kept: list[str] = []
        kept_files = 0
        async for node in self._files(paths):
            held = self._store.held(node.entry.version)
            if held is None:
                continue
            if held.pinned:
                kept_files += 1
                if len(kept) < _NAMED_MOST:
                    kept.append(text_of(node.path()))
                continue
            self._store.drop(node.entry.version)
            files += 1
            freed_bytes += held.disk_bytes
        self._recent.forget()  # else it would be served from memory for a while
        return {"files": files, "freed_bytes": freed_bytes, "kept_files": kept_files, "kept": kept}

    async def _sum(self, top: Node) -> dict[str, Any]:
        row: dict[str, Any] = {
            "path": text_of(top.name) + ("/" if top.is_directory else ""),
            "files": 0, "cached_files": 0, "size_bytes": 0, "cached_bytes": 0, "disk_bytes": 0,
        }  # fmt: skip
        async for node in self._walk([top]):
            held = self._store.held(node.entry.version)
            row["files"] += 1
            row["size_bytes"] += node.entry.size_bytes
            if held is not None:
                row["cached_files"] += 1
                row["cached_bytes"] += held.cached_bytes
                row["disk_bytes"] += held.disk_bytes
        return row

    def _files(self, paths: Sequence[bytes]) -> AsyncIterator[Node]:
        tops = []
        for path in paths:
            top = self._tree.resolve(path.strip(b"/"))
            if top is None:
                raise UsageError(f"{os.fsdecode(path)!r} is not in the dataset")
            tops.append(top)
        return self._walk(tops)

    async def _walk(self, tops: Sequence[Node]) -> AsyncIterator[Node]:
        """The files at and below; each version once."""
        stack = list(reversed(tops))
        seen: set[bytes] = set()
        for number in range(1 << 62):
            if not stack:
                return
            node = stack.pop()
            if node.is_file:
                version = node.entry.version
                if version not in seen:
                    seen.add(version)
                    yield node
            else:
                stack.extend(reversed(list(node.children.values())))
            if number % limits.NAME_SEARCH_SLICE == limits.NAME_SEARCH_SLICE - 1:
                await asyncio.sleep(0)


def _best(rows: list[dict[str, Any]], sort: str, most: int) -> list[dict[str, Any]]:
    if sort == "path":
        rows.sort(key=lambda row: row["path"])
    else:
        rows.sort(key=lambda row: (-row[f"{sort}_bytes"], row["path"]))
    return rows[:most]
