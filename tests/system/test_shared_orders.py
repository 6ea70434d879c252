"""What one spoke learned, another follows the first time it reads: real hub, real mounts, a path of 60 ms between them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pair import Pair, Spoke, ask, eventually, run
from shuffled_job import DATA_BYTES, RECORD_BYTES, epoch, make_data

pytestmark = pytest.mark.mount


@pytest.fixture
def right(pair: Pair) -> str:
    return make_data(pair.data / "train.bin", DATA_BYTES // 2)


def shared(spoke: Spoke) -> dict[str, Any]:
    found: dict[str, Any] = spoke.facts()["learned"]["shared"]
    return found


def hub_orders(state_dir: Path, *arguments: str) -> str:
    done = run("hub.cli", "orders", *arguments, "--state-dir", str(state_dir))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_order_that_another_spoke_learned_is_followed_at_the_first_read(
    pair: Pair, far: Callable[[str], str], right: str, workers: int
) -> None:
    hub = pair.hub(extra=["--workers", str(workers)])
    address = far(hub.address)
    first = pair.spoke(
        address, "first", "cache-first", extra=["--share-orders", "--identity", "gpu-1", "--cache-size", "64MiB"]
    )
    epoch(first, 1, right)
    assert first.terminate() == 0  # what it learned is told while it stops
    eventually(lambda: hub.status()["datasets"]["data"]["orders"]["kept"] == 1)
    state_dir = pair.work_dir / "hub-state"
    assert "told by gpu-1" in hub_orders(state_dir, "list")

    second = pair.spoke(
        address, "second", "cache-second", extra=["--share-orders", "--identity", "gpu-2", "--cache-size", "64MiB"]
    )
    eventually(lambda: shared(second)["held"])
    seen = epoch(second, 1, right)
    assert seen["hits"] >= 0.9, (seen, second.facts()["orders"], shared(second))
    assert seen["received"] <= 1.1, seen
    (held,) = shared(second)["held"]
    assert held["origin"] == f"told by gpu-1 through the hub {address}"
    mountpoint = str(second.mountpoint)
    assert "told by gpu-1" in ask("status", mountpoint).stdout
    assert "by reported, " in ask("plan", mountpoint, "list").stdout
    explained = ask("explain", mountpoint, "train.bin").stdout
    assert f"{held['name']} (reported, " in explained
    assert "told by gpu-1" in explained
    assert second.terminate() == 0
    # The whole epoch was read along it: nothing else is kept of it, and the hub knows that it was followed.
    (kept,) = json.loads(hub_orders(state_dir, "list", "--json"))
    assert (kept["teller"], kept["tellers"], kept["followed"]) == ("gpu-1", 2, True)
    assert [path.name[:8] for path in (pair.work_dir / "cache-second/orders").glob("*.order")] == ["foreign-"]


def test_reset_and_drop_hold(pair: Pair, right: str) -> None:
    hub = pair.hub()
    first = pair.spoke(hub.address, "first", "cache-first", extra=["--share-orders", "--identity", "gpu-1"])
    epoch(first, 1, right)
    assert first.terminate() == 0
    state_dir = pair.work_dir / "hub-state"
    (kept,) = json.loads(hub_orders(state_dir, "list", "--json"))
    assert kept["steps"] >= DATA_BYTES // 2 // RECORD_BYTES * 0.9

    second = pair.spoke(hub.address, "second", "cache-second", extra=["--share-orders"])
    eventually(lambda: shared(second)["held"])
    mountpoint = str(second.mountpoint)
    assert ask("plan", mountpoint, "reset").stdout == "forgot 1 learned order\n"
    eventually(lambda: shared(second)["refused"] == 1)
    assert shared(second)["held"] == []
    assert second.terminate() == 0
    second = pair.spoke(hub.address, "second", "cache-second", extra=["--share-orders"])
    eventually(lambda: shared(second)["hub_keeps_orders"])
    assert (shared(second)["held"], shared(second)["refused"]) == ([], 1)
    assert second.terminate() == 0

    third = pair.spoke(hub.address, "third", "cache-third")  # not unless asked for
    assert shared(third)["enabled"] is False
    assert "not shared with other spokes" in ask("status", str(third.mountpoint)).stdout
    wrong = run("hub.cli", "orders", "drop", "ffff", "--state-dir", str(state_dir))
    assert wrong.returncode == 2
    assert "headrace-hub orders list" in wrong.stderr
    assert hub_orders(state_dir, "drop", kept["digest"][:8]).startswith("dropped " + kept["digest"][:12])
    assert hub_orders(state_dir, "list") == "no orders\n"
    # The spoke that learned it tells of it again, and the hub does not take it again.
    first = pair.spoke(hub.address, "first", "cache-first", extra=["--share-orders", "--identity", "gpu-1"])
    eventually(lambda: shared(first)["told"]["told"] == 1)
    assert hub_orders(state_dir, "list") == "no orders\n"


def test_a_hub_that_does_not_share(pair: Pair, right: str) -> None:
    hub = pair.hub(extra=["--no-share-orders"])
    spoke = pair.spoke(hub.address, extra=["--share-orders"])
    epoch(spoke, 1, right)
    assert shared(spoke)["hub_keeps_orders"] is False
    assert "no hub that keeps orders" in ask("status", str(spoke.mountpoint)).stdout
    assert spoke.terminate() == 0
    assert hub.status()["datasets"]["data"]["orders"] is None
    assert list((pair.work_dir / "hub-state").glob("*.orders")) == []
