"""Small records of shards, shuffled, each by a descriptor of its own that looks it up in the shard's table first: MosaicML's loader.
The kernel takes one read in twelve for a stream, and later reads on by itself where it did. Each of these READs is of other records,
which lie thousands of steps apart: the follower took their readers to be there, and fetched 19 MB beyond a job of 19 MB, while what
the kernel read on was not foretold.
"""

from __future__ import annotations

import heapq
from collections import deque
from random import Random
from typing import Literal

import pytest
from kernel_support import ExactKernel
from order_support import MIB, facts, growing

from common.blocks import BLOCK_BYTES, EXTENT_BYTES, BlockRange
from spoke.prefetch.orders import Reader, Reason, Step
from spoke.prefetch.planner import Planner, ReadSeen

RTT_S = 0.06
RATE_BYTES_PER_S = 37.5e6
WORKERS, BATCHES_AHEAD, BATCH, BATCHES = 4, 2, 8, 200
STEP_S = 0.112
HIT_S = 0.0005
SHARDS, SHARD_SAMPLES = 6, 1024
BLOCK_SAMPLES = 4000
"""Samples are shuffled among so many."""


def samples_of_shards(dice: Random) -> tuple[list[int], list[list[Step]]]:
    """Sizes of the shards, and for each sample its two steps, in the order of an epoch."""
    sizes: list[int] = []
    shards: list[list[list[Step]]] = []
    for shard in range(SHARDS):
        at = 4 * (SHARD_SAMPLES + 2)
        samples = []
        for number in range(SHARD_SAMPLES):
            length = dice.randrange(4096, 12288)
            samples.append([Step(shard, 4 + 4 * number, 8), Step(shard, at, length)])
            at += length
        sizes.append(at)
        shards.append(samples)
    dice.shuffle(shards)
    order = [sample for samples in shards for sample in samples]
    for first in range(0, len(order), BLOCK_SAMPLES):
        part = order[first : first + BLOCK_SAMPLES]
        dice.shuffle(part)
        order[first : first + BLOCK_SAMPLES] = part
    return sizes, order


