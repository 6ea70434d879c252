"""Any epochs, workers, drift and resumes: what is recorded was read, in its order, once, and within bounds."""

from __future__ import annotations

from random import Random

from epochs_support import workers
from hypothesis import given, settings
from hypothesis import strategies as st
from order_support import KIB, MIB, facts

from spoke.prefetch.orders import Step
from spoke.prefetch.recording import Recording
from spoke.prefetch.succession import OrderRecorder


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    places=st.integers(20, 900),
    count=st.integers(1, 8),
    batch=st.integers(1, 16),
    epochs=st.integers(1, 4),
    start=st.integers(0, 900),
    same=st.booleans(),
    drift=st.sampled_from((0.0, 0.02, 0.3)),
    memory_bytes=st.sampled_from((64 * KIB, MIB, 16 * MIB)),
)
def test_recordings_hold_what_was_read(
    seed: int, places: int, count: int, batch: int, epochs: int, start: int, same: bool, drift: float, memory_bytes: int
) -> None:  # fmt: skip
    dice = Random(seed)
    files = [facts(number, 64 * MIB + number) for number in range(3)]
    steps = [
        Step(file, dice.randrange(64 * MIB // 4096) * 4096, 4096) for file in (dice.randrange(3) for _ in range(places))
    ]
    recorder, ended = OrderRecorder(memory_bytes), list[Recording]()

    def take() -> None:
        recording = recorder.take()
        assert recording is not None
        ended.append(recording)

    recorder.on_end = take
    seen: list[tuple[bytes, int]] = []
    for epoch in range(epochs):
        if not same:
            dice.shuffle(steps)
        for planned in workers(steps, dice, count, batch, min(start, places - 1) if epoch == 0 else 0):
            step = planned
            if dice.random() < drift:
                step = Step(dice.randrange(3), dice.randrange(64 * MIB // 4096) * 4096, 4096)
            file = files[step.file]
            recorder.read(0.0, file, step.offset_bytes, step.length_bytes, explained=False)
            seen.append((file.version, step.offset_bytes // 4096))
    recorder.stop()
    pages_read = set(seen)
    for recording in ended:
        assert 64 <= len(recording.steps) <= recorder.max_steps
        assert len(recording.files) <= recorder.max_files
        pages: list[tuple[bytes, int]] = []
        for number, offset_bytes, length_bytes in zip(
            recording.steps.files, recording.steps.offsets, recording.steps.lengths, strict=True
        ):
            file = recording.files[number]
            assert length_bytes > 0
            assert offset_bytes + length_bytes <= file.size_bytes
            pages.append((file.version, offset_bytes // 4096))
            assert all(
                (file.version, page) in pages_read
                for page in range(offset_bytes // 4096, (offset_bytes + length_bytes) // 4096)
            )
        assert len(set(pages)) == len(pages), "no step begins where another does"
    if same and not drift and epochs > 1 and places > 400 and start == 0 and memory_bytes > MIB:
        assert recorder.epochs_total == epochs - 1
