"""Asking the hub about orders: one question at a time, on whichever link suits it; it is asked again by who wants to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Protocol, TypeVar

from common import limits
from common.errors import DeadlineExceeded, HubUnreachable, from_wire
from common.wire.messages import ORDERS, Fetch, Kept, Orders, Piece, Report, Reported, Welcome

Question = Report | Orders | Fetch
Answer = Reported | Kept | Piece
_A = TypeVar("_A", Reported, Kept, Piece)


class OrderLink(Protocol):
    """A connection to the hub, as far as it matters here."""

    @property
    def role(self) -> str: ...
    @property
    def welcome(self) -> Welcome | None: ...
    def send(self, message: Question) -> None: ...


class OrderQuestions:
    """Tell it which links are up and what arrives."""

    def __init__(self) -> None:
        self._links: list[OrderLink] = []
        self._linked = asyncio.Event()
        self._tokens = count(1)
        self._open: dict[int, tuple[OrderLink, asyncio.Future[Answer]]] = {}
        self.on_linked: Callable[[], None] | None = None
        """The control link has come up anew, to a hub that keeps orders."""

    @property
    def are_answered(self) -> bool:
        """A link is up, to a hub that keeps orders."""
        return self._linked.is_set()

    async def ready(self) -> None:
        """Returns once questions are answered."""
        await self._linked.wait()

    async def report(
        self, digest: bytes, total_bytes: int, offset_bytes: int, followed: bool, piece: bytes | memoryview
    ) -> Reported:
        """Goes where it delays no reader's request. Raises as :meth:`_ask`."""
        return await self._ask(
            Report(next(self._tokens), digest, total_bytes, offset_bytes, followed, piece), Reported, "bulk"
        )

    async def note(self, digest: bytes) -> Reported:
        """Have the hub note that a job here was read along this order, if it keeps it."""
        return await self.report(digest, 1, 1, True, b"")

    async def kept(self) -> Kept:
        return await self._ask(Orders(next(self._tokens)), Kept, "control")

    async def fetch(self, digest: bytes, offset_bytes: int) -> Piece:
        """The answer waits behind what readers wait for, not behind what is fetched ahead. Raises as :meth:`_ask`."""
        return await self._ask(Fetch(next(self._tokens), digest, offset_bytes), Piece, "control")

    async def _ask(self, question: Question, kind: type[_A], role: str) -> _A:
        """Raises HubUnreachable without a link or when it is lost, DeadlineExceeded, or what the hub answered."""
        link = next((found for found in self._links if found.role == role), self._links[0] if self._links else None)
        if link is None:
            raise HubUnreachable("no link to a hub that keeps orders")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[question.token] = (link, future)
        try:
            link.send(question)
            async with asyncio.timeout(limits.ORDER_ANSWER_TIMEOUT_S):
                answer = await future
        except TimeoutError:
            raise DeadlineExceeded(f"no answer about an order within {limits.ORDER_ANSWER_TIMEOUT_S:g} s") from None
        finally:
            self._open.pop(question.token, None)
        if answer.code:
            raise from_wire(answer.code, answer.message)
        assert isinstance(answer, kind)
        return answer

    def link_up(self, link: OrderLink) -> None:
        if link.welcome is None or ORDERS not in link.welcome.capabilities:
            return
        self._links.append(link)
        self._linked.set()
        if link.role == "control" and self.on_linked is not None:
            self.on_linked()

    def link_lost(self, link: OrderLink) -> None:
        if link in self._links:
            self._links.remove(link)
        if not self._links:
            self._linked.clear()
        for asked_on, future in self._open.values():
            if asked_on is link and not future.done():
                future.set_exception(HubUnreachable("the link was lost"))

    def answered(self, link: OrderLink, answer: Answer) -> None:
        """One that answers nothing, or another question than it says, is dropped."""
        asked_on, future = self._open.get(answer.token, (None, None))
        if future is not None and asked_on is link and not future.done():
            future.set_result(answer)
