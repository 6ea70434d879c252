"""Whether packing pays, on simulated paths: a link of a rate, and CPUs that pack, serve and unpack what crosses it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import pytest

from common.serving.packing_choice import (
    ASSUMED_RATIO,
    HOLD_OFF_FIRST_S,
    NEAR_FIRST_BYTES,
    Mode,
    PackingChoice,
    PackingCost,
    pays,
)

LOOK_S = 0.05
EXTENT = 1 << 20
GBIT = 1e9 / 8
U32, U16, NOISE = 0.36, 0.58, 1.0


@dataclass
class Path:
    """``serve_s_per_byte``: CPU seconds that hub and spoke need for a byte that crosses, over ``cpus`` between them."""

    link_bytes_per_s: float
    rtt_s: float = 0.0
    cpus: float = 2.0
    serve_s_per_byte: float = 8e-9
    pack_s_per_byte: float = 2.5e-9
    unpack_s_per_byte: float = 1e-9
    wanted_bytes_per_s: float = math.inf
    """What readers ask for, in file bytes."""
    full: bool = False
    noise: float = 0.1

    def file_rate(self, ratio: float, *, packed: bool) -> float:
        """In file bytes per second: the link, the CPUs together, or the readers hold it back."""
        if not packed or ratio >= 1:
            return min(self.link_bytes_per_s, self.cpus / self.serve_s_per_byte, self.wanted_bytes_per_s)
        cpu_s = self.serve_s_per_byte + self.pack_s_per_byte + self.unpack_s_per_byte
        return min(self.link_bytes_per_s / ratio, self.cpus / cpu_s, self.wanted_bytes_per_s)


class Run:
    """``sent``: file bytes, ``crossed``: on the wire, ``best``: file bytes had all been raw."""

    def __init__(self, path: Path, *, far: bool | None = None, seed: int = 1) -> None:
        self.path = path
        self.choice = PackingChoice(far=path.rtt_s >= 0.01 if far is None else far)
        self.now_s = 1000.0
        self.sent = self.crossed = self.best = 0.0
        self._dice = Random(seed)
        self._owed = 0.0

    def go(self, seconds: float, ratio: float = U32) -> Run:
        path, choice = self.path, self.choice
        self.sent = self.crossed = self.best = 0.0
        cost = PackingCost(path.pack_s_per_byte, 2)
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            moved, left_s = 0.0, LOOK_S
            rough = 1 + path.noise * self._dice.uniform(-1, 1)
            while left_s > 0:
                packed = choice.wants(EXTENT, ratio) and ratio < 1
                rate = path.file_rate(ratio, packed=packed) * rough
                part = min(EXTENT, rate * left_s)
                payload = part * ratio if packed else part
                choice.prepared(int(part), int(payload), cost)
                self.sent, self.crossed, moved = self.sent + part, self.crossed + payload, moved + payload
                left_s -= part / rate
            self.best += path.file_rate(ratio, packed=False) * LOOK_S
            self.now_s += LOOK_S
            busy = path.wanted_bytes_per_s > path.file_rate(ratio, packed=choice.mode is Mode.PACKING)
            choice.observe(self.now_s, moved_bytes=int(moved), rtt_s=path.rtt_s, busy=busy, full=path.full)
        return self

    @property
    def wire(self) -> float:
        return self.crossed / self.sent

    @property
    def speed(self) -> float:
        """Against sending all of it raw."""
        return self.sent / self.best


LOOPBACK = Path(math.inf)


@pytest.mark.parametrize("ratio", [U32, U16, NOISE])
@pytest.mark.parametrize("seed", range(3))
def test_loopback_is_as_fast_as_without_compression_from_the_first_second(ratio: float, seed: int) -> None:
    run = Run(LOOPBACK, seed=seed).go(0.5, ratio)
    assert run.speed >= 0.97
    assert run.go(30, ratio).speed >= 0.98


@pytest.mark.parametrize(
    ("link", "rtt_s"),
    [(GBIT, 0.06), (0.3 * GBIT, 0.06), (0.3 * GBIT, 0.9), (0.3 * GBIT, 0.0), (0.3 * GBIT, 0.001), (2.5 * GBIT, 0.06)],
)
@pytest.mark.parametrize(("ratio", "most"), [(U32, 0.5), (U16, 0.75)])
@pytest.mark.parametrize("seed", range(3))
def test_a_slow_link_is_sent_packed_bytes(link: float, rtt_s: float, ratio: float, most: float, seed: int) -> None:
    path = Path(link, rtt_s, cpus=8)
    run = Run(path, seed=seed).go(3, ratio)
    assert run.wire <= most
    assert run.speed >= 1.1
    run.go(20, ratio)
    assert run.wire <= ratio + 0.05
    assert run.speed >= 1.2


def test_a_far_link_is_packed_from_the_first_byte_while_nothing_is_known() -> None:
    choice = PackingChoice(far=True)
    assert all(choice.wants(EXTENT, None) for _ in range(1000))


def test_a_near_link_gets_a_little_packed_and_then_raw_bytes_until_it_was_measured() -> None:
    choice = PackingChoice(far=False)
    answers = [choice.wants(EXTENT, None) for _ in range(10)]
    assert answers == [True] * (NEAR_FIRST_BYTES // EXTENT) + [False] * (10 - NEAR_FIRST_BYTES // EXTENT)


@pytest.mark.parametrize("rtt_s", [0.0, 0.06])
def test_ten_gigabits_are_sent_raw(rtt_s: float) -> None:
    run = Run(Path(10 * GBIT, rtt_s, cpus=8, serve_s_per_byte=2e-9)).go(10)
    assert run.speed >= 0.9  # a far one begins packed
    assert run.choice.mode is Mode.RAW
    run.go(30)
    assert run.speed >= 0.97
    assert run.wire >= 0.95


def test_a_near_link_whose_queue_was_seen_is_packed_where_the_cpus_allow_it() -> None:
    """2.5 Gbit/s in a rack: not tried by the rate alone, which could be the machines' own; a queue says it is the link's."""
    path = Path(2.5 * GBIT, 0.0005, cpus=8)
    assert Run(path).go(10).wire > 0.9
    path.full = True
    run = Run(path).go(10)
    assert run.wire <= 0.5
    assert run.speed >= 1.5


def test_short_cpus_end_what_does_not_pay() -> None:
    """45 MB/s raw, 30 packed: a rate that looks like a slow link's, and packing lowers it."""
    path = Path(math.inf, cpus=0.36, pack_s_per_byte=3e-9, serve_s_per_byte=8e-9)
    run = Run(path).go(10)
    assert run.choice.mode is Mode.RAW
    assert run.speed >= 0.85
    assert run.go(60).speed >= 0.97, "what lost is tried again seldom"


