"""The arithmetic of one direction of a link."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.link import WINDOW_MAX_BYTES, WINDOW_MIN_BYTES, Link, LinkShape

MEGABYTE = 1_000_000
ROUNDING_S = 1e-9

arrivals = st.lists(st.tuples(st.floats(0, 0.05), st.integers(1, 200_000)), min_size=1, max_size=25)
shapes = st.builds(
    LinkShape,
    rtt_s=st.floats(0, 1),
    rate_bytes_per_s=st.one_of(st.floats(1e4, 1e10), st.just(math.inf)),
    jitter_s=st.floats(0, 0.05),
)


def releases(link: Link, gaps_and_sizes: list[tuple[float, int]]) -> list[tuple[float, int, float]]:
    now_s, seen = 0.0, []
    for gap_s, size_bytes in gaps_and_sizes:
        now_s += gap_s
        seen.append((now_s, size_bytes, link.release_at(now_s, size_bytes)))
    return seen


def test_an_idle_link_takes_serialization_and_the_one_way_delay() -> None:
    link = Link(LinkShape(rtt_s=0.060, rate_bytes_per_s=MEGABYTE), Random(0))
    assert link.release_at(5.0, 10_000) == pytest.approx(5.0 + 0.010 + 0.030)


def test_a_chunk_waits_for_those_before_it() -> None:
    link = Link(LinkShape(rtt_s=0.060, rate_bytes_per_s=MEGABYTE), Random(0))
    link.release_at(0.0, 500_000)
    assert link.queue_wait_s(0.1) == pytest.approx(0.4)
    assert link.release_at(0.1, 100_000) == pytest.approx(0.6 + 0.030)
    assert link.queue_wait_s(10.0) == 0.0


def test_full_and_ready_follow_the_queue() -> None:
    link = Link(LinkShape(rtt_s=0.0, rate_bytes_per_s=MEGABYTE, queue_s=0.010), Random(0))
    link.release_at(0.0, 10_000)
    assert not link.is_full(0.0)
    link.release_at(0.0, 1)
    assert link.is_full(0.0)
    ready_s = link.ready_at()
    assert link.queue_wait_s(ready_s) == pytest.approx(0.005)


@settings(max_examples=50)
@given(shapes, arrivals)
def test_chunks_keep_their_order_and_never_beat_the_delay(shape: LinkShape, chunks: list[tuple[float, int]]) -> None:
    last_s = -math.inf
    for entered_s, size_bytes, released_s in releases(Link(shape, Random(1)), chunks):
        assert released_s >= last_s
        earliest_s = entered_s + shape.one_way_delay_s + size_bytes / shape.rate_bytes_per_s
        assert released_s >= earliest_s - ROUNDING_S
        last_s = released_s


@settings(max_examples=50)
@given(shapes, arrivals)
def test_any_run_of_chunks_keeps_to_the_rate(shape: LinkShape, chunks: list[tuple[float, int]]) -> None:
    seen = releases(Link(LinkShape(shape.rtt_s, shape.rate_bytes_per_s), Random(1)), chunks)
    sent_bytes = 0
    for _, size_bytes, released_s in seen[1:]:
        sent_bytes += size_bytes
        assert sent_bytes <= (released_s - seen[0][2]) * shape.rate_bytes_per_s * (1 + 1e-6) + 1 or math.isinf(
            shape.rate_bytes_per_s
        )


def test_a_busy_link_is_used_to_the_full() -> None:
    link = Link(LinkShape(rtt_s=0.9, rate_bytes_per_s=MEGABYTE), Random(0))
    ends = [link.release_at(0.0, 1000) for _ in range(1000)]
    assert ends[-1] == pytest.approx(1.0 + 0.45)


def test_jitter_is_added_and_bounded() -> None:
    link = Link(LinkShape(rtt_s=0.060, jitter_s=0.010), Random(3))
    delays_s = [link.release_at(float(second), 1) - second for second in range(200)]
    assert 0.030 <= min(delays_s) < 0.031
    assert 0.039 < max(delays_s) <= 0.040


@settings(max_examples=50)
@given(st.floats(0, 2), st.floats(1e3, 2e9))
def test_the_window_is_never_the_bottleneck(rtt_s: float, rate_bytes_per_s: float) -> None:
    shape = LinkShape(rtt_s, rate_bytes_per_s)
    assert WINDOW_MIN_BYTES <= shape.window_bytes <= WINDOW_MAX_BYTES
    assert shape.window_bytes >= min(2 * rtt_s * rate_bytes_per_s, WINDOW_MAX_BYTES)


@pytest.mark.parametrize(
    "wrong",
    [{"rtt_s": -1.0}, {"rtt_s": 0.1, "rate_bytes_per_s": 0.0}, {"rtt_s": 0.1, "queue_s": 0.0}, {"rtt_s": math.nan}],
)
def test_impossible_links_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a link needs"):
        LinkShape(**wrong)
