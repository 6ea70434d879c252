"""A rate made into send times: how long to wait so that bytes leave at a chosen pace instead of being lost.

Pure: the caller gives the time and is told when. The rule is the generic cell rate algorithm (a leaky bucket kept
as one time stamp): over any span of t seconds no more than ``rate x t + burst + one item`` bytes leave.
"""

from __future__ import annotations

BURST_S = 0.010
"""What a pacer may send ahead of its rate after a pause: event loop timers are a millisecond coarse and fire late."""

BURST_MIN_BYTES = 64 * 1024


class Pacer:
    """Paces one flow at ``rate_bytes_per_s`` (None: no limit, everything may leave at once).

    ``burst_bytes``: what may leave at once after a pause; default 10 ms of the rate, at least 64 KiB.
    """

    __slots__ = ("_burst_bytes", "_burst_s", "_paid_at_s", "_rate_bytes_per_s")

    def __init__(self, rate_bytes_per_s: float | None, burst_bytes: int | None = None) -> None:
        self._burst_bytes = burst_bytes
        self._rate_bytes_per_s: float | None = None
        self._burst_s = 0.0
        # When everything sent so far would have left at exactly the rate. Far in the past: the bucket is full.
        self._paid_at_s = float("-inf")
        self._use(rate_bytes_per_s)

    @property
    def rate_bytes_per_s(self) -> float | None:
        return self._rate_bytes_per_s

    def _use(self, rate_bytes_per_s: float | None) -> None:
        if rate_bytes_per_s is not None and not rate_bytes_per_s > 0:
            raise ValueError(f"a rate is above 0 bytes/s or None, not {rate_bytes_per_s}")
        self._rate_bytes_per_s = rate_bytes_per_s
        if rate_bytes_per_s is not None:
            burst_bytes = self._burst_bytes
            if burst_bytes is None:
                burst_bytes = max(int(rate_bytes_per_s * BURST_S), BURST_MIN_BYTES)
            self._burst_s = burst_bytes / rate_bytes_per_s

    def set_rate(self, now_s: float, rate_bytes_per_s: float | None) -> None:
        """Change the rate from now on; bytes already sent ahead of time are still owed."""
        old_rate = self._rate_bytes_per_s
        owed_bytes = max(0.0, self._paid_at_s - now_s) * old_rate if old_rate is not None else 0.0
        self._use(rate_bytes_per_s)
        self._paid_at_s = now_s + owed_bytes / rate_bytes_per_s if rate_bytes_per_s is not None else float("-inf")

    def next_send_at(self, now_s: float, size_bytes: int) -> float:
        """When an item of ``size_bytes`` may leave: ``now_s`` or later.

        An item larger than the burst waits for a full bucket. With ``size_bytes=0``: when the debt of the items
        before is paid, which lets an item of any size start at once and makes the next one wait.
        """
        rate = self._rate_bytes_per_s
        if rate is None:
            return now_s
        wanted_s = min(size_bytes / rate, self._burst_s)
        return max(now_s, self._paid_at_s + wanted_s - self._burst_s)

    def sent(self, now_s: float, size_bytes: int) -> None:
        """Note that ``size_bytes`` left now, whether or not it was their time."""
        if self._rate_bytes_per_s is not None:
            self._paid_at_s = max(self._paid_at_s, now_s) + size_bytes / self._rate_bytes_per_s

    def correct(self, difference_bytes: int) -> None:
        """Add to (or, below 0, take from) what was noted before, once the true size of an item is known."""
        if self._rate_bytes_per_s is not None:
            self._paid_at_s += difference_bytes / self._rate_bytes_per_s
