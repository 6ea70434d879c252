"""What waits for the socket of one connection, and in which order it leaves: the feed (one frame at most waits), extents for
readers, extents fetched ahead, pieces of orders. Sends nothing: who asks for the next frame does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from common.serving.feed import FeedMessage
from common.serving.lanes import Lanes
from common.serving.requests import Pick
from common.wire import messages as m


class Frame(NamedTuple):
    """``pick``: what the scheduler chose, where it is one of its extents."""

    message: m.Message
    request_id: int = 0
    pick: Pick | None = None


class Outbox:
    def __init__(self) -> None:
        self.extents = Lanes()
        self.pieces: deque[m.Piece] = deque()
        """Of orders; they leave when nothing else waits to."""
        self._feed: tuple[int, FeedMessage] | None = None
        self._feed_room = asyncio.Event()
        self._feed_room.set()

    def next(self) -> Frame | None:
        """Take the most urgent frame."""
        if self._feed is not None:
            (request_id, message), self._feed = self._feed, None
            return Frame(message, request_id)
        while (staged := self.extents.take()) is not None:
            pick, packed = staged
            if pick.live:
                return Frame(packed.message(last=pick.is_last), pick.request.request_id, pick)
        return Frame(self.pieces.popleft()) if self.pieces else None

    # --- the feed ---------------------------------------------------------------------------------------------

    def put_feed(self, request_id: int, message: FeedMessage) -> None:
        """The next message of the feed; :meth:`feed_taken` says when there is room for another."""
        self._feed = (request_id, message)
        self._feed_room.clear()

    async def feed_taken(self) -> None:
        """Returns once the last message was written and the socket took it."""
        await self._feed_room.wait()

    def written(self) -> None:
        """The socket took all that was given to it."""
        if self._feed is None:
            self._feed_room.set()

    def drop_feed(self) -> None:
        self._feed = None
        self._feed_room.set()
