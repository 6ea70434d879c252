"""What other spokes learned, fetched from the hub: asked for now and then, taken if it says something new about files we have.

The hub is believed nothing: what comes is checked whole, and only steps in files that our own names show, at the size they show, are
taken. A link that is lost in the middle costs a round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import zip_longest
from typing import Any

from common import limits
from common.errors import DiskError, HeadraceError, OrderError, PeerError
from common.log import get_logger
from common.order_report import Sketch
from common.wire.messages import KeptOrder
from spoke.hub_client.order_questions import OrderQuestions
from spoke.namespace.tree import Tree
from spoke.naming import files_in_turns
from spoke.orders import report as reports
from spoke.orders.foreign import ForeignOrders
from spoke.orders.shelf import OrderShelf
from spoke.orders.telling import Telling

log = get_logger(__name__)


class Getting:
    """``patience``, ``say``: see Telling. ``is_short_of_memory``: then nothing is fetched."""

    def __init__(
        self,
        questions: OrderQuestions,
        shelf: OrderShelf,
        foreign: ForeignOrders,
        telling: Telling,
        tree: Tree,
        *,
        dataset: str,
        hub: str,
        patience: Callable[[float], Awaitable[None]],
        is_short_of_memory: Callable[[], bool],
        say: Callable[[HeadraceError], None],
    ) -> None:
        self._questions = questions
        self._shelf = shelf
        self._foreign = foreign
        self._unwanted = foreign.unwanted
        self._telling = telling
        self._tree = tree
        self._dataset = dataset
        self._hub = hub
        self._patience = patience
        self._is_short_of_memory = is_short_of_memory
        self._say = say
        self._generation = 0
        self._arriving: tuple[bytes, bytearray] = (b"", bytearray())
        self._examined_steps = 0

    @property
    def held_bytes(self) -> int:
        """Of an order that is being taken over: what has come of it, and its steps once they are looked at."""
        return len(self._arriving[1]) + self._examined_steps * limits.MEMORY_STEP_BYTES

    def forget(self) -> None:
        """All was reset: what is on its way is not wanted."""
        self._generation += 1
        self._arriving = (b"", bytearray())

    async def get(self) -> None:
        generation = self._generation
        kept = await self._questions.kept()
        if self._unwanted.all_listed:
            await self._unwanted.refuse(*(order.digest for order in kept.orders))
            self._unwanted.all_listed = False
            await self._unwanted.save()
            return
        known = {*self._telling.own_digests, *self._foreign.held_digests}
        wanted = [order for order in kept.orders if order.digest not in known and order.digest not in self._unwanted]
        self._foreign.waiting = len(wanted)
        for order in _from_both_ends(wanted):
            if not self._foreign.has_room or self._is_short_of_memory():
                return
            if generation != self._generation:  # all was reset meanwhile
                return
            await self._fetch(order, generation)
            self._foreign.waiting -= 1

    async def _fetch(self, order: KeptOrder, generation: int) -> None:
        data = self._arriving[1] if self._arriving[0] == order.digest else bytearray()
        self._arriving = (order.digest, data)
        while len(data) < order.total_bytes:
            await self._patience(limits.ORDER_FETCH_PATIENCE_S)
            try:
                piece = await self._questions.fetch(order.digest, len(data))
            except OrderError:  # gone since it was listed
                self._arriving = (b"", bytearray())
                return
            if (piece.offset_bytes, piece.total_bytes) != (len(data), order.total_bytes) or not piece.payload:
                self._arriving = (b"", bytearray())
                raise PeerError("the hub gives another piece of an order than was asked for")
            data += piece.payload
        try:
            await self._take(order, data, generation)
        finally:
            self._arriving, self._examined_steps = (b"", bytearray()), 0

    async def _take(self, order: KeptOrder, data: bytearray, generation: int) -> None:
        try:
            report, found = await asyncio.to_thread(reports.examine, data, order.digest)
        except OrderError as error:
            self._foreign.outcomes["damaged"] += 1
            log.warning("an order that the hub gave is not one", teller=order.teller, error=str(error))
            await self._unwanted.refuse(order.digest)
            return
        self._examined_steps = len(report)
        if await self._is_known(found):
            self._unwanted.pass_over(order.digest)
            self._foreign.outcomes["known"] += 1
            return
        live = await live_files(self._tree, report.files)
        share = await asyncio.to_thread(reports.share_of, report, live)
        if share < limits.ORDER_ALIVE_SHARE:
            self._unwanted.pass_over(order.digest)
            self._foreign.outcomes["elsewhere"] += 1
            return
        name, path = self._foreign.name_of(order.digest), self._foreign.path_of(order.digest, proven=False)
        origin = f"told by {order.teller} through the hub {self._hub}"
        try:
            await asyncio.to_thread(reports.write, path, name, self._dataset, origin, report, live)
            if generation != self._generation:  # all was reset meanwhile
                await asyncio.to_thread(path.unlink, missing_ok=True)
                return
            await self._shelf.load(path)
        except (HeadraceError, OSError) as error:
            self._unwanted.pass_over(order.digest)
            self._foreign.outcomes["failed"] += 1
            self._say(error if isinstance(error, HeadraceError) else DiskError(f"{path}: {error.strerror}"))
            await asyncio.to_thread(path.unlink, missing_ok=True)
            return
        self._foreign.add(name, found)
        log.info("an order of another spoke is followed", order=name, teller=order.teller, steps=len(report))

    async def _is_known(self, found: Sketch) -> bool:
        """It says the same as an order of ours, or one that is held."""
        return self._telling.says_same(found) or await self._foreign.says_same(found)


async def live_files(tree: Tree, files: Sequence[Any]) -> bytearray:
    """1 for each file that our names have, in this version and size."""
    live = bytearray(len(files))
    elsewhere: dict[bytes, int] = {}
    for number, file in enumerate(files):
        node = tree.resolve(file.path)
        entry = node.entry if node is not None and node.is_file else None
        if entry is not None and entry.version == file.version:
            live[number] = entry.size_bytes == file.size_bytes
        elif tree.is_live(file.version):
            elsewhere[file.version] = number
        if number % limits.NAME_SEARCH_SLICE == limits.NAME_SEARCH_SLICE - 1:
            await asyncio.sleep(0)
    if not elsewhere:
        return live
    async for node in files_in_turns(tree):  # renamed since
        if (found := elsewhere.get(node.entry.version)) is not None:
            live[found] = node.entry.size_bytes == files[found].size_bytes
    return live


def _from_both_ends(orders: Sequence[KeptOrder]) -> list[KeptOrder]:
    """The proven ones as they come; of the others in turn the newest and the oldest: a job may go on, or begin anew."""
    proven, others = ([order for order in orders if order.proven is wanted] for wanted in (True, False))
    half = (len(others) + 1) // 2
    mixed = [
        order for pair in zip_longest(others[:half], reversed(others[half:])) for order in pair if order is not None
    ]
    return [*proven, *mixed]
