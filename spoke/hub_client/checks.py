"""Asking the hub about one path: each question waits for a link, and is asked again when its link dies before the answer."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import NamedTuple, Protocol

from common.errors import HubUnreachable, PeerError, from_wire
from common.wire.messages import CHECK, Check, Checked, Welcome


class CheckLink(Protocol):
    """A connection to the hub, as far as it matters here."""

    @property
    def welcome(self) -> Welcome | None: ...
    def send(self, message: Check) -> None: ...


class Position(NamedTuple):
    """A replica that has come to ``revision`` of ``catalog_id`` has the answer."""

    catalog_id: bytes
    revision: int


class Checks:
    """Tell it which link is up and what arrives; ``ask`` may be called at any time."""

    def __init__(self) -> None:
        self._link: CheckLink | None = None
        self._linked = asyncio.Event()
        self._tokens = count(1)
        self._open: dict[int, asyncio.Future[Checked]] = {}
        self.asked_total = 0

    async def ask(self, path: bytes) -> Position:
        """Where the names must have come to. Waits for a link as long as it takes; raises what the hub answered.

        Raises PeerError when the hub does not know the question.
        """
        self.asked_total += 1
        while True:
            await self._linked.wait()
            link = self._link
            assert link is not None
            if link.welcome is None or CHECK not in link.welcome.capabilities:
                raise PeerError("this hub is too old to be asked about a path: strict consistency needs a newer one")
            token = next(self._tokens)
            answer = self._open[token] = asyncio.get_running_loop().create_future()
            try:
                link.send(Check(token, path))
                checked = await answer
            except HubUnreachable:
                continue
            finally:
                self._open.pop(token, None)
            if checked.code:
                raise from_wire(checked.code, checked.message)
            return Position(checked.catalog_id, checked.revision)

    def link_up(self, link: CheckLink) -> None:
        self._link = link
        self._linked.set()

    def link_lost(self, link: CheckLink) -> None:
        """Those who wait for an answer ask again on the next link."""
        if link is not self._link:
            return
        self._link = None
        self._linked.clear()
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(HubUnreachable("the link was lost"))

    def answered(self, checked: Checked) -> None:
        answer = self._open.get(checked.token)
        if answer is not None and not answer.done():
            answer.set_result(checked)
