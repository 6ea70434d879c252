"""Answers that take time, each in a task of its own beside the connection that asked: checks, questions about orders, and the
feed, which never ends. How many may be open is decided here; none outlives the connection.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Protocol

from common import limits
from common.errors import HeadraceError, NotAllowed, Overloaded
from common.log import get_logger
from common.serving.feed import follow
from common.serving.orders import OrderDesk, OrderQuestion, Teller, refusal
from common.serving.outbox import Outbox
from common.serving.source import Source
from common.serving.turns import SnapshotTurns, in_turn
from common.wire import messages as m

log = get_logger(__name__)


def internal_error() -> HeadraceError:
    return HeadraceError("internal error; the server's log has the details")


class Desks(Protocol):
    """Where answers come from beside the source."""

    orders: OrderDesk | None
    snapshot_turns: SnapshotTurns


class Asker(Protocol):
    """A connection that was let in."""

    address: str
    hello: m.Hello | None

    @property
    def source(self) -> Source: ...
    @property
    def is_closing(self) -> bool: ...

    def send(self, message: m.Message) -> None:
        """Write one frame now."""

    def flush(self) -> None:
        """Write what is in the outbox, as far as the socket takes it."""

    def flush_soon(self) -> None: ...

    def shut_out(self, error: HeadraceError) -> None:
        """End the connection with ERROR."""


class SlowAnswers:
    """Of one connection."""

    def __init__(self, asker: Asker, desks: Desks, outbox: Outbox) -> None:
        self._asker = asker
        self._desks = desks
        self._outbox = outbox
        self._feed_task: asyncio.Task[None] | None = None
        self._ended_feeds: set[asyncio.Task[None]] = set()
        self._checks: set[asyncio.Task[None]] = set()
        self._asking: set[asyncio.Task[None]] = set()

    def cancel(self) -> None:
        """The connection is lost."""
        self.end_feed()
        for task in (*self._checks, *self._asking):
            task.cancel()
        self._outbox.pieces.clear()

    async def wait_ended(self) -> None:
        """After :meth:`cancel`."""
        await asyncio.gather(*self._ended_feeds, *self._checks, *self._asking, return_exceptions=True)

    # --- checks -----------------------------------------------------------------------------------------------

    def check(self, check: m.Check) -> None:
        if len(self._checks) >= limits.CHECKS_MAX_OUTSTANDING:
            self._answer_check(check, 0, Overloaded(f"more than {limits.CHECKS_MAX_OUTSTANDING} CHECKs are open"))
            return
        task = asyncio.create_task(self._run_check(check), name=f"check {self._asker.address}")
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _run_check(self, check: m.Check) -> None:
        try:
            self._answer_check(check, await self._asker.source.check(check.path))
        except HeadraceError as error:
            self._answer_check(check, 0, error)
        except Exception:
            log.exception("a check failed in an unforeseen way", address=self._asker.address)
            self._answer_check(check, 0, internal_error())

    def _answer_check(self, check: m.Check, revision: int, error: HeadraceError | None = None) -> None:
        if self._asker.is_closing:
            return
        code, message = (error.wire_code, str(error)) if error is not None else ("", "")
        self._asker.send(m.Checked(check.token, self._asker.source.catalog_id, revision, code, message))

    # --- orders -----------------------------------------------------------------------------------------------

    def ask_about_orders(self, question: OrderQuestion) -> None:
        desk = self._desks.orders
        if desk is None:
            self._asker.send(refusal(question, NotAllowed("this hub keeps no orders")))
            return
        if len(self._asking) + len(self._outbox.pieces) >= limits.ORDER_QUESTIONS_MAX_OUTSTANDING:
            most = limits.ORDER_QUESTIONS_MAX_OUTSTANDING
            self._asker.send(refusal(question, Overloaded(f"more than {most} questions about orders are open")))
            return
        task = asyncio.create_task(self._run_question(desk, question), name=f"orders {self._asker.address}")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _run_question(self, desk: OrderDesk, question: OrderQuestion) -> None:
        """A piece of an order leaves when nothing else waits to."""
        hello = self._asker.hello
        assert hello is not None
        try:
            answer = await desk.answer(self._asker.source.dataset, Teller(hello.identity, hello.spoke_id), question)
        except Exception:
            log.exception("a question about orders failed in an unforeseen way", address=self._asker.address)
            answer = refusal(question, internal_error())
        if self._asker.is_closing:
            return
        if isinstance(answer, m.Piece):
            self._outbox.pieces.append(answer)
            self._asker.flush_soon()
        else:
            self._asker.send(answer)

    # --- the feed ---------------------------------------------------------------------------------------------

    def start_feed(self, request_id: int, subscribe: m.Subscribe) -> None:
        """A new SUBSCRIBE replaces the old one."""
        self.end_feed()
        self._outbox.drop_feed()
        task = asyncio.create_task(self._run_feed(request_id, subscribe), name=f"feed {self._asker.address}")
        self._feed_task = task

    def end_feed(self) -> None:
        task, self._feed_task = self._feed_task, None
        if task is not None and not task.done():
            self._ended_feeds.add(task)
            task.add_done_callback(self._ended_feeds.discard)
            task.cancel()

    async def _run_feed(self, request_id: int, subscribe: m.Subscribe) -> None:
        """Ask for the next message only when the last one has been written and the socket took it."""
        asker = self._asker
        assert asker.hello is not None
        source = in_turn(asker.source, self._desks.snapshot_turns, asker.hello.identity)
        try:
            async with aclosing(follow(source, subscribe)) as messages:
                async for message in messages:
                    self._outbox.put_feed(request_id, message)
                    asker.flush()
                    await self._outbox.feed_taken()
                    await asyncio.sleep(0)  # a long snapshot to a fast reader must not keep the loop from the others
        except HeadraceError as error:
            log.warning("a feed failed", address=asker.address, error=str(error))
            asker.shut_out(error)  # the wire has no ERROR for one subscription: the spoke dials again
        except Exception:
            log.exception("a feed failed in an unforeseen way, closing the connection", address=asker.address)
            asker.shut_out(internal_error())
