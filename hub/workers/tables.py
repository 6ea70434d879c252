"""What is counted and who is linked, as tables that go between processes, and their sums over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from common.serving.server import LinkView, SpokeView
from common.tcp import PathFacts
from common.wire.messages import Priority
from hub.counts import IDENTITIES_MAX, Counts
from hub.workers.messages import Report


def counts_table(counts: Counts) -> dict[str, Any]:
    return {field.name: getattr(counts, field.name) for field in fields(counts)}


def spoke_table(view: SpokeView) -> dict[str, Any]:
    return asdict(view)


def spoke_view(table: Mapping[str, Any]) -> SpokeView:
    links = (
        LinkView(**{**link, "path": PathFacts(**link["path"]) if link["path"] is not None else None})
        for link in table["links"]
    )
    return SpokeView(**{**table, "links": tuple(links)})


class Totals:
    """Sums of reports: of processes that live, and of those that ended, so that a counter never goes back."""

    def __init__(self) -> None:
        self._living: dict[int, Report] = {}
        self._ended = Counts()
        self._ended_raw_bytes = 0
        self._ended_packed_bytes = 0

    def heard(self, index: int, report: Report) -> None:
        self._living[index] = report

    def ended(self, index: int) -> None:
        """What it counted after its last report is lost with it."""
        report = self._living.pop(index, None)
        if report is not None:
            _add(self._ended, report.counts)
            self._ended_raw_bytes += report.raw_bytes
            self._ended_packed_bytes += report.packed_bytes

    def counts(self, own: Counts) -> Counts:
        """With what this process counted itself."""
        total = Counts()
        for table in (counts_table(own), counts_table(self._ended), *(each.counts for each in self._living.values())):
            _add(total, table)
        return total

    @property
    def raw_bytes(self) -> int:
        return self._ended_raw_bytes + sum(report.raw_bytes for report in self._living.values())

    @property
    def packed_bytes(self) -> int:
        return self._ended_packed_bytes + sum(report.packed_bytes for report in self._living.values())

    def reports(self) -> Iterable[tuple[int, Report]]:
        return self._living.items()


def _add(total: Counts, table: Mapping[str, Any]) -> None:
    for name, value in table.items():
        if not isinstance(value, Mapping):
            setattr(total, name, getattr(total, name) + value)
            continue
        into: dict[Any, Any] = getattr(total, name)
        for found, number in value.items():
            key = found
            if name in {"reads_done", "read_seconds"}:
                key = Priority(found)  # a plain number between processes
            elif name == "sent_bytes" and found not in into and len(into) >= IDENTITIES_MAX:
                key = "other"
            into[key] = into.get(key, 0) + number
