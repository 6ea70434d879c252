"""What either end asks of the kernel for its TCP sockets, and what the kernel can tell about the path.

Every option is a wish: a kernel, container or test loop that lacks one is told so once in the log and goes on.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from common import limits
from common.log import get_logger

log = get_logger(__name__)

# Linux numbers that the socket module of Python 3.11 does not name (include/uapi/asm-generic/socket.h, linux/tcp.h).
_SO_MAX_PACING_RATE = 47
_TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)
_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", 18)
_TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", 13)

_refused: set[str] = set()


class OptionSocket(Protocol):
    """A socket, or uvloop's stand-in for one."""

    def setsockopt(self, level: int, option: int, value: int | bytes, /) -> None: ...
    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def _wish(sock: OptionSocket, name: str, level: int, option: int, value: int | bytes) -> None:
    try:
        sock.setsockopt(level, option, value)
    except OSError as error:
        if name not in _refused:
            _refused.add(name)
            log.info("the kernel refused a TCP option, going on without it", option=name, error=str(error))


def tune(sock: OptionSocket, *, max_rate_bytes_per_s: float | None = None, bulk_sender: bool = False) -> None:
    """Options for a connection: no Nagle delay, a dead peer found by keepalive or unacknowledged data.

    ``bulk_sender`` (the serving end): BBR, which holds a lossy path's rate, and a short queue of unsent bytes in the
    kernel, so that the order of sending is still ours. ``max_rate_bytes_per_s``: the kernel spreads packets to it.
    Buffer sizes are left alone: setting them would switch the kernel's autotuning off.
    """
    _wish(sock, "TCP_NODELAY", socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _wish(sock, "SO_KEEPALIVE", socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _wish(sock, "TCP_KEEPIDLE", socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.TCP_KEEPALIVE_IDLE_S)
    _wish(sock, "TCP_KEEPINTVL", socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, limits.TCP_KEEPALIVE_INTERVAL_S)
    _wish(sock, "TCP_KEEPCNT", socket.IPPROTO_TCP, socket.TCP_KEEPCNT, limits.TCP_KEEPALIVE_PROBES)
    _wish(sock, "TCP_USER_TIMEOUT", socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, limits.TCP_DEAD_AFTER_MS)
    if bulk_sender:
        _wish(sock, "TCP_CONGESTION", socket.IPPROTO_TCP, _TCP_CONGESTION, b"bbr")
        _wish(sock, "TCP_NOTSENT_LOWAT", socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, limits.UNSENT_KERNEL_BYTES)
    if max_rate_bytes_per_s is not None:
        limit_rate(sock, max_rate_bytes_per_s)


def limit_rate(sock: OptionSocket, max_rate_bytes_per_s: float | None) -> None:
    """Let the kernel spread packets to at most this rate; None: as its congestion control likes."""
    # 5 % on top for headers; more than 32 bits want the 8-byte form (Linux >= 4.20), all ones is "no limit".
    rate = 2**64 - 1 if max_rate_bytes_per_s is None else max(1, int(max_rate_bytes_per_s * 1.05))
    _wish(sock, "SO_MAX_PACING_RATE", socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=Q", rate))


def wake_at(sock: OptionSocket, size_bytes: int) -> None:
    """Report this socket readable once so many bytes are there (or its buffer is short, or the peer has ended)."""
    _wish(sock, "SO_RCVLOWAT", socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)


def open_window(sock: OptionSocket, size_bytes: int) -> None:
    """Let so much arrive at once from the start on; the kernel's autotuning goes on from there.

    It begins with 64 kB (half of tcp_rmem's default) and grows to twice what was read in a round trip, once that is over: a sender
    that could double has to wait for it. Waiting for so many bytes makes room for them (tcp_set_rcvlowat), and unlike SO_RCVBUF
    neither ends the autotuning nor is held to net.core.rmem_max.
    """
    wake_at(sock, size_bytes)
    wake_at(sock, 1)


def renew_bbr(sock: OptionSocket) -> None:
    """Make BBR begin anew, so that it does not stop to measure the path's round trip.

    Without a shorter round trip for 10 s, BBR keeps four packets in flight for 200 ms or a round trip, the longer of the
    two (PROBE_RTT, tcp_bbr.c), to see the path without its own queue: 2 to 10 % of the rate, and all connections that began
    together stop together. Whoever holds the rate below the path's has no queue to look behind. Choosing another control
    and BBR again resets that clock; the window stays, and the pacing bound keeps the new start from overshooting.
    """
    try:
        if sock.getsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, 16).rstrip(b"\0") != b"bbr":
            return
    except OSError:
        return
    _wish(sock, "TCP_CONGESTION", socket.IPPROTO_TCP, _TCP_CONGESTION, b"reno")
    _wish(sock, "TCP_CONGESTION", socket.IPPROTO_TCP, _TCP_CONGESTION, b"bbr")


def send_buffer_bytes(sysctl: Path = Path("/proc/sys/net/ipv4/tcp_wmem")) -> int:
    """The most one connection's send buffer grows to by itself; 0 where that cannot be read."""
    try:
        return max(0, int(sysctl.read_text().split()[2]))
    except (OSError, ValueError, IndexError):
        return 0


@dataclass(frozen=True, slots=True)
class PathFacts:
    """What TCP measured on one connection. ``delivery_rate_bytes_per_s`` and ``min_rtt_s``: 0 while unknown.

    ``delivered_bytes``: what the peer's kernel has, acknowledged in order or selectively.
    """

    rtt_s: float
    min_rtt_s: float
    delivery_rate_bytes_per_s: int
    retransmitted_segments: int
    unsent_bytes: int
    delivered_bytes: int


# struct tcp_info (linux/tcp.h): snd_mss at byte 16, sacked (segments) 28, rtt 68, total_retrans 100, bytes_acked 120,
# notsent_bytes 144, min_rtt 148, delivery_rate 160.
_TCP_INFO_BYTES = 168


def path_facts(sock: OptionSocket) -> PathFacts | None:
    """TCP_INFO, or None where it cannot be had (not Linux's TCP, or the socket is closed)."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    if len(info) < _TCP_INFO_BYTES:
        return None
    (segment_bytes,) = struct.unpack_from("=I", info, 16)
    (sacked,) = struct.unpack_from("=I", info, 28)
    (acked_bytes,) = struct.unpack_from("=Q", info, 120)
    (rtt_us,) = struct.unpack_from("=I", info, 68)
    (retransmitted,) = struct.unpack_from("=I", info, 100)
    unsent_bytes, min_rtt_us = struct.unpack_from("=II", info, 144)
    (delivery_rate,) = struct.unpack_from("=Q", info, 160)
    min_rtt_s = 0.0 if min_rtt_us == 0xFFFFFFFF else min_rtt_us / 1e6
    delivered_bytes = acked_bytes + sacked * segment_bytes
    return PathFacts(rtt_us / 1e6, min_rtt_s, delivery_rate, retransmitted, unsent_bytes, delivered_bytes)
