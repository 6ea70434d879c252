"""The pacer keeps its rate over any span, catches up after a pause only by its burst, and remembers debt."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.pacing import Pacer

MIB = 1024 * 1024


def test_no_rate_never_waits() -> None:
    pacer = Pacer(None)
    for _ in range(100):
        assert pacer.next_send_at(5.0, MIB) == 5.0
        pacer.sent(5.0, MIB)


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_impossible_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        Pacer(rate)


def test_steady_flow_has_exactly_the_rate() -> None:
    pacer = Pacer(10 * MIB, burst_bytes=MIB)
    now_s = 0.0
    sent_bytes = 0
    while now_s < 10.0:
        pacer.sent(now_s, MIB // 4)
        sent_bytes += MIB // 4
        now_s = pacer.next_send_at(now_s, MIB // 4)
    assert sent_bytes == pytest.approx(100 * MIB, rel=0.02)


def test_an_item_larger_than_the_burst_waits_for_a_full_bucket_and_goes() -> None:
    pacer = Pacer(MIB, burst_bytes=1024)
    assert pacer.next_send_at(0.0, MIB) == 0.0
    pacer.sent(0.0, MIB)
    assert pacer.next_send_at(0.0, MIB) == pytest.approx(1.0)
    assert pacer.next_send_at(0.0, 0) == pytest.approx(1.0 - 1024 / MIB)


def test_a_pause_earns_the_burst_and_no_more() -> None:
    pacer = Pacer(1024, burst_bytes=512)
    pacer.sent(0.0, 512)
    now_s = 1000.0
    at_once = 0
    while pacer.next_send_at(now_s, 128) == now_s:
        pacer.sent(now_s, 128)
        at_once += 128
    assert at_once == 512


def test_rate_change_keeps_the_debt_in_bytes() -> None:
    pacer = Pacer(1000, burst_bytes=1)
    pacer.sent(0.0, 10_000)
    pacer.set_rate(0.0, 10_000)
    assert pacer.next_send_at(0.0, 1) == pytest.approx(1.0)
    pacer.set_rate(0.0, None)
    assert pacer.next_send_at(0.0, 1) == 0.0
    pacer.set_rate(5.0, 1000)
    assert pacer.next_send_at(5.0, 1) == 5.0


def test_correction_gives_back_what_was_not_sent() -> None:
    pacer = Pacer(1000, burst_bytes=1)
    pacer.sent(0.0, 4000)
    pacer.correct(-3000)
    assert pacer.next_send_at(0.0, 1) == pytest.approx(1.0)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), rate=st.floats(1e3, 2e9), burst=st.integers(1, 4 * MIB))
def test_over_any_span_no_more_than_rate_plus_burst_plus_one_item(seed: int, rate: float, burst: int) -> None:
    dice = random.Random(seed)
    pacer = Pacer(rate, burst_bytes=burst)
    now_s = 0.0
    sends: list[tuple[float, int]] = []
    for _ in range(120):
        size_bytes = dice.randint(1, MIB)
        now_s = pacer.next_send_at(now_s, size_bytes)
        pacer.sent(now_s, size_bytes)
        sends.append((now_s, size_bytes))
        if dice.random() < 0.2:
            now_s += dice.random() * 2 * burst / rate
    for _ in range(200):
        first, last = sorted(dice.sample(range(len(sends)), 2))
        span_bytes = sum(size for _, size in sends[first : last + 1])
        span_s = sends[last][0] - sends[first][0]
        assert span_bytes <= rate * span_s * (1 + 1e-9) + burst + MIB + 1
