"""Where an epoch ends, what is recorded of it, and that an order seen once is found again; another shuffle each time costs little."""

from __future__ import annotations

from random import Random

import pytest
from epochs_support import Learning, workers
from order_support import FAULT, KIB, MIB, facts

from common import limits
from common.blocks import EXTENT_BYTES
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.orders import Step
from spoke.prefetch.recording import Recording
from spoke.prefetch.succession import OrderRecorder

FILES = [facts(number, 128 * MIB) for number in range(2)]
STRIDE = 192 * KIB


def places(files: list[FileFacts] = FILES, stride_bytes: int = STRIDE) -> list[Step]:
    return [
        Step(number, offset_bytes, 16 * KIB)
        for number, file in enumerate(files)
        for offset_bytes in range(0, file.size_bytes - 16 * KIB, stride_bytes)
    ]


def shuffled(seed: int, files: list[FileFacts] = FILES) -> list[Step]:
    steps = places(files)
    Random(seed).shuffle(steps)
    return steps


class Tape:
    """A recorder, and what it gave."""

    def __init__(self, memory_bytes: int = 16 << 20) -> None:
        self.recorder = OrderRecorder(memory_bytes)
        self.recorder.on_end = self._ended
        self.ended: list[Recording] = []

    def _ended(self) -> None:
        recording = self.recorder.take()
        assert recording is not None
        self.ended.append(recording)

    def read(self, steps: list[Step], files: list[FileFacts] = FILES, now_s: float = 0.0) -> None:
        for step in steps:
            self.recorder.read(now_s, files[step.file], step.offset_bytes, step.length_bytes, explained=False)


def recorded(recording: Recording) -> list[Step]:
    """With the files' numbers as in FILES."""
    numbers = [FILES.index(file) for file in recording.files]
    columns = recording.steps.files, recording.steps.offsets, recording.steps.lengths
    return [Step(numbers[file], offset, length) for file, offset, length in zip(*columns, strict=True)]


def test_the_same_order_again_ends_the_epoch_within_some_reads() -> None:
    tape, steps = Tape(), shuffled(1)
    tape.read(steps)
    assert tape.ended == []
    tape.read(steps[:64])
    (recording,) = tape.ended
    left_out = len(steps) - len(recording.steps)
    assert left_out <= len(steps) // 200, "the filter takes few places for others"
    assert recorded(recording) == [step for step in steps if step in set(recorded(recording))]
    assert tape.recorder.steps == 64, "the next epoch begins with what was read again"


def test_another_order_ends_it_a_little_later() -> None:
    tape, steps = Tape(), shuffled(1)
    tape.read(steps)
    tape.read(shuffled(2)[:300])
    (recording,) = tape.ended
    assert recording.ended == "epoch"
    assert len(recording.steps) > 0.99 * len(steps)


def test_a_validation_set_read_again_and_again_ends_nothing() -> None:
    tape, steps = Tape(), shuffled(1)
    training, validation = steps[100:], steps[:100]
    for start in range(0, len(training), 200):
        tape.read(training[start : start + 200])
        tape.read(validation)
    assert tape.ended == []
    tape.read(training[:100])
    assert len(tape.ended) == 1


def test_two_ranks_that_read_the_same_end_nothing() -> None:
    tape, steps = Tape(), shuffled(1)
    tape.read([step for one in range(0, len(steps), 4) for step in steps[one : one + 4] * 2])
    assert tape.ended == []


def test_a_sweep_takes_a_step_a_mebibyte_and_is_not_worth_keeping() -> None:
    tape = Tape()
    tape.read([Step(0, offset, FAULT) for offset in range(0, 64 * MIB, FAULT)])
    assert tape.recorder.steps == 64
    tape.recorder.stop()
    assert tape.ended == []


def test_shards_in_an_order_of_their_own_are_worth_it() -> None:
    files = [facts(number, 2 * MIB) for number in range(40)]
    numbers = list(range(40))
    Random(3).shuffle(numbers)
    tape = Tape()
    tape.read([Step(number, offset, FAULT) for number in numbers for offset in range(0, 2 * MIB, FAULT)], files)
    tape.recorder.stop()
    (recording,) = tape.ended
    assert [recording.files[file] for file in recording.steps.files[::2]] == [files[number] for number in numbers]


