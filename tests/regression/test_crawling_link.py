"""A hub that sends a byte now and then and answers no ping: it was heard, so its links stayed up for ever, and nobody dialled anew."""

from __future__ import annotations

import pytest

from common import limits
from common.errors import HeadraceError
from common.wire.messages import Message, Welcome
from spoke.hub_client.client import make_hello
from spoke.hub_client.links import Link


class Owner:
    def __init__(self) -> None:
        self.closed: list[HeadraceError] = []

    def link_message(self, link: Link, request_id: int, message: Message) -> None: ...

    def link_taken(self) -> None: ...

    def link_closed(self, link: Link, error: HeadraceError) -> None:
        self.closed.append(error)


@pytest.mark.parametrize(("bytes_a_second", "dropped"), [(1, True), (4000, False)])
async def test_it_is_dropped_unless_it_brings_something(
    monkeypatch: pytest.MonkeyPatch, bytes_a_second: int, dropped: bool
) -> None:
    now_s = 0.0
    owner = Owner()
    link = Link("control", make_hello("data", "spoke", bytes(16)), owner, lambda: now_s)
    link.welcome = Welcome(1, "data", bytes(16), 1, 2000)
    sent: list[Message] = []
    monkeypatch.setattr(link, "send", sent.append)
    link.check_alive(now_s)
    assert len(sent) == 1, "a ping"
    link.received_bytes = 100
    for _ in range(int(2 * limits.LINK_DEAD_AFTER_S)):
        now_s += 1.0
        link.received_bytes += bytes_a_second
        link.last_heard_s = now_s
        link.check_alive(now_s)
        if owner.closed:
            break
    assert bool(owner.closed) is dropped
    if dropped:
        assert "answers no ping" in str(owner.closed[0])
        assert now_s <= limits.LINK_DEAD_AFTER_S + 1
