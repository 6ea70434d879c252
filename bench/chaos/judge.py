"""What readers met, against what was broken at that time: allowed, or a failure. Pure.

Always a failure: wrong, mixed or missing bytes; a call that outlasts what a read may wait. A failure unless something was broken, or
the file changed, shortly before: EIO, ESTALE. Only while the mount was taken away: that there is no mount.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.chaos.ledger import Ledger

RECOVERY_S = 8.0
"""After a fault has ended: work goes on in less (5 s are promised for a link), on a busy machine."""
FRESH_S = 5.0
"""With nothing broken an open sees a change that was complete so long before it (a second is promised)."""
MARGIN_S = 15.0
"""Beyond the read timeout, for processes that wait for their turn on a busy machine."""
_NO_MOUNT = frozenset(
    {errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV, errno.ENOENT, errno.ENXIO, errno.EIO, errno.ESTALE}
)


@dataclass(frozen=True, slots=True)
class Broken:
    """One fault as it happened; ``to_s`` once it was undone."""

    kind: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """``failure``: empty if it was allowed."""

    failure: str
    what: str


def bound_s(read_timeout_s: float) -> float:
    """The longest one call of a reader may take: two READs one after the other where the first was the kernel's readahead."""
    return 2 * read_timeout_s + MARGIN_S


def active(faults: Iterable[Broken], from_s: float, to_s: float, tail_s: float = 0.0) -> list[str]:
    """Kinds that were at work at some moment of [from_s, to_s], or had ended less than ``tail_s`` before it."""
    return [fault.kind for fault in faults if fault.from_s <= to_s and fault.to_s + tail_s >= from_s]


class Judge:
    """``downs``: when the mount was away or might have been, [from, to]."""

    def __init__(
        self, read_timeout_s: float, ledger: Ledger, faults: Sequence[Broken], downs: Sequence[Sequence[float]]
    ) -> None:
        self._read_timeout_s = read_timeout_s
        self._ledger, self._faults, self._downs = ledger, faults, downs

    def of(self, event: Mapping[str, Any]) -> Verdict:
        from_s, to_s = float(event["from_s"]), float(event["to_s"])
        opened_s = float(event.get("opened_s", from_s))
        tail_s = self._read_timeout_s + RECOVERY_S
        broken = active(self._faults, opened_s, to_s, tail_s)
        away = any(low - 1 <= to_s and high + 1 >= opened_s for low, high in self._downs)
        said = f"{event.get('what')} {event.get('path')}"
        match event["kind"]:
            case "wrong":
                return Verdict(
                    "wrong bytes" if event["what"] not in ("readdir", "stat") else "wrong names",
                    f"{said}: {event['why']}",
                )
            case "missing":
                return Verdict("" if away else "missing name", said)
            case "old":
                lag_s = float(event["lag_s"])
                return Verdict("" if broken or lag_s < FRESH_S else "stale open", f"{said}: {lag_s:.1f} s old")
            case "slow":
                long = to_s - from_s > bound_s(self._read_timeout_s) + self._down_s(from_s, to_s)
                return Verdict("hang" if long else "", f"{said}: {to_s - from_s:.1f} s")
            case "error":
                return Verdict(self._error(event, broken, away, opened_s, to_s), f"{said}: {_name(event['errno'])}")
            case "died":
                excused = broken or self._changed(str(event["path"]), opened_s, to_s)
                allowed = event["signal"] == "SIGBUS" and excused
                return Verdict("" if allowed else "reader died", f"{said}: {event['signal']}")
        raise AssertionError(f"no event: {event}")

    def _error(self, event: Mapping[str, Any], broken: Sequence[str], away: bool, opened_s: float, to_s: float) -> str:
        number, path = int(event["errno"]), str(event["path"])
        if away and number in _NO_MOUNT:
            return ""
        if number == errno.EIO:
            return "" if broken else "EIO with nothing broken"
        if number == errno.ESTALE:
            return "" if broken or self._changed(path, opened_s, to_s) else "ESTALE with nothing broken"
        if number == errno.ENOENT:
            look_back_s = 1e9 if broken else FRESH_S
            return "" if self._ledger.was_absent(path, opened_s - look_back_s, to_s) else "missing name"
        return f"unexpected {_name(number)}"

    def _changed(self, path: str, from_s: float, to_s: float) -> bool:
        return any(from_s - FRESH_S <= state.begun_s <= to_s for state in self._ledger.of(path))

    def _down_s(self, from_s: float, to_s: float) -> float:
        return sum(max(0.0, min(to_s, high) - max(from_s, low)) for low, high in self._downs)


def longest_by_kind(slow: Iterable[Mapping[str, Any]], faults: Sequence[Broken]) -> dict[str, float]:
    """The longest call of any reader that overlapped each kind of fault, seconds."""
    longest: dict[str, float] = {}
    for event in slow:
        for kind in set(active(faults, event["from_s"], event["to_s"])):
            longest[kind] = max(longest.get(kind, 0.0), event["to_s"] - event["from_s"])
    return longest


def _name(number: int) -> str:
    return errno.errorcode.get(number, str(number))
