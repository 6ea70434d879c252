"""What a job would wait, move and pay over a link, three ways: cached remote, copied first, or once there is capacity beside the data.

Pure arithmetic on what is known before anything is rented; docs/planning.md says what is in it and what is not. Bytes, seconds,
bytes per second, money in whatever unit the prices are in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from common import limits
from common.errors import UsageError

LINK_SHARE = 0.95
"""Of the link, what both ways of moving bytes are taken to reach: Headrace's own target at 60 ms (bench/RESULTS.md has what was seen)."""

SCAN_HIT_SHARE = 0.9
"""Of what a cache smaller than its part of the data holds, what an epoch finds in it: the eviction policy's target."""

NAMES_S_PER_MILLION = 10.0
"""Names that are mirrored before the mount answers."""

CONNECT_ROUND_TRIPS, FIRST_READ_ROUND_TRIPS = 3, 2
"""TCP, HELLO and the first page of names; then a READ, and the growth of the window behind it."""

GB = 1e9


class Order(StrEnum):
    SEQUENTIAL = "sequential"
    """In the files' order, or shards in order: seen by the spoke as it happens."""
    DECLARED = "declared"
    """Shuffled, and told: a plan, a recipe, hints, or learned in an earlier epoch."""
    SHUFFLED = "shuffled"
    """Shuffled and not told."""


class Reads(StrEnum):
    PART = "part"
    """Each host reads the same part of the data in every epoch."""
    ALL = "all"
    """Each epoch is divided anew: a host comes to read all of it."""


@dataclass(frozen=True, slots=True)
class Job:
    """``batch``: records of all hosts together in a step. ``workers``: loader processes, the same. ``files``: names of the dataset.
    ``compression``: raw bytes for one on the wire. ``host_price_per_h``: of all hosts together. ``wait_s``: until there is capacity
    beside the data; None: not known."""

    dataset_bytes: float
    record_bytes: float
    batch: int
    step_s: float
    rtt_s: float
    link_bytes_per_s: float
    cache_bytes: float
    epochs: int = 1
    hosts: int = 1
    workers: int = 4
    order: Order = Order.SEQUENTIAL
    reads: Reads = Reads.PART
    files: int = 1000
    compression: float = 1.0
    price_per_gb: float = 0.02
    host_price_per_h: float = 0.0
    wait_s: float | None = None

    def __post_init__(self) -> None:
        """Raises UsageError."""
        for name in (
            "dataset_bytes",
            "record_bytes",
            "batch",
            "step_s",
            "link_bytes_per_s",
            "epochs",
            "hosts",
            "workers",
        ):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name.partition('_')[0]} must be above 0")
        for name in ("rtt_s", "cache_bytes", "files", "price_per_gb", "host_price_per_h"):
            if getattr(self, name) < 0 or not math.isfinite(getattr(self, name)):
                raise UsageError(f"{name.partition('_')[0]} must not be below 0")
        if self.compression < 1:
            raise UsageError(
                "compression is raw bytes for one on the wire: 1 or more; tokens as uint32 give 2.5 to 3.4"
            )
        if self.record_bytes > self.dataset_bytes:
            raise UsageError("a record is larger than the dataset")

    @property
    def steps(self) -> int:
        """Of one epoch."""
        return max(1, math.ceil(self.dataset_bytes / (self.record_bytes * self.batch)))

    @property
    def compute_s(self) -> float:
        return self.epochs * self.steps * self.step_s

    @property
    def needed_bytes_per_s(self) -> float:
        """What the steps take, before anything is cached."""
        return self.record_bytes * self.batch / self.step_s

    @property
    def carried_bytes_per_s(self) -> float:
        """Raw bytes the link brings: its share, what compression adds, and what a spoke asks ahead in a round trip."""
        by_link = LINK_SHARE * self.link_bytes_per_s * self.compression
        if self.rtt_s <= 0:
            return by_link
        return min(by_link, self.hosts * limits.PREFETCH_WINDOWS_MAX_BYTES / self.rtt_s)


@dataclass(frozen=True, slots=True)
class Way:
    """``first_batch_s``: until the first step can begin. ``stall_s``: that the steps wait for data after it."""

    name: str
    first_batch_s: float
    stall_s: float
    total_s: float
    wan_bytes: float
    transfer_money: float
    waiting_money: float


@dataclass(frozen=True, slots=True)
class Estimate:
    needed_bytes_per_s: float
    carried_bytes_per_s: float
    steps: int
    compute_s: float
    epoch_stalls_s: tuple[float, ...]
    """Of the cached way, epoch by epoch; the first carries what is cold."""
    ways: tuple[Way, ...]


def missing_share(job: Job, epoch: int) -> float:
    """Of what a host reads in this epoch (the first is 1), what is not in its cache."""
    part_bytes = job.dataset_bytes / job.hosts
    if epoch == 1:
        return 1.0
    of_bytes = part_bytes if job.reads is Reads.PART else job.dataset_bytes
    holds = min(1.0, job.cache_bytes / of_bytes)
    if holds < 1:
        holds *= SCAN_HIT_SHARE
    met = 1.0 if job.reads is Reads.PART else 1 - (1 - 1 / job.hosts) ** (epoch - 1)
    return 1 - min(holds, met)


def epoch_s(job: Job, missing: float) -> float:
    """How long an epoch takes of which this share comes over the link."""
    compute_s = job.steps * job.step_s
    over_link_s = missing * job.dataset_bytes / job.carried_bytes_per_s
    if job.order is not Order.SHUFFLED:
        return max(compute_s, over_link_s)
    # Each loader process waits for one record at a time: a round trip each.
    records = missing * job.dataset_bytes / job.record_bytes
    return max(compute_s, over_link_s, records * job.rtt_s / job.workers)


def estimate(job: Job) -> Estimate:
    shares = [missing_share(job, epoch) for epoch in range(1, job.epochs + 1)]
    stalls_s = tuple(epoch_s(job, share) - job.steps * job.step_s for share in shares)
    batch_bytes = job.record_bytes * job.batch
    first_s = (
        CONNECT_ROUND_TRIPS * job.rtt_s
        + NAMES_S_PER_MILLION * job.files / 1e6
        + FIRST_READ_ROUND_TRIPS * job.rtt_s
        + batch_bytes / job.carried_bytes_per_s
    )
    if job.order is Order.SHUFFLED:
        first_s += max(0.0, job.batch / job.workers - 1) * job.rtt_s
    cached_bytes = sum(shares) * job.dataset_bytes / job.compression
    copied_bytes = job.dataset_bytes * (job.hosts if job.reads is Reads.ALL else 1)
    ways = [
        _way(job, "cached remote", first_s, sum(stalls_s), cached_bytes),
        _way(job, "copy first", copied_bytes / (LINK_SHARE * job.link_bytes_per_s), 0.0, copied_bytes),
    ]
    if job.wait_s is not None:
        beside = _way(job, "wait for capacity", job.wait_s, 0.0, 0.0, rented=False)
        ways.append(beside)
    return Estimate(job.needed_bytes_per_s, job.carried_bytes_per_s, job.steps, job.compute_s, stalls_s, tuple(ways))


def _way(job: Job, name: str, first_s: float, stall_s: float, wan_bytes: float, *, rented: bool = True) -> Way:
    """``rented``: the hosts are paid for from the beginning, also while they wait."""
    waiting_s = (first_s if rented else 0.0) + stall_s
    return Way(
        name,
        first_s,
        stall_s,
        first_s + stall_s + job.compute_s,
        wan_bytes,
        wan_bytes / GB * job.price_per_gb,
        waiting_s / 3600 * job.host_price_per_h,
    )
