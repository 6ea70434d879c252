"""The orders of other spokes that are held here, as files ``foreign-<dataset>-<digest>`` on the shelf.

Lets go of those that do not pay, that our own orders say as well, that stayed idle while others wait for their room, or that name
nothing any more; what is let go of for good, and what somebody dropped, is not wanted again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from common import limits
from common.log import get_logger
from common.order_report import Sketch, is_same
from spoke.namespace.tree import Tree
from spoke.orders import report as reports
from spoke.orders.learner import ENDING, FOREIGN_PREFIX, PROVEN, age_of, is_proven
from spoke.orders.mapped import MappedOrder
from spoke.orders.shelf import OrderShelf
from spoke.orders.unwanted import Unwanted
from spoke.prefetch.orders import Order

log = get_logger(__name__)

_SAMPLE_FILES = 64
_OUTCOMES = ("taken", "known", "elsewhere", "damaged", "failed", "distrusted", "outgrown", "idle")


class Follows(Protocol):
    """Who follows orders."""

    def orders(self) -> Sequence[Mapping[str, Any]]: ...
    def order(self, name: str) -> Order | None: ...


class ForeignOrders:
    """Start it after the shelf."""

    def __init__(self, shelf: OrderShelf, follows: Follows, tree: Tree, dataset: str) -> None:
        self._shelf = shelf
        self._follows = follows
        self._tree = tree
        self._file_prefix = f"{FOREIGN_PREFIX}{quote(dataset, safe='')}-"
        self._name_prefix = f"foreign:{dataset}:"
        self._held: set[str] = set()
        self._sketches: dict[str, Sketch] = {}
        self._suspects: set[str] = set()
        self._distrusted = 0
        self.waiting = 0
        """Orders that the hub has and for which there was no room."""
        self.unwanted = Unwanted(shelf.directory / f"{FOREIGN_PREFIX}{quote(dataset, safe='')}.json")
        self.outcomes: Counter[str] = Counter(dict.fromkeys(_OUTCOMES, 0))
        """What became of those that came."""

    async def start(self) -> None:
        await self.unwanted.load()
        self._held = set(self.names())

    # --- what is held -----------------------------------------------------------------------------------------

    def names(self) -> Collection[str]:
        """Of the orders of other spokes that are followed."""
        return [name for name in self._shelf.paths if name.startswith(self._name_prefix)]

    def name_of(self, digest: bytes) -> str:
        return f"{self._name_prefix}{digest.hex()}"

    def digest_of(self, name: str) -> bytes:
        try:
            return bytes.fromhex(name.removeprefix(self._name_prefix))
        except ValueError:  # somebody named an order of his own so
            return name.encode()

    @property
    def held_digests(self) -> Collection[bytes]:
        return {self.digest_of(name) for name in self._held}

    @property
    def proven(self) -> Sequence[bytes]:
        """The digests of those that an epoch was read along."""
        return [self.digest_of(name) for name in self.names() if is_proven(self._shelf.paths[name])]

    @property
    def has_room(self) -> bool:
        return len(self.names()) < limits.ORDERS_FOREIGN_KEPT - self._distrusted

    def add(self, name: str, sketch: Sketch) -> None:
        """It lies on the shelf."""
        self._held.add(name)
        self._sketches[name] = sketch
        self.outcomes["taken"] += 1

    def path_of(self, digest: bytes, *, proven: bool) -> Path:
        return self._shelf.directory / f"{self._file_prefix}{digest.hex()}{PROVEN if proven else ''}{ENDING}"

    async def tidy(self) -> None:
        """Let go of what does not pay, what names nothing any more, and note what somebody dropped."""
        names = set(self.names())
        for name in sorted(self._held - names):
            self._sketches.pop(name, None)
            await self.unwanted.refuse(self.digest_of(name))
        self._held = names
        distrusted = {
            facts["name"]
            for facts in self._follows.orders()
            if facts["name"] in names and facts["state"] == "distrusted"
        }
        for name in sorted(distrusted & self._suspects):
            self._distrusted += 1
            self.outcomes["distrusted"] += 1
            log.info("an order of another spoke did not pay and is dropped", order=name)
            await self._let_go(name, refuse=True)
        self._suspects = distrusted
        for name in self.names():
            order = self._follows.order(name)
            if order is not None and not self._means_something(order):
                await self._let_go(name, refuse=False)

    def _means_something(self, order: Order) -> bool:
        """Most of its files are here now, by a sample."""
        files = order.files
        sample = range(0, len(files), max(1, len(files) // _SAMPLE_FILES))
        live = sum(self._tree.is_live(files[number].version) for number in sample)
        return self._tree.epoch % 2 == 1 or live >= limits.ORDER_ALIVE_SHARE * len(sample)

    async def _let_go(self, name: str, *, refuse: bool) -> None:
        digest = self.digest_of(name)
        self._held.discard(name)
        self._sketches.pop(name, None)
        await self._shelf.drop(name)
        if refuse:
            await self.unwanted.refuse(digest)
        else:
            self.unwanted.pass_over(digest)

    async def says_same(self, found: Sketch) -> bool:
        """One that is held says what this says."""
        for name in self.names():
            known = await self._sketch_of(name)
            if known is not None and is_same(known, found):
                return True
        return False

    async def drop_same(self, found: Sketch) -> None:
        """Our own order says what these say."""
        for name in self.names():
            known = await self._sketch_of(name)
            if known is not None and is_same(known, found):
                await self._let_go(name, refuse=False)
                self.outcomes["outgrown"] += 1

    async def _sketch_of(self, name: str) -> Sketch | None:
        order = self._follows.order(name)
        if name not in self._sketches and isinstance(order, MappedOrder):
            self._sketches[name] = await asyncio.to_thread(reports.sketch_of, order)
        return self._sketches.get(name)

    # --- what the learner tells -------------------------------------------------------------------------------

    async def followed(self, name: str) -> None:
        """An epoch was read along this order of another spoke."""
        if name in self._shelf.paths and not is_proven(self._shelf.paths[name]):
            await self._shelf.move(name, self.path_of(self.digest_of(name), proven=True))
        proven = [known for known in self.names() if known != name and is_proven(self._shelf.paths[known])]
        if self.waiting and len(proven) >= limits.ORDERS_FOREIGN_KEPT // 2:
            await self._let_go(min(proven, key=lambda known: age_of(self._shelf.paths[known])), refuse=False)

    async def outgrown(self, name: str) -> None:
        """It was followed and did not hold to the end: what it has become is an order of ours."""
        self.outcomes["outgrown"] += 1
        await self._let_go(name, refuse=True)

    async def idle(self, names: Collection[str]) -> None:
        """An epoch went by without these: as many others as wait for their room get it."""
        for name in list(names)[: self.waiting]:
            path = self._shelf.paths.get(name)
            if path is not None and not is_proven(path):
                self.outcomes["idle"] += 1
                await self._let_go(name, refuse=False)

    def forget(self) -> None:
        """What is held was dropped."""
        self._held.clear()
        self._sketches.clear()
        self._suspects.clear()
        self.unwanted.forget_passed_over()

    # --- what it shows ----------------------------------------------------------------------------------------

    def facts(self) -> Sequence[Mapping[str, Any]]:
        """For ``status``."""
        return [
            {
                "name": name,
                "origin": order.origin if (order := self._follows.order(name)) is not None else "",
                "proven": is_proven(self._shelf.paths[name]),
            }
            for name in self.names()
        ]
