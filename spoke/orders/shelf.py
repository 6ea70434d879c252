"""The spoke's directory of order files: what other processes computed is opened here, followed, and put away when it is dropped.

A file is written by its maker (a recipe's command) beside the others and named to us over the control socket; opening and checking
it runs in a thread. Files outlive the daemon: at the start those that are whole are followed again, the newest ones if there are
too many, and what cannot be used is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from common import limits
from common.errors import DiskError, HeadraceError, OrderError, UsageError
from common.log import get_logger
from spoke.orders.mapped import MappedOrder, open_order
from spoke.prefetch.orders import Order

log = get_logger(__name__)

_ENDING = ".order"


class Follows(Protocol):
    """Who fetches along orders."""

    def add_order(self, order: Order) -> None: ...
    def drop_order(self, name: str) -> bool: ...
    def orders(self) -> Sequence[Mapping[str, Any]]: ...


class OrderShelf:
    """``follower`` None: nothing is fetched ahead, so no order is taken. ``pass_over``: files to leave alone at the start."""

    def __init__(
        self, directory: Path, follower: Follows | None, *, pass_over: Callable[[Path], bool] = lambda _path: False
    ) -> None:
        self.directory = directory
        self._follower = follower
        self._pass_over = pass_over
        self._paths: dict[str, Path] = {}

    @property
    def paths(self) -> Mapping[str, Path]:
        """The file of each order that came from one, by the order's name."""
        return self._paths

    async def start(self) -> None:
        """Follow what lay here. Never raises: an order is a help and no more."""
        if self._follower is None:
            return
        try:
            found = await asyncio.to_thread(self._lying_here)
        except OSError as error:
            log.warning("orders cannot be kept", directory=str(self.directory), error=str(error))
            return
        for path in found:
            try:
                await self.load(path)
            except HeadraceError as error:
                log.warning("an order is given up", path=str(path), error=str(error))
                await asyncio.to_thread(_remove, path)

    async def load(self, path: Path, follow: Callable[[Order], None] | None = None) -> Mapping[str, Any]:
        """Follow the order in a file of this directory; one of the same name is replaced. Raises OrderError, UsageError, DiskError.

        ``follow``: how, if not as any other.
        """
        if self._follower is None:
            raise UsageError("this spoke fetches nothing ahead (--no-prefetch), so it follows no order")
        if path.parent != self.directory or not path.name.endswith(_ENDING):
            raise UsageError(
                f"{path} is not an order of this spoke: it must lie in {self.directory} and end in {_ENDING}"
            )
        try:
            order: MappedOrder = await asyncio.to_thread(open_order, path)
        except OSError as error:
            raise DiskError(f"{path}: {error.strerror}") from None
        former = self._paths.get(order.name)
        if former is None and any(fact["name"] == order.name for fact in self._follower.orders()):
            raise OrderError(f"{order.name!r} is the name of a plan that is followed; give the recipe another --name")
        if former is not None:
            self._follower.drop_order(order.name)
            if former != path:
                await asyncio.to_thread(_remove, former)
        (follow or self._follower.add_order)(order)
        self._paths[order.name] = path
        return {"name": order.name, "lanes": order.lane_count, "steps": order.step_count}

    async def drop(self, name: str) -> bool:
        """Follow it no more, and remove its file. False when there was none."""
        path = self._paths.pop(name, None)
        if path is None or self._follower is None:
            return False
        self._follower.drop_order(name)
        await asyncio.to_thread(_remove, path)
        return True

    async def drop_where(self, is_meant: Callable[[Path], bool]) -> int:
        """Drop the orders whose files are meant, and remove such files that are not followed. Returns how many."""
        names = [name for name, path in self._paths.items() if is_meant(path)]
        for name in names:
            await self.drop(name)
        return len(names) + await asyncio.to_thread(self._remove_where, is_meant)

    async def move(self, name: str, path: Path) -> None:
        """Give its file another name in this directory, and make it the newest. Raises DiskError."""
        try:
            await asyncio.to_thread(_move, self._paths[name], path)
        except OSError as error:
            raise DiskError(f"{self._paths[name]}: {error.strerror}") from None
        self._paths[name] = path

    def facts(self) -> Sequence[Mapping[str, Any]]:
        """Of all orders followed, whoever made them."""
        return self._follower.orders() if self._follower is not None else []

    def _remove_where(self, is_meant: Callable[[Path], bool]) -> int:
        try:
            found = [path for path in self.directory.glob(f"*{_ENDING}") if is_meant(path)]
        except OSError:
            return 0
        for path in found:
            _remove(path)
        return len(found)

    def _lying_here(self) -> list[Path]:
        """Order files, oldest first; more than may be followed at once are removed, and so is what was never finished."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        found = [path for path in self.directory.glob(f"*{_ENDING}") if not self._pass_over(path)]
        found.sort(key=lambda path: path.stat().st_mtime_ns)
        for left in (*self.directory.glob(f"*{_ENDING}.new"), *found[: -limits.ORDER_FILES_MAX_KEPT]):
            _remove(left)
        return found[-limits.ORDER_FILES_MAX_KEPT :]


def _move(path: Path, to: Path) -> None:
    path.replace(to)
    os.utime(to)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
