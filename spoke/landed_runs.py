"""What has landed and waits for the cache disk, handed out in runs: flights of one version without a gap between them.

One write of many extents costs one hop to a thread and back; links deliver slightly out of order, so order of arrival
alone would cut the runs. Pure bookkeeping.
"""

from __future__ import annotations

from spoke.hub_client.single_flight import Flight


class LandedRuns:
    """First come, first written; with each goes what lies next to it, however late it came.

    One run of a version at a time: a second thread would only wait for the first at the file's lock.
    """

    def __init__(self) -> None:
        self._by_start: dict[tuple[bytes, int], Flight] = {}
        self._by_end: dict[tuple[bytes, int], Flight] = {}
        self._waiting: dict[bytes, dict[Flight, None]] = {}  # by version, in order of arrival
        self._taken: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._by_start)

    def add(self, flight: Flight) -> None:
        """The table of flights sees to it that no two hold the same block."""
        self._by_start[flight.version, flight.blocks.first_block] = flight
        self._by_end[flight.version, flight.blocks.end_block] = flight
        self._waiting.setdefault(flight.version, {})[flight] = None

    @property
    def next_version(self) -> bytes | None:
        """The version that ``take`` would take from; None when nothing waits, or all that does is being written."""
        return next((version for version in self._waiting if version not in self._taken), None)

    def take(self, max_flights: int) -> list[Flight]:
        """A flight that waits and its neighbours on both sides, in the file's order; ``done`` must follow."""
        version = self.next_version
        assert version is not None
        first = last = next(iter(self._waiting[version]))
        self._forget(first)
        run = [first]
        while len(run) < max_flights and (after := self._by_start.get((version, last.blocks.end_block))):
            self._forget(after)
            run.append(after)
            last = after
        while len(run) < max_flights and (before := self._by_end.get((version, first.blocks.first_block))):
            self._forget(before)
            run.insert(0, before)
            first = before
        if not self._waiting[version]:
            del self._waiting[version]
        else:
            self._waiting[version] = self._waiting.pop(version)  # the other versions come first now
        self._taken.add(version)
        return run

    def done(self, run: list[Flight]) -> None:
        """The run is written, or given up."""
        self._taken.discard(run[0].version)

    def _forget(self, flight: Flight) -> None:
        del self._by_start[flight.version, flight.blocks.first_block]
        del self._by_end[flight.version, flight.blocks.end_block]
        del self._waiting[flight.version][flight]
