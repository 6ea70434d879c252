"""On which link a READ is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange
from common.wire.messages import Priority
from spoke.hub_client.client import HubClient, Request, make_hello

VERSION = b"v" * 16
PAGE, LARGE = 1, 64
MIB = 1024 * 1024


class Link(SimpleNamespace):
    def new_request_id(self) -> int:
        return len(self.requests) + 1

    def send(self, message: Any, request_id: int = 0) -> None:
        pass


def link(role: str, received_bytes: int = 0) -> Link:
    return Link(role=role, requests={}, outstanding_bytes=0, received_bytes=received_bytes, is_open=True)


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
