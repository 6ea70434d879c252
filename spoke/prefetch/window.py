"""How far ahead of its reader a stream fetches: consumption rate x time to fetch x safety, found by growing while late.

A cold reader takes data as fast as they come, so its rate, measured while it waits, says nothing: every late read widens
the window instead, twofold or, at the start, eightfold; so does a read of what came with the first, until a rate was
measured. Once reads are hits the measured rate rules, and a window that is far too wide shrinks.
"""

from __future__ import annotations

from common import limits
from common.blocks import EXTENT_BYTES

SAFETY = 2.0
SLOW_TO_SHRINK = 2.0
"""A window that was found by growing is kept until it is twice as wide as the rate asks for, which changes."""
_RATE_SAMPLE_S = 0.1
_RATE_FALL = 0.3
_SHRINK = 1 / 64
_START_GROWTH = 8


class Window:
    """One stream's window. ``rate_bytes_per_s``: consumption as last measured (0: not yet). ``is_full``: it is as wide as it may be.

    ``first_bytes``: what its first read is worth, however short it was. ``is_steady``: its last read found it neither too small nor
    too wide.
    """

    __slots__ = (
        "_first_bytes",
        "_sample_bytes",
        "_sample_start_s",
        "is_full",
        "is_steady",
        "rate_bytes_per_s",
        "window_bytes",
    )

    def __init__(self, now_s: float, first_bytes: int = 0) -> None:
        self._first_bytes = first_bytes
        self.window_bytes = 0
        self.is_full = self.is_steady = False
        self.rate_bytes_per_s = 0.0
        self._sample_start_s = now_s
        self._sample_bytes = 0

    def read(
        self,
        now_s: float,
        length_bytes: int,
        evidence_bytes: int,
        *,
        late: bool,
        latency_s: float,
        cap_bytes: int,
        eager: bool = True,
        ample: float = SLOW_TO_SHRINK,
        least_bytes: int = limits.PREFETCH_WINDOW_MIN_BYTES,
    ) -> None:
        """Learn from a read of the stream. ``latency_s``: from asking the hub to having the bytes; ``cap_bytes``: this stream's share.

        ``least_bytes``: however slow it is.

        ``ample``: a window so many times as wide as is wanted shrinks.

        ``eager``: its bytes follow in order beyond doubt, so the first round trips may ask for much more each time.
        """
        self._sample_bytes += length_bytes
        elapsed_s = now_s - self._sample_start_s
        if elapsed_s >= _RATE_SAMPLE_S:
            rate = self._sample_bytes / elapsed_s
            falling = rate < self.rate_bytes_per_s
            self.rate_bytes_per_s += (rate - self.rate_bytes_per_s) * (_RATE_FALL if falling else 1.0)
            self._sample_start_s, self._sample_bytes = now_s, 0
        first_bytes = self._first_bytes if evidence_bytes < self._first_bytes else 0
        wanted = int(self.rate_bytes_per_s * latency_s * SAFETY)
        if wanted < least_bytes or wanted < first_bytes:
            wanted = max(least_bytes, first_bytes)
        window_bytes = self.window_bytes
        self.is_steady = False
        if late or (self._first_bytes and self.grows_unseen):
            starting = eager and window_bytes < limits.PREFETCH_START_BYTES and evidence_bytes >= EXTENT_BYTES
            grown_bytes = (_START_GROWTH if starting else 2) * window_bytes
            if not late:
                grown_bytes = min(grown_bytes, limits.PREFETCH_START_BYTES)
            window_bytes = max(grown_bytes, wanted)
        elif window_bytes > ample * wanted:
            window_bytes = max(wanted, window_bytes - int(window_bytes * _SHRINK))
        else:
            self.is_steady = True
            window_bytes = max(window_bytes, wanted)
        earned_bytes = max(first_bytes, limits.PREFETCH_EVIDENCE_FACTOR * evidence_bytes)
        self.window_bytes = window_bytes = min(window_bytes, cap_bytes, earned_bytes)
        self.is_full = window_bytes == cap_bytes

    @property
    def grows_unseen(self) -> bool:
        """No rate was measured yet, and what came with the first read may have hidden that its reader is faster than the window."""
        return bool(self._first_bytes and not self.rate_bytes_per_s and self.window_bytes < limits.PREFETCH_START_BYTES)


class Latency:
    """From asking the hub to having the bytes: what the link says, and what fetches really took."""

    def __init__(self) -> None:
        self.rtt_s = limits.PREFETCH_ASSUMED_RTT_S
        self.rate_bytes_per_s = 0.0
        self.outstanding_limit_bytes = limits.PREFETCH_OUTSTANDING_MIN_BYTES
        """What may usefully be in flight: three times what the link holds, as far as it was measured."""
        self._fetch_s = 0.0
        self._most_s = 3 * self.rtt_s + 0.05

    def link(self, rtt_s: float, rate_bytes_per_s: float) -> None:
        if rtt_s == self.rtt_s and rate_bytes_per_s == self.rate_bytes_per_s:
            return
        self.rtt_s = max(0.0, rtt_s)
        self.rate_bytes_per_s = max(0.0, rate_bytes_per_s)
        limit_bytes = int(3 * self.rate_bytes_per_s * self.rtt_s)
        self.outstanding_limit_bytes = max(limits.PREFETCH_OUTSTANDING_MIN_BYTES, limit_bytes)
        self._most_s = 3 * self.rtt_s + 0.05

    def fetched(self, took_s: float) -> None:
        """A fetch took so long, queues of our own making included."""
        self._fetch_s += (took_s - self._fetch_s) / 16

    @property
    def latency_s(self) -> float:
        """At least the round trip; bounded, so that long queues do not call for longer ones."""
        latency_s = self._fetch_s
        if latency_s < self.rtt_s:
            return self.rtt_s
        return latency_s if latency_s < self._most_s else self._most_s
