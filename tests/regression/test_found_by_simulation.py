"""What the simulation of the whole system (bench/simulation) found, each on its own."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from random import Random
from typing import Any

import pytest
from cache_support import CAPACITY_BYTES, FaultyDisk, File

from common import runtime
from common.blocks import BlockRange
from common.errors import CacheDirectoryError, HeadraceError
from common.serving.server import Server
from common.serving.session import Session
from common.wire.messages import Data, Priority
from spoke.cache.store import Store
from spoke.hub_client.client import HubClient, Request, make_hello
from tests.fakes.memory_source import MemorySource


@pytest.mark.parametrize("call", ["statvfs", "unlink"])
async def test_a_disk_that_fails_while_a_cache_is_opened_is_told_in_a_sentence(tmp_path: Path, call: str) -> None:
    """It left as OSError: a traceback instead of the reason, and the directory was locked on."""
    store = Store.open(tmp_path, CAPACITY_BYTES, 0, 0, Random(1))
    file = File(1, 100_000)
    await file.put(store)
    await store.close()
    file.path(tmp_path, "index").unlink()  # half a pair, which is removed at the next start
    disk = FaultyDisk()
    disk.fail(call, errno.EIO)
    with pytest.raises(CacheDirectoryError, match=f"{tmp_path} cannot be read: Input/output error"):
        Store.open(tmp_path, CAPACITY_BYTES, 0, 0, Random(1), disk=disk)
    await Store.open(tmp_path, CAPACITY_BYTES, 0, 0, Random(1)).close()


class _Feed:
    def feed_up(self, link: Any) -> None: ...
    def feed_message(self, link: Any, message: Any) -> None: ...
    def feed_lost(self, link: Any) -> None: ...


class _Reader:
    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def arrived(self, _request: Request, data: Data) -> None:
        self.answer.set_result(bytes(data.payload))

    def finished(self, _request: Request) -> None: ...

    def failed(self, _request: Request, error: HeadraceError) -> None:
        self.answer.set_exception(error)


async def test_a_hub_whose_goodbye_comes_with_its_welcome_leaves_no_dead_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that is told to stop while a spoke dials. The link was taken for open for ever, and every request that went to it hung."""
    welcomed: list[int] = []
    right = Session._welcome

    def welcome_and_goodbye(session: Session, hello: Any) -> None:
        right(session, hello)
        welcomed.append(session.link_id)
        if len(welcomed) <= 3:  # every link of the client, once
            session.say_goodbye("the server stops")

    monkeypatch.setattr(Session, "_welcome", welcome_and_goodbye)
    content = bytes(range(256)) * 16
    source = MemorySource({b"f": content})
    async with Server({"memory": source}, listen=("127.0.0.1", 0)) as server:
        client = HubClient(
            "127.0.0.1", server.port, make_hello("memory", "test", bytes(16)), bulk_links=2, follower=_Feed(),
            clock=runtime.now_s, dice=Random(1),
        )  # fmt: skip
        client.start()
        try:
            async with asyncio.timeout(20):
                while len(welcomed) < 6:
                    await asyncio.sleep(0.01)
                await client.links.first_contact(10)
                readers = [_Reader() for _ in range(6)]  # so many that each link is asked
                for reader in readers:
                    client.submit(
                        Request(source.entries()[b"f"].version, [BlockRange(0, 1)], Priority.DEMAND, None, reader)
                    )
                assert [await reader.answer for reader in readers] == [content] * 6
            assert len(client.links.up) <= 3
        finally:
            await client.close()
