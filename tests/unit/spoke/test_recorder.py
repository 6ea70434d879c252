"""What --record writes: the format, its bounds, and what a damaged file gives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.replay.recorded import DamagedTrace, read_trace, records
from bench.replay.trace import CLOSE, OPEN
from common import limits
from common.errors import UsageError
from spoke.reads import Handle
from spoke.recorder import END, FILE, HEADER, READ, RECORD, Recorder, Recording

VERSION = b"v" * 16


class Nobody:
    """An observer that counts what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> object:
        return lambda *_: self.told.append(name)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def recorder_at(path: Path, clock: Clock) -> Recorder:
    recorder = Recorder(path, clock)
    recorder.open()
    return recorder


def test_a_recording_becomes_a_trace(tmp_path: Path, clock: Clock) -> None:
    path, inner = tmp_path / "t", Nobody()
    recorder = recorder_at(path, clock)
    recording = Recording(recorder, inner)  # type: ignore[arg-type]
    one = Handle(1, b"dir/one", VERSION, 1 << 20)
    two = Handle(2, b"dir/two", b"w" * 16, 5000)
    recording.opened(one, 11)
    recording.read(one, 11, 0, 4096, "miss")
    clock.now_s += 0.06
    recording.stalled(one, 11, 0.06)
    clock.now_s += 0.25
    recording.read(one, 11, 4096, 8192, "hit")
    recording.opened(two, 12)
    recording.read(two, 12, 4096, 904, "late")
    recording.closed(one)
    recording.lent(two)
    recording.gone(two)
    recorder.close()
    assert inner.told == [
        "opened", "read", "stalled", "read", "opened", "read", "closed", "lent", "gone",
    ]  # fmt: skip
    trace = read_trace(path)
    assert [(file.path, file.size_bytes) for file in trace.files] == [(b"dir/one", 1 << 20), (b"dir/two", 5000)]
    first, second = trace.processes
    assert list(zip(first.files, first.offsets, first.lengths, strict=True)) == [(0, 0, 4096), (0, 4096, 8192)]
    assert list(first.flags) == [OPEN, CLOSE]
    assert first.thinks_us is not None
    assert abs(first.thinks_us[0] - 250_000) <= 2, "the wait for the hub is not the reader's own time"
    assert list(zip(second.files, second.offsets, second.lengths, strict=True)) == [(1, 4096, 904)]


def test_the_header_and_records_are_as_documented(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "t"
    recorder = recorder_at(path, clock)
    recorder.file_number(b"p", VERSION, 77)
    clock.now_s += 1.5
    recorder.add(READ, result=2, handle=3, task=4, length=5, offset=6)
    recorder.close()
    data = path.read_bytes()
    assert data[:16].hex() == "48525452414345000100" + "1c00" + "00000000"
    assert data[16:44] == bytes([FILE, 0, 18, 0]) + bytes(4) + bytes(4) + bytes(4) + bytes(4) + (77).to_bytes(
        8, "little"
    )
    assert data[44:62] == b"p\0" + VERSION
    assert data[62:].hex() == "03020000" + "60e31600" + "03000000" + "04000000" + "05000000" + "0600000000000000"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_exists_is_never_overwritten(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "t"
    path.write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        Recorder(path, clock).open()
    with pytest.raises(UsageError, match="cannot be made"):
        Recorder(tmp_path / "no" / "t", clock).open()
    assert path.read_text() == "mine"


def test_it_ends_at_its_limit_and_says_so(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECORD_MAX_BYTES", 1000)
    path = tmp_path / "t"
    recorder = recorder_at(path, clock)
    for number in range(100):
        recorder.add(READ, handle=number)
    assert not recorder.recording
    assert path.stat().st_size <= 1000
    assert [record.kind for record in records(path)][-1] == END


def test_a_disk_that_refuses_ends_it_quietly(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = recorder_at(tmp_path / "t", clock)

    def full(_fd: int, _data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    for _ in range(limits.RECORD_PIECE_BYTES // RECORD.size + 1):
        recorder.add(READ)
    assert not recorder.recording
    recorder.add(READ)
    recorder.close()


def test_a_cut_record_is_ignored_and_other_files_are_refused(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "t"
    recorder = recorder_at(path, clock)
    recorder.add(READ, handle=1)
    recorder.file_number(b"name", VERSION, 1)
    recorder.close()
    whole = path.read_bytes()
    for cut in range(HEADER.size, len(whole)):
        path.write_bytes(whole[:cut])
        assert len(list(records(path))) == (cut >= HEADER.size + RECORD.size)
    for damaged in (
        b"",
        b"something else entirely",
        whole[:8] + b"\x02\0" + whole[10:],
        whole[:10] + b"\x08\0" + whole[12:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(DamagedTrace):
            list(records(path))
    path.write_bytes(whole)
    with pytest.raises(DamagedTrace, match="no READ"):
        read_trace(path)
