"""Orders made up for tests, and jobs that read them: ranks, workers, page faults, drift, resumes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from common.blocks import BLOCK_BYTES, count_blocks
from spoke.orders.growing import GrowingOrder
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.orders import Reason, Step
from spoke.prefetch.planner import Fetch, Planner, ReadSeen

KIB, MIB = 1024, 1024 * 1024
FAULT = 128 * KIB


def facts(number: int, size_bytes: int) -> FileFacts:
    return FileFacts(b"data/%05d" % number, b"order" + number.to_bytes(11, "big"), size_bytes)


def shuffled_rows(
    files: Sequence[FileFacts], row_bytes: int, lanes: int, dice: Random, epochs: int = 1
) -> list[list[Step]]:
    """Each lane every so many-th row of a permutation over all rows of the files, anew each epoch."""
    rows = [
        Step(number, offset_bytes, row_bytes)
        for number, file in enumerate(files)
        for offset_bytes in range(0, file.size_bytes - row_bytes + 1, row_bytes)
    ]
    steps: list[list[Step]] = [[] for _ in range(lanes)]
    for _ in range(epochs):
        dice.shuffle(rows)
        for lane in range(lanes):
            steps[lane] += rows[lane::lanes]
    return steps


def growing(
    files: Sequence[FileFacts], lanes: Sequence[Sequence[Step]], reason: Reason = Reason.RECIPE, name: str = "an order"
) -> GrowingOrder:
    order = GrowingOrder(name, reason, max_steps=10_000_000)
    for file in files:
        order.add_file(file)
    for lane, steps in enumerate(lanes):
        for step in steps:
            order.append(lane, *step)
    return order


def shared_out(steps: Sequence[Step], workers: int, batch: int, dice: Random, start: int = 0) -> Iterator[Step]:
    """The steps from ``start`` on as ``workers`` read them: each takes every so many-th batch, and none runs far ahead."""
    batches = deque(range(start, len(steps), batch))
    at: dict[int, tuple[int, int]] = {}
    for worker in range(workers):
        if batches:
            first = batches.popleft()
            at[worker] = (first, first)
    while at:
        worker = dice.choice(list(at))
        first, position = at[worker]
        yield steps[position]
        if position + 1 < min(first + batch, len(steps)):
            at[worker] = (first, position + 1)
        elif batches:
            first = batches.popleft()
            at[worker] = (first, first)
        else:
            del at[worker]


@dataclass
class Job:
    """Reads at a planner's mount; what is fetched arrives ``delay_reads`` reads later. No page cache; ``keep``: what is read stays."""

    planner: Planner
    files: Sequence[FileFacts]
    faults: bool = False
    fault_bytes: int = FAULT
    delay_reads: int = 0
    keep: bool = True
    read_s: float = 0.001
    now_s: float = 0.0
    results: list[str] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    asked_bytes: int = 0
    used: dict[bytes, bytearray] = field(default_factory=dict)
    have: dict[bytes, bytearray] = field(default_factory=dict)
    coming: deque[tuple[int, Fetch]] = field(default_factory=deque)
    reads: int = 0

    def __post_init__(self) -> None:
        for number, file in enumerate(self.files):
            self.planner.opened(0.0, number, file, 1)
            self.have[file.version] = bytearray(count_blocks(file.size_bytes))
            self.used[file.version] = bytearray(count_blocks(file.size_bytes))

    def pump(self) -> None:
        while fetches := self.planner.plan(self.now_s, 1 << 40):  # a little at a time
            for fetch in fetches:
                self.fetches.append(fetch)
                self.coming.append((self.reads + self.delay_reads, fetch))

    def step(self, step: Step) -> None:
        """What the kernel asks for when a reader takes this step."""
        size_bytes = self.files[step.file].size_bytes
        page_bytes = step.offset_bytes & ~4095
        end_bytes = step.offset_bytes + step.length_bytes
        if not self.faults:
            self.read(step.file, page_bytes, min(-(-end_bytes // 4096) * 4096, size_bytes) - page_bytes)
            return
        fault_bytes = self.fault_bytes
        start_bytes = max(0, page_bytes - fault_bytes // 2)
        self.read(step.file, start_bytes, min(fault_bytes, size_bytes - start_bytes))
        while start_bytes + fault_bytes < end_bytes:
            start_bytes += fault_bytes
            self.read(step.file, start_bytes, min(fault_bytes // 2, size_bytes - start_bytes))
            start_bytes -= fault_bytes // 2  # the next fault is centred: half of what it asks for is there

    def read(self, file: int, start_bytes: int, length_bytes: int) -> None:
        self.reads += 1
        self.now_s += self.read_s
        while self.coming and self.coming[0][0] <= self.reads:
            _, fetch = self.coming.popleft()
            blocks = fetch.blocks
            self.have[fetch.version][blocks.first_block : blocks.end_block] = b"\1" * blocks.block_count
            self.planner.arrived(self.now_s, fetch.version, blocks)
        version = self.files[file].version
        span = slice(start_bytes // BLOCK_BYTES, -(-(start_bytes + length_bytes) // BLOCK_BYTES))
        have = self.have[version]
        hit = 0 not in have[span]
        self.results.append("hit" if hit else "miss")
        have[span] = (b"\1" if self.keep else b"\0") * len(have[span])
        self.used[version][span] = b"\1" * len(have[span])
        if hit and self.planner.is_quiet(version, start_bytes, length_bytes):
            return
        result: Literal["hit", "miss"] = "hit" if hit else "miss"
        self.planner.read(self.now_s, ReadSeen(file, 1, version, start_bytes, length_bytes, result, self.fault_bytes))
        self.pump()

    def hits(self, start: int = 0, end: int | None = None) -> float:
        part = self.results[start:end]
        return part.count("hit") / max(1, len(part))

    @property
    def unread_share(self) -> float:
        """Blocks that were fetched and not read, of those read (what is still ahead included)."""
        fetched = {version: bytearray(len(blocks)) for version, blocks in self.used.items()}
        for fetch in self.fetches:
            span = slice(fetch.blocks.first_block, fetch.blocks.end_block)
            fetched[fetch.version][span] = b"\1" * fetch.blocks.block_count
        wasted = sum(
            sum(1 for one, other in zip(fetched[version], used, strict=True) if one and not other)
            for version, used in self.used.items()
        )
        return wasted / max(1, sum(used.count(1) for used in self.used.values()))


def recorded(files: Sequence[FileFacts], steps: Sequence[Step], *, faults: bool) -> list[Step]:
    """The READs of a reader who takes these steps: what a learned order of them holds."""
    tape = _Tape(Planner(), files, faults=faults)
    for step in steps:
        tape.step(step)
    return tape.steps


@dataclass
class _Tape(Job):
    steps: list[Step] = field(default_factory=list)

    def read(self, file: int, start_bytes: int, length_bytes: int) -> None:
        self.steps.append(Step(file, start_bytes, length_bytes))


def lane_of(planner: Planner) -> list[int]:
    (found,) = planner.orders()
    return [entry["lane"] for entry in found["lanes"]]
