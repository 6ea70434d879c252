"""The checker of the chaos runs can fail: each way in which bytes can be wrong is seen, and what is right is not."""

import time
from pathlib import Path

import pytest

from bench.chaos.content import State, WrongBytes, clip, generate, narrow, overwrite
from bench.chaos.ledger import Ledger, LedgerWriter

SIZE = 10_007


def state(number: int, size_bytes: int | None, runs: tuple[tuple[int, int, int], ...]) -> State:
    return State("a", number, size_bytes, runs, float(number), number + 1.0)


OLD = state(1, SIZE, ((0, SIZE, 7),))
HALF = state(2, SIZE, ((0, 4099, 8), (4099, SIZE, 7)))
NEW = state(3, SIZE, ((0, SIZE, 8),))


def bytes_of(one: State) -> bytes:
    return b"".join(generate(stamp, low, high) for low, high, stamp in one.runs)


@pytest.mark.parametrize("offset", [0, 1, 15, 4090, 4099, 9990])
@pytest.mark.parametrize("count", [1, 16, 37, 4096])
def test_what_a_state_holds_is_recognized_at_any_offset(offset: int, count: int) -> None:
    for one in (OLD, HALF, NEW):
        data = bytes_of(one)[offset : offset + count]
        assert one in narrow([OLD, HALF, NEW], data, offset, at_end=False)


def test_reads_of_one_handle_leave_fewer_states_and_a_mix_leaves_none() -> None:
    left = narrow([OLD, HALF, NEW], bytes_of(NEW)[:4096], 0, at_end=False)
    assert left == [HALF, NEW]
    left = narrow(left, bytes_of(NEW)[8192:], 8192, at_end=True)
    assert left == [NEW]
    with pytest.raises(WrongBytes):
        narrow(left, bytes_of(OLD)[4112:4128], 4112, at_end=False)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:-1] + bytes([data[-1] ^ 128]),
        lambda data: data[4096:8192] + data[:4096] + data[8192:],
        lambda data: data[:5000] + bytes(100) + data[5100:],
        lambda data: data[:-16],
        lambda data: data + bytes(3),
        lambda _data: b"",
    ],
)
def test_every_kind_of_damage_is_seen(damage: object) -> None:
    assert callable(damage)
    with pytest.raises(WrongBytes):
        narrow([OLD, HALF, NEW], damage(bytes_of(OLD)), 0, at_end=True)


def test_the_end_is_the_end_only_where_a_state_ends() -> None:
    assert narrow([OLD], b"", SIZE, at_end=True) == [OLD]
    assert narrow([OLD], b"", SIZE + 5, at_end=True) == [OLD]
    with pytest.raises(WrongBytes):
        narrow([OLD], b"", SIZE - 1, at_end=True)
    with pytest.raises(WrongBytes):
        narrow([state(1, None, ())], b"", 0, at_end=True)


def test_overwriting_and_clipping_follow_the_bytes() -> None:
    runs = overwrite(((0, 100, 1),), 40, 60, 2)
    assert runs == ((0, 40, 1), (40, 60, 2), (60, 100, 1))
    assert overwrite(runs, 90, 150, 3) == ((0, 40, 1), (40, 60, 2), (60, 90, 1), (90, 150, 3))
    assert clip(runs, 50, 70) == ((50, 60, 2), (60, 70, 1))


def test_a_ledger_is_followed_while_it_is_written(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "ledger")
    reader = Ledger(tmp_path / "ledger")
    first = writer.begin("a", 10, ((0, 10, 1),))
    reader.refresh()
    assert [one.size_bytes for one in reader.of("a")] == [10]
    writer.done("a", first)
    before_s = time.monotonic()
    writer.done("a", writer.begin("a", None, ()))
    reader.refresh()
    gone = reader.of("a")[1]
    assert gone.size_bytes is None
    assert gone.ended_s is None
    assert reader.of("a")[0].ended_s is not None
    assert reader.names() == []
    assert reader.was_absent("a", before_s + 1, before_s + 2)
    assert not reader.was_absent("a", reader.of("a")[0].begun_s, reader.of("a")[0].begun_s)
    writer.close()
    reader.close()
