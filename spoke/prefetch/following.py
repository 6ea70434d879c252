"""The orders that are followed, together: which of them explains a read, whose turn it is to fetch, what is used next. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockRange
from common.errors import OrderError, PlanTooLong
from spoke.prefetch.follower import NEVER, Follower
from spoke.prefetch.next_use import Use, parts_of
from spoke.prefetch.orders import Order, Reason
from spoke.prefetch.recording import Recording
from spoke.prefetch.scorecard import Ledger
from spoke.prefetch.source import Fetch, ReadSeen
from spoke.prefetch.window import Latency


class Following:
    """A :class:`~spoke.prefetch.source.Source`. ``stream_max_bytes``: how far one place in an order may run ahead, ``windows_max_bytes``:
    all together, ``declared_max_bytes``: all together in declared plans."""

    def __init__(
        self,
        ledger: Ledger,
        latency: Latency,
        *,
        stream_max_bytes: int,
        windows_max_bytes: int,
        declared_max_bytes: int,
    ) -> None:
        self._ledger = ledger
        self._latency = latency
        self._stream_max_bytes = stream_max_bytes
        self._windows_max_bytes = windows_max_bytes
        self._declared_max_bytes = declared_max_bytes
        self._followers: OrderedDict[str, Follower] = OrderedDict()
        self._recordings: dict[str, Follower] = {}
        self._all_followers, self._only_recordings = (self._followers, self._recordings), (self._recordings,)
        self._ids: dict[str, int] = {}
        self._last_id = 0
        self.may_have_plans = False
        """What is asked before ``has_plans``, after each read and arrival: most are no news here."""
        self.is_news = False
        """The READ told of last was news to an order that somebody reads; if not, none covers its file."""
        self._used_lately: dict[tuple[bytes, BlockRange], None] = {}

    def add(self, now_s: float, order: Order) -> None:
        if order.name in self._followers:
            raise OrderError(
                f"an order named {order.name!r} is followed already: drop it first, or name this one otherwise"
            )
        if len(self._followers) >= limits.ORDERS_MAX_ACTIVE:
            raise PlanTooLong(f"{len(self._followers)} orders are followed, which is the limit: drop one first")
        follower = self._followers[order.name] = Follower(order, self._ledger.unread_bytes, self._note_used)
        self._take_id(order.name)
        self.may_have_plans = True
        follower.start(now_s, self._start_bytes(order))

    def _start_bytes(self, order: Order) -> int:
        """What may be fetched of an order before anybody reads it, its lanes together."""
        if order.reason is Reason.PLAN:
            return self._declared_cap_bytes() * max(1, order.lane_count)
        return self._windows_max_bytes // 2

    def _declared_cap_bytes(self) -> int:
        """The window of each place in the orders that are sure. As much again may be behind its first reader, for those that are far apart.

        What they read is certain, and what was read of them makes room: so the cache's room bounds them, and not a share of it as small as
        is right for guesses. In a cache of 24 MiB that was 3 MiB, all of it between the workers, and the link stood idle.
        """
        sure = [follower for follower in self._followers.values() if follower.is_sure]
        places = sum(follower.active_count or follower.order.lane_count for follower in sure)
        return max(limits.PREFETCH_WINDOW_MIN_BYTES, self._declared_max_bytes // (2 * max(1, places)))

    def grew(self, now_s: float, name: str) -> None:
        follower = self._followers.get(name)
        if follower is not None:
            self.may_have_plans = True
            follower.grew(now_s, self._start_bytes(follower.order))

    def drop(self, name: str) -> bool:
        known = self._followers.pop(name, None) or self._recordings.pop(name, None)
        self._ids.pop(name, None)
        return known is not None

    def replace(self, now_s: float, former: str, order: Order) -> None:
        """What was followed as ``former`` goes on along an order that has the same steps."""
        follower = self._recordings.pop(former, None)
        self.add(now_s, order)
        if follower is not None:
            follower.take_over(order)
            self._followers[order.name] = follower
        self._ids.pop(former, None)

    def watch(self, now_s: float, recording: Recording) -> None:
        """Follow what is being recorded, from the first read on that was recorded before; until it is dropped or replaced."""
        self._recordings[recording.name] = Follower(recording, self._ledger.unread_bytes)
        self._take_id(recording.name)

    def evicted(self, version: bytes, wasted: Mapping[Reason, int]) -> None:
        """Bytes of a file that were fetched and not read left the cache, by what they were fetched for."""
        for follower in self._all():
            wasted_bytes = wasted.get(follower.order.reason, 0)
            if wasted_bytes and follower.cursors and follower.number_of(version) is not None:
                follower.evicted(wasted_bytes)
                return

    def order(self, name: str) -> Order | None:
        """The order followed under this name."""
        follower = self._followers.get(name)
        return follower.order if follower is not None else None

    def facts(self) -> list[Mapping[str, Any]]:
        followed = [follower for follower in self._recordings.values() if follower.cursors]
        return [follower.facts() for follower in (*self._followers.values(), *followed)]

    def orders_of(self, version: bytes, extent_index: int | None) -> list[Mapping[str, Any]]:
        """Orders that have reads of a file; ``steps_until`` the next one of an extent, None: not known, or nobody asked."""
        found: list[Mapping[str, Any]] = []
        for follower in self._all():
            is_recorded = follower.order.name in self._recordings and not follower.cursors
            if not is_recorded and follower.order.file_of(version) is not None:
                extent = BlockRange((extent_index or 0) * EXTENT_BLOCKS, EXTENT_BLOCKS)
                steps = follower.next_use(version, extent) if extent_index is not None else None
                facts = follower.facts()
                found.append(
                    {
                        **{name: facts[name] for name in ("name", "reason", "state", "origin")},
                        "steps_until": steps if steps is not None and steps < NEVER else None,
                    }
                )
        return found

    @property
    def is_active(self) -> bool:
        """Orders are followed; what is only being recorded does not count before somebody reads it again."""
        if self._followers:
            return True
        for follower in self._recordings.values():  # noqa: SIM110 - asked after each read, and half as dear as any()
            if follower.cursors:
                return True
        return False

    @property
    def has_plans(self) -> bool:
        if not self.may_have_plans:
            return False
        self.may_have_plans = any(follower.has_plans for follower in self._all())
        return self.may_have_plans

    @property
    def active_count(self) -> int:
        count = 0
        for follower in self._all():
            count += follower.active_count
        return count

    def failed(self, now_s: float, version: bytes) -> None:
        for follower in self._all():
            follower.failed(now_s, version)

    def _all(self) -> Iterator[Follower]:
        yield from self._followers.values()
        yield from self._recordings.values()

    def _take_id(self, name: str) -> None:
        self._last_id -= 1  # streams count upwards
        self._ids[name] = self._last_id

    def read(self, now_s: float, seen: ReadSeen, other_streams: int) -> int | None:
        """None: no order explains it. Else the offset up to which further reads change nothing (or 0)."""
        late, missed = seen.result != "hit", seen.result == "miss"
        caps: tuple[int, int] | None = None
        explained: int | None = None
        self.is_news = False
        for followers in self._all_followers if self._followers else self._only_recordings:
            for follower in followers.values():
                if not follower.cursors and follower.recording is not None:
                    if explained is not None:
                        continue  # somebody knows it already
                    place = follower.seek(seen)
                    if place is not None:
                        self.may_have_plans = self.is_news = True
                        follower.begin(now_s, place, seen.version, self._caps_bytes(other_streams)[0])
                        explained = 0 if follower.gate.is_open else None
                    continue
                if caps is None:
                    self.may_have_plans = self.is_news = True
                    caps = self._caps_bytes(other_streams)
                cap_bytes, declared_bytes = caps
                found = follower.read(
                    now_s,
                    seen.version,
                    seen.offset_bytes,
                    seen.length_bytes,
                    late=late,
                    latency_s=self._latency.latency_s,
                    cap_bytes=declared_bytes if follower.order.reason is Reason.PLAN else cap_bytes,
                    between_bytes=declared_bytes if follower.is_sure else 0,
                    fault_bytes=seen.fault_bytes,
                    missed=missed,
                )
                if found is not None and follower.gate.is_open:
                    # else it only tries whether it would pay, and guesses are needed
                    explained = found if explained is None else min(explained, found)
        return explained

    def _caps_bytes(self, other_streams: int) -> tuple[int, int]:
        """How far one place may run ahead, and one in a declared plan."""
        places = self.active_count
        # What is known comes before what is guessed: however many streams there are, orders have half of all windows.
        share_bytes = self._windows_max_bytes // min(places + other_streams + 1, 2 * (places or 1))
        cap_bytes = max(limits.PREFETCH_WINDOW_MIN_BYTES, min(self._stream_max_bytes, share_bytes))
        declared_bytes = max(cap_bytes, self._declared_cap_bytes()) if self._followers else cap_bytes
        return cap_bytes, declared_bytes

    def covers(self, version: bytes) -> bool:
        """What is read of this file is known; nobody need guess."""
        for follower in self._all():  # noqa: SIM110 - half as dear as any()
            if follower.cursors and follower.covers(version):
                return True
        return False

    def plan(self, now_s: float, budget_bytes: int) -> list[Fetch]:
        """Each order gets an equal part of the budget; what one leaves goes to the next."""
        fetches: list[Fetch] = []
        hungry = [follower for follower in self._all() if follower.has_plans]
        for number, follower in enumerate(hungry):
            share_bytes = budget_bytes // (len(hungry) - number)
            reason, stream_id = follower.order.reason, self._ids[follower.order.name]
            for ahead in follower.plan(now_s, share_bytes):
                version, size_bytes = ahead.file.version, ahead.file.size_bytes
                for fresh in self._ledger.plan(now_s, version, ahead.blocks, reason):
                    fetches.append(Fetch(version, fresh, stream_id, reason, size_bytes))
                    budget_bytes -= fresh.block_count * BLOCK_BYTES
        if hungry and hungry[0].order.name in self._followers:
            self._followers.move_to_end(hungry[0].order.name)
        return fetches

    # --- what is used next, for eviction -----------------------------------------------------------------

    def knows(self, version: bytes) -> bool:
        """Some order says when bytes of this version are used next."""
        return any(follower.knows(version) for follower in self._all())

    def next_use(self, version: bytes, blocks: BlockRange) -> int | None:
        """The soonest over all orders; None: none says anything about it."""
        known = [steps for follower in self._all() if (steps := follower.next_use(version, blocks)) is not None]
        return min(known, default=None)

    def uses(self, version: bytes, extent_index: int) -> Sequence[Use] | None:
        """All blocks of an extent, in runs with the steps until their next use over all orders; None: none says anything about it."""
        known = [uses for follower in self._all() if (uses := follower.uses(version, extent_index)) is not None]
        return parts_of(extent_index, (use for uses in known for use in uses)) if known else None

    def _note_used(self, version: bytes, blocks: BlockRange) -> None:
        self._used_lately[version, blocks] = None
        if len(self._used_lately) > limits.ORDER_USED_PIECES_MAX:
            del self._used_lately[next(iter(self._used_lately))]

    @property
    def steps_taken(self) -> int:
        """By the order that is furthest."""
        return max((follower.steps_taken for follower in self._all()), default=0)

    def take_used(self) -> tuple[bytes, BlockRange] | None:
        """(version, blocks of one extent) that were used, perhaps for the last time, the longest ago first; each is given once."""
        if not self._used_lately:
            return None
        found = next(iter(self._used_lately))
        del self._used_lately[found]
        return found


__all__ = ["NEVER", "Following"]
