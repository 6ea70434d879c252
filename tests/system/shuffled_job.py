"""A job that reads a file in records, shuffled and shared out among four threads, and what its reads cost."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from random import Random

from pair import Spoke

MIB = 1024 * 1024
RECORD_BYTES = 64 * 1024
DATA_BYTES = 96 * MIB

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


def make_data(path: Path, size_bytes: int = DATA_BYTES) -> str:
    """The digest that a job must find, whatever its order."""
    data = Random(7).randbytes(size_bytes)
    path.write_bytes(data)
    records = [data[at : at + RECORD_BYTES] for at in range(0, size_bytes, RECORD_BYTES)]
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
    size_bytes = (spoke.mountpoint / "train.bin").stat().st_size
    reads = {kind: after["reads"][kind] - before["reads"][kind] for kind in ("hit", "late", "miss")}
    total = sum(reads.values())
    assert total >= size_bytes // RECORD_BYTES, "the kernel's cache answered"
    received = after["hub"]["received_bytes"] - before["hub"]["received_bytes"]
    wasted = after["prefetch"]["wasted_bytes"] - before["prefetch"]["wasted_bytes"]
    return {"hits": reads["hit"] / total, "received": received / size_bytes, "wasted": wasted / size_bytes}
