"""Ties the accounts together: told of waits, arrivals and evictions by the rooms, it answers ``status``, ``explain`` and the page."""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Protocol

from common import __version__, limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, BlockRange
from common.errors import UsageError
from common.units import parse_size
from spoke.cache.store import Store
from spoke.fetcher import Fetcher
from spoke.hub_client.client import HubClient
from spoke.hub_client.single_flight import Flight
from spoke.insight.history import History, Note, What
from spoke.insight.processes import Processes
from spoke.insight.samples import Sample, Samples
from spoke.insight.slow_reads import Fetch, SlowRead, as_facts, in_words, note_in_words, versions_named
from spoke.insight.stalls import Stalls, in_time, said, text_of
from spoke.insight.training import Reads as ReadCounts
from spoke.insight.training import Training
from spoke.metrics import Counts
from spoke.namespace.tree import Node, Tree
from spoke.naming import files_in_turns
from spoke.plan_message import PlanMessage
from spoke.prefetch.scorecard import Reason, Scorecard
from spoke.reads import Handle, Reads, Waited

_NOTES_SHOWN = 256
_REASONS = dict(enumerate(Reason, start=1))  # as spoke.ahead numbers them


class NoSuchPath(UsageError):
    """Asked about a path that is not in the dataset."""

    wire_code = "no-such-path"


class Watched(Protocol):
    """What it looks at; the spoke is this."""

    @property
    def counts(self) -> Counts: ...
    @property
    def reads(self) -> Reads: ...
    @property
    def client(self) -> HubClient: ...
    @property
    def fetcher(self) -> Fetcher: ...
    @property
    def store(self) -> Store: ...
    @property
    def tree(self) -> Tree: ...
    @property
    def scorecard(self) -> Scorecard: ...
    def staleness_s(self) -> float: ...


