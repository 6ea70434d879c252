"""Where orders live on disk, beside the cache: one file each, followed again after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from xxhash import xxh3_64_hexdigest

from common.errors import HeadraceError
from common.log import get_logger
from spoke.orders.mapped import MappedOrder, open_order
from spoke.prefetch.orders import Order

log = get_logger(__name__)

_SUFFIX = ".order"
_NAME_MAX_CHARS = 200


class OrderRoom:
    """``add`` and ``drop``: begin and end following an order; ``add`` raises OrderError when it cannot be followed."""

    def __init__(self, directory: Path, add: Callable[[Order], None], drop: Callable[[str], bool]) -> None:
        self.directory = directory
        self._add = add
        self._drop = drop

    def path_of(self, name: str) -> Path:
        """The file for an order of this name: where its maker writes it."""
        quoted = quote(name, safe="")
        if len(quoted) > _NAME_MAX_CHARS:
            quoted = f"{quoted[: _NAME_MAX_CHARS - 20]}~{xxh3_64_hexdigest(name.encode())}"
        return self.directory / (quoted + _SUFFIX)

    async def open(self) -> None:
        """Make the directory, clear what writers left unfinished, and follow all orders in it; a bad one is logged and left there.

        Raises OSError when the directory cannot be made or read.
        """
        for path in await asyncio.to_thread(self._list):
            try:
                await self.follow(path)
            except HeadraceError as error:
                log.warning("an order on disk is not followed", path=str(path), error=str(error))

    async def follow(self, path: Path) -> MappedOrder:
        """Check an order file (in a thread) and follow it. Raises OrderError, DiskError."""
        order = await asyncio.to_thread(open_order, path)
        self._add(order)
        log.info("an order is followed", name=order.name, reason=order.reason.value, steps=order.step_count)
        return order

    async def drop(self, name: str) -> bool:
        """Follow an order no longer and remove its file; False if there was neither."""
        dropped = self._drop(name)
        return await asyncio.to_thread(self._remove, self.path_of(name)) or dropped

    def _list(self) -> list[Path]:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        for unfinished in self.directory.glob("*" + _SUFFIX + ".new"):
            unfinished.unlink(missing_ok=True)
        return sorted(self.directory.glob("*" + _SUFFIX))

    @staticmethod
    def _remove(path: Path) -> bool:
        try:
            path.unlink()
        except OSError:
            return False
        return True
