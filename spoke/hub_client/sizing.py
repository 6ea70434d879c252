"""How many connections a path wants, and which of them no longer keeps up. Pure, but for the look at the kernel's limits.

One connection moves at most its window in a round trip, and the kernel bounds the window: by the receive buffer here and
the send buffer at the hub. So rate x round trip must be shared by enough of them.
"""

from __future__ import annotations

import math
from pathlib import Path

from common import limits

RECEIVE_WINDOW_SHARE = 0.5
"""Of the most that tcp_rmem allows: the kernel keeps about half of a buffer for its own accounting."""

SEND_WINDOW_SHARE = 0.7
"""Of the most that tcp_wmem allows, measured with a stock kernel's 4 MiB."""

STOCK_RECEIVE_BYTES = 6 * 1024 * 1024
STOCK_SEND_BYTES = 4 * 1024 * 1024
"""What a stock kernel lets one connection's buffers grow to."""

ASSUMED_RATE_BYTES_PER_S = 125e6
"""Before anything was measured: 1 Gbit/s."""

SPARE = 1.5
"""In flight beyond rate x round trip: for probing, and while losses are repaired. A measure held down by too few
connections then calls for more, until more of them bring nothing."""

LAG_PATIENCE = 3.0
LAG_MIN_S = 2.0
LAG_SHARE = 0.25
"""A connection lags when its oldest READ is older than so many times what READs take on all of them, and two seconds, and
it moves less than this part of its even share."""

LAG_AGE_ROUND_TRIPS = 12
"""A connection younger than this many round trips (and two seconds) is still growing its window: it may be slower than the others."""

YOUNG_GROWTH = 2
"""A connection is asked for at most so many times what it has brought (and LINK_YOUNG_BYTES): its window may grow to that in a
round trip."""


def most_outstanding_bytes(received_bytes: int) -> int:
    """What may be asked for on a connection: more would wait behind its slow start while others could bring it."""
    grown_bytes = max(limits.LINK_YOUNG_BYTES, YOUNG_GROWTH * received_bytes)
    return min(grown_bytes, limits.LINK_MAX_OUTSTANDING_BYTES)


def wait_of(outstanding_bytes: int, received_bytes: int) -> float:
    """What waits on a connection, measured by what it has brought: while connections start, some move eight times what others do.
    Whoever has brought LINK_GROWN_BYTES counts as grown, and only what waits there is compared."""
    return outstanding_bytes / min(limits.LINK_YOUNG_BYTES + received_bytes, limits.LINK_GROWN_BYTES)


def enough_in_flight_bytes(rtt_s: float | None, rate_bytes_per_s: float, links: int) -> int:
    """A connection's part of twice what the path holds: its sender never waits for us, and hardly anything waits for it."""
    return max(limits.LINK_YOUNG_BYTES, int(2 * (rtt_s or 0.0) * rate_bytes_per_s / max(1, links)))


def receive_buffer_bytes(sysctl: Path = Path("/proc/sys/net/ipv4/tcp_rmem")) -> int:
    """The most one connection's receive buffer grows to by itself. Where that cannot be read: a stock kernel's."""
    try:
        return int(sysctl.read_text().split()[2])
    except (OSError, ValueError, IndexError):
        return STOCK_RECEIVE_BYTES


def window_bytes(receive_bytes: int, send_bytes: int) -> int:
    """What one connection can have in flight. ``send_bytes`` 0: the hub did not say."""
    return max(1, int(min(receive_bytes * RECEIVE_WINDOW_SHARE, (send_bytes or STOCK_SEND_BYTES) * SEND_WINDOW_SHARE)))


def wanted_links(rtt_s: float, rate_bytes_per_s: float, link_window_bytes: int) -> int:
    """Bulk connections for a path. ``rate_bytes_per_s``: the best seen, 0 when nothing was."""
    in_flight_bytes = SPARE * max(rate_bytes_per_s, ASSUMED_RATE_BYTES_PER_S) * rtt_s
    wanted = math.ceil(in_flight_bytes / link_window_bytes)
    return min(max(wanted, limits.BULK_LINKS_MIN), limits.BULK_LINKS_MAX)


def is_stalled(quiet_s: float, rtt_s: float, others_quiet_s: float) -> bool:
    """A connection with a PING unanswered is silent while the others are not: its path is broken, not the hub."""
    return quiet_s > max(limits.LINK_STALLED_AFTER_S, 4 * rtt_s) and others_quiet_s < 2 * limits.LINK_CHECK_INTERVAL_S


def lags(
    *,
    age_s: float,
    rate_bytes_per_s: float,
    all_rate_bytes_per_s: float,
    links: int,
    outstanding_bytes: int,
    rtt_s: float,
    link_age_s: float,
) -> bool:
    """``age_s``: of the connection's oldest READ; rates: of it and of all; ``outstanding_bytes``: of all."""
    if link_age_s < LAG_AGE_ROUND_TRIPS * rtt_s + LAG_MIN_S:
        return False
    if links < 2 or all_rate_bytes_per_s <= 0 or rate_bytes_per_s >= LAG_SHARE * all_rate_bytes_per_s / links:
        return False
    usual_s = outstanding_bytes / all_rate_bytes_per_s + rtt_s
    return age_s > max(LAG_MIN_S, LAG_PATIENCE * usual_s)