class Insight:
    """A :class:`~spoke.reads.WaitObserver`. ``tick`` every SAMPLE_INTERVAL_S; ``close`` at the end."""

    def __init__(self, spoke: Watched, history: History, clock: Callable[[], float]) -> None:
        self._spoke = spoke
        self._history = history
        self._clock = clock
        self._processes = Processes(clock, self._known)
        self.stalls: Stalls = Stalls(self._processes.known, clock())
        self.training = Training(self.stalls.lost_between)
        self.samples = Samples()
        self._slow: deque[SlowRead] = deque(maxlen=limits.SLOW_READS_KEPT)
        self._opened: OrderedDict[bytes, tuple[bytes, int]] = OrderedDict()
        self._late_marks: list[tuple[PlanMessage, int, float]] = []

    def close(self) -> None:
        self._processes.close()

    # --- what is told ------------------------------------------------------------------------------------

    def wait_began(self, handle: Handle, task_id: int, began_s: float) -> int:
        self._processes.ask(task_id)
        self.opened(handle.path, handle.version, handle.size_bytes)
        return self.stalls.began(began_s, task_id, handle.path)

    def wait_ended(self, token: int, handle: Handle, task_id: int, waited: Waited) -> None:
        self.stalls.ended(waited.ended_s, token)
        client = self._spoke.client
        fetch = _last_fetch(waited.flights)
        block = fetch.first_block if fetch is not None else waited.offset_bytes // BLOCK_BYTES
        before = self._history.of(handle.version, block // EXTENT_BLOCKS)
        result: Literal["late", "miss"] = "late" if waited.result == "late" else "miss"
        self._slow.append(
            SlowRead(
                handle.path,
                handle.version,
                waited.offset_bytes,
                waited.length_bytes,
                task_id,
                waited.began_s,
                waited.ended_s,
                result,
                client.links.rtt_s,
                client.links.connected,
                fetch,
                tuple(note for note in before if note.at_s < waited.began_s),
                waited.error,
            )
        )

    def opened(self, path: bytes, version: bytes, size_bytes: int) -> None:
        """A file somebody uses: for the map of the cache."""
        known = self._opened
        known.pop(path, None)
        known[path] = (version, size_bytes)
        if len(known) > limits.CACHE_MAP_FILES:
            known.popitem(last=False)

    def gone(self, version: bytes, blocks: BlockRange) -> None:
        """Blocks are cached no more."""
        making = self._spoke.store.making_room
        what = What.DROPPED if making is None else What.OUTDATED if making[1] else What.EVICTED
        whom = self._history.whom(making[0]) if making is not None else 0
        self._history.note_blocks(self._clock(), version, blocks, what, whom)

    def marks(self, message: PlanMessage, task_id: int) -> None:
        """Training steps, as a job marks them; held back for a moment while it is found out who says so."""
        self._processes.ask(task_id)
        if self._processes.known(task_id) is None and len(self._late_marks) < limits.TRAINING_JOBS_MAX:
            self._late_marks.append((message, task_id, self._clock()))
        else:
            self._take_marks(message, task_id, self._clock())

    def _take_marks(self, message: PlanMessage, task_id: int, at_s: float) -> None:
        process = self._processes.known(task_id)
        rank = message.rank
        if process is not None and process.pid:
            if rank is not None:
                self.stalls.rank(process.pid, rank)
            else:
                rank = self.stalls.rank_of(process)
        visible = process is not None and process.pid > 0
        who = f"rank {rank}" if rank is not None else process.label if process and process.pid else message.name
        counts = self._spoke.counts
        now = ReadCounts(counts.hits, counts.late, counts.misses, counts.wan_read_bytes)
        self.stalls.tick(at_s)
        began_s = at_s - max((mark.ago_s + mark.took_s for mark in message.marks), default=0.0)
        then = self.samples.at(began_s)
        before = ReadCounts(then.hit, then.late, then.miss, then.wan_bytes) if then is not None else None
        self.training.marks(
            at_s, message.name, who, rank, message.from_step, message.marks, now, before, visible=visible
        )

    def _known(self, task_id: int) -> None:
        self.stalls.known(task_id)
        waiting = [held for held in self._late_marks if held[1] == task_id]
        if waiting:
            self._late_marks = [held for held in self._late_marks if held[1] != task_id]
            for held in waiting:
                self._take_marks(*held)

    def sample(self) -> Sample:
        """As things stand now."""
        spoke, counts, usage = self._spoke, self._spoke.counts, self._spoke.store.usage()
        now_s = self._clock()
        self.stalls.tick(now_s)
        reasons = spoke.scorecard.reasons.values()
        return Sample(
            now_s,
            counts.hits,
            counts.late,
            counts.misses,
            counts.cache_read_bytes,
            counts.wan_read_bytes,
            counts.fetched_bytes,
            spoke.client.links.wire_bytes_total,
            counts.stall_s,
            self.stalls.lost_s,
            spoke.reads.waiting,
            spoke.fetcher.prefetch_outstanding_bytes,
            sum(score.lead_s_total for score in reasons),
            sum(score.leads for score in reasons),
            usage.used_bytes,
            usage.capacity_bytes,
            spoke.client.links.rtt_s or 0.0,
            int(spoke.client.links.connected),
            len(spoke.client.links.up),
            spoke.reads.lent_handles,
        )

    def tick(self) -> None:
        """Take a sample; to be called every SAMPLE_INTERVAL_S."""
        now_s = self._clock()
        for task_id in self.stalls.unknown_tasks():
            self._processes.ask(task_id)
        held, self._late_marks = self._late_marks, []
        for message, task_id, at_s in held:
            if now_s - at_s < limits.SAMPLE_INTERVAL_S:
                self._late_marks.append((message, task_id, at_s))
            else:  # nobody will say any more who this was
                self._take_marks(message, task_id, at_s)
        self.samples.add(self.sample())

    # --- answers -----------------------------------------------------------------------------------------

    def facts(self) -> Mapping[str, Any]:
        """For ``status``: phase, stalls, training. Seconds and bytes."""
        now = self.sample()
        phase, why = self.samples.phase(now)
        stalls = self.stalls.facts(now.at_s)
        return {
            "phase": {"name": phase, "why": why},
            "stalls": {**stalls, "said": list(said(stalls["recent"]))[:5]},
            "training": self.training.facts(now.at_s),
        }

    def stats(self) -> dict[str, float]:
        """For the hub's view of its fleet, beside the counts; numbers alone travel, so the version goes in three of them."""
        last = self.samples.last
        parts = [float(part) for part in __version__.split(".") if part.isdigit()]
        stats = {f"version_{name}": part for name, part in zip(("major", "minor", "patch"), parts, strict=False)}
        if last is not None:
            stats.update(
                lost_seconds=last.lost_s,
                waiting=float(last.waiting),
                read_bytes=float(last.cache_bytes + last.wan_bytes),
            )
        staleness_s = self._spoke.staleness_s()
        if staleness_s != float("inf"):
            stats["staleness_seconds"] = staleness_s
        return stats

    def page(self) -> Mapping[str, Any]:
        """What the page draws beside ``status``: curves of the last hour, the map of the cache."""
        store = self._spoke.store
        cells = limits.CACHE_MAP_CELLS
        return {
            "series": self.samples.series(limits.SERIES_POINTS),
            "map": [
                {
                    "path": text_of(path),
                    "size_bytes": size_bytes,
                    "cells": [round(share, 2) for share in store.map_of(version, size_bytes, cells)],
                }
                for path, (version, size_bytes) in reversed(self._opened.items())
            ],
        }

    def recent(self) -> Mapping[str, Any]:
        """``.headrace/explain``: the reads that waited last, and who lost time."""
        now_s = self._clock()
        newest = [self._slow[-1 - number] for number in range(min(len(self._slow), limits.SLOW_READS_SHOWN))]
        stalls = self.stalls.facts(now_s)
        return {
            "said": list(said(stalls["recent"])),
            "slow_reads": [as_facts(slow, now_s) for slow in newest],
            "ask": "headrace-spoke explain MOUNTPOINT PATH[:OFFSET] tells of one file or place",
        }

    async def explain(self, text: str) -> Mapping[str, Any]:
        """Of PATH or PATH:OFFSET below the mount: what is here, why a read was slow. Raises NoSuchPath."""
        node, offset_bytes = self._find(text)
        entry, path = node.entry, node.path()
        now_s, store = self._clock(), self._spoke.store
        slow = [found for found in reversed(self._slow) if found.version == entry.version]
        notes: dict[int, list[Note]] = {}
        if offset_bytes is not None:
            extent = offset_bytes // EXTENT_BYTES
            slow = [found for found in slow if _touches(found, extent)]
            notes[extent] = self._history.of(entry.version, extent)
        else:
            for extent in self._history.extents(entry.version):
                notes[extent] = self._history.of(entry.version, extent)
        known = len(slow)
        slow = slow[: limits.SLOW_READS_SHOWN]
        whom = {
            note.detail: version
            for found in (*notes.values(), *(read.before for read in slow))
            for note in found
            if note.what is What.EVICTED and (version := self._history.version_of(note.detail)) is not None
        }
        every = [note for found in notes.values() for note in found]
        wanted = {*versions_named(every, whom), *(v for read in slow for v in versions_named(read.before, whom))}
        names = await find_names(self._spoke.tree, wanted)
        facts: dict[str, Any] = {
            "path": text_of(path),
            "version": entry.version.hex(),
            "size_bytes": entry.size_bytes,
            "state": store.state(entry.version, entry.size_bytes),
            "cached_bytes": store.present_bytes(entry.version, entry.size_bytes),
            "offset_bytes": offset_bytes,
            "slow_reads_known": known,
            "slow_reads": [{**as_facts(found, now_s), "said": in_words(found, now_s, names, whom)} for found in slow],
            "history": [
                {
                    "at_ago_s": now_s - note.at_s,
                    "extent": extent,
                    "what": note.what.name.lower(),
                    "why": _REASONS[note.detail].value if note.what is What.AHEAD and note.detail in _REASONS else None,
                    "for": names.get(whom[note.detail]) if note.detail in whom and note.what is What.EVICTED else None,
                    "said": self._note_said(note, now_s, names, whom),
                }
                for note, extent in sorted((note, extent) for extent, found in notes.items() for note in found)[
                    -_NOTES_SHOWN:
                ]
            ],
        }
        if offset_bytes is not None:
            facts["place"] = self._place(entry.version, entry.size_bytes, offset_bytes)
        return facts

    def _note_said(self, note: Note, now_s: float, names: dict[bytes, str], whom: dict[int, bytes]) -> str:
        text = note_in_words(note, now_s, names, whom)
        if note.what is What.AHEAD and note.detail in _REASONS:
            text += f" ({_REASONS[note.detail].value})"
        return text

    def _place(self, version: bytes, size_bytes: int, offset_bytes: int) -> Mapping[str, Any]:
        block = BlockRange(offset_bytes // BLOCK_BYTES, 1)
        store, fetcher = self._spoke.store, self._spoke.fetcher
        flight = fetcher.flight_of(version, block)
        present = not store.missing(version, size_bytes, block)
        in_memory = fetcher.recent.find(version, offset_bytes, 1) is not None
        return {
            "block": block.first_block,
            "extent": offset_bytes // EXTENT_BYTES,
            "present": present,
            "in_memory": in_memory,
            "on_its_way": flight is not None and bool(flight.unlanded()),
            "asked_ago_s": self._clock() - flight.asked_s if flight is not None else None,
        }

    def _find(self, text: str) -> tuple[Node, int | None]:
        tree = self._spoke.tree
        path, offset_bytes = os.fsencode(text).strip(b"/"), None
        node = tree.resolve(path)
        if node is None and b":" in path:
            head, _, tail = path.rpartition(b":")
            node = tree.resolve(head)
            if node is not None:
                offset_bytes = parse_size(os.fsdecode(tail))
                path = head
        if node is None:
            raise NoSuchPath(
                f"{text!r} is not in the dataset (as the names are now); give PATH or PATH:OFFSET below the mount"
            )
        if not node.is_file:
            raise NoSuchPath(
                f"{os.fsdecode(path) or '.'!r} is no file; name one, or ask without a path for the last slow reads"
            )
        size_bytes = node.entry.size_bytes
        if offset_bytes is not None and offset_bytes >= max(1, size_bytes):
            raise UsageError(f"{os.fsdecode(path)!r} has {size_bytes} bytes; there is none at {offset_bytes}")
        return node, offset_bytes


def verdict(facts: Mapping[str, Any]) -> str:
    """What ``explain`` says first."""
    place = facts.get("place")
    total, cached = facts["size_bytes"], facts["cached_bytes"]
    if not total:
        return "empty: nothing to fetch"
    if place is None:
        if cached >= total:
            return "all of it is cached" + (
                " and verified" if facts["state"] == "verified" else ", to be verified at its first read"
            )
        return f"{100 * cached / total:.1f} % of it is cached" if cached else "nothing of it is cached"
    if place["present"]:
        return "present: cached on this host"
    if place["in_memory"]:
        return "present: in memory, on its way to the cache disk"
    if place["on_its_way"]:
        return f"on its way from the hub, asked for {in_time(place['asked_ago_s'])} ago"
    return "not present: the next read of it waits for the hub"


async def find_names(tree: Tree, versions: Iterable[bytes]) -> dict[bytes, str]:
    """Paths of these versions, as far as names have them; a million names are looked at in slices."""
    wanted = set(versions)
    found: dict[bytes, str] = {}
    if not wanted:
        return found
    async for node in files_in_turns(tree):
        if (version := node.entry.version) in wanted:
            found.setdefault(version, text_of(node.path()))
            if len(found) == len(wanted):
                break
    return found


def _touches(slow: SlowRead, extent: int) -> bool:
    return (
        slow.offset_bytes < (extent + 1) * EXTENT_BYTES
        and slow.offset_bytes + slow.length_bytes > extent * EXTENT_BYTES
    )


def _last_fetch(flights: Iterable[Flight]) -> Fetch | None:
    """The one that ended last, or that has not ended."""
    last: Flight | None = None
    latest_s = landed_s = 0.0
    for flight in flights:
        flight_landed_s = 0.0 if flight.unlanded() else flight.landed_s
        ended_s = flight_landed_s or float("inf")
        if last is None or ended_s > latest_s:
            last, latest_s, landed_s = flight, ended_s, flight_landed_s
    if last is None:
        return None
    return Fetch(last.asked_s, last.sent_s, landed_s, last.prefetched, last.tries, last.sends, last.blocks.first_block)
