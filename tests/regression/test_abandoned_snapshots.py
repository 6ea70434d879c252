"""A subscriber that left in the middle of a snapshot kept its place among those read at once for five minutes; 16 of them, and
nobody got the names any more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from common import limits
from common.serving.server import Server
from common.wire.messages import SnapshotPage, Subscribe
from hub.source import HubSource
from tests.fakes.wire_client import WireClient


async def names_of(port: int, identity: str) -> int:
    async with WireClient(port, "ds", identity=identity) as client:
        client.send(Subscribe(b"", 0))
        count = 0
        while True:
            page = await client.message()
            assert isinstance(page, SnapshotPage)
            count += len(page.entries)
            if page.last:
                return count


async def test_who_leaves_or_does_not_read_keeps_nobody_from_the_names(tmp_path: Path) -> None:
    root = tmp_path / "data"
    for folder in range(20):
        (root / f"{folder:060d}" / ("x" * 200)).mkdir(parents=True)
        for name in range(400):
            (root / f"{folder:060d}" / ("x" * 200) / f"{name:0200d}").touch()
    async with (
        HubSource("ds", root, tmp_path / "state") as source,
        Server({"ds": source}, listen=("127.0.0.1", 0)) as server,
        asyncio.timeout(60),
    ):
        for _ in range(limits.SNAPSHOTS_MAX_OPEN + 1):
            async with WireClient(server.port, "ds", identity="leaves", receive_buffer_bytes=4096) as client:
                client.send(Subscribe(b"", 0))
                await client.message()
        assert await names_of(server.port, "honest") == 20 * 402

        silent = [
            WireClient(server.port, "ds", identity="silent", receive_buffer_bytes=4096)
            for _ in range(limits.SNAPSHOTS_MAX_OPEN + 1)
        ]
        for client in silent:
            await client.dial()
            await client.greet()
            client.send(Subscribe(b"", 0))
        assert await names_of(server.port, "honest") == 20 * 402
        for client in silent:
            await client.close()
        while len(server.snapshot_turns):
            await asyncio.sleep(0.01)
