"""Messages of the plan channel: what is taken, what is refused and with which errno."""

import errno
import struct

import pytest

from common import limits
from spoke import hints
from spoke.plan_message import BadPlan, Kind, PlanAnswer, decode, encode_answer, encode_short, is_plan_command

HEADER = struct.Struct("<4sBBBBIQQ")


def steps(count: int = 3, name: bytes = b"p", **wrong: object) -> bytes:
    columns = {"files": [0] * count, "offsets": [n * 10 for n in range(count)], "lengths": [10] * count}
    return hints.pack_steps(7, name, 5, [b"a/b"], *(columns | wrong).values())


def refused(data: bytes) -> tuple[int, str]:
    with pytest.raises(BadPlan) as caught:
        decode(data)
    return caught.value.errno, str(caught.value)


def test_what_hints_packs_is_what_is_read() -> None:
    paths = [b"data/shard-00001.bin", b"data/shard-00002.bin", b"other"]
    files, offsets, lengths = [0, 2, 1, 0], [1 << 40, 0, 7, 999], [1, 1 << 20, 4096, 3]
    message = decode(hints.pack_steps(1 << 63, b"rank0", 12, paths, files, offsets, lengths, last=True) + bytes(100))
    assert (message.kind, message.name, message.token, message.from_step) == (Kind.STEPS, "rank0", 1 << 63, 12)
    assert message.last
    assert (list(message.paths), list(message.files)) == (paths, files)
    assert (list(message.offsets_bytes), list(message.lengths_bytes)) == (offsets, lengths)


def test_records_of_one_size_cost_little_more_than_their_numbers() -> None:
    order = [(n * 7919) % 60_000 for n in range(1024)]
    packed = hints.pack_steps(1, b"p", 0, [b"train.bin"], [0] * 1024, [64 + 8192 * n for n in order], [8192] * 1024)
    assert len(packed) < 2 * 1024 + 128
    assert list(decode(packed).offsets_bytes) == [64 + 8192 * n for n in order]


def test_messages_that_cannot_be() -> None:
    good = steps()
    assert refused(b"")[0] == errno.EINVAL
    assert refused(b"{" * 16383)[0] == errno.EINVAL
    assert refused(bytes([*good[:4], 3]) + good[5:])[0] == errno.EPROTONOSUPPORT
    assert refused(bytes([*good[:5], 9]) + good[6:])[0] == errno.EINVAL
    assert refused(bytes([*good[:6], 2]) + good[7:])[0] == errno.EINVAL
    for end in range(len(good)):
        assert refused(good[:end])[0] == errno.EINVAL
    assert "left over" in refused(HEADER.pack(b"HRPL", 1, 3, 0, 1, HEADER.size + 2, 1, 0) + b"pp")[1]
    assert "names are" in refused(steps(name=b"a b"))[1]
    assert "names are" in refused(steps(name=b""))[1]
    assert "names are" in refused(steps(name=b"x" * 65))[1]
    assert "file 1 of 1" in refused(steps(files=[0, 1, 0]))[1]
    assert "below 2^63" in refused(steps(offsets=[1 << 63] * 3))[1]
    assert "below 2^63" in refused(steps(lengths=[0, 1, 1 << 63]))[1]
    assert refused(steps(limits.PLAN_MESSAGE_MAX_STEPS + 1))[0] == errno.E2BIG


def test_a_few_bytes_cannot_stand_for_much_memory() -> None:
    head = HEADER.pack(b"HRPL", 1, 1, 0, 1, 0, 1, 0) + b"p"
    column = struct.pack("<BQQ", 0, 0, 1)

    def message(body: bytes) -> bytes:
        size = len(head) + len(body)
        return HEADER.pack(b"HRPL", 1, 1, 0, 1, size, 1, 0) + b"p" + body

    assert refused(message(struct.pack("<II", 1 << 31, 0) + 3 * column))[0] == errno.E2BIG
    assert refused(message(struct.pack("<II", 0, 1 << 31) + 3 * column))[0] == errno.EINVAL
    long = struct.pack("<HH", 0, 4000) + b"x" * 4000 + struct.pack("<HH", 4000, 0) * 3000
    assert refused(message(struct.pack("<II", 0, 3001) + long))[0] == errno.E2BIG
    assert refused(message(struct.pack("<II", 0, 1) + struct.pack("<HH", 0, 5000) + b"x" * 5000))[0] == errno.EINVAL


def test_answers_are_cut_to_the_room_there_is() -> None:
    answer = PlanAnswer(1, 2, 3, True, "why " * 600)
    assert encode_answer(answer, 31) == b""
    assert len(encode_answer(answer, 100)) == 100
    assert len(encode_answer(answer, 16383)) == 32 + limits.PLAN_TEXT_MAX_BYTES
    assert struct.unpack_from("<4sBBHQQQ", encode_answer(answer, 100)) == (b"HRPL", 1, 1, 68, 1, 2, 3)


def test_the_ioctls_number_is_known_at_any_size() -> None:
    assert is_plan_command(hints._command(16383))
    assert is_plan_command(hints._command(64))
    assert not is_plan_command(0x5401)
    assert decode(encode_short(Kind.DROP, "p", 9)).token == 9


def test_marks_read_back_and_are_of_version_2() -> None:
    packed = hints.pack_marks(b"rank3-77", 120, 3, [(0.5, 0.25, 0.125), (0.25, 0.25, None), (0.0, 1e9, 0.0)])
    message = decode(packed + bytes(40))
    assert (message.kind, message.name, message.from_step, message.rank) == (Kind.MARKS, "rank3-77", 120, 3)
    assert message.marks[:2] == [(0.5, 0.25, 0.125), (0.25, 0.25, None)]
    assert 4294 < message.marks[2].took_s < 4295  # as much as the format can say
    assert decode(hints.pack_marks(b"j", 0, None, [])).rank is None
    assert "kind 4; there are 1 to 3 in version 1" in refused(bytes([*packed[:4], 1]) + packed[5:])[1]
    assert decode(bytes([*steps()[:4], 2]) + steps()[5:]).kind is Kind.STEPS
    assert refused(hints.pack_marks(b"j", 0, None, [(0, 0, 0)] * (limits.PLAN_MARKS_MAX + 1)))[0] == errno.E2BIG
    for end in range(len(packed)):
        assert refused(packed[:end])[0] == errno.EINVAL
