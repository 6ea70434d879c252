"""``warm``, inside the spoke: what it will cost and whether it fits, then fetching and verifying, at a bounded rate if asked to.

What is cached and verifies is not fetched again, so a warm that was broken off goes on by being asked for anew. While it runs its
files are kept from eviction.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BYTES, BlockRange, byte_length, split
from common.digest import DIGEST_BYTES
from common.errors import HeadraceError, UsageError
from common.pacing import Pacer
from common.runtime import cancel_and_wait, settle
from common.units import format_size
from common.wire.messages import Priority
from spoke.cache.quota import FILE_OVERHEAD_BYTES
from spoke.cache.store import Store, Usage
from spoke.fetcher import Fetcher
from spoke.hub_client.single_flight import Want
from spoke.selection import Selection, Wanted

Facts = Mapping[str, Any]
_FILES_A_TURN = 64
_RUNS_A_WINDOW = 64


def disk_bytes(block_count: int) -> int:
    """What so many blocks of one file take on the cache disk: data, digests, presence, two files and their names."""
    return block_count * (BLOCK_BYTES + DIGEST_BYTES + 1) + FILE_OVERHEAD_BYTES if block_count else 0


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a warm will do, in bytes. ``pinned_bytes``: kept for others. ``duration_s``: at the slower of the two rates; None: not known."""

    files: int
    total_bytes: int
    cached_bytes: int
    fetch_bytes: int
    disk_bytes: int
    pinned_bytes: int
    capacity_bytes: int
    configured_bytes: int
    measured_bytes_per_s: float | None
    rate_bytes_per_s: float | None
    duration_s: float | None

    def check(self) -> None:
        """Raises UsageError, with the numbers, when it cannot fit."""
        room_bytes = self.capacity_bytes - self.pinned_bytes
        if self.disk_bytes <= room_bytes:
            return
        why = [f"the cache holds {self.capacity_bytes}"]
        if self.capacity_bytes < self.configured_bytes:
            why.append(f"(of {self.configured_bytes} configured: its disk leaves no more above the free-space floor)")
        if self.pinned_bytes:
            why.append(f"of which {self.pinned_bytes} are pinned for other files (headrace-spoke unpin)")
        raise UsageError(
            f"{self.total_bytes} bytes would have to be cached, {self.disk_bytes} on the disk, and {' '.join(why)}; "
            "name fewer paths, or give --cache-size more"
        )


