"""Decides what to fetch ahead: reads and arrivals go in, fetches come out. Pure, and the same for the same events.

Two sources of foresight: orders, which know what comes (plans, recipes, what was learned), and guesses from the reads alone.
What an order explains is not guessed at. The planner hands the budget round, keeps the accounts, and spares both the hits of a
reader inside what is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BYTES, BlockRange
from spoke.prefetch.chains import FileFacts, NextFile
from spoke.prefetch.following import Following
from spoke.prefetch.guesses import Guesses
from spoke.prefetch.next_use import Use
from spoke.prefetch.orders import Order
from spoke.prefetch.quiet import Quiet, QuietReads
from spoke.prefetch.recording import Recording
from spoke.prefetch.scorecard import Ledger, Scorecard
from spoke.prefetch.source import Fetch, ReadSeen
from spoke.prefetch.succession import OrderRecorder
from spoke.prefetch.window import Latency

__all__ = ["Fetch", "FileFacts", "Planner", "ReadSeen"]

_TAUGHT_READS = 16
"""Who only learns is told of so many READs together: nothing is fetched by it, and each costs as much as what decides. More of them would
save nothing more, and the order of an epoch be known later."""

_QUIET_FROM_READS = 4  # fewer reads than this are not worth the bookkeeping of passing over them


def _no_next_file(_path: bytes) -> FileFacts | None:
    return None


class Planner:
    """``next_file``: the file after a path in its directory's order, a pure look-up (default: none).

    ``small_file_bytes``: files up to this size are fetched whole. ``stream_max_bytes``: how far one place runs ahead.
    ``recorder``: is told of each read, and learns the order from it.
    ``windows_max_bytes``: how far all do together. ``declared_max_bytes``: how far all do together in declared plans.
    """

    def __init__(
        self,
        next_file: NextFile = _no_next_file,
        *,
        small_file_bytes: int = limits.PREFETCH_SMALL_FILE_BYTES,
        stream_max_bytes: int = limits.PREFETCH_STREAM_MAX_BYTES,
        recorder: OrderRecorder | None = None,
        windows_max_bytes: int = limits.PREFETCH_WINDOWS_MAX_BYTES,
        declared_max_bytes: int = limits.PREFETCH_WINDOWS_MAX_BYTES,
        throughout_max_bytes: int = limits.PREFETCH_THROUGHOUT_MAX_BYTES,
    ) -> None:
        self._recorder = recorder
        self.on_read: Callable[[FileFacts, int, int], None] | None = None
        """Told by and by of what is learnt from: (file, offset, length), READs that go on in one piece."""
        self.on_noted: Callable[[Quiet, int], None] | None = None
        """Told of a reader whose READs were only noted, and where the last one ended, once he is heard again."""
        self._recording: Recording | None = None
        self._untaught: list[tuple[float, FileFacts, int, int, bool]] = []
        self.scorecard = Scorecard()
        self._ledger = Ledger(self.scorecard)
        self._latency = Latency()
        self._guesses = Guesses(
            next_file,
            self._ledger,
            self._latency,
            small_file_bytes=small_file_bytes,
            stream_max_bytes=stream_max_bytes,
            windows_max_bytes=windows_max_bytes,
            throughout_max_bytes=throughout_max_bytes,
        )
        self._following = Following(
            self._ledger,
            self._latency,
            stream_max_bytes=stream_max_bytes,
            windows_max_bytes=windows_max_bytes,
            declared_max_bytes=declared_max_bytes,
        )
        if recorder is not None:
            recorder.on_drop = self._forget_recording
            recorder.on_look = self.teach
        self._handles: dict[int, FileFacts] = {}
        self._open_counts: dict[bytes, int] = {}
        self.quiet = QuietReads()
        """Readers whose hits are only noted; what is none of theirs is for :meth:`read`."""
        self._latest_s = 0.0

    @property
    def outstanding_limit_bytes(self) -> int:
        """What may usefully be in flight as prefetch, by the link's figures: more would only queue before demand reads."""
        return self._latency.outstanding_limit_bytes

    @property
    def has_plans(self) -> bool:
        """:meth:`plan` may give something; asked after every read, so that most cost no more."""
        guesses, following = self._guesses, self._following
        return bool(guesses.jobs or guesses.scattered or guesses.waited or guesses.rests) or (
            following.may_have_plans and following.has_plans
        )

    @property
    def open_handles(self) -> int:
        return len(self._handles)

    @property
    def active_streams(self) -> int:
        return self._guesses.active_count

    # --- orders ------------------------------------------------------------------------------------------

    def add_order(self, now_s: float, order: Order) -> None:
        """Follow an order from now on. Raises PlanTooLong when too many are followed, OrderError when its name is taken."""
        self._following.add(now_s, order)

    def replace_order(self, now_s: float, former: str, order: Order) -> None:
        """Follow an order in the place of ``former``, which has the same steps; from now on, if that is not followed."""
        self._following.replace(now_s, former, order)

    def order_grew(self, now_s: float, name: str) -> None:
        """Steps were added to an order that is followed."""
        self._following.grew(now_s, name)

    def drop_order(self, name: str) -> bool:
        """Follow it no longer; False if it was not followed."""
        return self._following.drop(name)

    @property
    def has_orders(self) -> bool:
        return self._following.is_active

    def orders(self) -> list[Mapping[str, Any]]:
        """Facts on each order followed, for ``status``."""
        return self._following.facts()

    def orders_of(self, version: bytes, extent_index: int | None) -> list[Mapping[str, Any]]:
        """Orders that have reads of a file, for ``explain``."""
        self.teach()
        return self._following.orders_of(version, extent_index)

    def order(self, name: str) -> Order | None:
        """The order followed under this name."""
        return self._following.order(name)

    def is_foretold(self, version: bytes) -> bool:
        """An order explains what is read of this file."""
        return self._following.covers(version)

    def knows(self, version: bytes) -> bool:
        """An order followed now says when bytes of this version are used next."""
        return self._following.knows(version)

    def next_use(self, version: bytes, blocks: BlockRange) -> int | None:
        """Steps until one of the blocks is used next (next_use.NEVER: not again); None: no order followed now says anything about it."""
        return self._following.next_use(version, blocks)

    def uses(self, version: bytes, extent_index: int) -> Sequence[Use] | None:
        """All blocks of an extent, in runs with the steps until their next use; None: no order followed now says anything about it."""
        return self._following.uses(version, extent_index)

    @property
    def steps_taken(self) -> int:
        """How far the orders were read, in steps, about."""
        return self._following.steps_taken

    def take_used(self) -> tuple[bytes, BlockRange] | None:
        """(version, blocks of one extent) that an order used, perhaps for the last time, the longest ago first."""
        return self._following.take_used()

    # --- events ------------------------------------------------------------------------------------------

    def opened(self, now_s: float, handle_id: int, file: FileFacts, task_id: int) -> None:
        """A file was opened. Nothing is fetched before its first read: many opens are only looks."""
        if len(self._handles) < limits.PREFETCH_MAX_HANDLES:
            self._handles[handle_id] = file
            self._open_counts[file.version] = self._open_counts.get(file.version, 0) + 1

    def closed(self, now_s: float, handle_id: int) -> None:
        """A file was closed. With its last handle, what was guessed in it and not read counts as wasted, until it is read."""
        facts = self._handles.pop(handle_id, None)
        if facts is None:
            return
        self._catch_up(now_s, facts.version)
        left = self._open_counts[facts.version] - 1
        if left:
            self._open_counts[facts.version] = left
            return
        del self._open_counts[facts.version]
        self.quiet.take_all(facts.version)
        self._guesses.closed(facts.version)

    def link(self, rtt_s: float, rate_bytes_per_s: float) -> None:
        self._latency.link(rtt_s, rate_bytes_per_s)

    def keep_within(self, most_bytes: int | None) -> None:
        """Streams run no further ahead than this, all together, for now; None: as far as their windows reach."""
        self._guesses.keep_within(most_bytes)

    def arrived(self, now_s: float, version: bytes, blocks: BlockRange) -> None:
        self._latest_s = now_s
        took_s = self._ledger.arrived(now_s, version, blocks)
        if took_s is not None:
            self._latency.fetched(took_s)

    def failed(self, now_s: float, version: bytes, blocks: BlockRange) -> None:
        """A fetch failed: its blocks are not outstanding any more, and the file is left alone for a moment."""
        self._ledger.failed(version, blocks)
        self._guesses.failed(now_s, version)
        self._following.failed(now_s, version)

    def evicted(self, version: bytes, blocks: BlockRange) -> None:
        """The cache let blocks go: what was guessed of them and not read is charged. Orders see for themselves what is used."""
        if not self._ledger.has_unread(version, blocks):
            return
        self._catch_up(self._latest_s, version)
        wasted = self._ledger.evicted(version, blocks)
        if wasted:
            self._guesses.evicted(version, blocks, wasted)
            self._following.evicted(version, wasted)

    def is_quiet(self, version: bytes, offset_bytes: int, length_bytes: int, *, late: bool = False) -> bool:
        """Take note of a read that was a hit or ``late``, if it goes on where a quiet reader is and nothing is to be planned for it yet.

        False: it is for :meth:`read`. Most hits of a stream end here, at the cost of two look-ups.
        """
        noted = self.quiet.note(version, offset_bytes, length_bytes, late=late)
        if noted is not None and late:
            noted.came_late(length_bytes)
        return noted is not None

    def read(self, now_s: float, seen: ReadSeen) -> None:
        """Learn from a READ; what follows from it comes out of :meth:`plan`."""
        quiets = self.quiet.of(seen.version)
        if quiets:
            offset_bytes = seen.offset_bytes
            quiet = quiets.pop(offset_bytes, None)
            if quiet is not None and quiet.go_on is not None and seen.result == "hit":
                end_bytes = offset_bytes + seen.length_bytes
                until_bytes = 0 if end_bytes in quiets else quiet.go_on(now_s, end_bytes)
                if until_bytes >= end_bytes:
                    if self.on_noted is not None:
                        self.on_noted(quiet, offset_bytes)
                    quiet.went_on(seen, until_bytes)
                    quiets[end_bytes] = quiet
                    return
            if quiet is not None and quiet.reads:
                if seen.result == "hit":
                    self._count(quiet, 1)
                    if self.on_noted is not None:
                        self.on_noted(quiet, offset_bytes)
                    seen = quiet.noted(offset_bytes + seen.length_bytes)
                else:
                    self._make_up(now_s, quiet, offset_bytes)
                    quiets.pop(offset_bytes, None)  # he is heard now
            # A reader that goes on as a stream is no news to the others; anything else may be.
            if not quiets:
                self.quiet.take_all(seen.version)
            elif self._following.is_active or not self._guesses.is_stream_at(seen.version, seen.offset_bytes):
                self._catch_up(now_s, seen.version)
        self._learn(now_s, seen)

    def settle(self, now_s: float) -> None:
        """Learn from all reads that were only noted."""
        for version in self.quiet.versions():
            self._catch_up(now_s, version)
        self.teach()

    def teach(self) -> None:
        """Tell who only learns of what was read up to now."""
        untaught, on_read, recorder = self._untaught, self.on_read, self._recorder
        if not untaught:
            return
        self._untaught = []
        if on_read is not None:
            for _, facts, offset_bytes, length_bytes, _ in untaught:
                on_read(facts, offset_bytes, length_bytes)
        if recorder is not None:
            for now_s, facts, offset_bytes, length_bytes, explained in untaught:
                recorder.read(now_s, facts, offset_bytes, length_bytes, explained=explained)
            if recorder.recording is not self._recording:
                self._recording = recorder.recording
                self._following.watch(now_s, self._recording)

    def _catch_up(self, now_s: float, version: bytes) -> None:
        """Learn from the reads of a file that were only noted."""
        quiets = self.quiet.take_all(version)
        if quiets:
            for next_bytes, quiet in quiets.items():
                if quiet.reads:
                    self._make_up(now_s, quiet, next_bytes)

    def _make_up(self, now_s: float, quiet: Quiet, next_bytes: int) -> None:
        self._count(quiet, 0)
        if self.on_noted is not None:
            self.on_noted(quiet, next_bytes)
        self._learn(now_s, quiet.noted(next_bytes))

    def _count(self, quiet: Quiet, more_hits: int) -> None:
        """What was noted of a reader, and hits after it, but for the one READ as which all of them are learnt from."""
        score, late = self.scorecard, quiet.late
        score.hits += quiet.reads + more_hits - late
        if late:
            score.late += late - 1
        else:
            score.hits -= 1

    def _learn(self, now_s: float, seen: ReadSeen) -> None:
        handle_id, _, version, offset_bytes, length_bytes, result, _ = seen
        score = self.scorecard
        score.read_bytes += length_bytes
        if result == "hit":
            score.hits += 1
        elif result == "late":
            score.late += 1
        else:
            score.misses += 1
        guesses, following = self._guesses, self._following
        file = guesses.files.get(version)
        facts = self._handles.get(handle_id) if file is None else file.facts
        if facts is None or facts.version != version or length_bytes <= 0:
            return
        end_bytes = offset_bytes + length_bytes
        start_block = offset_bytes // BLOCK_BYTES
        end_block = -(-(end_bytes if end_bytes < facts.size_bytes else facts.size_bytes) // BLOCK_BYTES)
        if start_block >= end_block:
            return
        self._ledger.read(now_s, version, (start_block, end_block - start_block), late=result != "hit")
        quiet_bytes = following.read(now_s, seen, len(guesses.active))
        untaught = self._untaught
        is_covered = following.is_news and following.covers(version)
        explained = quiet_bytes is not None and is_covered
        untaught.append((now_s, facts, offset_bytes, length_bytes, explained))
        if len(untaught) >= _TAUGHT_READS or length_bytes >= EXTENT_BYTES:  # what was noted of a stream is much already
            self.teach()
        if quiet_bytes is not None:
            if result != "hit" or (file is not None and file.runs.abreast.is_seen):
                guesses.waited_for(now_s, seen, facts, file, start_block, end_block)
            if quiet_bytes - end_bytes >= _QUIET_FROM_READS * length_bytes:
                self.quiet.add(Quiet(seen, quiet_bytes))
            return
        quiet = guesses.read(now_s, seen, facts, file, start_block, end_block, foretold=is_covered)
        if quiet is not None:
            self.quiet.add(quiet)

    def plan(self, now_s: float, budget_bytes: int) -> list[Fetch]:
        """What to fetch now, at most ``budget_bytes`` in all. While both sources want some, each gets half."""
        if not self._following.may_have_plans or not self._following.has_plans:
            return self._guesses.plan(now_s, budget_bytes)
        share_bytes = budget_bytes // 2 if self._guesses.has_plans else budget_bytes
        fetches = self._following.plan(now_s, share_bytes)
        left_bytes = budget_bytes - _bytes_of(fetches)
        guessed = self._guesses.plan(now_s, left_bytes)
        fetches += guessed
        left_bytes -= _bytes_of(guessed)
        if left_bytes > 0 and self._following.has_plans:
            fetches += self._following.plan(now_s, left_bytes)
        return fetches

    @property
    def has_waited(self) -> bool:
        """:meth:`plan_waited` may give something."""
        return bool(self._guesses.waited)

    def plan_waited(self, now_s: float, budget_bytes: int) -> list[Fetch]:
        """What readers wait for beyond their READs: to be asked for as that, and what is under way of it to be hurried."""
        return self._guesses.plan_waited(now_s, budget_bytes)

    def asked(self, fetch: Fetch, asked_bytes: int) -> None:
        """What the runner really asked for of a fetch: the rest was cached or under way."""
        if not asked_bytes:
            self._ledger.failed(fetch.version, fetch.blocks)

    def _forget_recording(self, recording: Recording) -> None:
        self._following.drop(recording.name)


def _bytes_of(fetches: list[Fetch]) -> int:
    return sum(fetch.blocks.block_count for fetch in fetches) * BLOCK_BYTES
