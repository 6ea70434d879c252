"""A hub of several processes behind one port: a spoke sees no difference, and no death of a process harms a reader."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import time
import urllib.request

import pytest
from pair import Hub, Pair, Spoke, eventually, is_running, run

from common.blocks import BLOCK_BYTES, BlockRange
from common.errors import Overloaded
from common.wire.connection import Closed, Received
from common.wire.messages import Changes, Check, Checked, Data, Heartbeat, Priority, SnapshotPage, Subscribe
from tests.fakes.wire_client import WireClient
from tests.system.test_changes import (  # noqa: F401
    test_a_file_rewritten_in_place_during_reads_never_mixes_versions,
    test_an_open_handle_keeps_its_version_from_the_cache_and_gets_estale_beyond_it,
    test_names_come_go_and_move,
    test_new_opens_see_a_change_within_a_second,
)
from tests.system.test_pinned_and_strict import (  # noqa: F401
    test_a_mount_stays_at_a_snapshot_whatever_happens_at_the_hub,
    test_a_strict_open_sees_what_was_written_before_it,
)

pytestmark = [pytest.mark.mount, pytest.mark.slow]

MIB = 1 << 20


@pytest.fixture
def pair(pair: Pair) -> Pair:
    """Hubs of two serving processes; the imported tests use it too."""
    pair.hub_flags = ("--workers", "2")
    return pair


def pids(hub: Hub) -> list[int]:
    """Of the serving processes that are up."""
    return [worker["pid"] for worker in hub.status()["workers"] if worker["serving"]]


def busiest(hub: Hub) -> int:
    """The pid of the process with most connections."""
    worker = max(hub.status()["workers"], key=lambda found: found["connections"])
    assert worker["connections"] > 0
    return int(worker["pid"])


def spoke_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def metric(hub: Hub, name: str) -> float:
    with urllib.request.urlopen(f"http://{hub.metrics}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and line[len(name)] in " {")


async def version_of(client: WireClient, path: bytes) -> bytes:
    client.send(Subscribe(b"", 0))
    found = b""
    while True:
        page = await client.message()
        assert isinstance(page, SnapshotPage)
        found = dict(page.entries)[path].version if path in dict(page.entries) else found
        if page.last:
            return found


def test_a_reader_gets_the_right_bytes_while_its_process_is_killed_again_and_again(pair: Pair) -> None:
    data = random.Random(1).randbytes(96 * MIB)
    (pair.data / "f").write_bytes(data)
    hub = pair.hub(extra=["--rate-limit", "400mbit"])
    spoke: Spoke = pair.spoke(hub.address)
    digest, killed = hashlib.sha256(), 0
    started_s = time.monotonic()
    with (spoke.mountpoint / "f").open("rb", buffering=0) as file:
        while piece := file.read(MIB):
            digest.update(piece)
            if file.tell() in (16 * MIB, 48 * MIB):
                os.kill(busiest(hub), signal.SIGKILL)
                killed += 1
    assert digest.digest() == hashlib.sha256(data).digest()
    assert killed == 2
    assert time.monotonic() - started_s < 30
    eventually(lambda: len(pids(hub)) == 2)
    assert metric(hub, "headrace_hub_worker_restarts_total") == 2
    sent = metric(hub, "headrace_hub_sent_bytes_total")
    assert sent > 40 * MIB, "what the dead had counted stays counted"
    (pair.data / "g").write_bytes(b"new")
    eventually((spoke.mountpoint / "g").exists)


def test_the_processes_end_with_the_main_one_and_leave_the_state_free(pair: Pair) -> None:
    (pair.data / "f").write_bytes(b"bytes")
    hub = pair.hub()
    spoke = pair.spoke(hub.address)
    assert (spoke.mountpoint / "f").read_bytes() == b"bytes"
    before = pids(hub)
    hub.kill(signal.SIGKILL)
    eventually(lambda: not any(map(is_running, before)), 3)
    again = pair.hub(hub.port)
    assert not set(pids(again)) & set(before)
    eventually(lambda: spoke.facts()["hub"]["connected"])
    (pair.data / "g").write_bytes(b"more")
    eventually(lambda: (spoke.mountpoint / "g").exists() and (spoke.mountpoint / "g").read_bytes() == b"more")


async def test_an_orderly_stop_says_goodbye_and_ends_everything(pair: Pair) -> None:
    (pair.data / "f").write_bytes(b"bytes")
    hub = pair.hub()
    before = pids(hub)
    clients = [WireClient(hub.port, "data", spoke_id=spoke_id(number)) for number in range(4)]
    for client in clients:
        await client.dial()
        await client.greet()
    hub.popen.send_signal(signal.SIGTERM)
    for client in clients:
        while isinstance(event := await client.receive(), Received):
            pass
        assert isinstance(event, Closed)
        assert event.orderly, event
        await client.close()
    assert await asyncio.to_thread(hub.popen.wait, 10) == 0
    assert not any(map(is_running, before))


def test_processes_that_die_again_and_again_end_the_hub_with_an_error(pair: Pair) -> None:
    hub = pair.hub()
    end_s = time.monotonic() + 30
    while hub.popen.poll() is None:
        assert time.monotonic() < end_s
        try:
            worker = hub.status()["workers"][0]
        except OSError:
            break
        if worker["pid"] is not None:
            try:
                os.kill(worker["pid"], signal.SIGKILL)
            except ProcessLookupError:
                time.sleep(0.02)
    assert hub.popen.wait(15) == 1
    assert "ended 5 times within 60 s" in hub.log()
    assert "SIGKILL" in hub.log()


async def test_spokes_are_spread_all_connections_of_one_together_and_counted_in_one_place(pair: Pair) -> None:
    (pair.data / "f").write_bytes(os.urandom(MIB))
    hub = pair.hub()
    clients = [
        WireClient(hub.port, "data", spoke_id=spoke_id(number // 3), identity=f"gpu-{number // 3}")
        for number in range(12)
    ]
    for client in clients:
        await client.dial()
        await client.greet()
    version = await version_of(clients[0], b"f")
    for client in clients[1:]:
        assert len(await client.fetch(version, MIB)) == MIB

    def counted() -> bool:
        status = hub.status()
        return (
            sorted(worker["spokes"] for worker in status["workers"]) == [2, 2]
            and sorted(worker["connections"] for worker in status["workers"]) == [6, 6]
            and sorted((spoke["identity"], spoke["connections"]) for spoke in status["spokes"])
            == [(f"gpu-{number}", 3) for number in range(4)]
            and metric(hub, "headrace_hub_spokes") == 4
            and metric(hub, "headrace_hub_connections") == 12
            and metric(hub, "headrace_hub_sent_bytes_total") > 11 * MIB
        )

    await asyncio.to_thread(eventually, counted)
    for client in clients:
        await client.close()
    await asyncio.to_thread(
        eventually, lambda: hub.status()["spokes"] == [] and metric(hub, "headrace_hub_connections") == 0
    )


async def test_a_total_rate_holds_over_the_processes_and_is_shared_by_spokes_not_by_processes(pair: Pair) -> None:
    size_bytes = 16 * MIB
    (pair.data / "f").write_bytes(os.urandom(size_bytes))
    rate_bytes_per_s = 24e6
    hub = pair.hub(extra=["--rate-limit", "192mbit", "--compression", "off"])
    clients = [WireClient(hub.port, "data", spoke_id=spoke_id(number)) for number in range(4)]
    for client in clients[:2]:
        await client.dial()
        await client.greet()
    version = await version_of(clients[0], b"f")
    got = [0] * len(clients)

    async def pull(number: int, until_s: float) -> None:
        client = clients[number]
        for _ in range(2):
            client.read(version, BlockRange(0, size_bytes // BLOCK_BYTES), priority=Priority.PREFETCH)
        while time.monotonic() < until_s:
            try:
                async with asyncio.timeout(until_s - time.monotonic()):
                    event = await client.receive()
            except TimeoutError:
                return
            assert isinstance(event, Received)
            if isinstance(event.message, Data):
                got[number] += len(event.message.payload)
                if event.message.last:
                    client.read(version, BlockRange(0, size_bytes // BLOCK_BYTES), priority=Priority.PREFETCH)

    # A first second to let the rates settle, then the one that is measured.
    await asyncio.gather(*(pull(number, time.monotonic() + 1.0) for number in range(2)))
    got[:] = [0] * len(clients)
    span_s = 3.0
    await asyncio.gather(*(pull(number, time.monotonic() + span_s) for number in range(2)))
    both = hub.status()["workers"]
    assert [worker["spokes"] for worker in both] == [1, 1]
    # What may come early: a burst of 10 ms and one extent of each process, and what was under way.
    slack_bytes = 2 * (rate_bytes_per_s * 0.01 + 2 * MIB) + 2 * MIB
    assert sum(got) <= rate_bytes_per_s * span_s + slack_bytes
    assert sum(got) >= 0.8 * rate_bytes_per_s * span_s
    assert min(got[:2]) >= 0.75 * max(got[:2])
    for client in clients:
        await client.close()


async def test_a_check_and_a_feed_through_another_process(pair: Pair) -> None:
    (pair.data / "f").write_bytes(b"1")
    hub = pair.hub()
    for number in range(4):  # so that both are asked
        async with WireClient(hub.port, "data", spoke_id=spoke_id(number)) as client:
            await version_of(client, b"f")
            assert isinstance(await client.message(), Heartbeat)
            path = pair.data / f"new-{number}"
            path.write_bytes(b"2")
            client.send(Check(5, os.fsencode(path.name)))
            checked, seen = None, {}
            while checked is None or max(seen, default=0) < checked.revision:
                message = await client.message()
                if isinstance(message, Checked):
                    checked = message
                    assert not checked.code
                elif isinstance(message, Changes):
                    seen |= {change.revision: change.path for change in message.changes}
            assert os.fsencode(path.name) in seen.values()


async def test_a_spoke_dials_again_while_no_process_is_up(pair: Pair) -> None:
    (pair.data / "f").write_bytes(b"1")
    hub = pair.hub()
    for pid in pids(hub):
        os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(eventually, lambda: not pids(hub))
    refused = 0
    async with asyncio.timeout(15):
        while True:
            client = WireClient(hub.port, "data")
            await client.dial()
            try:
                await client.greet()
                break
            except (Overloaded, ConnectionError) as error:
                refused += isinstance(error, Overloaded)
                await asyncio.sleep(0.05)
            finally:
                await client.close()
    assert refused


def test_too_many_and_too_few_processes_are_refused(pair: Pair) -> None:
    for count in ("0", "65", "two"):
        done = run("hub.cli", "serve", "--dataset", f"data={pair.data}", "--workers", count)
        assert done.returncode == 2
        assert "workers" in done.stderr
