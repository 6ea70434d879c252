"""In which shape the kernel reads the files of an order: by exact reads, or by page faults, which move more than what is wanted. Pure."""

from __future__ import annotations

from typing import Any

from common import limits
from spoke.prefetch.source import FAULT_BYTES

_FILE_VOTES_MAX = 8
_ORDER_VOTES_MAX = 64


class Shapes:
    """``as_recorded``: the steps are READs as they came, so that none needs more than it says.

    ``is_mapped``: whoever made the order says that its reader maps the files; the first READs tell whether that is so.
    """

    def __init__(self, *, as_recorded: bool, is_mapped: bool = False) -> None:
        self.as_recorded = as_recorded
        self._votes = 1 if is_mapped and not as_recorded else 0
        self._votes_by_file: dict[int, int] = {}
        self._bytes = FAULT_BYTES
        self._bytes_by_file: dict[int, int] = {}

    def faults(self, file: int) -> bool:
        """The file, or most of the order's files, is read by page faults."""
        return (self._votes_by_file.get(file, 0) or self._votes) > 0

    def fault_bytes(self, file: int) -> int:
        """What a fault moves there: the kernel's readahead when the file was opened; of files not read yet, the latest seen."""
        return self._bytes_by_file.get(file, self._bytes)

    def opened_with(self, file: int, fault_bytes: int) -> None:
        """A handle of the file was read whose faults move so much."""
        if fault_bytes == self._bytes and not self._bytes_by_file:
            return
        if self.fault_bytes(file) != fault_bytes or file not in self._bytes_by_file:
            make_room(self._bytes_by_file)
            self._bytes_by_file[file] = fault_bytes
        self._bytes = fault_bytes

    def vote(self, file: int, vote: int) -> bool:
        """``vote`` above 0: the file is read by page faults; below: by exact reads. True: what was predicted has another shape now."""
        if self.as_recorded:
            return False
        known = self._votes_by_file.get(file, 0)
        if known == (_FILE_VOTES_MAX if vote > 0 else -_FILE_VOTES_MAX):
            return False  # as sure as can be
        before = self.faults(file), self._votes > 0
        make_room(self._votes_by_file)
        self._votes_by_file[file] = max(-_FILE_VOTES_MAX, min(_FILE_VOTES_MAX, known + vote))
        self._votes = max(-_ORDER_VOTES_MAX, min(_ORDER_VOTES_MAX, self._votes + vote))
        return before != (self.faults(file), self._votes > 0)


def make_room(known: dict[Any, Any]) -> None:
    """Forget all, when there are more files than are kept at hand."""
    if len(known) >= limits.ORDER_FILES_KNOWN_MAX:
        known.clear()
