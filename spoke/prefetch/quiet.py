"""Readers inside what is planned already: their READs are only noted, and learnt from later, as one. Pure.

Most READs of a stream change no plan. They cost two look-ups here, by file and by place, however many streams a file has, and are
made up for when one comes that may change something. Who is the only quiet one in his file, and reads on, is the ``current`` one: his
READs cost a comparison or two of whoever sees them come. Nothing else is done for them: all who want to know are told of them as one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from spoke.prefetch.source import ReadSeen


class Quiet:
    """READs that go on from ``from_bytes`` (the end of ``seen``) up to ``until_bytes`` change nothing. ``reads``: noted so far, the
    last of which ended at ``next_bytes``.

    ``handle_id``: whose READs they are from ``part_bytes`` on, before which ``part_reads`` of them were noted. ``told_reads``,
    ``told_bytes``: how far they were counted. ``go_on``, if there, may be asked instead of hearing the READ that comes to
    ``until_bytes``, with the time and where that ends: it plans what is due, and says up to where further READs change nothing
    (or 0: it must be heard). ``takes_late``: READs whose data were on the way may be noted too, and ``late`` of them were: whoever
    notes one counts it.
    """

    __slots__ = ("from_bytes", "go_on", "handle_id", "late", "next_bytes", "part_bytes", "part_reads", "reads", "seen",
                 "takes_late", "told_bytes", "told_reads", "until_bytes")  # fmt: skip

    def __init__(self, seen: ReadSeen, until_bytes: int) -> None:
        self.seen = seen
        self.from_bytes = self.next_bytes = self.part_bytes = self.told_bytes = seen.offset_bytes + seen.length_bytes
        self.until_bytes = until_bytes
        self.handle_id = seen.handle_id
        self.go_on: Callable[[float, int], int] | None = None
        self.reads = self.part_reads = self.told_reads = self.late = 0
        self.takes_late = False

    def went_on(self, seen: ReadSeen, until_bytes: int) -> None:
        """One of his READs was told to all but those who learn from it, and changes nothing up to there."""
        self.next_bytes = self.part_bytes = self.told_bytes = seen.offset_bytes + seen.length_bytes
        self.until_bytes, self.handle_id = until_bytes, seen.handle_id
        self.reads += 1
        self.part_reads = self.told_reads = self.reads

    def noted(self, end_bytes: int) -> ReadSeen:
        """All that was noted, as one READ that ends at ``end_bytes``; late if one was."""
        seen, from_bytes = self.seen, self.from_bytes
        result: Literal["hit", "late"] = "late" if self.late else "hit"
        return ReadSeen(
            seen.handle_id, seen.task_id, seen.version, from_bytes, end_bytes - from_bytes, result, seen.fault_bytes
        )

    def came_late(self, length_bytes: int) -> None:
        """The READ just noted was late: it is counted with that, and not once more as a hit."""
        self.late += 1
        self.told_reads += 1
        self.told_bytes += length_bytes


_NOBODY = Quiet(ReadSeen(-1, 0, b"", -1, 0, "hit"), -1)


def _untold(_quiet: Quiet) -> None: ...


class QuietReads:
    """The quiet readers of all files, by where each reads next.

    ``current``: one of them, or somebody who reads nowhere. Whoever sees a READ that was a hit (or late, if he
    ``takes_late``), at his ``next_bytes``, of his handle and
    up to ``until_bytes``, may note it by moving ``next_bytes`` on and counting it in ``reads``. ``tally`` is called with him before
    another takes his place.
    """

    def __init__(self) -> None:
        self._files: dict[bytes, dict[int, Quiet]] = {}
        self._last = _NOBODY
        self.current = _NOBODY
        self.tally: Callable[[Quiet], None] = _untold

    def note(self, version: bytes, offset_bytes: int, length_bytes: int, *, late: bool = False) -> Quiet | None:
        """The quiet reader of whom this READ is one, which is noted with that; None: it must be heard."""
        end_bytes, quiet = offset_bytes + length_bytes, self.current
        if quiet.next_bytes == offset_bytes and quiet.seen.version == version:
            if end_bytes > quiet.until_bytes or (late and not quiet.takes_late):
                return None
            quiet.next_bytes = end_bytes
            quiet.reads += 1
            return quiet
        places = self._files.get(version)
        if not places:
            return None
        found = places.get(offset_bytes)
        if found is None or end_bytes > found.until_bytes or end_bytes in places or (late and not found.takes_late):
            return None
        del places[offset_bytes]
        found.next_bytes = end_bytes
        found.reads += 1
        if found is self._last and not places:  # he reads on, and nobody else is to be met
            self._rest()
            self.current = found
        else:
            places[end_bytes] = self._last = found
        return found

    def add(self, quiet: Quiet) -> None:
        """A reader that is quiet from now on."""
        if self.current is not _NOBODY:
            self._rest()
        self._files.setdefault(quiet.seen.version, {})[quiet.from_bytes] = quiet

    def of(self, version: bytes) -> dict[int, Quiet] | None:
        """The quiet readers of a file by where each reads next, for the caller to change; None: there never were any."""
        if self.current is not _NOBODY:
            self._rest()
        return self._files.get(version)

    def versions(self) -> list[bytes]:
        """The files that have quiet readers."""
        self._rest()
        return list(self._files)

    def take_all(self, version: bytes) -> dict[int, Quiet] | None:
        """The same, and none is quiet any more."""
        self._rest()
        return self._files.pop(version, None)

    def _rest(self) -> None:
        """The current reader becomes one among all."""
        quiet = self.current
        if quiet is not _NOBODY:
            self.current = _NOBODY
            self.tally(quiet)
            self._files.setdefault(quiet.seen.version, {})[quiet.next_bytes] = quiet
