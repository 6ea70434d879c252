"""The kernel's readahead is chosen by what a mount sees: slowly, by margins, and never for what it cannot know."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from order_support import KIB, MIB, Job, facts, growing

from spoke.prefetch.orders import Reason, Step
from spoke.prefetch.planner import Planner
from spoke.prefetch.readahead import DEFAULT_KIB, FAULTS_KIB, START, STREAMS_KIB, ReadAheadChooser, Seen, choose

VERSION = b"v" * 16


class Mount:
    """READs as the kernel sends them for handles opened with the value in force."""

    def __init__(self, foretold: Callable[[bytes], bool] = lambda _version: True) -> None:
        self.chooser = ReadAheadChooser(foretold)
        self.dice = Random(1)
        self.changes: list[int] = []

    @property
    def kib(self) -> int:
        return self.chooser.choice.kib

    def see(self, handle: int, offset_bytes: int, length_bytes: int, fault_bytes: int) -> None:
        if self.chooser.read(handle, VERSION, offset_bytes, length_bytes, fault_bytes):
            self.changes.append(self.kib)

    def faults(self, count: int) -> None:
        for _ in range(count):
            size = self.kib * KIB
            self.see(1, self.dice.randrange(1 << 20) * 4096, size, size)

    def streams(self, mib: int, handles: int = 1) -> None:
        size = self.kib * KIB
        for offset in range(0, mib * MIB, size):
            for handle in range(handles):
                self.see(100 + handle, offset, size, size)

    def records(self, count: int, size: int = 4096) -> None:
        for _ in range(count):
            self.see(7, self.dice.randrange(1 << 20) * 8192, size, self.kib * KIB)


def test_random_faults_under_an_order_want_little() -> None:
    mount = Mount()
    mount.faults(200)
    assert mount.kib == DEFAULT_KIB, "too early to say"
    mount.faults(2000)
    assert mount.kib == FAULTS_KIB
    assert mount.changes == [FAULTS_KIB]


def test_random_faults_that_nobody_foretold_change_nothing() -> None:
    mount = Mount(lambda _version: False)
    mount.faults(5000)
    assert (mount.kib, mount.changes) == (DEFAULT_KIB, [])


@pytest.mark.parametrize("handles", [1, 16, 200])
def test_streams_want_much(handles: int) -> None:
    mount = Mount()
    mount.streams(2000 // handles, handles)
    assert (mount.kib, mount.changes) == (STREAMS_KIB, [STREAMS_KIB])


def test_sixteen_streams_on_one_descriptor_are_streams() -> None:
    mount = Mount()
    for step in range(64):
        for stream in range(16):
            mount.see(1, (stream << 32) + step * 128 * KIB, 128 * KIB, mount.kib * KIB)
    assert mount.kib == STREAMS_KIB


def test_a_few_faults_end_the_large_value() -> None:
    mount = Mount()
    mount.streams(1000)
    for _ in range(60):
        mount.faults(10)
        mount.streams(20)
    assert mount.kib == DEFAULT_KIB


@pytest.mark.parametrize("size", [4096, 12 * KIB, 100 * KIB])
def test_exact_random_reads_change_nothing(size: int) -> None:
    mount = Mount()
    mount.records(5000, size)
    assert (mount.kib, mount.changes) == (DEFAULT_KIB, [])


def test_another_kind_of_job_is_followed_and_no_choice_flaps() -> None:
    mount = Mount()
    mount.faults(2000)
    mount.streams(400)
    mount.faults(4000)
    assert mount.changes[0] == FAULTS_KIB
    assert mount.changes[-1] == FAULTS_KIB
    assert len(mount.changes) <= 5
    at_the_edge = Mount()
    for _ in range(300):  # half and half
        at_the_edge.faults(16)
        at_the_edge.streams(2)
    assert len(at_the_edge.changes) <= 1


@pytest.mark.parametrize("share", [number / 100 for number in range(0, 101, 5)])
def test_what_was_chosen_stays_chosen_for_the_same_reads(share: float) -> None:
    seen = Seen(streams=1000 * (1 - share), faults=1000 * share, ordered_faults=1000 * share, other=0.0)
    first = choose(START, seen)
    assert choose(first, seen).kib == first.kib


@pytest.mark.parametrize("fault_kib", [16, 128, 1024])
def test_an_order_is_followed_whatever_faults_move(fault_kib: int) -> None:
    planner = Planner()
    planner.link(0.06, 1e9)
    files, dice = [facts(number, 2 << 30) for number in range(4)], Random(5)
    steps = [Step(dice.randrange(4), dice.randrange(2047 * MIB), dice.randrange(100, 20 * KIB)) for _ in range(1500)]
    planner.add_order(0.0, growing(files, [steps], Reason.RECIPE))
    job = Job(planner, files, faults=True, fault_bytes=fault_kib * KIB, delay_reads=4)
    job.pump()
    for step in steps:
        job.step(step)
    assert job.hits(64) >= 0.98
    assert job.unread_share <= 0.05, "fetched in the shape in which the kernel asks"
    assert planner.orders()[0]["matched_reads"] > 1400


def test_files_opened_later_are_foretold_with_their_own_size() -> None:
    files = [facts(number, 512 * MIB) for number in range(2)]
    planner = Planner()
    planner.link(0.06, 1e9)
    dice = Random(9)
    steps = [Step(number // 600, dice.randrange(511 * MIB), 2000) for number in range(3600)]
    steps = [step._replace(file=min(1, step.file)) for step in steps]
    planner.add_order(0.0, growing(files, [steps], Reason.RECIPE))
    job = Job(planner, files, faults=True, delay_reads=4)
    job.pump()
    for number, step in enumerate(steps):
        job.fault_bytes = (128 if number < 600 else 16) * KIB
        job.step(step)
    assert job.hits(64) >= 0.98
    late = [fetch.blocks.block_count for fetch in job.fetches[-200:]]
    assert max(late) <= 8, "16 KiB, or two that touch"


@pytest.mark.parametrize("together", [2, 7, 56])
def test_reads_told_of_in_one_piece_count_as_each_would(together: int) -> None:
    alone, pieces = Mount(), Mount()
    reads, size = 56 * 3, 128 * KIB
    for number in range(reads):
        alone.see(1, number * size, size, size)
    pieces.see(1, 0, size, size)
    for number in range(1, reads, together):
        count = min(together, reads - number)
        pieces.chooser.read(1, VERSION, number * size, count * size, size, count)
    assert pieces.chooser.seen == alone.chooser.seen