def test_short_cpus_do_not_end_it_on_a_far_path() -> None:
    """Its bytes cost money; only a path that is faster than the packing threads goes raw."""
    path = Path(math.inf, 0.06, cpus=0.36, pack_s_per_byte=3e-9, serve_s_per_byte=8e-9)
    assert Run(path).go(10).wire <= 0.5


def test_a_path_that_becomes_slow_is_packed_and_one_that_becomes_fast_again_is_not() -> None:
    path = Path(math.inf)
    run = Run(path).go(5)
    path.link_bytes_per_s = 0.3 * GBIT
    assert run.go(3).wire <= 0.5
    assert run.go(20).wire <= U32 + 0.05
    path.link_bytes_per_s = math.inf
    run.go(3)
    assert run.choice.mode is Mode.RAW
    assert run.go(10).speed >= 0.98


def test_a_path_that_becomes_slow_soon_after_packing_has_lost_is_tried_at_once() -> None:
    path = Path(math.inf, cpus=0.36)
    run = Run(path).go(3)
    assert run.choice.mode is Mode.RAW
    path.link_bytes_per_s, path.cpus = 10e6, 8
    assert HOLD_OFF_FIRST_S > 3
    assert run.go(3).wire <= 0.5


def test_readers_that_ask_for_little_leave_things_as_they_are() -> None:
    far = Run(Path(GBIT, 0.06, wanted_bytes_per_s=5e6)).go(20)
    assert far.wire <= U32 + 0.01
    near = Run(Path(math.inf, wanted_bytes_per_s=5e6)).go(20)
    assert near.wire >= 0.95


def test_a_comparison_without_readers_ends_and_packing_goes_on() -> None:
    path = Path(0.3 * GBIT, 0.06, cpus=8)
    run = Run(path)
    while run.choice.mode is not Mode.COMPARING:
        run.go(LOOK_S)
    run.choice.idle(run.now_s + 0.1)
    assert run.choice.mode is Mode.COMPARING
    run.choice.idle(run.now_s + 5)
    assert run.choice.mode is Mode.PACKING


def test_noise_teaches_the_rate_and_loses_nothing_for_what_follows() -> None:
    run = Run(Path(0.3 * GBIT, 0.06, cpus=8)).go(10, NOISE)
    assert run.go(3, U32).wire <= 0.45


def test_what_hardly_shrinks_goes_raw_where_that_does_not_pay() -> None:
    cost = PackingCost(2.5e-9, 2)
    assert not pays(GBIT, 0.95, cost, path_is_limit=True)
    assert pays(GBIT, 0.8, cost, path_is_limit=True)
    assert not pays(GBIT, 0.8, cost, path_is_limit=False)
    assert not pays(10 * GBIT, ASSUMED_RATIO, cost, path_is_limit=True)
    assert pays(0.0, 0.9, cost, path_is_limit=False)


def test_short_files_over_a_far_path_stay_packed_though_each_begins_slowly() -> None:
    """60 ms: 0.8 s each, of which most is the coming up to 80 MB/s of file bytes; raw, the moment of a comparison shows 93."""
    choice = PackingChoice(far=True)
    now_s, rtt_s, look_s = 100.0, 0.06, 0.05
    for _file in range(12):
        for look in range(16):
            now_s += look_s
            packed = choice.mode is Mode.PACKING
            file_rate = min(80e6, 5e6 * (look + 1)) if packed else 93e6
            choice.prepared(int(file_rate * look_s), int(file_rate * look_s * (0.6 if packed else 1)), PackingCost())
            moved_bytes = int(file_rate * look_s * (0.6 if packed else 1))
            choice.observe(now_s, moved_bytes=moved_bytes, rtt_s=rtt_s, busy=True, full=False)
        now_s += 2.0
        choice.idle(now_s)
    assert choice.mode is Mode.PACKING
    assert choice.raw_bytes_per_s is None, "never compared: no file was long enough to show what packing brings"
