"""How many links, and which of them no longer keeps up."""

from pathlib import Path

import pytest

from common import limits
from spoke.hub_client.sizing import (
    is_stalled,
    lags,
    most_outstanding_bytes,
    receive_buffer_bytes,
    wanted_links,
    window_bytes,
)

MIB = 1024 * 1024
STOCK = window_bytes(6 * MIB, 4 * MIB)
TUNED = window_bytes(512 * MIB, 512 * MIB)


def test_the_receive_buffer_is_the_kernels_third_number(tmp_path: Path) -> None:
    sysctl = tmp_path / "tcp_rmem"
    sysctl.write_text("4096\t131072\t33554432\n")
    assert receive_buffer_bytes(sysctl) == 33554432
    sysctl.write_text("nonsense\n")
    assert receive_buffer_bytes(sysctl) == 6 * MIB
    assert receive_buffer_bytes(tmp_path / "nowhere") == 6 * MIB


def test_the_smaller_buffer_is_the_window() -> None:
    assert window_bytes(512 * MIB, 4 * MIB) == window_bytes(64 * MIB, 4 * MIB) == int(2.8 * MIB)
    assert window_bytes(6 * MIB, 0) == STOCK
    assert window_bytes(6 * MIB, 512 * MIB) == 3 * MIB


@pytest.mark.parametrize("window", [STOCK, TUNED])
@pytest.mark.parametrize("rtt_s", [0.0, 0.06, 0.25, 0.9])
@pytest.mark.parametrize("rate", [0.0, 1e6, 125e6, 1.25e9])
def test_the_links_hold_what_the_path_does_or_are_the_most(rtt_s: float, rate: float, window: int) -> None:
    links = wanted_links(rtt_s, rate, window)
    assert limits.BULK_LINKS_MIN <= links <= limits.BULK_LINKS_MAX
    assert links * window >= rtt_s * rate or links == limits.BULK_LINKS_MAX


def test_a_rate_held_down_by_the_links_calls_for_more_until_more_bring_nothing() -> None:
    rtt_s, path = 0.25, 312.5e6
    links = wanted_links(rtt_s, 0, STOCK)
    for _ in range(10):
        links = max(links, wanted_links(rtt_s, min(path, links * STOCK / rtt_s), STOCK))
    assert links * STOCK >= path * rtt_s or links == limits.BULK_LINKS_MAX


def test_silence_counts_only_beside_links_that_are_heard() -> None:
    assert is_stalled(2.5, 0.06, 0.1)
    assert not is_stalled(2.5, 0.06, 2.5)
    assert not is_stalled(1.0, 0.06, 0.1)
    assert not is_stalled(2.5, 0.9, 0.1)
    assert is_stalled(4.0, 0.9, 0.1)


def test_a_link_lags_when_its_requests_wait_many_times_as_long_as_others() -> None:
    usual = {"all_rate_bytes_per_s": 100e6, "links": 8, "outstanding_bytes": 16_000_000, "rtt_s": 0.06}
    usual["link_age_s"] = 60.0
    assert lags(age_s=3.0, rate_bytes_per_s=1e5, **usual)
    assert not lags(age_s=1.0, rate_bytes_per_s=1e5, **usual)
    assert not lags(age_s=3.0, rate_bytes_per_s=10e6, **usual)
    assert not lags(age_s=3.0, rate_bytes_per_s=0.0, **{**usual, "all_rate_bytes_per_s": 0.0})
    assert not lags(age_s=3.0, rate_bytes_per_s=0.0, **{**usual, "links": 1})
    assert not lags(age_s=30.0, rate_bytes_per_s=1e5, **{**usual, "outstanding_bytes": 1_500_000_000})
    assert not lags(age_s=3.0, rate_bytes_per_s=1e5, **{**usual, "link_age_s": 2.5}), "its window still grows"
    assert not lags(age_s=30.0, rate_bytes_per_s=1e5, **{**usual, "rtt_s": 0.9, "link_age_s": 12.0})


def test_a_young_connection_is_asked_for_what_its_window_may_grow_to() -> None:
    assert most_outstanding_bytes(0) == limits.LINK_YOUNG_BYTES
    assert most_outstanding_bytes(1_000_000) == 2_000_000
    assert most_outstanding_bytes(1 << 40) == limits.LINK_MAX_OUTSTANDING_BYTES
