"""Jobs that read the same places epoch after epoch, and a learner without disk: what was recorded is followed at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from order_support import Job, shared_out

from common.blocks import BLOCK_BYTES, BlockRange, count_blocks
from spoke.orders.growing import GrowingOrder
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.orders import Reason, Step
from spoke.prefetch.planner import Planner
from spoke.prefetch.recording import Recording
from spoke.prefetch.succession import OrderRecorder


@dataclass
class Epoch:
    """``amplification``: blocks fetched, by readers or ahead of them, for each that was read."""

    results: list[str]
    amplification: float

    def hits(self, start: int = 0) -> float:
        part = self.results[start:]
        return part.count("hit") / max(1, len(part))


class Learning:
    """``recordings``: all that ended. The last two that no order explained are followed.

    ``cache_share`` of the files' bytes are cached: what came first goes first.
    """

    def __init__(
        self, files: list[FileFacts], *, faults: bool = False, delay: int = 16, stream_max_bytes: int = 8 << 20,
        memory_bytes: int = 64 << 20, cache_share: float = 0.25,
    ) -> None:  # fmt: skip
        self.recorder = OrderRecorder(memory_bytes)
        self.recorder.on_end = self._ended
        self.planner = Planner(recorder=self.recorder, stream_max_bytes=stream_max_bytes)
        self.planner.link(0.06, 125e6)
        self.recordings: list[Recording] = []
        self._followed: list[str] = []
        self.job = _SmallCache(self.planner, files, faults=faults, delay_reads=delay)
        self.job.capacity_blocks = int(cache_share * sum(count_blocks(file.size_bytes) for file in files))

    def _ended(self) -> None:
        recording = self.recorder.take()
        assert recording is not None
        self.recordings.append(recording)
        if recording.explained_share >= 0.9:
            self.planner.drop_order(recording.name)
            return
        order = order_of(recording, f"learned:{len(self.recordings)}")
        self.planner.replace_order(self.job.now_s, recording.name, order)
        self._followed.append(order.name)
        if len(self._followed) > 2:
            self.planner.drop_order(self._followed.pop(0))

    def epoch(self, steps: Iterable[Step]) -> Epoch:
        job = self.job
        reads_before, fetched_before, read_before = len(job.results), job.fetched_blocks, job.read_blocks
        for step in steps:
            job.step(step)
        return Epoch(
            job.results[reads_before:],
            (job.fetched_blocks - fetched_before) / max(1, job.read_blocks - read_before),
        )


class _SmallCache(Job):
    """Lets go of what came first, whether it was read or not."""

    capacity_blocks = 0
    fetched_blocks = 0
    read_blocks = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._came: deque[tuple[bytes, int]] = deque()

    def read(self, file: int, start_bytes: int, length_bytes: int) -> None:
        version = self.files[file].version
        waiting = list(self.coming)
        span = range(start_bytes // BLOCK_BYTES, -(-(start_bytes + length_bytes) // BLOCK_BYTES))
        before = [(version, block) for block in span if not self.have[version][block]]
        landed = [
            (fetch.version, block)
            for due, fetch in waiting
            if due <= self.reads + 1
            for block in range(fetch.blocks.first_block, fetch.blocks.end_block)
            if not self.have[fetch.version][block]
        ]
        super().read(file, start_bytes, length_bytes)
        self.read_blocks += len(span)
        for place in dict.fromkeys([*landed, *before]):
            self.fetched_blocks += 1
            self._came.append(place)
        while len(self._came) > self.capacity_blocks:
            gone, block = self._came.popleft()
            self.have[gone][block] = 0
            self.planner.evicted(gone, BlockRange(block, 1))


def order_of(recording: Recording, name: str) -> GrowingOrder:
    order = GrowingOrder(name, Reason.LEARNED, max_steps=10_000_000)
    for file in recording.files:
        order.add_file(file)
    for step in zip(recording.steps.files, recording.steps.offsets, recording.steps.lengths, strict=True):
        order.append(0, *step)
    return order


def workers(steps: list[Step], dice: Random, count: int = 4, batch: int = 8, start: int = 0) -> Iterable[Step]:
    return shared_out(steps, count, batch, dice, start)
