"""An order seen once is there the next time, on a real mount far from its hub; one that never comes again costs little."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

import pytest
from pair import Pair, Spoke, ask, eventually
from shuffled_job import DATA_BYTES, MIB, epoch, make_data

pytestmark = pytest.mark.mount

CACHE = "48MiB"


@pytest.fixture
def right(pair: Pair) -> str:
    return make_data(pair.data / "train.bin")


def learned(spoke: Spoke) -> list[dict[str, object]]:
    return [order for order in spoke.facts()["orders"] if order["reason"] == "learned"]


@pytest.mark.slow
def test_the_same_order_again_is_there_over_a_smaller_cache_and_after_a_restart(
    pair: Pair, far: Callable[[str], str], right: str
) -> None:
    address = far(pair.hub().address)
    extra = ["--cache-size", CACHE]
    spoke = pair.spoke(address, extra=extra)
    epoch(spoke, 1, right)
    again = epoch(spoke, 1, right)
    assert again["hits"] >= 0.95, (again, spoke.facts()["orders"], spoke.facts()["learned"])
    assert again["received"] <= 1.05, again
    mountpoint = str(spoke.mountpoint)
    (order,) = learned(spoke)
    assert "learned:data:1  by learned" in ask("plan", mountpoint, "list").stdout
    assert "1 orders kept" in ask("status", mountpoint).stdout
    told = ask("explain", mountpoint, "train.bin").stdout
    assert "foretold by learned:data:1 (learned, " in told, told
    assert f"last job   read {DATA_BYTES // MIB} MiB of it" in told, told

    assert spoke.terminate() == 0
    cache = pair.work_dir / "cache"
    for found in cache.iterdir():  # what was learned stays where the blocks go
        if found.is_dir() and found.name not in ("orders", "names"):
            shutil.rmtree(found)
    spoke = pair.spoke(address, extra=extra)
    assert learned(spoke)[0]["name"] == order["name"]
    cold = epoch(spoke, 1, right)
    assert cold["hits"] >= 0.95, (cold, spoke.facts()["orders"], spoke.facts()["learned"])
    assert ask("plan", mountpoint, "drop", str(order["name"])).returncode == 0
    assert learned(spoke) == []
    assert ask("plan", mountpoint, "reset").stdout.startswith("forgot 0 learned")
    assert json.loads(ask("status", mountpoint, "--json").stdout)["learned"]["recorded_steps"] == 0


@pytest.mark.slow
def test_another_order_each_epoch_costs_little(pair: Pair, far: Callable[[str], str], right: str) -> None:
    spoke = pair.spoke(far(pair.hub().address), extra=["--cache-size", "24MiB"])
    epoch(spoke, 1, right)
    for seed in (2, 3):
        seen = epoch(spoke, seed, right)
        assert seen["received"] <= 1.05, (seen, spoke.facts()["orders"])
        assert seen["wasted"] <= 0.05, (seen, spoke.facts()["orders"])
    eventually(lambda: spoke.facts()["learned"]["epochs_seen"] >= 2)
    assert 1 <= len(learned(spoke)) <= 2
    assert ask("plan", str(spoke.mountpoint), "reset").returncode == 0
    assert learned(spoke) == []


def test_switched_off_nothing_is_learned(pair: Pair, right: str) -> None:
    spoke = pair.spoke(pair.hub().address, extra=["--no-learn"])
    epoch(spoke, 1, right)
    assert spoke.facts()["learned"]["enabled"] is False
    assert spoke.terminate() == 0
    assert list((pair.work_dir / "cache" / "orders").iterdir()) == []
