"""The scrub: everything cached is read and compared with its digests again, slowly, round after round.

What the kernel reads by itself (passthrough) and what nobody reads is found bad only here. Files are gone through in the
order of their versions; how far it is stands in ``scrub.json`` and survives restarts. It decides nothing about what is
bad: the cache books that, as for any read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from common.blocks import BLOCK_BYTES
from common.limits import SCRUB_REST_S, SCRUB_SAVE_INTERVAL_S, SCRUB_SLICE_BLOCKS
from common.log import get_logger
from common.pacing import Pacer
from common.runtime import cancel_and_wait
from spoke.cache.store import Store

log = get_logger(__name__)

NOTE_NAME = "scrub.json"
_FORMAT = 1
_VERSIONS_A_TURN = 20_000
_AFTER_FAILURE_S = 60.0


class Scrub:
    """``rate_bytes_per_s`` 0: only what somebody else changed is looked at. ``wall_clock``: seconds since 1970, to be shown."""

    def __init__(
        self,
        store: Store,
        note: Path,
        rate_bytes_per_s: float,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._note = note
        self._rate_bytes_per_s = rate_bytes_per_s
        self._clock = clock
        self._wall_clock = wall_clock
        self._pacer = Pacer(rate_bytes_per_s or None, SCRUB_SLICE_BLOCKS * BLOCK_BYTES)
        self._suspects: dict[bytes, None] = {}
        self._stir = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._saved_s = float("-inf")
        self._saving = threading.Lock()
        self._place: tuple[bytes, int] | None = None
        self._pass_bytes = 0
        self._pass_bad = 0
        self._pass_began_at: float | None = None
        self._last_pass: Mapping[str, Any] | None = None
        self.checked_bytes_total = 0
        self.bad_blocks_total = 0
        self.passes_total = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="scrub")

    async def close(self) -> None:
        """Note how far it is, and end. Call it before the store is closed."""
        if self._task is None:
            return
        await cancel_and_wait(self._task)
        self._task = None
        if self._rate_bytes_per_s:
            await asyncio.to_thread(self._save)

    def suspect(self, version: bytes) -> None:
        """Look at all of this version before anything else."""
        self._suspects[version] = None
        self._stir.set()

    @property
    def progress(self) -> float:
        """How much of this pass is done, 0 to 1."""
        used_bytes = self._store.usage().used_bytes
        return min(1.0, self._pass_bytes / used_bytes) if used_bytes and self._pass_began_at is not None else 0.0

    def facts(self) -> Mapping[str, Any]:
        """For ``status``. Times are seconds since 1970; ``passes``, ``checked_bytes`` and ``bad_blocks`` of this process life."""
        return {
            "rate_bytes_per_s": self._rate_bytes_per_s,
            "checked_bytes": self.checked_bytes_total,
            "bad_blocks": self.bad_blocks_total,
            "passes": self.passes_total,
            "progress": self.progress,
            "pass_began_at": self._pass_began_at,
            "last_pass": self._last_pass,
        }

    # --- the rounds --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        if self._rate_bytes_per_s:
            await asyncio.to_thread(self._load)
        while True:
            try:
                await self._look_at_suspects()
                if self._rate_bytes_per_s:
                    await self._pass()
                await self._wait(SCRUB_REST_S if self._rate_bytes_per_s else None)
            except Exception:  # a help and no more: the mount goes on without it
                log.exception("the scrub failed, and begins again in a minute")
                await asyncio.sleep(_AFTER_FAILURE_S)

    async def _wait(self, most_s: float | None) -> None:
        """Until there is a suspect, or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._stir.wait()

    async def _look_at_suspects(self) -> None:
        self._stir.clear()
        while self._suspects:
            version = next(iter(self._suspects))
            del self._suspects[version]
            block: int | None = 0
            while block is not None:
                block = await self._look(version, block)

    async def _pass(self) -> None:
        if self._pass_began_at is None:
            self._pass_began_at, self._pass_bytes, self._pass_bad = self._wall_clock(), 0, 0
        async for version in self._versions():
            block: int | None = self._place[1] if self._place is not None and self._place[0] == version else 0
            while block is not None:
                self._place = (version, block)
                await self._when_due()
                before = self.checked_bytes_total, self.bad_blocks_total
                block = await self._look(version, block)
                self._pacer.sent(self._clock(), self.checked_bytes_total - before[0])
                self._pass_bytes += self.checked_bytes_total - before[0]
                self._pass_bad += self.bad_blocks_total - before[1]
        if self._pass_bytes:
            self.passes_total += 1
            self._last_pass = {
                "began_at": self._pass_began_at,
                "ended_at": self._wall_clock(),
                "checked_bytes": self._pass_bytes,
                "bad_blocks": self._pass_bad,
            }
            (log.warning if self._pass_bad else log.debug)(
                "scrubbed the cache", bytes=self._pass_bytes, bad_blocks=self._pass_bad
            )
        self._place = self._pass_began_at = None
        await asyncio.to_thread(self._save)

    async def _versions(self) -> AsyncIterator[bytes]:
        """Those cached now, in order, from where we are on; sorted by their first byte and then a few at a time."""
        start = self._place[0] if self._place is not None else b""
        folders: list[list[bytes]] = [[] for _ in range(256)]
        for number, version in enumerate(self._store.versions()):
            if version >= start:
                folders[version[0]].append(version)
            if not number % _VERSIONS_A_TURN:
                await asyncio.sleep(0)
        for folder in folders:
            folder.sort()
            for version in folder:
                yield version

    async def _when_due(self) -> None:
        now_s = self._clock()
        if now_s - self._saved_s >= SCRUB_SAVE_INTERVAL_S:
            self._saved_s = now_s
            await asyncio.to_thread(self._save)
        while (due_s := self._pacer.next_send_at(now_s, SCRUB_SLICE_BLOCKS * BLOCK_BYTES)) > now_s:
            await self._wait(due_s - now_s)
            await self._look_at_suspects()
            now_s = self._clock()
        if self._suspects:
            await self._look_at_suspects()

    async def _look(self, version: bytes, block: int) -> int | None:
        seen = await self._store.examine(version, block)
        if seen is None:
            return None
        self.checked_bytes_total += seen.checked_bytes
        self.bad_blocks_total += sum(found.block_count for found in seen.bad)
        return seen.next_block

    # --- how far it is, on disk --------------------------------------------------------------------------

    def _save(self) -> None:
        """Not synced: an older note costs only reading some of it again."""
        note = {
            "format": _FORMAT,
            "version": self._place[0].hex() if self._place is not None else None,
            "block": self._place[1] if self._place is not None else 0,
            "pass_bytes": self._pass_bytes,
            "pass_bad": self._pass_bad,
            "pass_began_at": self._pass_began_at,
            "last_pass": self._last_pass,
        }
        beside = self._note.with_suffix(".new")
        try:
            with self._saving:  # a save that was broken off goes on in its thread
                beside.write_text(json.dumps(note))
                os.replace(beside, self._note)
        except OSError as error:
            log.debug("how far the scrub is cannot be noted", error=str(error))

    def _load(self) -> None:
        """Whatever the note holds: at the worst the pass begins anew."""
        try:
            note = json.loads(self._note.read_bytes())
            if note["format"] != _FORMAT:
                return
            place = (bytes.fromhex(note["version"]), max(0, int(note["block"]))) if note["version"] else None
            last_pass = note["last_pass"]
            if last_pass is not None:
                last_pass = {
                    name: last_pass[name] + 0 for name in ("began_at", "ended_at", "checked_bytes", "bad_blocks")
                }
            began_at = note["pass_began_at"] + 0 if place is not None else None
            pass_bytes, pass_bad = int(note["pass_bytes"]), int(note["pass_bad"])
        except (OSError, ValueError, TypeError, KeyError):
            return
        self._last_pass = last_pass
        if place is not None:
            self._place, self._pass_began_at = place, began_at
            self._pass_bytes, self._pass_bad = pass_bytes, pass_bad
