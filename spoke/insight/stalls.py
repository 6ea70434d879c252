"""Stall seconds by process, group and file: who waited for the hub, for how long, for what. Pure, and bounded.

Two figures each: ``stall_s`` sums over readers, as ``headrace_spoke_read_stall_seconds_total`` does; ``lost_s`` counts each
second once, however many readers of it waited. Waits that go on are credited as they go, so that a read that hangs shows.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from common import limits
from spoke.insight.coverage import Coverage
from spoke.insight.who import UNKNOWN, Process

K = TypeVar("K", bound=Hashable)
_MINUTE_S = 60.0


@dataclass(slots=True)
class Row:
    stall_s: float = 0.0
    waits: int = 0
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def lost_s(self) -> float:
        return self.coverage.total_s


class Table(Generic[K]):
    """Rows by key, at most ``most``: when one more comes, the least goes into ``others_s``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.rows: dict[K, Row] = {}
        self.others_s = 0.0
        self.others = 0

    def add(self, key: K, from_s: float, to_s: float, stall_s: float, waits: int) -> None:
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= self._most:
                least = min(self.rows, key=lambda known: self.rows[known].stall_s)
                self.others_s += self.rows.pop(least).stall_s
                self.others += 1
            row = self.rows[key] = Row()
        row.stall_s += stall_s
        row.waits += waits
        row.coverage.add(from_s, to_s)

    def top(self, count: int) -> list[tuple[K, Row]]:
        return heapq.nlargest(count, self.rows.items(), key=lambda item: item[1].lost_s)


@dataclass(slots=True)
class _Wait:
    task_id: int
    path: bytes
    since_s: float
    fresh: int = 1
    """1 until it was counted."""


@dataclass(slots=True)
class _Minute:
    number: int
    who: Table[str] = field(default_factory=lambda: Table(limits.STALL_MINUTE_ROWS_MAX))
    pairs: Table[tuple[str, bytes]] = field(default_factory=lambda: Table(limits.STALL_MINUTE_ROWS_MAX))


