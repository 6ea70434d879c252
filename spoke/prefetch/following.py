"""The orders that are followed, together: which of them explains a read, whose turn it is to fetch, what is used next. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from common import limits
from common.blocks import BLOCK_BYTES
from common.errors import OrderError, PlanTooLong
from spoke.prefetch.follower import NEVER, Follower
from spoke.prefetch.orders import Order
from spoke.prefetch.scorecard import Ledger
from spoke.prefetch.source import Fetch, ReadSeen
from spoke.prefetch.window import Latency


class Following:
    """A :class:`~spoke.prefetch.source.Source`. ``stream_max_bytes``: how far one place in an order may run ahead, ``windows_max_bytes``:
    all together."""

    def __init__(self, ledger: Ledger, latency: Latency, *, stream_max_bytes: int, windows_max_bytes: int) -> None:
        self._ledger = ledger
        self._latency = latency
        self._stream_max_bytes = stream_max_bytes
        self._windows_max_bytes = windows_max_bytes
        self._followers: OrderedDict[str, Follower] = OrderedDict()
        self._by_id: dict[int, Follower] = {}
        self._ids: dict[str, int] = {}
        self._last_id = 0

    def add(self, now_s: float, order: Order) -> None:
        if order.name in self._followers:
            raise OrderError(
                f"an order named {order.name!r} is followed already: drop it first, or name this one otherwise"
            )
        if len(self._followers) >= limits.ORDERS_MAX_ACTIVE:
            raise PlanTooLong(f"{len(self._followers)} orders are followed, which is the limit: drop one first")
        follower = self._followers[order.name] = Follower(order)
        self._last_id -= 1  # streams count upwards
        self._ids[order.name] = self._last_id
        self._by_id[self._last_id] = follower
        follower.start(now_s)

    def grew(self, now_s: float, name: str) -> None:
        follower = self._followers.get(name)
        if follower is not None:
            follower.grew(now_s)

    def drop(self, name: str) -> bool:
        if self._followers.pop(name, None) is None:
            return False
        del self._by_id[self._ids.pop(name)]
        return True

    def asked(self, fetch: Fetch, asked_bytes: int) -> None:
        """So much of a fetch was neither cached nor under way."""
        follower = self._by_id.get(fetch.stream_id)
        if follower is not None:
            follower.asked(fetch.blocks.block_count * BLOCK_BYTES, asked_bytes)

    def order(self, name: str) -> Order | None:
        """The order followed under this name."""
        follower = self._followers.get(name)
        return follower.order if follower is not None else None

    def facts(self) -> list[Mapping[str, Any]]:
        return [follower.facts() for follower in self._followers.values()]

    @property
    def is_active(self) -> bool:
        return bool(self._followers)

    @property
    def has_plans(self) -> bool:
        return any(follower.has_plans for follower in self._followers.values())

    @property
    def active_count(self) -> int:
        count = 0
        for follower in self._followers.values():
            count += follower.active_count
        return count

    def failed(self, now_s: float, version: bytes) -> None:
        for follower in self._followers.values():
            follower.failed(now_s, version)

    def read(self, now_s: float, seen: ReadSeen, *, other_streams: int) -> int | None:
        """None: no order explains it. Else the offset up to which further reads change nothing (or 0)."""
        share_bytes = self._windows_max_bytes // (self.active_count + other_streams + 1)
        cap_bytes = max(limits.PREFETCH_WINDOW_MIN_BYTES, min(self._stream_max_bytes, share_bytes))
        late, latency_s = seen.result != "hit", self._latency.latency_s
        explained: int | None = None
        for follower in self._followers.values():
            found = follower.read(
                now_s,
                seen.version,
                seen.offset_bytes,
                seen.length_bytes,
                late=late,
                latency_s=latency_s,
                cap_bytes=cap_bytes,
                fault_bytes=seen.fault_bytes,
            )
            if found is not None:
                explained = found if explained is None else min(explained, found)
        return explained

    def covers(self, version: bytes) -> bool:
        """What is read of this file is known; nobody need guess."""
        return any(follower.covers(version) for follower in self._followers.values())

    def plan(self, now_s: float, budget_bytes: int) -> list[Fetch]:
        """Each order gets an equal part of the budget; what one leaves goes to the next."""
        fetches: list[Fetch] = []
        hungry = [follower for follower in self._followers.values() if follower.has_plans]
        for number, follower in enumerate(hungry):
            share_bytes = budget_bytes // (len(hungry) - number)
            reason, stream_id = follower.order.reason, self._ids[follower.order.name]
            for ahead in follower.plan(now_s, share_bytes):
                version, size_bytes = ahead.file.version, ahead.file.size_bytes
                for fresh in self._ledger.plan(now_s, version, ahead.blocks, reason):
                    fetches.append(Fetch(version, fresh, stream_id, reason, size_bytes))
                    budget_bytes -= fresh.block_count * BLOCK_BYTES
        if hungry:
            self._followers.move_to_end(hungry[0].order.name)
        return fetches

    def next_use(self, version: bytes, extent_index: int) -> int | None:
        """The soonest over all orders; None: none says anything about it."""
        known = [
            steps
            for follower in self._followers.values()
            if (steps := follower.next_use(version, extent_index)) is not None
        ]
        return min(known, default=None)


__all__ = ["NEVER", "Following"]
