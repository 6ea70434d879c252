"""When cached blocks must go although there is room: files that the hub has no more, and a dataset that it no longer gives.

Counts from the moment a spoke saw it, on the clock on the wall, kept on disk so that restarts do not begin anew. A hub that
is away, or suspicious, changes no name and refuses nothing: then nothing is erased.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from pathlib import Path

from common import limits
from common.durable import replace_file
from common.errors import HeadraceError
from common.log import get_logger
from spoke.cache.store import Store

log = get_logger(__name__)


class Retention:
    """``retention_s``: 0 keeps everything until room is needed. ``load`` once, ``tend`` now and then."""

    def __init__(self, path: Path, store: Store, retention_s: float, wall_time_s: Callable[[], float]) -> None:
        self._path = path
        self._store = store
        self._retention_s = retention_s
        self._wall_time_s = wall_time_s
        self._unnamed: dict[bytes, float] = {}
        """Versions that no name has, and since when."""
        self._refused_s: float | None = None
        self._held_said = False
        self._written: object = None
        self._write_at_s = 0.0
        self.on_erased: Callable[[Collection[bytes]], None] = lambda versions: None
        """Hears which versions are cached no more."""
        self.erased_files_total = 0
        self.erased_bytes_total = 0

    async def load(self) -> None:
        """What was seen before this start; a file that cannot be read means that it was seen now."""
        try:
            kept = json.loads(await asyncio.to_thread(self._path.read_bytes))
            now_s = self._wall_time_s()
            self._unnamed = {
                bytes.fromhex(name): min(float(since_s), now_s) for name, since_s in kept["unnamed"].items()
            }
            self._refused_s = min(float(kept["refused_s"]), now_s) if kept["refused_s"] is not None else None
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning(
                "what retention knew cannot be read, its times begin anew", path=str(self._path), error=str(error)
            )

    async def tend(
        self,
        is_live: Callable[[bytes], bool],
        is_open: Callable[[bytes], bool],
        refusal: HeadraceError | None,
        given: bool = True,
    ) -> None:
        """``is_live``: some name has the version; ``is_open``: somebody reads it; ``refusal``: the hub's last word, if it was no;
        ``given``: it was yes. Neither: this process has not heard from the hub yet."""
        if not self._retention_s:
            return
        now_s = self._wall_time_s()
        cached = self._store.versions()
        self._unnamed = {
            version: min(self._unnamed.get(version, now_s), now_s) for version in cached if not is_live(version)
        }
        due = [
            version
            for version, since_s in self._unnamed.items()
            if now_s - since_s >= self._retention_s and not is_open(version)
        ]
        if due:
            await self._erase(due, "the hub has these files no more")
        if refusal is not None or given:
            await self._tend_refusal(refusal, cached, now_s)
        await self._keep(now_s)

    async def _tend_refusal(self, refusal: HeadraceError | None, cached: Collection[bytes], now_s: float) -> None:
        if refusal is None:
            if self._refused_s is not None:
                log.info("the hub gives the dataset again, what is cached stays")
            self._refused_s = None
            return
        if self._refused_s is None:
            self._refused_s = now_s
            log.warning(
                "the hub does not give this dataset any more; what is cached will be erased",
                reason=str(refusal), cached_files=len(cached), after_s=self._retention_s,
            )  # fmt: skip
        if now_s - self._refused_s >= self._retention_s and cached:
            await self._erase(cached, str(refusal))

    async def _erase(self, versions: Collection[bytes], reason: str) -> None:
        files = erased_bytes = held = 0
        gone = set()
        for version in list(versions)[: limits.RETENTION_BATCH_FILES]:
            freed_bytes = await self._store.erase(version)
            if freed_bytes is None:
                held += 1
                continue
            gone.add(version)
            files += 1
            erased_bytes += freed_bytes
            self._unnamed.pop(version, None)
        self.erased_files_total += files
        self.erased_bytes_total += erased_bytes
        if files:
            self.on_erased(gone)
            log.warning("erased cached files", files=files, erased_bytes=erased_bytes, reason=reason, still_open=held)
        elif held and not self._held_said:
            log.warning(
                "cached files that are to be erased are open, they go when they are closed", files=held, reason=reason
            )
        self._held_said = held > 0

    async def _keep(self, now_s: float) -> None:
        known = (dict(self._unnamed), self._refused_s)
        if known == self._written or now_s < self._write_at_s:
            return
        self._write_at_s = now_s + limits.RETENTION_WRITE_S
        kept = {"unnamed": {version.hex(): since_s for version, since_s in known[0].items()}, "refused_s": known[1]}
        try:
            await asyncio.to_thread(replace_file, self._path, json.dumps(kept))
        except OSError as error:
            log.warning("what retention knows cannot be kept", path=str(self._path), error=error.strerror)
            return
        self._written = known
