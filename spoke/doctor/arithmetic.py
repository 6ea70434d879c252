"""What a path carries within given limits, and which limits it wants: the one source for doctor's figures and for deploy/sysctl.

How many links a path gets, and how much of a buffer is window, is :mod:`spoke.hub_client.sizing`'s to say. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from common import limits
from spoke.hub_client import sizing

BUFFER_MAX_BYTES = 64 * 1024 * 1024
"""The most that deploy/sysctl lets one connection's buffer grow to."""

SYSCTLS: Mapping[str, str] = {
    "net.ipv4.tcp_rmem": f"4096 131072 {BUFFER_MAX_BYTES}",
    "net.ipv4.tcp_wmem": f"4096 65536 {BUFFER_MAX_BYTES}",
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_mtu_probing": "1",
    "net.core.default_qdisc": "fq",
    "net.ipv4.tcp_congestion_control": "bbr",
    "fs.inotify.max_user_watches": "1048576",
    "fs.inotify.max_queued_events": "131072",
}
"""What deploy/sysctl/90-headrace.conf sets; a test compares."""

_UNSCALED_WINDOW_BYTES = 65_535
_ETHERNET_BYTES = 38
"""Preamble, header, check sum and gap around each packet on an Ethernet."""

INITIAL_WINDOW_SEGMENTS = 10
"""What a connection may send in its first round trip (RFC 6928, Linux's default)."""


@dataclass(frozen=True, slots=True)
class Carried:
    """``links``: that the spoke opens; ``wanted_links``: that the path would want, without the spoke's own limit.

    ``cap_bytes_per_s``: links x window / round trip. ``in_flight_bytes``: rate x round trip.
    """

    in_flight_bytes: float
    window_bytes: int
    wanted_links: int
    links: int
    cap_bytes_per_s: float
    share: float


def carried(
    rtt_s: float, rate_bytes_per_s: float, receive_bytes: int, send_bytes: int, *, bulk_links: int = 0
) -> Carried:
    """What the kernels' buffers let through on a path of this rate. ``bulk_links`` 0: as sizing chooses."""
    window_bytes = sizing.window_bytes(receive_bytes, send_bytes)
    in_flight_bytes = rate_bytes_per_s * rtt_s
    wanted = math.ceil(sizing.SPARE * in_flight_bytes / window_bytes)
    links = bulk_links or sizing.wanted_links(rtt_s, rate_bytes_per_s, window_bytes)
    cap = links * window_bytes / rtt_s if rtt_s > 0 else math.inf
    share = min(1.0, cap / rate_bytes_per_s) if rate_bytes_per_s > 0 else 1.0
    return Carried(in_flight_bytes, window_bytes, wanted, links, cap, share)


def receive_limit_bytes(rmem_bytes: tuple[int, int, int], *, autotuned: bool, window_scaling: bool) -> int:
    """What a receive buffer can grow to; not scaled, its window is 64 KiB whatever the buffer."""
    largest = rmem_bytes[2] if autotuned else rmem_bytes[1]
    return largest if window_scaling else min(largest, round(_UNSCALED_WINDOW_BYTES / sizing.RECEIVE_WINDOW_SHARE))


def buffers_for(rtt_s: float, rate_bytes_per_s: float, *, bulk_links: int = 0) -> tuple[int, int]:
    """Largest buffers (receive, send) with which the most links hold the path with room to spare; powers of two."""
    window_bytes = sizing.SPARE * rate_bytes_per_s * rtt_s / (bulk_links or limits.BULK_LINKS_MAX)
    return (
        _power_of_two(window_bytes / sizing.RECEIVE_WINDOW_SHARE),
        _power_of_two(window_bytes / sizing.SEND_WINDOW_SHARE),
    )


def _power_of_two(size_bytes: float) -> int:
    return 1 << max(0, math.ceil(size_bytes) - 1).bit_length()


def payload_bytes(mtu_bytes: int, *, is_ipv6: bool = False) -> int:
    """Of one full packet: less the headers of IP and TCP and the time stamps."""
    return mtu_bytes - (72 if is_ipv6 else 52)


def payload_share(mtu_bytes: int, *, is_ipv6: bool = False) -> float:
    """Payload over what an Ethernet carries for it."""
    return payload_bytes(mtu_bytes, is_ipv6=is_ipv6) / (mtu_bytes + _ETHERNET_BYTES)


def cubic_bytes_per_s(segment_bytes: int, rtt_s: float, loss: float) -> float:
    """What one CUBIC connection settles at under random loss: the better of CUBIC's law (RFC 9438, 5.1) and Reno's.

    At 1,448 bytes, 60 ms and 0.1 % this is 7.5 Mbit/s; measured on such a path: 10.
    """
    cubic_segments = 1.054 * math.pow(rtt_s / loss, 0.75)
    reno_segments = math.sqrt(1.5 / loss)
    return max(cubic_segments, reno_segments) * segment_bytes / rtt_s


def regrow_round_trips(window_bytes: float, segment_bytes: int) -> int:
    """Round trips until a window that fell back to its initial size is this large again, doubling each time."""
    first_bytes = INITIAL_WINDOW_SEGMENTS * segment_bytes
    return max(0, math.ceil(math.log2(window_bytes / first_bytes))) if window_bytes > first_bytes else 0


EXAMPLES: tuple[tuple[str, float, str, float], ...] = (
    ("1 Gbit/s", 125e6, "60 ms", 0.06),
    ("10 Gbit/s", 1.25e9, "60 ms", 0.06),
    ("1 Gbit/s", 125e6, "250 ms", 0.25),
    ("10 Gbit/s", 1.25e9, "250 ms", 0.25),
    ("1 Gbit/s", 125e6, "900 ms", 0.9),
    ("25 Gbit/s", 3.125e9, "60 ms", 0.06),
)


def table() -> list[str]:
    """The table of deploy/sysctl/90-headrace.conf, line by line: paths against a stock kernel's buffers and the file's."""
    stock = (sizing.STOCK_RECEIVE_BYTES, sizing.STOCK_SEND_BYTES)
    lines = [f"{'path':<19}{'in flight':>12}   {'stock kernel':<24}with this file"]
    for rate_text, rate, rtt_text, rtt_s in EXAMPLES:
        before = carried(rtt_s, rate, *stock)
        after = carried(rtt_s, rate, BUFFER_MAX_BYTES, BUFFER_MAX_BYTES)
        lines.append(
            f"{rate_text + ' x ' + rtt_text:<19}{before.in_flight_bytes / 1e6:9.1f} MB   "
            f"{before.links:2} links, {_gbit(before.cap_bytes_per_s):<14}"
            f"{after.links:2} links, {_gbit(after.cap_bytes_per_s)}"
        )
    return lines


def _gbit(rate_bytes_per_s: float) -> str:
    return f"{rate_bytes_per_s * 8 / 1e9:.1f} Gbit/s"
