"""Questions about orders, asked of the main process: there is one authority for what is kept, however many processes serve."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import cast

from common import limits
from common.serving.orders import OrderAnswer, OrderDesk, OrderQuestion, Teller
from common.wire.frame import HEADER_BYTES, parse_header
from common.wire.message_codec import decode, encode
from hub.workers import messages as m


class DeskOfWorker:
    """An :class:`~common.serving.orders.OrderDesk` in a serving process. ``send``: to the main process."""

    def __init__(self, send: Callable[[m.OrderAsk], None]) -> None:
        self._send = send
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._slots = asyncio.Semaphore(limits.WORKER_ORDER_ASKS_MAX)

    async def answer(self, dataset: str, teller: Teller, question: OrderQuestion) -> OrderAnswer:
        async with self._slots:
            number = next(self._numbers)
            future = self._asked[number] = asyncio.get_running_loop().create_future()
            self._send(m.OrderAsk(number, dataset, *teller, _frame(question)))
            try:
                return cast(OrderAnswer, _message(await future))
            finally:
                del self._asked[number]

    def answered(self, reply: m.OrderReply) -> None:
        future = self._asked.get(reply.number)
        if future is not None and not future.done():
            future.set_result(reply.frame)


async def answer_for(desk: OrderDesk, ask: m.OrderAsk) -> m.OrderReply:
    """In the main process."""
    question = cast(OrderQuestion, _message(ask.frame))
    answer = await desk.answer(ask.dataset, Teller(ask.identity, ask.spoke_id), question)
    return m.OrderReply(ask.number, _frame(answer))


def _frame(message: OrderQuestion | OrderAnswer) -> bytes:
    head, payload = encode(message)
    return head + bytes(payload)


def _message(frame: bytes) -> object:
    header = parse_header(frame)
    end = HEADER_BYTES + header.map_bytes
    return decode(header, frame[HEADER_BYTES:end], frame[end:])