def test_a_job_is_over_when_its_files_are_closed_and_nothing_is_read() -> None:
    tape = Tape()
    tape.read(shuffled(1)[:400], now_s=10.0)
    tape.recorder.tend(10.0 + limits.LEARN_CLOSED_REST_S - 1, open_handles=0)
    tape.recorder.tend(10.0 + limits.LEARN_REST_S - 1, open_handles=1)
    assert tape.ended == []
    tape.recorder.tend(10.0 + limits.LEARN_CLOSED_REST_S, open_handles=0)
    assert [recording.ended for recording in tape.ended] == ["job"]
    assert tape.recorder.steps == 0


def test_it_is_bounded_in_steps_and_in_files() -> None:
    tape = Tape(memory_bytes=64 * KIB)
    tape.read(shuffled(1))
    assert {recording.ended for recording in tape.ended} == {"full"}
    assert all(len(recording.steps) <= tape.recorder.max_steps for recording in tape.ended)
    files = [facts(number, MIB) for number in range(500)]
    tape = Tape(memory_bytes=64 * KIB)
    tape.read([Step(number, 0, 4 * KIB) for number in range(500)], files)
    assert {len(recording.files) for recording in tape.ended} == {tape.recorder.max_files}


@pytest.mark.parametrize("faults", [False, True])
def test_the_second_epoch_in_the_same_order_is_there_over_a_cache_of_a_quarter(faults: bool) -> None:
    learning, steps, dice = Learning(FILES, faults=faults), shuffled(5), Random(7)
    learning.epoch(workers(steps, dice))
    for _ in range(3):
        epoch = learning.epoch(workers(steps, dice))
        # Page faults of 128 KiB: what may be ahead (8 MiB) is little more than the workers are spread over.
        assert epoch.hits() >= (0.9 if faults else 0.95)
        assert epoch.amplification <= 1.05
    assert len([one for one in learning.recordings if one.explained_share < 0.9]) == 1, "it is learned once"


def test_another_shuffle_each_epoch_costs_little_and_a_lasting_one_is_still_learned() -> None:
    learning, dice = Learning(FILES, faults=True), Random(9)
    for seed in range(5):
        assert learning.epoch(workers(shuffled(seed), dice)).amplification <= 1.05
    steps = shuffled(77)
    learning.epoch(workers(steps, dice))
    assert learning.epoch(workers(steps, dice)).hits() >= 0.9


def test_a_job_that_resumes_in_the_middle_is_found_there() -> None:
    learning, steps, dice = Learning(FILES, faults=True), shuffled(11), Random(13)
    learning.epoch(workers(steps, dice))
    learning.recorder.stop()
    assert learning.epoch(workers(steps, dice, start=len(steps) // 2)).hits(60) >= 0.9


def test_a_short_order_is_followed_to_its_end_in_each_epoch() -> None:
    """A lane shorter than what a place is waited for: who was at its end must not keep its second half from being foretold."""
    size_bytes, record_bytes = 64 << 20, 64 << 10
    learning = Learning([FileFacts(b"short.bin", b"s" * 16, size_bytes)], faults=True, cache_share=0.5)
    order = list(range(size_bytes // record_bytes))
    Random(5).shuffle(order)
    steps = [Step(0, index * record_bytes, record_bytes) for index in order]
    hits = [learning.epoch(workers(steps, Random(100 + epoch))).hits() for epoch in range(5)]
    assert min(hits[2:]) >= hits[1] - 0.05, hits


@pytest.mark.parametrize("start", [0, 3 * 4096, 300 * 1024])
def test_a_sweep_told_of_in_one_piece_is_recorded_as_extent_by_extent(start: int) -> None:
    once, each = Tape(), Tape()
    swept = 40 * EXTENT_BYTES
    for tape in (once, each):
        tape.read(shuffled(3)[:200], [facts(9, 1 << 30)] * 4)  # past the head of the recording
    file = facts(10, 1 << 30)
    once.recorder.read(0.0, file, start, swept, explained=False)
    offset = start
    while offset < start + swept:
        end = min(start + swept, (offset // EXTENT_BYTES + 1) * EXTENT_BYTES)
        each.recorder.read(0.0, file, offset, end - offset, explained=False)
        offset = end
    one, other = once.recorder.recording, each.recorder.recording
    for column in ("files", "offsets", "lengths"):
        assert getattr(one.steps, column) == getattr(other.steps, column)
    assert one.jumps == other.jumps
    assert one.read_bytes == other.read_bytes
