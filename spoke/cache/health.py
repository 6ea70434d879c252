"""Whether the cache disk can be written: after an error it is left alone for a while, then tried again. Pure: ``now_s`` comes in."""

from __future__ import annotations

from common.limits import CACHE_BYPASS_RETRY_MAX_S, CACHE_BYPASS_RETRY_S, CACHE_READ_ERRORS_MAX


class DiskHealth:
    """``reason`` is None while all is well, else why writes go past the cache."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._retry_at_s = 0.0
        self._wait_s = CACHE_BYPASS_RETRY_S
        self._read_errors_in_a_row = 0

    def may_write(self, now_s: float) -> bool:
        """The disk is well, or it is time to try it again."""
        return self.reason is None or now_s >= self._retry_at_s

    def failed(self, now_s: float, reason: str) -> bool:
        """A write, a removal or the directory check failed; True when the bypass begins with it. The wait doubles at each failed try."""
        begins = self.reason is None
        if begins:
            self._wait_s = CACHE_BYPASS_RETRY_S
        elif now_s >= self._retry_at_s:
            self._wait_s = min(self._wait_s * 2, CACHE_BYPASS_RETRY_MAX_S)
        self.reason = reason
        self._retry_at_s = now_s + self._wait_s
        return begins

    def wrote(self) -> bool:
        """A write succeeded; True when a bypass ends with it."""
        ends = self.reason is not None
        self.reason = None
        return ends

    def read_failed(self) -> bool:
        """A read failed; True when there were so many in a row that the disk, not a spot on it, must be bad."""
        self._read_errors_in_a_row += 1
        return self._read_errors_in_a_row >= CACHE_READ_ERRORS_MAX

    def read_worked(self) -> None:
        self._read_errors_in_a_row = 0
