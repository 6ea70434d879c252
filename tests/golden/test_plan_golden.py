"""Bytes of the plan channel that are out in training images: they must be read for ever as they were written."""

from pathlib import Path

from spoke import hints
from spoke.plan_message import Kind, PlanAnswer, PlanMessage, decode, encode_answer, encode_short

BYTES = Path(__file__).parent / "plan"
PATHS = [b"shards/00000.mds", b"shards/00001.mds"]
ARGUMENTS = (
    0x1122334455667788,
    b"rank3:train",
    4096,
    PATHS,
    [0, 1, 0, 0],
    [64, 8256, 1 << 33, 64],
    [8192, 8192, 8192, 100],
)


def test_a_steps_message() -> None:
    kept = bytes.fromhex((BYTES / "steps.hex").read_text())
    assert hints.pack_steps(*ARGUMENTS, last=True) == kept
    token, name, from_step, paths, files, offsets, lengths = ARGUMENTS
    read = decode(kept)
    columns = [list(column) for column in (read.files, read.offsets_bytes, read.lengths_bytes)]
    assert [read.kind, read.name, read.token, read.from_step, read.last, read.paths, *columns] == [
        Kind.STEPS, name.decode(), token, from_step, True, paths, files, offsets, lengths,
    ]  # fmt: skip


def test_a_drop_and_an_answer() -> None:
    kept = bytes.fromhex((BYTES / "drop.hex").read_text())
    assert encode_short(Kind.DROP, "rank3:train", 17) == kept
    assert decode(kept) == PlanMessage(Kind.DROP, "rank3:train", 17)
    answer = PlanAnswer(4100, 60, 131012, True, "left out: 1 past-end")
    assert encode_answer(answer, 512) == bytes.fromhex((BYTES / "answer.hex").read_text())


def test_a_marks_message() -> None:
    kept = bytes.fromhex((BYTES / "marks.hex").read_text())
    marks = [(0.75, 0.25, 0.0625), (0.5, 0.25, None), (0.25, 0.25, 0.0)]
    assert hints.pack_marks(b"rank3:train", 4096, 3, marks) == kept
    read = decode(kept)
    assert (read.kind, read.name, read.from_step, read.rank, read.marks) == (
        Kind.MARKS, "rank3:train", 4096, 3, marks,
    )  # fmt: skip
