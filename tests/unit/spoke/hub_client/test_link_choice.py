"""On which link a READ is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange
from common.digest import DIGEST_BYTES
from common.wire.messages import Codec, Data, Priority, Promote
from spoke.hub_client.client import HubClient, Request, make_hello

VERSION = b"v" * 16
PAGE, LARGE = 1, 64
MIB = 1024 * 1024


class Link(SimpleNamespace):
    def new_request_id(self) -> int:
        return len(self.requests) + 1

    def send(self, message: Any, request_id: int = 0) -> None:
        self.sent.append((message, request_id))


def link(role: str, received_bytes: int = 0) -> Link:
    return Link(
        role=role,
        requests={},
        outstanding_bytes=0,
        demand_bytes=0,
        received_bytes=received_bytes,
        is_open=True,
        sent=[],
    )


@pytest.fixture
async def client() -> AsyncIterator[HubClient]:
    made = HubClient("127.0.0.1", 1, make_hello("d", "i", b"s" * 16), bulk_links=1, follower=cast(Any, None),
                     clock=lambda: 0.0, dice=Random(1))  # fmt: skip
    yield made
    made.links.up.clear()
    await made.close()


def ask(client: HubClient, blocks: int, priority: Priority = Priority.DEMAND) -> Any:
    request = Request(VERSION, [BlockRange(0, blocks)], priority, None, cast(Any, None))
    client.submit(request)
    return request.link


async def test_small_demand_finds_the_control_link_clear_however_much_is_asked_for(client: HubClient) -> None:
    control, bulk = link("control"), [link("bulk", 100 * MIB) for _ in range(3)]
    client.links.up.extend(cast(Any, [control, *bulk]))
    for _ in range(40):
        ask(client, LARGE)
    assert control.outstanding_bytes <= limits.CONTROL_ALONE_BYTES
    control.requests.clear()
    control.outstanding_bytes = 0  # what was there has come
    assert ask(client, PAGE) is control
    for _ in range(40):
        ask(client, LARGE)
    assert control.outstanding_bytes == BLOCK_BYTES
    assert {id(ask(client, PAGE)) for _ in range(50)} == {id(control)}, "megabytes wait on the others"


async def test_many_small_reads_spread_once_the_control_link_has_its_share(client: HubClient) -> None:
    control, bulk = link("control"), [link("bulk") for _ in range(3)]
    client.links.up.extend(cast(Any, [control, *bulk]))
    for _ in range(64):
        ask(client, 4)
    assert control.outstanding_bytes == limits.CONTROL_DEMAND_BYTES
    waiting = [each.outstanding_bytes for each in bulk]
    assert max(waiting) - min(waiting) <= 4 * BLOCK_BYTES


async def test_without_bulk_links_the_control_link_takes_all(client: HubClient) -> None:
    control = link("control")
    client.links.up.append(cast(Any, control))
    assert {id(ask(client, LARGE)) for _ in range(20)} == {id(control)}


@pytest.mark.parametrize("priority", Priority)
async def test_a_link_whose_start_went_slower_is_asked_for_less(client: HubClient, priority: Priority) -> None:
    fast, slow = link("bulk", 4 * MIB), link("bulk", MIB // 2)
    client.links.up.extend(cast(Any, [fast, slow]))
    for _ in range(12):
        ask(client, LARGE, priority)
    assert fast.outstanding_bytes >= 4 * slow.outstanding_bytes > 0


async def test_what_grown_links_brought_long_ago_tells_nothing(client: HubClient) -> None:
    old, newer = link("bulk", 1 << 40), link("bulk", limits.LINK_GROWN_BYTES)
    client.links.up.extend(cast(Any, [old, newer]))
    for _ in range(12):
        ask(client, LARGE, Priority.PREFETCH)
    assert old.outstanding_bytes == newer.outstanding_bytes


class Taken:
    """A sink that only takes."""

    def arrived(self, request: Request, data: Data) -> None: ...
    def finished(self, request: Request) -> None: ...


def wanted(client: HubClient, block: int, priority: Priority, *, patient: bool = False) -> Any:
    request = Request(VERSION, [BlockRange(block, LARGE)], priority, None, cast(Any, Taken()), patient=patient)
    client.submit(request)
    return request


def bring(client: HubClient, request: Any) -> None:
    """All of it comes."""
    payload, digests = bytes(LARGE * BLOCK_BYTES), bytes(LARGE * DIGEST_BYTES)
    (blocks,) = request.ranges
    client.link_message(request.link, request.request_id, Data(blocks, Codec.RAW, len(payload), digests, True, payload))


async def test_prefetch_under_way_takes_no_room_from_what_readers_stand_before(client: HubClient) -> None:
    """A second of a job of 64 workers: 16 MiB of prefetch filled the links, and the batches wanted next came by the control link."""
    bulk = [link("bulk", 100 * MIB) for _ in range(2)]
    client.links.up.extend(cast(Any, bulk))
    for at in range(64):
        wanted(client, at * LARGE, Priority.PREFETCH)
    asked = [wanted(client, (100 + at) * LARGE, Priority.DEMAND, patient=True) for at in range(3)]
    assert [request.link for request in asked] == [bulk[0], bulk[1], None], "each link has LINK_YOUNG_BYTES of demand"
    bring(client, asked[1])
    assert asked[2].link is bulk[1]
    assert [each.demand_bytes for each in bulk] == [LARGE * BLOCK_BYTES] * 2


async def test_prefetch_that_is_hurried_does_not_overtake_what_readers_stand_before_already(client: HubClient) -> None:
    """The second batches of those who were done were promoted, and came before the first batches of the others."""
    bulk = link("bulk", 100 * MIB)
    client.links.up.append(cast(Any, bulk))
    later = wanted(client, 900, Priority.PREFETCH)
    first, second = (wanted(client, at * LARGE, Priority.DEMAND, patient=True) for at in range(2))
    client.hurry(later)
    assert first.link is bulk
    assert second.link is None
    assert not any(isinstance(message, Promote) for message, _ in bulk.sent)
    bring(client, first)
    assert second.link is bulk
    assert not any(isinstance(message, Promote) for message, _ in bulk.sent)
    bring(client, second)
    assert isinstance(bulk.sent[-1][0], Promote)
    assert bulk.sent[-1][1] == later.request_id
    assert bulk.demand_bytes == LARGE * BLOCK_BYTES
    bring(client, later)
    assert (bulk.demand_bytes, bulk.outstanding_bytes) == (0, 0)


async def test_prefetch_that_is_hurried_and_comes_meanwhile_is_not_told_of(client: HubClient) -> None:
    bulk = link("bulk", 100 * MIB)
    client.links.up.append(cast(Any, bulk))
    later = wanted(client, 900, Priority.PREFETCH)
    first = wanted(client, 0, Priority.DEMAND, patient=True)
    client.hurry(later)
    bring(client, later)
    bring(client, first)
    assert not any(isinstance(message, Promote) for message, _ in bulk.sent)
    assert (bulk.demand_bytes, bulk.outstanding_bytes) == (0, 0)
