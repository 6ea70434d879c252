"""``verify``, inside the spoke: what is cached of files is read and compared with its digests again, and what is bad is mended.

At the lowest priority and one piece at a time, so readers go on; its memory is bounded by what it finds.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange, coalesce
from common.errors import HeadraceError, UsageError
from common.pacing import Pacer
from common.runtime import cancel_and_wait, settle
from common.wire.messages import Priority
from spoke.cache.store import Bad, Store
from spoke.fetcher import Fetcher
from spoke.hub_client.single_flight import Want
from spoke.mending import Mending
from spoke.namespace.tree import Tree
from spoke.naming import paths_of
from spoke.selection import files_at

Facts = Mapping[str, Any]


class Verifying:
    """Answers the control socket's ``verify``: one at a time."""

    def __init__(
        self, tree: Tree, store: Store, fetcher: Fetcher, mending: Mending, clock: Callable[[], float]
    ) -> None:
        self._tree = tree
        self._store = store
        self._fetcher = fetcher
        self._mending = mending
        self._clock = clock
        self._running = False

    async def answer(self, request: Mapping[str, Any]) -> AsyncGenerator[Facts, None]:
        """Progress, and at last the outcome. In the request: ``paths`` (hex; none: all that is cached), ``repair``,
        ``rate_bytes_per_s``. Raises UsageError with the reason."""
        if self._running:
            raise UsageError("a verify is under way on this mount: wait for it")
        paths = [bytes.fromhex(path) for path in request.get("paths") or ()]
        versions = self._versions_at(paths) if paths else self._store.versions()
        check = _Check(self._store, versions, self._clock, request.get("rate_bytes_per_s"))
        repair = bool(request.get("repair", True))
        self._running = True
        refetches, on_found = self._mending.refetches, self._mending.on_found
        self._mending.on_found = check.found
        if not repair:
            self._mending.refetches = lambda version: version not in check.bad and refetches(version)
        work = asyncio.create_task(check.run(), name="verify")
        try:
            while not work.done():
                yield check.progress()
                await asyncio.wait({work}, timeout=limits.PROGRESS_INTERVAL_S)
            work.result()
            mended_blocks = await self._repair(check) if repair else 0
            yield await self._outcome(check, mended_blocks)
        finally:
            await cancel_and_wait(work)
            self._mending.refetches, self._mending.on_found = refetches, on_found
            self._running = False

    def _versions_at(self, paths: Iterable[bytes]) -> list[bytes]:
        return list({node.entry.version: None for path in paths for node in files_at(self._tree, path)})

    async def _repair(self, check: _Check) -> int:
        """Have the right bytes of what was bad; how many blocks are here again."""
        try:
            async with asyncio.timeout(limits.VERIFY_REPAIR_TIMEOUT_S):
                for version, blocks in check.bad.items():
                    if self._tree.is_live(version) or self._store.is_lent(version):
                        await self._fetch(version, check.sizes[version], blocks)
                await self._fetcher.written()
        except (TimeoutError, HeadraceError):
            pass  # what did not come is counted below
        return sum(
            found.block_count
            - sum(gap.block_count for gap in self._store.missing(version, check.sizes[version], found))
            for version, blocks in check.bad.items()
            for found in blocks
        )

    async def _fetch(self, version: bytes, size_bytes: int, blocks: list[BlockRange]) -> None:
        left = limits.MEND_FILE_MAX_BLOCKS
        for run in blocks:
            part = BlockRange(run.first_block, min(run.block_count, left))
            left -= part.block_count
            missing = self._store.missing(version, size_bytes, part)
            if not missing:
                continue
            arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            want = Want(part, 0, 0, lambda error, arrival=arrival: settle(arrival, error))  # type: ignore[misc]
            try:
                self._fetcher.demand(version, size_bytes, want, missing, priority=Priority.PREFETCH)
                want.release_hold()
                await arrival
            finally:
                self._fetcher.give_up(want)

    async def _outcome(self, check: _Check, mended_blocks: int) -> Facts:
        shown = list(check.bad.items())[: limits.VERIFY_SHOWN_MAX]
        paths = await paths_of(self._tree, [version for version, _ in shown])
        return {
            **check.progress(),
            "bad_files": [
                {
                    "path": os.fsdecode(paths[version]) if version in paths else None,
                    "version": version.hex(),
                    "blocks": [[found.first_block, found.block_count] for found in blocks],
                }
                for version, blocks in shown
            ],
            "bad_files_not_shown": len(check.bad) - len(shown),
            "mended_blocks": mended_blocks,
        }


class _Check:
    def __init__(
        self, store: Store, versions: list[bytes], clock: Callable[[], float], rate_bytes_per_s: float | None
    ) -> None:
        self._store = store
        self._versions = dict.fromkeys(versions)
        self._clock = clock
        self._pacer = Pacer(rate_bytes_per_s or None, limits.SCRUB_SLICE_BLOCKS * BLOCK_BYTES)
        self._began_s = clock()
        self._files_done = 0
        self._checked_bytes = 0
        self._checked_blocks = 0
        self.bad: dict[bytes, list[BlockRange]] = {}
        self.sizes: dict[bytes, int] = {}

    def progress(self) -> Facts:
        return {
            "files": len(self._versions),
            "files_done": self._files_done,
            "checked_bytes": self._checked_bytes,
            "checked_blocks": self._checked_blocks,
            "bad_blocks": sum(found.block_count for blocks in self.bad.values() for found in blocks),
            "duration_s": self._clock() - self._began_s,
        }

    def found(self, bad: Bad) -> None:
        """By somebody else meanwhile, who was ahead of us in this file: a reader, the scrub, a doubt about all of it."""
        if bad.version in self._versions:
            self._note(bad.version, bad.size_bytes, bad.blocks)

    def _note(self, version: bytes, size_bytes: int, blocks: list[BlockRange]) -> None:
        self.sizes[version] = size_bytes
        self.bad[version] = coalesce([*self.bad.get(version, []), *blocks])

    async def run(self) -> None:
        for version in self._versions:
            size_bytes = self._store.size_of(version)
            block: int | None = 0
            while block is not None:
                now_s = self._clock()
                due_s = self._pacer.next_send_at(now_s, limits.SCRUB_SLICE_BLOCKS * BLOCK_BYTES)
                if due_s > now_s:
                    await asyncio.sleep(due_s - now_s)
                seen = await self._store.examine(version, block)
                if seen is None:
                    break
                self._pacer.sent(self._clock(), seen.checked_bytes)
                self._checked_bytes += seen.checked_bytes
                self._checked_blocks += seen.checked_blocks
                if seen.bad and size_bytes is not None:
                    self._note(version, size_bytes, seen.bad)
                block = seen.next_block
            self._files_done += 1
