"""Readers inside what is planned already: their READs are only noted, and learnt from later, as one. Pure.

Most READs of a stream change no plan. They cost two look-ups here, by file and by place, however many streams a file has, and are
made up for when one comes that may change something. Nothing else is done for them: who else wants to know is told of them as one, too.
"""

from __future__ import annotations

from spoke.prefetch.source import ReadSeen


class Quiet:
    """READs that go on from ``from_bytes`` (the end of ``seen``) up to ``until_bytes`` change nothing. ``reads``: noted so far.

    ``handle_id``: whose READs they are from ``part_bytes`` on, before which ``part_reads`` of them were noted.
    """

    __slots__ = ("from_bytes", "handle_id", "part_bytes", "part_reads", "reads", "seen", "until_bytes")

    def __init__(self, seen: ReadSeen, until_bytes: int) -> None:
        self.seen = seen
        self.from_bytes = self.part_bytes = seen.offset_bytes + seen.length_bytes
        self.until_bytes = until_bytes
        self.handle_id = seen.handle_id
        self.reads = self.part_reads = 0

    def noted(self, end_bytes: int) -> ReadSeen:
        """All that was noted, as one READ that ends at ``end_bytes``."""
        seen, from_bytes = self.seen, self.from_bytes
        return ReadSeen(
            seen.handle_id, seen.task_id, seen.version, from_bytes, end_bytes - from_bytes, "hit", seen.fault_bytes
        )


class QuietReads:
    """The quiet readers of all files, by where each reads next."""

    def __init__(self) -> None:
        self._files: dict[bytes, dict[int, Quiet]] = {}

    def note(self, version: bytes, offset_bytes: int, length_bytes: int) -> Quiet | None:
        """The quiet reader of whom this READ is one, which is noted with that; None: it must be heard."""
        places = self._files.get(version)
        if not places:
            return None
        quiet = places.get(offset_bytes)
        if quiet is None:
            return None
        end_bytes = offset_bytes + length_bytes
        if end_bytes > quiet.until_bytes or end_bytes in places:
            return None
        del places[offset_bytes]
        places[end_bytes] = quiet
        quiet.reads += 1
        return quiet

    def add(self, quiet: Quiet) -> None:
        """A reader that is quiet from now on."""
        self._files.setdefault(quiet.seen.version, {})[quiet.from_bytes] = quiet

    def of(self, version: bytes) -> dict[int, Quiet] | None:
        """The quiet readers of a file by where each reads next, for the caller to change; None: there never were any."""
        return self._files.get(version)

    def versions(self) -> list[bytes]:
        """The files that have quiet readers."""
        return list(self._files)

    def take_all(self, version: bytes) -> dict[int, Quiet] | None:
        """The same, and none is quiet any more."""
        return self._files.pop(version, None)