class Warmer:
    """One warm. ``link_rate``: the measured bytes/s, 0 while unknown; ``is_linked``: the hub is there.

    ``rate_bytes_per_s``: the most it fetches, None: no limit.
    """

    def __init__(
        self,
        selection: Selection,
        store: Store,
        fetcher: Fetcher,
        clock: Callable[[], float],
        *,
        rate_bytes_per_s: float | None = None,
        link_rate: Callable[[], float] = lambda: 0.0,
        is_linked: Callable[[], bool] = lambda: True,
    ) -> None:
        self._files = selection.files
        self._total_bytes = selection.total_bytes
        self._store = store
        self._fetcher = fetcher
        self._clock = clock
        self._rate_bytes_per_s = rate_bytes_per_s
        self._link_rate = link_rate
        self._is_linked = is_linked
        burst_bytes = int(max(EXTENT_BYTES, (rate_bytes_per_s or 0) * limits.WARM_PACED_S))
        self._window_bytes = limits.WARM_WINDOW_BYTES
        if rate_bytes_per_s is not None:
            self._window_bytes = min(self._window_bytes, burst_bytes // EXTENT_BYTES * EXTENT_BYTES)
        self._pacer = Pacer(rate_bytes_per_s, burst_bytes)
        self._fetched_bytes = 0
        self._verified_bytes = 0
        self._done_bytes = 0
        self._files_done = 0
        self._under_way_bytes = 0
        self._room = asyncio.Condition()
        self._failure: HeadraceError | None = None

    async def estimate(self, pinned_bytes: int) -> Estimate:
        """Look at what is here. ``pinned_bytes``: what pins keep of other files. Raises HeadraceError when the cache is bypassed."""
        usage = self._store.usage()
        if usage.bypass is not None:
            raise HeadraceError(f"nothing can be cached now: {usage.bypass}")
        missing_bytes = wanted_disk_bytes = 0
        for number, (version, wanted) in enumerate(self._files.items()):
            missing_bytes += _bytes_in(wanted, self._missing(version, wanted))
            wanted_disk_bytes += disk_bytes(sum(run.block_count for run in wanted.runs))
            if not number % _FILES_A_TURN:
                await asyncio.sleep(0)
        return self._judged(usage, missing_bytes, wanted_disk_bytes, pinned_bytes)

    def _judged(self, usage: Usage, missing_bytes: int, wanted_disk_bytes: int, pinned_bytes: int) -> Estimate:
        measured = self._link_rate() or None
        rates = [rate for rate in (measured, self._rate_bytes_per_s) if rate is not None]
        duration_s = missing_bytes / min(rates) if rates else None
        return Estimate(
            files=len(self._files),
            total_bytes=self._total_bytes,
            cached_bytes=self._total_bytes - missing_bytes,
            fetch_bytes=missing_bytes,
            disk_bytes=wanted_disk_bytes,
            pinned_bytes=pinned_bytes,
            capacity_bytes=usage.capacity_bytes,
            configured_bytes=usage.configured_bytes,
            measured_bytes_per_s=measured,
            rate_bytes_per_s=self._rate_bytes_per_s,
            duration_s=duration_s if missing_bytes else 0.0,
        )

    async def run(self) -> AsyncGenerator[Facts, None]:
        """Yields progress; the last is the outcome. Raises HeadraceError for what stayed out."""
        for version in self._files:
            self._store.pin(version)
        work = asyncio.create_task(self._warm_all(), name="warm")
        try:
            while not work.done():
                yield self.progress()
                await asyncio.wait({work}, timeout=limits.PROGRESS_INTERVAL_S)
            outside = work.result()
        finally:
            await cancel_and_wait(work)
            for version in self._files:
                self._store.unpin(version)
        if outside:
            why = self._failure or "evicted again while others came in: is something else using the cache?"
            raise HeadraceError(
                f"{len(outside)} of {len(self._files)} files are not in the cache as asked for, the first is "
                f"{os.fsdecode(outside[0].path)!r}: {why}"
            )
        yield self.progress()

    def progress(self) -> Facts:
        return {
            "verified_bytes": self._verified_bytes,
            "fetched_bytes": self._fetched_bytes,
            "total_bytes": self._total_bytes,
            "files_done": self._files_done,
            "files": len(self._files),
        }

    async def _warm_all(self) -> list[Wanted]:
        """Rounds until every file is verified; returns those that are not, after the last."""
        outside = self._files
        tries = 0
        while tries < limits.WARM_TRIES:
            tries += 1
            fetched_bytes = self._fetched_bytes
            self._verified_bytes = self._done_bytes = self._files_done = 0
            async with asyncio.TaskGroup() as fetches:
                for number, (version, wanted) in enumerate(self._files.items()):
                    for window in _windows(wanted.runs, self._window_bytes):
                        missing_bytes = _bytes_in(wanted, self._missing_in(version, wanted, window))
                        if missing_bytes:
                            window_bytes = _bytes_in(wanted, window)
                            await self._make_room(window_bytes, missing_bytes)
                            fetches.create_task(self._fetch(version, wanted, window, window_bytes), name="warm window")
                    if not number % _FILES_A_TURN:
                        await asyncio.sleep(0)
            await self._fetcher.written()
            outside = {
                version: wanted for version, wanted in self._files.items() if not await self._verify(version, wanted)
            }
            if not outside:
                break
            if fetched_bytes < self._fetched_bytes and not self._is_linked() and await self._hub_is_back():
                tries = 0
        return list(outside.values())

    async def _hub_is_back(self) -> bool:
        """It went away while we fetched: it may be starting anew."""
        for _ in range(round(limits.WARM_HUB_WAIT_S / limits.PROGRESS_INTERVAL_S)):
            if self._is_linked():
                break
            await asyncio.sleep(limits.PROGRESS_INTERVAL_S)
        return self._is_linked()

    def _missing(self, version: bytes, wanted: Wanted) -> list[BlockRange]:
        return self._missing_in(version, wanted, wanted.runs)

    def _missing_in(self, version: bytes, wanted: Wanted, runs: Iterable[BlockRange]) -> list[BlockRange]:
        return [part for run in runs for part in self._store.missing(version, wanted.size_bytes, run)]

    async def _verify(self, version: bytes, wanted: Wanted) -> bool:
        fetched_bytes = self._verified_bytes
        for run in wanted.runs:
            if not await self._store.verify(version, wanted.size_bytes, run):
                return False
        self._files_done += 1
        # From here on the count is by whole files: each byte once, those fetched and those that were here.
        self._done_bytes += wanted.wanted_bytes
        self._verified_bytes = max(fetched_bytes, self._done_bytes)
        return True

    @property
    def _outstanding_bytes(self) -> int:
        return min(limits.WARM_OUTSTANDING_BYTES, self._fetcher.memory.prefetch_bytes // 2)

    async def _make_room(self, window_bytes: int, missing_bytes: int) -> None:
        now_s = self._clock()
        due_s = self._pacer.next_send_at(now_s, missing_bytes)
        if due_s > now_s:
            await asyncio.sleep(due_s - now_s)
        self._pacer.sent(max(due_s, now_s), missing_bytes)
        if self._fetcher.write_backlog_bytes > self._outstanding_bytes:
            # A disk slower than the link: what it cannot take in time would not be cached.
            await self._fetcher.written()
        async with self._room:
            while self._under_way_bytes and self._under_way_bytes + window_bytes > self._outstanding_bytes:
                await self._room.wait()
            self._under_way_bytes += window_bytes

    async def _fetch(self, version: bytes, wanted: Wanted, window: Sequence[BlockRange], window_bytes: int) -> None:
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        span = BlockRange(window[0].first_block, window[-1].end_block - window[0].first_block)
        want = Want(span, 0, 0, lambda error: settle(arrival, error))
        missing = self._missing_in(version, wanted, window)  # now: readers may have fetched some meanwhile
        try:
            self._fetcher.demand(version, wanted.size_bytes, want, missing, priority=Priority.PREFETCH)
            want.release_hold()
            await arrival
            arrived_bytes = _bytes_in(wanted, missing)
            self._verified_bytes += arrived_bytes
            self._fetched_bytes += arrived_bytes
        except HeadraceError as error:
            self._failure = error
        finally:
            self._fetcher.give_up(want)
            async with self._room:
                self._under_way_bytes -= window_bytes
                self._room.notify_all()


def _bytes_in(wanted: Wanted, runs: Iterable[BlockRange]) -> int:
    return sum(byte_length(run, wanted.size_bytes) for run in runs)


def _windows(runs: Iterable[BlockRange], window_bytes: int) -> Iterator[list[BlockRange]]:
    """Runs that are asked for at once: some that lie in order, or a piece of a long one."""
    most_blocks = window_bytes // BLOCK_BYTES
    window: list[BlockRange] = []
    block_count = 0
    for run in runs:
        for piece in split(run, most_blocks):
            if window and (block_count + piece.block_count > most_blocks or len(window) == _RUNS_A_WINDOW):
                yield window
                window, block_count = [], 0
            window.append(piece)
            block_count += piece.block_count
    if window:
        yield window


def shown(estimate: Estimate) -> Facts:
    """For the control socket."""
    return asdict(estimate)


def in_words(estimate: Mapping[str, Any]) -> str:
    """What is said before it begins."""
    if not estimate["fetch_bytes"]:
        return f"{estimate['files']} files, {format_size(estimate['total_bytes'])}: all cached, to be verified"
    measured, limit, duration_s = (
        estimate[name] for name in ("measured_bytes_per_s", "rate_bytes_per_s", "duration_s")
    )
    if duration_s is None:
        takes = "no rate was measured yet"
    else:
        rate = min(found for found in (measured, limit) if found is not None)
        source = "as limited" if rate == limit else "the best measured"
        takes = f"about {_time(duration_s)} at {format_size(rate)}/s, {source}"
    free_bytes = estimate["capacity_bytes"] - estimate["pinned_bytes"]
    return (
        f"{estimate['files']} files, {format_size(estimate['total_bytes'])}: {format_size(estimate['cached_bytes'])} cached, "
        f"{format_size(estimate['fetch_bytes'])} to fetch, {takes}; takes {format_size(estimate['disk_bytes'])} of the "
        f"{format_size(free_bytes)} the cache may use for it"
    )


def rate_in_words(progress: Mapping[str, Any], took_s: float) -> str:
    """What is said once there is a rate, where none was known before."""
    rate = progress["fetched_bytes"] / took_s
    left_bytes = max(0, progress["total_bytes"] - progress["verified_bytes"])
    return f"{format_size(int(rate))}/s so far: about {_time(left_bytes / rate)} left, at most"


class FetchSpeed:
    """Of what a warm fetches, while something comes: what is cached is only verified, many times faster, and so is all at the end."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._fetched_bytes = 0
        self._took_s = 0.0

    def in_words(self, fetched_bytes: int, now_s: float) -> str:
        """After so much in all; empty while nothing was fetched."""
        if self._began_s is None:
            self._began_s = now_s
        elif fetched_bytes > self._fetched_bytes:
            self._fetched_bytes, self._took_s = fetched_bytes, now_s - self._began_s
        return f"{format_size(int(self._fetched_bytes / self._took_s))}/s" if self._took_s else ""


def _time(duration_s: float) -> str:
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {seconds} s" if minutes else f"{duration_s:.2g} s"
