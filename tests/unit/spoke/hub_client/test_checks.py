"""Questions about a path: they wait for a link, outlive it, and end in what the hub answered."""

from __future__ import annotations

import asyncio

import pytest

from common.errors import PeerError, SourceReadError
from common.wire.messages import CAPABILITIES, Check, Checked, Welcome
from spoke.hub_client.checks import Checks, Position

CATALOG = b"c" * 16


class Link:
    def __init__(self, capabilities: tuple[str, ...] = CAPABILITIES) -> None:
        self.welcome = Welcome(1, "d", CATALOG, 5, 2000, capabilities=capabilities)
        self.sent: list[Check] = []
        self.asked = asyncio.Event()

    def send(self, message: Check) -> None:
        self.sent.append(message)
        self.asked.set()


async def asked(checks: Checks, link: Link, path: bytes) -> tuple[asyncio.Task[Position], Check]:
    task = asyncio.create_task(checks.ask(path), name="ask")
    async with asyncio.timeout(5):
        await link.asked.wait()
    link.asked.clear()
    return task, link.sent[-1]


async def test_an_answer_says_where_the_names_must_have_come_to() -> None:
    checks, link = Checks(), Link()
    checks.link_up(link)
    (one, first), (two, second) = await asked(checks, link, b"a"), await asked(checks, link, b"b")
    assert (first.path, second.path) == (b"a", b"b")
    checks.answered(Checked(second.token, CATALOG, 9))
    checks.answered(Checked(first.token, CATALOG, 7))
    checks.answered(Checked(99, CATALOG, 1))  # nobody's
    assert (await one, await two) == (Position(CATALOG, 7), Position(CATALOG, 9))


async def test_a_question_waits_for_a_link_and_is_asked_again_on_the_next() -> None:
    checks, first, second = Checks(), Link(), Link()
    task = asyncio.create_task(checks.ask(b"f"), name="ask")
    await asyncio.sleep(0)
    checks.link_up(first)
    async with asyncio.timeout(5):
        await first.asked.wait()
    checks.link_lost(second)  # another one: no matter
    checks.link_lost(first)
    await asyncio.sleep(0)
    assert not task.done()
    checks.link_up(second)
    async with asyncio.timeout(5):
        await second.asked.wait()
        checks.answered(Checked(second.sent[0].token, CATALOG, 3))
        assert await task == Position(CATALOG, 3)


async def test_what_the_hub_answered_is_raised_and_an_old_hub_is_not_asked() -> None:
    checks, link, old = Checks(), Link(), Link(())
    checks.link_up(link)
    task, check = await asked(checks, link, b"f")
    checks.answered(Checked(check.token, CATALOG, 0, "source-read", "the disk is away"))
    with pytest.raises(SourceReadError, match="the disk is away"):
        await task
    checks.link_up(old)
    with pytest.raises(PeerError, match="too old"):
        await checks.ask(b"f")
    assert old.sent == []
