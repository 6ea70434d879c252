"""What is the matter with the cache disk, and when it is tried again. Pure: ``now_s`` comes in.

Two kinds of trouble. A *bypass*: the disk fails (EIO, read-only, gone); writes are left alone for a while, then tried.
A *shortage*: no room (disk, inodes, quota); writes are tried all the same, since eviction or others may make room any moment.
Beside them *too large*: files that the file system, or a limit of the process, does not let grow so far; a smaller one that is written
is no end of it.
"""

from __future__ import annotations

import errno
from typing import Literal, NamedTuple

from common.errors import CacheWriteError
from common.limits import (
    CACHE_BYPASS_RETRY_MAX_S,
    CACHE_BYPASS_RETRY_S,
    CACHE_READ_ERRORS_MAX,
    CACHE_TROUBLE_LOG_S,
)

TroubleKind = Literal["full", "quota", "inodes", "file-size", "read-only", "failing", "gone", "slow"]
TROUBLE_KINDS: tuple[TroubleKind, ...] = (
    "full",
    "quota",
    "inodes",
    "file-size",
    "read-only",
    "failing",
    "gone",
    "slow",
)


class Trouble(NamedTuple):
    """``reason``: for people."""

    kind: TroubleKind
    reason: str


class NoRoom(CacheWriteError):
    """A write that found no room. ``kind`` None: what is cached is pinned or in use, and the disk is well."""

    def __init__(self, kind: TroubleKind | None, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def kind_of(error: OSError) -> TroubleKind:
    """What an errno says about the disk."""
    return {errno.EROFS: "read-only", errno.EDQUOT: "quota", errno.ENOSPC: "full"}.get(error.errno or 0, "failing")  # type: ignore[return-value]


class DiskHealth:
    """``bypass`` is None while the disk may be written, else why writes go past the cache."""

    def __init__(self) -> None:
        self.bypass: Trouble | None = None
        self.shortage: Trouble | None = None
        self.too_large: Trouble | None = None
        self.refused_length_bytes = 0
        """Of the smallest file that was too large."""
        self.reads_fail = False
        """So many reads failed in a row that reads go past the cache too."""
        self._retry_at_s = 0.0
        self._wait_s = CACHE_BYPASS_RETRY_S
        self._read_errors_in_a_row = 0
        self._said_at_s: dict[TroubleKind, float] = {}

    @property
    def reason(self) -> str | None:
        return self.bypass.reason if self.bypass is not None else None

    @property
    def trouble(self) -> Trouble | None:
        return self.bypass or self.shortage or self.too_large

    def may_write(self, now_s: float) -> bool:
        """The disk is well, or it is time to try it again."""
        return self.bypass is None or now_s >= self._retry_at_s

    def may_read(self, now_s: float) -> bool:
        """Reads work, or it is time to try one again."""
        return not self.reads_fail or now_s >= self._retry_at_s

    def failed(self, now_s: float, kind: TroubleKind, reason: str) -> bool:
        """A write, a removal or the directory check failed; True when it is to be logged. The wait doubles at each failed try."""
        begins = self.bypass is None
        if begins:
            self._wait_s = CACHE_BYPASS_RETRY_S
        elif now_s >= self._retry_at_s:
            self._wait_s = min(self._wait_s * 2, CACHE_BYPASS_RETRY_MAX_S)
        self.bypass = Trouble(kind, reason)
        self._retry_at_s = now_s + self._wait_s
        return begins and self._to_be_said(now_s, kind)

    def refused(self, now_s: float, kind: TroubleKind, reason: str) -> bool:
        """There was no room; True when it is to be logged."""
        begins = self.shortage is None or self.shortage.kind != kind
        self.shortage = Trouble(kind, reason)
        return begins and self._to_be_said(now_s, kind)

    def refused_length(self, now_s: float, length_bytes: int, reason: str) -> bool:
        """A file may not be so long; True when it is to be logged."""
        begins = self.too_large is None
        if begins or length_bytes < self.refused_length_bytes:
            self.too_large, self.refused_length_bytes = Trouble("file-size", reason), length_bytes
        return begins and self._to_be_said(now_s, "file-size")

    def took_length(self) -> None:
        """A file of that length was made."""
        self.too_large = None

    def _to_be_said(self, now_s: float, kind: TroubleKind) -> bool:
        """Trouble that comes and goes with every write is said once in a while."""
        if now_s - self._said_at_s.get(kind, float("-inf")) < CACHE_TROUBLE_LOG_S:
            return False
        self._said_at_s[kind] = now_s
        return True

    def wrote(self) -> bool:
        """A write succeeded; True when trouble ends with it. It says nothing about reads that fail."""
        ends = self.shortage is not None or (self.bypass is not None and not self.reads_fail)
        self.shortage = None
        if not self.reads_fail:
            self.bypass = None
        return ends

    def read_failed(self) -> bool:
        """A read failed; True when there were so many in a row that the disk, not a spot on it, must be bad."""
        self._read_errors_in_a_row += 1
        self.reads_fail = self.reads_fail or self._read_errors_in_a_row >= CACHE_READ_ERRORS_MAX
        return self.reads_fail

    def read_worked(self) -> bool:
        """True when trouble ends with it."""
        self._read_errors_in_a_row = 0
        ends = self.reads_fail and self.bypass is not None
        if self.reads_fail:
            self.reads_fail = False
            self.bypass = None
        return ends
