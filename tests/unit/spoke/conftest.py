"""The spoke's read path over real sockets and a real cache directory, with a source in memory behind the hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from common import limits, runtime
from common.serving.server import Server
from spoke.ahead import Ahead
from spoke.cache.store import Store
from spoke.fetcher import Fetcher
from spoke.hub_client.client import HubClient, make_hello
from spoke.metrics import Counts
from spoke.prefetch.planner import Planner
from spoke.reads import Handle, Reads
from tests.fakes.memory_source import MemorySource


class Feed:
    """A follower that only notes."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.ups = 0
        self.losses = 0

    def feed_up(self, link: Any) -> None:
        self.ups += 1

    def feed_message(self, link: Any, message: Any) -> None:
        self.messages.append(message)

    def feed_lost(self, link: Any) -> None:
        self.losses += 1


@dataclass
class ReadPath:
    """All between a READ at the mount and the hub's source. ``open`` gives a handle as the mount would."""

    source: MemorySource
    server: Server
    client: HubClient
    store: Store
    fetcher: Fetcher
    reads: Reads
    counts: Counts
    feed: Feed
    handles: list[Handle] = field(default_factory=list)

    def open(self, path: bytes) -> Handle:
        entry = self.source.entries()[path]
        handle = Handle(len(self.handles) + 1, path, entry.version, entry.size_bytes)
        self.handles.append(handle)
        return handle

    async def read(self, handle: Handle, offset_bytes: int, length_bytes: int) -> bytes:
        return bytes(await self.reads.read(handle, offset_bytes, length_bytes, 1))


@pytest.fixture
async def make_read_path(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    made: list[ReadPath] = []

    async def make(
        files: dict[bytes, bytes], *, prefetch: bool = False, read_timeout_s: float = 20.0, links: int = 2,
        capacity_bytes: int = 64 << 20, stream_max_bytes: int | None = None, **store_options: Any,
    ) -> ReadPath:  # fmt: skip
        source = MemorySource(files)
        server = Server({"memory": source}, listen=("127.0.0.1", 0), clock=runtime.now_s)
        await server.start()
        store = await asyncio.to_thread(
            Store.open, tmp_path / f"cache{len(made)}", capacity_bytes, 0, 0, Random(1), **store_options
        )
        counts, feed = Counts(), Feed()
        client = HubClient(
            "127.0.0.1", server.port, make_hello("memory", "test", bytes(16)), bulk_links=links, follower=feed,
            clock=runtime.now_s, dice=Random(1),
        )  # fmt: skip
        planner = Planner(stream_max_bytes=stream_max_bytes or limits.PREFETCH_STREAM_MAX_BYTES) if prefetch else None
        ahead = Ahead(planner, counts, runtime.now_s)
        fetcher = Fetcher(client, store, ahead, runtime.now_s, Random(1))
        ahead.attach(fetcher, client)
        reads = Reads(store, fetcher, ahead, runtime.now_s, read_timeout_s=read_timeout_s)
        fetcher.start()
        client.start()
        await client.links.first_contact(10)
        path = ReadPath(source, server, client, store, fetcher, reads, counts, feed)
        made.append(path)
        return path

    yield make
    for path in made:
        if path.source.gate is not None:
            path.source.gate.set()
        await path.fetcher.close()
        await path.client.close()
        await path.server.close()
        await path.store.close()


async def until(condition: Callable[[], bool]) -> None:
    """For what happens at the other end of a socket and has no event of its own."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)
