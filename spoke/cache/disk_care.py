"""Care for the cache disk: what is the matter with it, said once, and what is looked at now and then until it is well again.

What the errors mean is decided by ``health``; here it is logged, asked for and tried.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

from common.blocks import BLOCK_BYTES, EXTENT_BYTES
from common.limits import CACHE_STUCK_WRITE_S
from common.log import get_logger
from spoke.cache.health import DiskHealth, Trouble, kind_of
from spoke.cache.loans import Loans
from spoke.cache.reclaim import Reclaimer
from spoke.cache.recovery import DirectoryLost, try_length, try_to_write
from spoke.cache.shelf import Shelf

log = get_logger(__name__)


class DiskCare:
    """``on_well()`` is called when trouble has ended; ``oldest_write_s()`` says how long a write has been under way."""

    def __init__(
        self,
        shelf: Shelf,
        reclaim: Reclaimer,
        loans: Loans,
        health: DiskHealth,
        clock: Callable[[], float],
        on_well: Callable[[], None],
        oldest_write_s: Callable[[], float],
    ) -> None:
        self._shelf = shelf
        self._disk = shelf.disk
        self._directory = shelf.directory
        self._reclaim = reclaim
        self._loans = loans
        self._health = health
        self._clock = clock
        self._on_well = on_well
        self._oldest_write_s = oldest_write_s
        self._behind = False
        self._stuck = False
        self._tending: asyncio.Task[None] | None = None

    # --- what is the matter ------------------------------------------------------------------------------

    @property
    def trouble(self) -> Trouble | None:
        """What is the matter with the cache disk now; reads succeed from the hub meanwhile."""
        if self._health.trouble is not None:
            return self._health.trouble
        if self._is_stuck:
            return Trouble("slow", f"a write to it has been under way for more than {CACHE_STUCK_WRITE_S:g} s")
        return (
            Trouble("slow", "it is slower than the link: some of what arrives is not cached") if self._behind else None
        )

    @property
    def _is_stuck(self) -> bool:
        return self._oldest_write_s() > CACHE_STUCK_WRITE_S

    def behind(self, is_behind: bool) -> None:
        """Whoever hands over what is to be written had to leave some out (or need not any more)."""
        self._behind = is_behind
        if is_behind:
            self._shelf.slow()

    def failed(self, error: OSError) -> None:
        lost = isinstance(error, DirectoryLost)
        reason = str(error) if lost else error.strerror or str(error)
        if self._health.failed(self._clock(), "gone" if lost else kind_of(error), reason):
            log.error("the cache is bypassed: reads are served from the hub until its disk is well again",
                      reason=reason, path=str(self._directory.path))  # fmt: skip

    def well(self) -> None:
        log.info("the cache disk takes writes again", path=str(self._directory.path))
        self._on_well()

    # --- now and then ------------------------------------------------------------------------------------

    async def tend(self, wait_s: float) -> None:
        """For a slow timer: look at the directory and the disk's free space, and get down to the limits if others took some."""
        if self._is_stuck != self._stuck:
            self._stuck = not self._stuck
            if self._stuck:
                self._shelf.slow()
                log.warning("the cache disk is slow: a write to it does not end", path=str(self._directory.path))
            else:
                log.info("the cache disk takes writes again", path=str(self._directory.path))
        if not self._health.may_write(self._clock()):
            return
        if self._tending is None or self._tending.done():
            self._tending = self._shelf.own(self._tend(), "cache tending")
        await asyncio.wait((self._tending,), timeout=wait_s)

    async def _tend(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._shelf.write_pool, self._directory.check, self._disk)
            await self._reclaim.refresh()
            if (
                (self._health.bypass or self._health.shortage) is not None
                and await self._is_well_again()
                and self._health.wrote()
            ):
                self.well()
            if self._health.too_large is not None:
                await self._try_length()
            await self._loans.look_again()
        except OSError as error:
            if self._health.bypass is not None or kind_of(error) not in ("full", "quota"):
                self.failed(error)
            return
        await self._reclaim.trim()

    async def _try_length(self) -> None:
        """Whether a file may be as long by now as one that was refused. Raises OSError: it failed in another way."""
        length_bytes = self._health.refused_length_bytes
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._shelf.write_pool, try_length, self._disk, self._directory, length_bytes
            )
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
        else:
            self._health.took_length()
            self.well()

    async def _is_well_again(self) -> bool:
        """Try the disk for which trouble was seen, without waiting for somebody's write. Raises OSError: it is not."""
        short = self._health.shortage
        if self._health.bypass is None and short is not None and short.kind != "quota":
            return self._reclaim.has_room(EXTENT_BYTES)  # what the disk says of itself
        probe_bytes = BLOCK_BYTES if self._health.bypass is not None else EXTENT_BYTES
        await asyncio.get_running_loop().run_in_executor(
            self._shelf.write_pool, try_to_write, self._disk, self._directory, probe_bytes
        )
        return True
