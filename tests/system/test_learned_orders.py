"""An order seen once is there the next time, on a real mount far from its hub; one that never comes again costs little."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from random import Random

import pytest
from pair import Pair, Spoke, eventually, run

pytestmark = pytest.mark.mount

MIB = 1024 * 1024
RECORD_BYTES = 64 * 1024
DATA_BYTES = 96 * MIB
CACHE = "48MiB"

JOB = """
import hashlib, os, random, sys, threading, time
path, seed, record = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
fd = os.open(path, os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
order = list(range(os.fstat(fd).st_size // record))
random.Random(seed).shuffle(order)
digests = [b""] * len(order)


def work(worker):
    for batch in range(worker * 8, len(order), 32):
        for index in order[batch : batch + 8]:
            digests[index] = hashlib.sha256(os.pread(fd, record, index * record)).digest()
        time.sleep(0.06)  # a step: all four read some 35 MB/s


threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(hashlib.sha256(b"".join(digests)).hexdigest())
"""


@pytest.fixture
def right(pair: Pair) -> str:
    """Makes the data; the digest that a job must find, whatever its order."""
    data = Random(7).randbytes(DATA_BYTES)
    (pair.data / "train.bin").write_bytes(data)
    records = [data[at : at + RECORD_BYTES] for at in range(0, DATA_BYTES, RECORD_BYTES)]
    return hashlib.sha256(b"".join(hashlib.sha256(record).digest() for record in records)).hexdigest()


def epoch(spoke: Spoke, seed: int, right: str) -> dict[str, float]:
    """A job of one epoch; the share of its reads that waited for nobody, the bytes that came and were wasted, for each read."""
    before = spoke.facts()
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(spoke.mountpoint / "train.bin"), str(seed), str(RECORD_BYTES)],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, right), done.stderr
    after = spoke.facts()
    reads = {kind: after["reads"][kind] - before["reads"][kind] for kind in ("hit", "late", "miss")}
    total = sum(reads.values())
    assert total >= DATA_BYTES // RECORD_BYTES, "the kernel's cache answered"
    received = after["hub"]["received_bytes"] - before["hub"]["received_bytes"]
    wasted = after["prefetch"]["wasted_bytes"] - before["prefetch"]["wasted_bytes"]
    return {"hits": reads["hit"] / total, "received": received / DATA_BYTES, "wasted": wasted / DATA_BYTES}


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
    assert "learned:data:1  by learned" in run("spoke.cli", "plan", mountpoint, "list").stdout
    assert "1 orders kept" in run("spoke.cli", "status", mountpoint).stdout
    told = run("spoke.cli", "explain", mountpoint, "train.bin").stdout
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
    assert run("spoke.cli", "plan", mountpoint, "drop", str(order["name"])).returncode == 0
    assert learned(spoke) == []
    assert run("spoke.cli", "plan", mountpoint, "reset").stdout.startswith("forgot 0 learned")
    assert json.loads(run("spoke.cli", "status", mountpoint, "--json").stdout)["learned"]["recorded_steps"] == 0


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
    assert run("spoke.cli", "plan", str(spoke.mountpoint), "reset").returncode == 0
    assert learned(spoke) == []


def test_switched_off_nothing_is_learned(pair: Pair, right: str) -> None:
    spoke = pair.spoke(pair.hub().address, extra=["--no-learn"])
    epoch(spoke, 1, right)
    assert spoke.facts()["learned"]["enabled"] is False
    assert spoke.terminate() == 0
    assert list((pair.work_dir / "cache" / "orders").iterdir()) == []
