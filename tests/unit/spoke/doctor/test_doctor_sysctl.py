"""deploy/sysctl and doctor say the same: one arithmetic, sizing's."""

from __future__ import annotations

from pathlib import Path

import pytest

from common import limits
from spoke.doctor import arithmetic
from spoke.hub_client import sizing

CONF = Path(__file__).parents[4] / "deploy" / "sysctl" / "90-headrace.conf"
TEXT = CONF.read_text()
STOCK_WINDOW = sizing.window_bytes(sizing.STOCK_RECEIVE_BYTES, sizing.STOCK_SEND_BYTES)


def test_the_file_sets_what_doctor_recommends() -> None:
    lines = [line.partition("=") for line in TEXT.splitlines() if line and not line.startswith("#")]
    assert {name.strip(): value.strip() for name, _, value in lines} == arithmetic.SYSCTLS


def test_its_table_is_what_doctor_computes() -> None:
    table = [line.removeprefix("#     ") for line in TEXT.splitlines() if line.startswith("#     ")]
    assert table == arithmetic.table()


@pytest.mark.parametrize(
    "said",
    [
        f"{STOCK_WINDOW / 2**20:.1f} MiB a link",
        f"opens {limits.BULK_LINKS_MIN} to {limits.BULK_LINKS_MAX} links, for {sizing.SPARE:g} times",
        f"One link of {STOCK_WINDOW / 2**20:.1f} MiB carries {STOCK_WINDOW / 0.06 * 8e-9:.1f} Gbit/s at 60 ms",
        f"asks for {limits.PREFETCH_MAX_OUTSTANDING_BYTES >> 20} MiB ahead at most: "
        f"{limits.PREFETCH_MAX_OUTSTANDING_BYTES / 0.06 * 8e-9:.1f} Gbit/s at 60 ms",
        f"{limits.PREFETCH_MAX_OUTSTANDING_BYTES / 0.25 * 8e-9:.1f} at 250 ms, "
        f"{limits.PREFETCH_MAX_OUTSTANDING_BYTES / 0.9 * 8e-9:.1f} at 900 ms",
        f"{arithmetic.BUFFER_MAX_BYTES >> 20} MiB each way: "
        f"{int(arithmetic.BUFFER_MAX_BYTES * sizing.RECEIVE_WINDOW_SHARE) >> 20} MiB of window, "
        f"{arithmetic.BUFFER_MAX_BYTES * sizing.RECEIVE_WINDOW_SHARE / 0.06 * 8e-9:.1f} Gbit/s a link at 60 ms",
        f"{arithmetic.regrow_round_trips(125e6 * 0.06 / limits.BULK_LINKS_MIN, 1448)} round trips, "
        f"{arithmetic.regrow_round_trips(125e6 * 0.06 / limits.BULK_LINKS_MIN, 1448) * 0.06:.2f} s",
    ],
)
def test_the_numbers_in_its_sentences(said: str) -> None:
    assert said in " ".join(line.removeprefix("# ") for line in TEXT.splitlines())


@pytest.mark.parametrize("rtt_s", [0.001, 0.06, 0.25, 0.9])
@pytest.mark.parametrize("rate", [1e6, 125e6, 1.25e9, 12.5e9])
def test_carried_is_what_the_spoke_would_open(rtt_s: float, rate: float) -> None:
    found = arithmetic.carried(rtt_s, rate, sizing.STOCK_RECEIVE_BYTES, sizing.STOCK_SEND_BYTES)
    assert found.links == sizing.wanted_links(rtt_s, rate, STOCK_WINDOW)
    assert found.cap_bytes_per_s * rtt_s == pytest.approx(found.links * found.window_bytes)


@pytest.mark.parametrize("rtt_s", [0.001, 0.06, 0.25, 0.9])
@pytest.mark.parametrize("rate", [125e6, 1.25e9, 12.5e9])
def test_the_buffers_asked_for_are_enough(rtt_s: float, rate: float) -> None:
    receive, send = arithmetic.buffers_for(rtt_s, rate)
    assert arithmetic.carried(rtt_s, rate, receive, send, bulk_links=limits.BULK_LINKS_MAX).share == 1.0
    half = arithmetic.carried(rtt_s, rate, receive // 2, send // 2, bulk_links=limits.BULK_LINKS_MAX)
    assert half.cap_bytes_per_s < sizing.SPARE * rate


def test_a_path_without_length_is_never_capped() -> None:
    assert arithmetic.carried(0.0, 1e9, 4096, 4096).share == 1.0