class Job:
    """A DataLoader in simulated time, behind one link that is away for ``away_s`` from ``away_from_s`` on."""

    def __init__(self, seed: int, *, aligns: bool, away_from_s: float = 1e9, away_s: float = 0.0) -> None:
        dice = Random(seed)
        sizes, self.samples = samples_of_shards(dice)
        self.files = [facts(number, size) for number, size in enumerate(sizes)]
        self.kernels = [ExactKernel(-(-size // BLOCK_BYTES), aligns=aligns) for size in sizes]
        self.away_from_s, self.away_s = away_from_s, away_s
        self.planner = Planner()
        self.planner.link(RTT_S, RATE_BYTES_PER_S)
        self.now_s = self.link_free_s = self.waited_s = 0.0
        self.results: list[tuple[float, str]] = []
        self.batch_s: list[float] = []
        self.fetched_bytes = self.under_way_bytes = 0
        self.due_s: dict[tuple[bytes, int], float] = {}
        self.read: set[tuple[int, int]] = set()
        self.coming: list[tuple[float, int, bytes, BlockRange, int]] = []
        for number, file in enumerate(self.files):
            self.planner.opened(0.0, number, file, 1)
            for block in (0, 1):  # the recipe read the tables through the mount
                self.kernels[number].pages[block] = 1
                self.due_s[file.version, block] = 0.0
        order = growing(self.files, [[step for sample in self.samples for step in sample]], Reason.RECIPE)
        order.reader = Reader.EXACT
        self.planner.add_order(0.0, order)
        self.wait_until(8.0)

    def _fetch(self, version: bytes, blocks: BlockRange) -> None:
        wanted = [block for block in range(blocks.first_block, blocks.end_block) if (version, block) not in self.due_s]
        size_bytes = BLOCK_BYTES * len(wanted)
        self.fetched_bytes += size_bytes
        self.under_way_bytes += size_bytes
        now_s = self.now_s if self.now_s < self.away_from_s else max(self.away_from_s, self.now_s - self.away_s)
        self.link_free_s = max(self.link_free_s, now_s + RTT_S) + size_bytes / RATE_BYTES_PER_S
        due_s = self.link_free_s + (self.away_s if self.link_free_s >= self.away_from_s else 0.0)
        self.due_s.update({(version, block): due_s for block in wanted})
        heapq.heappush(self.coming, (due_s, len(self.due_s), version, blocks, size_bytes))

    def _pump(self) -> None:
        while (room_bytes := self.planner.outstanding_limit_bytes - self.under_way_bytes) >= EXTENT_BYTES:
            fetches = self.planner.plan(self.now_s, room_bytes)
            if not fetches:
                return
            for fetch in fetches:
                self._fetch(fetch.version, fetch.blocks)

    def wait_until(self, now_s: float) -> None:
        self._pump()
        while self.coming and self.coming[0][0] <= now_s:
            self.now_s, _, version, blocks, size_bytes = heapq.heappop(self.coming)
            self.under_way_bytes -= size_bytes
            self.planner.arrived(self.now_s, version, blocks)
            self._pump()
        self.now_s = max(self.now_s, now_s)

    def _read(self, worker: int, file: int, first: int, end: int) -> float:
        """When its data are there."""
        version = self.files[file].version
        keys = [(version, block) for block in range(first, end)]
        missing = any(key not in self.due_s for key in keys)
        due_s = max(self.due_s.get(key, 0.0) for key in keys)
        result: Literal["hit", "late", "miss"] = "miss" if missing else "late" if due_s > self.now_s else "hit"
        self.results.append((self.now_s, result))
        self.read.update((file, block) for block in range(first, end))
        if missing:
            self._fetch(version, BlockRange(first, end - first))
            due_s = max(self.due_s[key] for key in keys)
        offset_bytes = first * BLOCK_BYTES
        length_bytes = min(end * BLOCK_BYTES, self.files[file].size_bytes) - offset_bytes
        self.planner.read(self.now_s, ReadSeen(file, 100 + worker, version, offset_bytes, length_bytes, result))
        self._pump()
        return max(due_s, self.now_s)

    def _take(self, worker: int, sample: list[Step]) -> float:
        """A worker reads a sample; when he has it."""
        table, record = sample
        done_s = self.now_s
        sent = self.kernels[table.file].read(table.offset_bytes, table.length_bytes)
        last_page = (table.offset_bytes + table.length_bytes) // BLOCK_BYTES
        sent += self.kernels[record.file].read(record.offset_bytes, record.length_bytes, last_page)
        for first, end, waits in sent:
            due_s = self._read(worker, record.file, first, end)
            done_s = max(done_s, due_s + HIT_S) if waits else done_s
        return done_s + 2e-4

    def run(self) -> None:
        """Workers take every fourth batch, two ahead of what the job has consumed; the job consumes in order, and stops early."""
        queues: list[deque[int]] = [deque() for _ in range(WORKERS)]
        busy: dict[int, tuple[int, int]] = {}
        ready_s: dict[int, float] = {}
        begun = consumed = 0
        free_s = self.now_s
        events: list[tuple[float, int]] = [(self.now_s, WORKERS)]  # when, and which worker, or the job
        while consumed < BATCHES:
            now_s, who = heapq.heappop(events)
            self.wait_until(now_s)
            if who in busy:
                batch, at = busy[who]
                if at == BATCH:
                    ready_s[batch] = self.now_s
                    del busy[who]
                    heapq.heappush(events, (max(free_s, self.now_s), WORKERS))
                else:
                    busy[who] = batch, at + 1
                    heapq.heappush(events, (self._take(who, self.samples[batch * BATCH + at]), who))
            while consumed in ready_s and free_s <= self.now_s:
                self.waited_s += max(0.0, ready_s[consumed] - free_s) if consumed else 0.0
                self.batch_s.append(self.now_s)
                free_s = max(free_s, ready_s[consumed]) + STEP_S
                consumed += 1
                heapq.heappush(events, (free_s, WORKERS))
            while begun < min(BATCHES, consumed + WORKERS * BATCHES_AHEAD):
                queues[begun % WORKERS].append(begun)
                begun += 1
            for worker, queue in enumerate(queues):
                if worker not in busy and queue:
                    busy[worker] = queue.popleft(), 0
                    heapq.heappush(events, (self.now_s, worker))


@pytest.mark.parametrize(("seed", "aligns"), [(3, True), (5, True), (6, False)])
def test_records_are_there_and_little_else_is_fetched(seed: int, aligns: bool) -> None:
    job = Job(seed, aligns=aligns)
    job.run()
    settled = [result for at_s, result in job.results if at_s > job.batch_s[2]]
    assert len(settled) > 1000
    assert settled.count("hit") >= 0.99 * len(settled)
    assert job.waited_s <= 5 * RTT_S
    ahead_bytes = job.fetched_bytes - len(job.read) * BLOCK_BYTES
    assert ahead_bytes <= 4 * MIB, "512 steps, half of which are looks into tables"
    assert job.fetched_bytes <= 1.05 * 32 * BLOCK_BYTES * len({(file, block // 32) for file, block in job.read})
    (found,) = job.planner.orders()
    (lane,) = found["lanes"]
    assert lane["position"] == pytest.approx(2 * BATCH * BATCHES, abs=2), "it knows where the reader is"


def test_a_link_that_is_away_for_a_second_is_noticed_by_nobody() -> None:
    job = Job(3, aligns=True, away_from_s=15.0, away_s=1.0)
    job.run()
    assert job.waited_s <= 5 * RTT_S
    assert [result for _, result in job.results].count("late") == 0
