"""What spokes learned, told to each other through the hub: ours go there, others' come here and are followed like our own.

Owns the rounds: what is held is looked through (``foreign``), the hub is told (``telling``) and asked (``getting``), now and then and
when there is reason to. What does not pay, is known, or was dropped here is not fetched again (``unwanted``). A link that is lost
in the middle costs a round.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from common import limits
from common.errors import DeadlineExceeded, HeadraceError, HubUnreachable
from common.log import get_logger
from common.runtime import cancel_and_wait
from spoke.hub_client.order_questions import OrderQuestions
from spoke.namespace.tree import Tree
from spoke.orders.foreign import Follows, ForeignOrders
from spoke.orders.getting import Getting
from spoke.orders.shelf import OrderShelf
from spoke.orders.telling import Telling

log = get_logger(__name__)

_LOOK_S = 0.02


class OrderExchange:
    """Start it after shelf and learner. ``enabled`` False: nothing is told and nothing asked for.

    ``is_waited_for``: a reader waits for the hub now. ``is_short_of_memory``: then nothing is fetched.
    ``own_prefix``: of the names of the learner's orders.
    """

    def __init__(
        self,
        questions: OrderQuestions,
        shelf: OrderShelf,
        follows: Follows,
        tree: Tree,
        *,
        dataset: str,
        hub: str,
        own_prefix: str,
        is_waited_for: Callable[[], bool],
        is_short_of_memory: Callable[[], bool],
        clock: Callable[[], float],
        enabled: bool,
    ) -> None:
        self._questions = questions
        self._tree = tree
        self._is_waited_for = is_waited_for
        self._clock = clock
        self._enabled = enabled
        self._foreign = ForeignOrders(shelf, follows, tree, dataset)
        self._telling = Telling(
            questions,
            shelf,
            self._foreign,
            own_prefix=own_prefix,
            patience=self._patience,
            clock=clock,
            say=self._say,
        )
        self._getting = Getting(
            questions,
            shelf,
            self._foreign,
            self._telling,
            tree,
            dataset=dataset,
            hub=hub,
            patience=self._patience,
            is_short_of_memory=is_short_of_memory,
            say=self._say,
        )
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._hurry = False
        self._said = ""
        self.last_error: str | None = None

    @property
    def told(self) -> Counter[str]:
        return self._telling.outcomes

    @property
    def received(self) -> Counter[str]:
        return self._foreign.outcomes

    @property
    def held_bytes(self) -> int:
        """Memory of an order that is being taken over."""
        return self._getting.held_bytes

    # --- life --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        if not self._enabled:
            return
        await self._foreign.start()
        self._questions.on_linked = self._linked
        self._task = asyncio.create_task(self._run(), name="orders of spokes")

    async def close(self, *, tell: bool) -> None:
        """``tell``: what was learned last, if that is quickly done."""
        if self._task is None:
            return
        self._questions.on_linked = None
        await cancel_and_wait(self._task)
        unwanted = self._foreign.unwanted
        if unwanted.refused_count or unwanted.all_listed:  # a round that was broken off may not have written it
            await unwanted.save()
        if tell and self._questions.are_answered:
            self._hurry = True
            self._telling.hurry()
            try:
                async with asyncio.timeout(limits.ORDER_STOP_S):
                    await self._telling.tell()
            except (TimeoutError, HeadraceError, OSError) as error:
                log.debug("what was learned last is told after the next start", error=str(error))

    def _linked(self) -> None:
        self._telling.linked()
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._questions.ready()
            self._wake.clear()
            try:
                await self._round()
                self.last_error = None
            except (HubUnreachable, DeadlineExceeded) as error:
                self.last_error = str(error)
            except HeadraceError as error:
                self._say(error)
            except Exception as error:
                log.exception("exchanging orders failed in an unforeseen way")
                self.last_error = repr(error)
            try:
                async with asyncio.timeout(limits.ORDERS_ASK_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _say(self, error: HeadraceError) -> None:
        """Once, until it is another."""
        self.last_error = str(error)
        if self._said != self.last_error:
            self._said = self.last_error
            log.warning("orders are not exchanged with other spokes", reason=str(error))

    async def _round(self) -> None:
        await self._foreign.tidy()
        await self._telling.tell()
        if self._tree.epoch % 2 == 0:  # else names are being renewed
            await self._getting.get()

    async def _patience(self, most_s: float) -> None:
        """Let readers that wait for the hub go first, for so long."""
        until_s = self._clock() + most_s
        while not self._hurry and self._is_waited_for() and self._clock() < until_s:  # noqa: ASYNC110 (readers tell nobody)
            await asyncio.sleep(_LOOK_S)

    # --- what the learner tells ------------------------------------------------------------------------------

    def names(self) -> Collection[str]:
        """Of the orders of other spokes that are followed."""
        return self._foreign.names()

    def learned(self, name: str, path: Path, *, shelved: bool) -> None:
        """An order was kept. ``shelved``: it is followed from now on; else it only lies there."""
        if not shelved:
            self._telling.lies(name, path)
        self._wake.set()

    async def followed(self, name: str) -> None:
        """An epoch was read along this order of another spoke."""
        await self._foreign.followed(name)
        self._wake.set()

    async def outgrown(self, name: str) -> None:
        """It was followed and did not hold to the end: what it has become is an order of ours."""
        await self._foreign.outgrown(name)

    async def idle(self, names: Collection[str]) -> None:
        """An epoch went by without these: as many others as wait for their room get it."""
        await self._foreign.idle(names)

    async def reset(self) -> None:
        """What is held was dropped; what the hub has now is not fetched again."""
        self._getting.forget()
        self._foreign.forget()
        self._telling.forget()
        if self._enabled:
            self._foreign.unwanted.all_listed = True
            await self._foreign.unwanted.save()
            self._wake.set()

    # --- what it shows ---------------------------------------------------------------------------------------

    def facts(self) -> Mapping[str, Any]:
        """For ``status``."""
        return {
            "enabled": self._enabled,
            "hub_keeps_orders": self._questions.are_answered,
            "held": self._foreign.facts(),
            "told": dict(self.told),
            "received": dict(self.received),
            "refused": self._foreign.unwanted.refused_count,
            "last_error": self.last_error,
        }
