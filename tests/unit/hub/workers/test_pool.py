"""The main process over real serving processes: hung ones are replaced, ones that cannot begin end the start."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from common import limits
from common.errors import HeadraceError
from common.runtime import now_s
from hub.source import HubSource
from hub.workers.member import WorkersFailed
from hub.workers.messages import Start
from hub.workers.pool import Pool
from tests.fakes.wire_client import WireClient

Make = Callable[..., Awaitable[Pool]]


async def until(condition: Callable[[], bool], timeout_s: float = 15) -> None:
    """For what another process does, and tells nobody here."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    root = tmp_path / "data"
    root.mkdir()
    (root / "f").write_bytes(b"bytes")
    pools: list[Pool] = []
    failures: list[HeadraceError] = []
    async with HubSource("ds", root, tmp_path / "state") as source:

        async def start(processes: int = 2, compression: str = "off", rate: float | None = None) -> Pool:
            words = Start(
                {"ds": (os.fsencode(root), -1)}, os.fsencode(tmp_path / "state"), compression, rate, None, {}, processes,
                "info", "json", {"tls": None, "token": None, "audit": False}, {},
            )  # fmt: skip
            pool = Pool(
                {"ds": source}, processes, listen=("127.0.0.1", 0), clock=now_s, start_words=words,
                on_failed=failures.append,
            )  # fmt: skip
            pools.append(pool)
            await pool.start()
            return pool

        yield start
        for pool in pools:
            await pool.close()


def pids(pool: Pool) -> list[Any]:
    return [worker["pid"] for worker in pool.workers() if worker["serving"]]


async def test_a_process_that_hangs_is_ended_and_replaced(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKER_SILENT_S", 1.0)
    pool = await make()
    hung = pids(pool)[0]
    os.kill(hung, signal.SIGSTOP)
    await until(lambda: hung not in pids(pool))
    await until(lambda: len(pids(pool)) == 2)
    assert pool.restarts == 1
    async with WireClient(pool.port, "ds") as client:
        assert client.welcome is not None


async def test_a_process_that_does_not_stop_is_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKER_STOP_S", 0.5)
    pool = await make()
    hung = pids(pool)[0]
    os.kill(hung, signal.SIGSTOP)
    async with asyncio.timeout(5):
        await pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(hung, 0)


async def test_processes_that_cannot_begin_end_the_start(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKER_DEATHS_MAX", 2)
    with pytest.raises(WorkersFailed, match="ended 2 times within 60 s, last with exit code 1"):
        await make(compression="no such word")


async def test_a_taken_port_is_said_before_any_process_is_begun(make: Make) -> None:
    pool = await make(1)
    again = Pool(
        {}, 1, listen=("127.0.0.1", pool.port), clock=now_s, start_words=pool._start_words, on_failed=lambda _: None
    )
    with pytest.raises(OSError, match="in use"):
        await again.start()
    await again.close()


async def test_the_shares_follow_the_total_when_it_changes(make: Make) -> None:
    pool = await make(rate=10e6)
    assert sum(worker["share_bytes_per_s"] for worker in pool.workers()) == pytest.approx(10e6)
    pool.limit_total(4e6)
    assert sum(worker["share_bytes_per_s"] for worker in pool.workers()) == pytest.approx(4e6)
    pool.limit_total(None)
    assert [worker["share_bytes_per_s"] for worker in pool.workers()] == [None, None]
