"""What this spoke learned, told to the hub: each order that the learner keeps once a connection, in pieces, when readers let it;
and of those of others that were followed here, that they hold. A hub that cannot take one is asked again later, and ever later.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from common import limits
from common.errors import DeadlineExceeded, DiskError, HeadraceError, HubUnreachable, OrderError, Overloaded, PeerError
from common.log import get_logger
from common.order_report import PackedReport, Sketch, is_same
from spoke.hub_client.order_questions import OrderQuestions
from spoke.orders import report as reports
from spoke.orders.foreign import ForeignOrders
from spoke.orders.learner import is_proven
from spoke.orders.shelf import OrderShelf

log = get_logger(__name__)

_VAIN_MAX = 3


class Telling:
    """``own_prefix``: of the names of the learner's orders. ``patience``: lets readers go first, for so many seconds at most.

    ``say``: what is the matter, for people.
    """

    def __init__(
        self,
        questions: OrderQuestions,
        shelf: OrderShelf,
        foreign: ForeignOrders,
        *,
        own_prefix: str,
        patience: Callable[[float], Awaitable[None]],
        clock: Callable[[], float],
        say: Callable[[HeadraceError], None],
    ) -> None:
        self._questions = questions
        self._shelf = shelf
        self._foreign = foreign
        self._own_prefix = own_prefix
        self._patience = patience
        self._clock = clock
        self._say = say
        self._unshelved: dict[str, Path] = {}
        self._own: dict[str, tuple[bytes | None, Sketch | None]] = {}
        """Of our own orders that were prepared: the digest (None: too long to be told) and the sketch."""
        self._told: set[bytes] = set()
        """What the hub has heard of on this connection."""
        self._sent_s: dict[bytes, float] = {}
        self._retry_s = 0.0
        self._retry_after_s = limits.ORDER_RETRY_S
        self.outcomes: Counter[str] = Counter(dict.fromkeys(("told", "refused", "failed"), 0))

    @property
    def own_digests(self) -> Collection[bytes]:
        return {digest for digest, _ in self._own.values() if digest is not None}

    def says_same(self, found: Sketch) -> bool:
        """One of ours says what this says."""
        return any(own is not None and is_same(own, found) for _, own in self._own.values())

    def lies(self, name: str, path: Path) -> None:
        """An order was kept that is not followed."""
        self._unshelved[name] = path

    def linked(self) -> None:
        """Another connection: the hub may be another too."""
        self._told.clear()

    def hurry(self) -> None:
        """Try again now."""
        self._retry_s = 0.0

    def forget(self) -> None:
        """Our orders were dropped."""
        self._own.clear()
        self._unshelved.clear()

    async def tell(self) -> None:
        own = {name: path for name, path in self._shelf.paths.items() if name.startswith(self._own_prefix)}
        own.update(self._unshelved)
        for name in self._own.keys() - own.keys():
            del self._own[name]
        for name, path in own.items():
            packed: PackedReport | None = None
            if name not in self._own:
                packed = await self._prepare(name, path)
            digest = self._own.get(name, (None, None))[0]
            if digest is not None and digest not in self._told and self._clock() >= self._retry_s:
                await self._tell_of(path, digest, packed)
        for digest in self._foreign.proven:
            if digest not in self._told:
                await self._questions.note(digest)
                self._told.add(digest)  # not before: a stop may break it off, and says it again

    async def _prepare(self, name: str, path: Path) -> PackedReport | None:
        try:
            packed, found = await asyncio.to_thread(reports.prepare, path)
        except (OrderError, DiskError) as error:
            self._own[name] = (None, None)
            log.debug("an order cannot be told", order=name, error=str(error))
            return None
        self._own[name] = (packed.digest if packed is not None else None, found)
        if packed is None:
            log.info("an order is too long to be told to other spokes", order=name)
        if found is not None:
            await self._foreign.drop_same(found)
        return packed

    async def _tell_of(self, path: Path, digest: bytes, packed: PackedReport | None) -> None:
        try:
            if packed is None:
                packed = (await asyncio.to_thread(reports.prepare, path)).packed
            if packed is None or packed.digest != digest:
                return
            await self._send(packed, is_proven(path))
        except (Overloaded, DiskError) as error:  # the hub's disk
            self._retry_s = self._clock() + self._retry_after_s
            self._retry_after_s = min(2 * self._retry_after_s, limits.ORDER_RETRY_MAX_S)
            self.outcomes["failed"] += 1
            self._say(error)
        except (HubUnreachable, DeadlineExceeded):
            raise
        except HeadraceError as error:
            self._told.add(digest)
            self.outcomes["refused"] += 1
            log.info("the hub does not take an order", error=str(error))

    async def _send(self, packed: PackedReport, followed: bool) -> None:
        digest, data = packed
        total_bytes, vain = len(data), 0
        reported = await self._questions.report(digest, total_bytes, 0, followed, b"")
        at = min(reported.offset_bytes, total_bytes)
        sent_s = self._sent_s.get(digest)
        if at < total_bytes and sent_s is not None and self._clock() - sent_s < limits.ORDER_RETELL_S:
            at = total_bytes  # it had it a while ago and let it go: there are better ones
        while at < total_bytes:
            await self._patience(limits.ORDER_REPORT_PATIENCE_S)
            piece = data[at : at + limits.ORDER_PIECE_BYTES]
            reported = await self._questions.report(digest, total_bytes, at, followed, piece)
            vain = vain + 1 if reported.offset_bytes <= at else 0
            if vain > _VAIN_MAX:
                raise PeerError("the hub asks for the same piece of an order again and again")
            at = min(reported.offset_bytes, total_bytes)
            if at == total_bytes:
                self._sent_s[digest] = self._clock()
        self._told.add(digest)
        self._retry_after_s = limits.ORDER_RETRY_S
        self.outcomes["told"] += 1
