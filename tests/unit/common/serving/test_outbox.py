"""What leaves a connection first, and what leaves with it."""

import asyncio

from common.blocks import BLOCK_BYTES, BlockRange
from common.serving.egress import Packed
from common.serving.outbox import Outbox
from common.serving.requests import LinkQueues, PathLoad, Pick, Request, SpokeTurns
from common.serving.source import Extent
from common.wire import messages as m

LINK = LinkQueues(1, SpokeTurns(1.0, None, PathLoad()))
DATA = b"x" * BLOCK_BYTES


def staged(outbox: Outbox, request_id: int, priority: m.Priority) -> Pick:
    blocks = BlockRange(0, 1)
    request = Request(LINK, request_id, b"v" * 16, [blocks], priority, 0.0, None)
    pick = Pick(request_id, request, blocks, priority)
    outbox.extents.add(pick, Packed(Extent(blocks, DATA, b"d" * 16), m.Codec.RAW, DATA))
    return pick


def left(outbox: Outbox) -> list[object]:
    """What leaves, in order: a request's number, or the message's type."""
    found: list[object] = []
    while (frame := outbox.next()) is not None:
        found.append(frame.request_id if frame.pick is not None else type(frame.message))
    return found


async def test_the_feed_then_readers_then_what_is_fetched_ahead_then_orders() -> None:
    outbox = Outbox()
    outbox.pieces.append(m.Piece(1, 0, 4, b"data"))
    staged(outbox, 2, m.Priority.PREFETCH)
    staged(outbox, 3, m.Priority.DEMAND)
    outbox.put_feed(4, m.Heartbeat(b"c" * 16, 7))
    assert outbox.extents.waiting_bytes == 2 * BLOCK_BYTES
    assert left(outbox) == [m.Heartbeat, 3, 2, m.Piece]
    assert outbox.extents.waiting_bytes == 0


async def test_a_promoted_request_takes_along_what_is_read_and_a_withdrawn_one_leaves_nothing() -> None:
    outbox = Outbox()
    first, second, third = (staged(outbox, number, m.Priority.PREFETCH) for number in (1, 2, 3))
    second.request.priority = m.Priority.DEMAND
    outbox.extents.promote(second.request)
    outbox.extents.drop(first.request.request_id)
    third.live = False  # its READ has ended
    assert left(outbox) == [2]


async def test_there_is_room_for_the_feed_once_its_last_message_was_written() -> None:
    outbox = Outbox()
    outbox.put_feed(1, m.Heartbeat(b"c" * 16, 7))
    taken = asyncio.create_task(outbox.feed_taken())
    outbox.written()  # not that one: it still waits here
    await asyncio.sleep(0)
    assert not taken.done()
    assert left(outbox) == [m.Heartbeat]
    outbox.written()
    await asyncio.wait_for(taken, 1)
