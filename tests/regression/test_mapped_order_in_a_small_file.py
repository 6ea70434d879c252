"""An order over a mapped file that is small against what is read of it: most steps find their pages in the kernel's cache, READs are cut
where pages are there, and the kernel reads on by itself. The follower lost its reader there, once and for good: what nobody would
ask for any more counted as ahead of him, until that was all it could have ahead; and cut READs led it thousands of steps astray.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Literal

import pytest
from order_support import MIB, facts, growing

from common.blocks import BLOCK_BYTES, BlockRange
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.orders import Reader, Reason, Step
from spoke.prefetch.planner import Planner, ReadSeen

PAGES_OF_A_FAULT = 32
RTT_S = 0.06
RATE_BYTES_PER_S = 37.5e6
WORKERS, BATCHES_AHEAD, BATCH = 4, 2, 8
HIT_S = 0.0005


class Kernel:
    """The pages of a mapped file that it has, and where it reads on: page_cache_sync_ra and page_cache_async_ra."""

    def __init__(self, pages: int) -> None:
        self._pages = bytearray(pages)
        self._marks: set[int] = set()

    def touch(self, page: int) -> tuple[list[tuple[int, int]], bool]:
        """The READs (first page, end) that follow, and whether who touched it waits for them."""
        pages = self._pages
        if not pages[page]:
            first = max(0, page - PAGES_OF_A_FAULT // 2)
            return self._read(first, first + PAGES_OF_A_FAULT - PAGES_OF_A_FAULT // 4), True
        if page not in self._marks:
            return [], False
        self._marks.discard(page)
        first = pages.find(0, page + 1, page + 1 + PAGES_OF_A_FAULT)
        return ([], False) if first < 0 else (self._read(first, first), False)

    def _read(self, first: int, mark: int) -> list[tuple[int, int]]:
        pages, found = self._pages, []
        end = min(first + PAGES_OF_A_FAULT, len(pages))
        if mark < end and not pages[mark]:
            self._marks.add(mark)
        while 0 <= first < end and (first := pages.find(0, first, end)) >= 0:
            run_end = pages.find(1, first, end)
            run_end = end if run_end < 0 else run_end
            pages[first:run_end] = b"\1" * (run_end - first)
            found.append((first, run_end))
            first = run_end
        return found


@dataclass
class Job:
    """A DataLoader over samples, in simulated time, behind one link. ``results``: of its READs, with the time of each."""

    planner: Planner
    file: FileFacts
    samples: list[list[Step]]
    step_s: float
    now_s: float = 0.0
    results: list[tuple[float, str]] = field(default_factory=list)
    fetched_bytes: int = 0
    batch_s: list[float] = field(default_factory=list)
    waited_s: float = 0.0

    def __post_init__(self) -> None:
        self.kernel = Kernel(-(-self.file.size_bytes // BLOCK_BYTES))
        self._due_s: dict[int, float] = {}
        self._coming: deque[tuple[float, BlockRange]] = deque()
        self._link_free_s = 0.0
        self.planner.link(RTT_S, RATE_BYTES_PER_S)
        self.planner.opened(0.0, 1, self.file, 1)

    def _fetch(self, blocks: BlockRange) -> None:
        wanted = [block for block in range(blocks.first_block, blocks.end_block) if block not in self._due_s]
        size_bytes = len(wanted) * BLOCK_BYTES
        self.fetched_bytes += size_bytes
        self._link_free_s = max(self._link_free_s, self.now_s + RTT_S) + size_bytes / RATE_BYTES_PER_S
        self._due_s.update(dict.fromkeys(wanted, self._link_free_s))
        if wanted:
            self._coming.append((self._link_free_s, blocks))

    def _pump(self) -> None:
        while fetches := self.planner.plan(self.now_s, 64 * MIB):
            for fetch in fetches:
                self._fetch(fetch.blocks)

    def wait_until(self, now_s: float) -> None:
        self._pump()
        while self._coming and self._coming[0][0] <= now_s:
            self.now_s, blocks = self._coming.popleft()
            self.planner.arrived(self.now_s, self.file.version, blocks)
            self._pump()
        self.now_s = now_s

    def _read(self, task: int, first: int, end: int) -> float:
        """When its data are there."""
        blocks = range(first, end)
        missing = any(block not in self._due_s for block in blocks)
        due_s = max(self._due_s.get(block, 0.0) for block in blocks)
        result: Literal["hit", "late", "miss"] = "miss" if missing else "late" if due_s > self.now_s else "hit"
        self.results.append((self.now_s, result))
        if missing:
            self._fetch(BlockRange(first, end - first))
            due_s = max(self._due_s[block] for block in blocks)
        offset_bytes, length_bytes = first * BLOCK_BYTES, (end - first) * BLOCK_BYTES
        self.planner.read(self.now_s, ReadSeen(1, task, self.file.version, offset_bytes, length_bytes, result))
        self._pump()
        return max(due_s, self.now_s)

    def run(self) -> None:
        """Workers take every fourth batch, two ahead of what the job has consumed; the job consumes in order."""
        count = len(self.samples) // BATCH
        ready_s: dict[int, float] = {}
        begun = consumed = 0
        free_s = began_s = self.now_s
        events: list[tuple[float, int, int, int]] = []  # when, worker, batch, touch

        def begin(worker_s: float) -> None:
            nonlocal begun
            while begun < count and begun < consumed + WORKERS * BATCHES_AHEAD:
                queues[begun % WORKERS].append(begun)
                begun += 1
            for worker in range(WORKERS):
                if worker not in busy and queues[worker]:
                    busy.add(worker)
                    heapq.heappush(events, (worker_s, worker, queues[worker].popleft(), 0))

        queues: list[deque[int]] = [deque() for _ in range(WORKERS)]
        busy: set[int] = set()
        touches = [
            [
                page
                for sample in self.samples[batch * BATCH : (batch + 1) * BATCH]
                for step in sample
                for page in range(
                    step.offset_bytes // BLOCK_BYTES, (step.offset_bytes + step.length_bytes - 1) // BLOCK_BYTES + 1
                )
            ]
            for batch in range(count)
        ]
        begin(began_s)
        while events:
            now_s, worker, batch, at = heapq.heappop(events)
            self.wait_until(max(now_s, self.now_s))
            if at == len(touches[batch]):
                ready_s[batch] = self.now_s
                busy.discard(worker)
                while consumed in ready_s and max(free_s, ready_s[consumed]) <= self.now_s:
                    taken_s = max(free_s, ready_s[consumed])
                    self.waited_s += max(0.0, ready_s[consumed] - free_s) if consumed else 0.0
                    self.batch_s.append(taken_s)
                    free_s = taken_s + self.step_s
                    consumed += 1
                begin(self.now_s)
                if not events and consumed < count:  # all wait for the job
                    heapq.heappush(events, (free_s, -1, consumed, len(touches[consumed])))
                continue
            reads, waits = self.kernel.touch(touches[batch][at])
            done_s = self.now_s
            for first, end in reads:
                due_s = self._read(worker, first, end)
                done_s = max(done_s, due_s + HIT_S) if waits else done_s
            heapq.heappush(events, (done_s + 1e-5, worker, batch, at + 1))


def job_over(size_bytes: int, seed: int) -> Job:
    dice, file = Random(seed), facts(1, size_bytes)
    samples = [
        [Step(0, dice.randrange(size_bytes - 4096), dice.randrange(200, 2400)) for _ in range(dice.randrange(2, 6))]
        for _ in range(1600)
    ]
    planner = Planner()
    order = growing([file], [[step for sample in samples for step in sample]], Reason.RECIPE)
    order.reader = Reader.MAPPED
    planner.add_order(0.0, order)
    job = Job(planner, file, samples, step_s=0.112)
    job.wait_until(5.0)  # the job starts: interpreter, imports, its index
    return job


@pytest.mark.parametrize(("size_mib", "seed"), [(100, 3), (100, 5), (400, 4)])
def test_a_job_over_a_small_mapped_file_waits_for_nobody(size_mib: int, seed: int) -> None:
    job = job_over(size_mib * MIB, seed)
    job.run()
    assert len(job.batch_s) == 200
    settled = [result for at_s, result in job.results if at_s > job.batch_s[2]]
    assert len(settled) > 300
    assert settled.count("hit") >= 0.99 * len(settled)
    assert job.waited_s <= 5 * RTT_S
    assert job.fetched_bytes <= job.file.size_bytes
    (found,) = job.planner.orders()
    assert found["lanes"][0]["position"] > 0.8 * found["lanes"][0]["length"], "it knows where the reader is to the end"