class Stalls:
    """``process_of``: who a thread id is, None while that is being found out; ``known`` is to be called once it is."""

    def __init__(self, process_of: Callable[[int], Process | None], now_s: float) -> None:
        self._process_of = process_of
        self._since_s = now_s
        self._waits: dict[int, _Wait] = {}
        self._next_token = 1
        self._ended: list[tuple[int, bytes, float, float, int]] = []
        self._pending: dict[int, list[tuple[bytes, float, float, float, int]]] = {}
        self._pending_count = 0
        self._all = Row()
        self._processes: Table[Process] = Table(limits.STALL_ROWS_MAX)
        self._groups: Table[str] = Table(limits.STALL_ROWS_MAX)
        self._files: Table[bytes] = Table(limits.STALL_ROWS_MAX)
        self._who: Table[str] = Table(limits.STALL_ROWS_MAX)
        self._by_rank: Table[int] = Table(limits.STALL_RANKS_MAX)
        self._minutes: deque[_Minute] = deque(maxlen=limits.STALL_MINUTES + 1)
        self._ranks: dict[int, int] = {}

    # --- events ------------------------------------------------------------------------------------------

    def began(self, now_s: float, task_id: int, path: bytes) -> int:
        """A read begins to wait; the token is for :meth:`ended`."""
        token = self._next_token
        self._next_token += 1
        self._waits[token] = _Wait(task_id, path, now_s)
        return token

    def ended(self, now_s: float, token: int) -> None:
        wait = self._waits.pop(token, None)
        if wait is not None:
            self._ended.append((wait.task_id, wait.path, wait.since_s, now_s, wait.fresh))
            if len(self._ended) >= limits.STALL_BATCH_WAITS:
                self._count()

    def tick(self, now_s: float) -> None:
        """Credit what waits have cost, those under way too. Call it before looking, and now and then."""
        self._count()
        for wait in self._waits.values():
            self._credit(wait.task_id, wait.path, wait.since_s, now_s, now_s - wait.since_s, wait.fresh)
            wait.since_s, wait.fresh = now_s, 0
        if self._pending_count > limits.STALL_PENDING_MAX:
            for task_id in list(self._pending):
                self.known(task_id)

    def known(self, task_id: int) -> None:
        """It is known by now who this is, or that it cannot be."""
        process = self._process_of(task_id) or UNKNOWN
        for path, from_s, to_s, stall_s, waits in self._pending.pop(task_id, ()):
            self._pending_count -= 1
            self._apply(process, path, from_s, to_s, stall_s, waits)

    def unknown_tasks(self) -> list[int]:
        """Threads whose waits still stand apart, because nobody has said who they are."""
        return list(self._pending)

    def rank(self, pid: int, rank: int) -> None:
        """A process said its rank; its children's waits are that rank's too, unless their environment says another."""
        self._count()  # what ended before was not that rank's
        if self._ranks.pop(pid, None) is None and len(self._ranks) >= limits.STALL_ROWS_MAX:
            del self._ranks[next(iter(self._ranks))]
        self._ranks[pid] = rank

    def _count(self) -> None:
        """Credit the waits that have ended. One readahead is several READs of one thread, which wait in each other's time:
        credited together they cost a fifth."""
        ended, self._ended = self._ended, []
        apart: dict[tuple[int, bytes], list[tuple[float, float, int]]] = {}
        for task_id, path, from_s, to_s, waits in ended:
            apart.setdefault((task_id, path), []).append((from_s, to_s, waits))
        for (task_id, path), waited in apart.items():
            for span in self._joined(waited):
                self._credit(task_id, path, *span)

    def _joined(self, waited: list[tuple[float, float, int]]) -> Iterator[tuple[float, float, float, int]]:
        """(from, to, stall, waits): those that touch each other within one minute are one."""
        waited.sort()
        low_s, high_s, waits = waited[0]
        stall_s = high_s - low_s
        for from_s, to_s, more in waited[1:]:
            end_s = max(high_s, to_s)
            if from_s <= high_s and self._minute_of(low_s) == self._minute_of(end_s):
                high_s, stall_s, waits = end_s, stall_s + to_s - from_s, waits + more
            else:
                yield low_s, high_s, stall_s, waits
                low_s, high_s, stall_s, waits = from_s, to_s, to_s - from_s, more
        yield low_s, high_s, stall_s, waits

    def _minute_of(self, at_s: float) -> int:
        return int((at_s - self._since_s) // _MINUTE_S)

    def _credit(self, task_id: int, path: bytes, from_s: float, to_s: float, stall_s: float, waits: int) -> None:
        self._all.stall_s += stall_s
        self._all.waits += waits
        self._all.coverage.add(from_s, to_s)
        process = self._process_of(task_id)
        if process is not None:
            self._apply(process, path, from_s, to_s, stall_s, waits)
        else:
            self._pending.setdefault(task_id, []).append((path, from_s, to_s, stall_s, waits))
            self._pending_count += 1

    def _apply(self, process: Process, path: bytes, from_s: float, to_s: float, stall_s: float, waits: int) -> None:
        who = self.who(process)
        self._processes.add(process, from_s, to_s, stall_s, waits)
        self._groups.add(process.group_label, from_s, to_s, stall_s, waits)
        self._files.add(path, from_s, to_s, stall_s, waits)
        self._who.add(who, from_s, to_s, stall_s, waits)
        rank = self.rank_of(process)
        if rank is not None:
            self._by_rank.add(rank, from_s, to_s, stall_s, waits)
        while from_s < to_s:
            number = self._minute_of(from_s)
            end_s = max(min(to_s, self._since_s + (number + 1) * _MINUTE_S), from_s + 1e-6)
            minute = self._minute(number)
            in_it_s = stall_s if end_s >= to_s else end_s - from_s  # only what is of one minute was joined
            if minute is not None:
                minute.who.add(who, from_s, end_s, in_it_s, waits)
                minute.pairs.add((who, path), from_s, end_s, in_it_s, waits)
            from_s, stall_s, waits = end_s, stall_s - in_it_s, 0

    def _minute(self, number: int) -> _Minute | None:
        """None: too long ago."""
        minutes = self._minutes
        place = len(minutes)
        while place and minutes[place - 1].number >= number:
            place -= 1
            if minutes[place].number == number:
                return minutes[place]
        # Also between others: a long wait ends after shorter ones that began later, and may be the only one of its first minute.
        if len(minutes) == minutes.maxlen:
            if not place:
                return None
            minutes.popleft()
            place -= 1
        minutes.insert(place, _Minute(number))
        return minutes[place]

    @property
    def lost_s(self) -> float:
        """Time in which at least one reader waited, since the start; up to the last :meth:`tick`."""
        self._count()
        return self._all.lost_s

    def lost_by_rank(self) -> dict[tuple[str, ...], float]:
        """As :attr:`lost_s`, of each rank that is known; for metrics, so of STALL_RANKS_MAX at most."""
        self._count()
        return {(str(rank),): row.lost_s for rank, row in self._by_rank.rows.items()}

    # --- answers -----------------------------------------------------------------------------------------

    def who(self, process: Process) -> str:
        """``rank 3`` where a rank is known, else the process."""
        rank = self.rank_of(process)
        return f"rank {rank}" if rank is not None else process.label

    def rank_of(self, process: Process) -> int | None:
        if process.rank is not None:
            return process.rank
        return next((self._ranks[pid] for pid in (process.pid, *process.ancestors) if pid in self._ranks), None)

    def lost_between(self, who: str, from_s: float, to_s: float) -> float:
        """Seconds between two moments in which a reader of ``who`` waited; the last 64 stretches of waiting are known."""
        self._count()
        row = self._who.rows.get(who)
        return row.coverage.within(from_s, to_s) if row is not None else 0.0

    def facts(self, now_s: float) -> Mapping[str, Any]:
        """For ``status``: top rows by time lost, seconds. ``recent``: of the last ten minutes and what is begun of one, with files."""
        self.tick(now_s)
        shown = limits.STALLS_SHOWN_MAX
        waiting = [self._process_of(wait.task_id) or UNKNOWN for wait in self._waits.values()]
        return {
            "stall_s": self._all.stall_s,
            "lost_s": self._all.lost_s,
            "waits": self._all.waits,
            "processes": [
                {
                    "pid": process.pid or None,
                    "name": process.name,
                    "rank": self.rank_of(process),
                    "group": process.group,
                    "pod": process.pod or None,
                    "container": process.container or None,
                    "waiting": waiting.count(process),
                    **_figures(row),
                }
                for process, row in self._processes.top(shown)
            ],
            "groups": [{"group": group, **_figures(row)} for group, row in self._groups.top(shown)],
            "files": [{"path": text_of(path), **_figures(row)} for path, row in self._files.top(shown)],
            "others": {
                "processes": self._processes.others,
                "process_stall_s": self._processes.others_s,
                "files": self._files.others,
                "file_stall_s": self._files.others_s,
            },
            "recent": self._recent(now_s),
        }

    def _recent(self, now_s: float) -> Mapping[str, Any]:
        oldest = int((now_s - self._since_s) // _MINUTE_S) - limits.STALL_MINUTES
        span_s = now_s - (self._since_s + max(0, oldest) * _MINUTE_S)
        lost: dict[str, list[float]] = {}
        files: dict[str, dict[bytes, float]] = {}
        for minute in self._minutes:
            if minute.number < oldest:
                continue
            for who, row in minute.who.rows.items():
                sums = lost.setdefault(who, [0.0, 0.0, 0.0])
                sums[0] += row.lost_s
                sums[1] += row.stall_s
                sums[2] += row.waits
            for (who, path), row in minute.pairs.rows.items():
                by_file = files.setdefault(who, {})
                by_file[path] = by_file.get(path, 0.0) + row.lost_s
        ranked = heapq.nlargest(limits.STALLS_SHOWN_MAX, lost.items(), key=lambda item: item[1][0])
        return {
            "span_s": span_s,
            "who": [
                {
                    "who": who,
                    "lost_s": sums[0],
                    "stall_s": sums[1],
                    "waits": int(sums[2]),
                    "files": [
                        {"path": text_of(path), "lost_s": lost_s}
                        for path, lost_s in heapq.nlargest(3, files.get(who, {}).items(), key=lambda item: item[1])
                    ],
                }
                for who, sums in ranked
            ],
        }


def _figures(row: Row) -> dict[str, float | int]:
    return {"stall_s": row.stall_s, "lost_s": row.lost_s, "waits": row.waits}


def text_of(path: bytes) -> str:
    """A path for people and JSON, whatever its bytes."""
    return path.decode("utf-8", "backslashreplace") or "."


def said(recent: Mapping[str, Any]) -> Iterator[str]:
    """The last minutes in words, who lost most first: ``rank 3 lost 41 s of 10 min waiting for shard-17``."""
    for row in recent["who"]:
        if row["lost_s"] < 0.01:
            continue
        names = [file["path"].rpartition("/")[2] for file in row["files"]]
        of = f" waiting for {names[0]}" if names else ""
        if len(names) > 1:
            of += f" ({row['files'][0]['lost_s']:.3g} s), " + ", ".join(
                f"{name} ({file['lost_s']:.3g} s)" for name, file in zip(names[1:], row["files"][1:], strict=True)
            )
        yield f"{row['who']} lost {in_time(row['lost_s'])} of {in_time(recent['span_s'])}{of}"


def in_time(seconds: float) -> str:
    """``41 s``, ``0.3 s``, ``10 min``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
