"""The read path: what a READ at the mount means, from cached blocks and from those the hub must send.

Never a short answer, never two versions mixed: a handle names one version, and a read gives all its bytes or raises.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange, byte_length, covering, subtract
from common.errors import DeadlineExceeded, HeadraceError, StaleVersion
from common.log import get_logger
from common.runtime import settle
from spoke.cache.store import BlocksMissing, Store
from spoke.due_once import DueOnce
from spoke.fetcher import Fetcher
from spoke.hub_client.single_flight import Flight, Want
from spoke.long_waits import LongWaits
from spoke.memory import Admission
from spoke.namespace.tree import Node
from spoke.prefetch.source import FAULT_BYTES

log = get_logger(__name__)

_NO_TIMEOUT = contextlib.nullcontext()

ReadResult = Literal["hit", "late", "miss"]
"""hit: served without waiting for the hub. late: it was on its way already. miss: it had to be asked for."""


@dataclass(slots=True, eq=False)
class Handle:
    """One open file: the version it saw at open, for all its life."""

    handle_id: int
    path: bytes
    version: bytes
    size_bytes: int
    borrowed: bool = False
    kept: bool = False
    """Taken over while the kernel reads its cache file: that is kept, without a descriptor of ours."""
    fault_bytes: int = FAULT_BYTES
    """What a page fault moves: the kernel's readahead when it was opened."""
    gave_up: tuple[tuple[float, BlockRange], ...] = ()
    """When reads of which blocks ran into the read timeout a moment ago."""


class ReadObserver(Protocol):
    """Who learns from reads: the prefetcher and the metrics."""

    def opened(self, handle: Handle, task_id: int) -> None: ...
    def closed(self, handle: Handle) -> None: ...
    def lent(self, handle: Handle) -> None:
        """Its reads are the kernel's own from here on."""

    def read(self, handle: Handle, task_id: int, offset_bytes: int, length_bytes: int, result: ReadResult) -> None: ...
    def stalled(self, handle: Handle, task_id: int, stall_s: float) -> None: ...
    def gone(self, handle: Handle) -> None: ...


class Waited(NamedTuple):
    """A read that waited for the hub, and the fetches it waited for; times on the daemon's clock. ``error``: how it failed, if it did."""

    began_s: float
    ended_s: float
    offset_bytes: int
    length_bytes: int
    result: ReadResult
    flights: Sequence[Flight]
    error: str


class WaitObserver(Protocol):
    """Who keeps account of waits. Not called for reads that find their bytes."""

    def wait_began(self, handle: Handle, task_id: int, began_s: float) -> int:
        """Returns a token for the end."""

    def wait_ended(self, token: int, handle: Handle, task_id: int, waited: Waited) -> None: ...


class Reads:
    """``read_timeout_s``: how long a read may wait for the hub before EIO; 0 waits for ever. ``waits``: who keeps account of waits."""

    def __init__(
        self,
        store: Store,
        fetcher: Fetcher,
        observer: ReadObserver,
        clock: Callable[[], float],
        *,
        read_timeout_s: float,
        long_waits: LongWaits | None = None,
        waits: WaitObserver | None = None,
    ) -> None:
        self.long_waits = long_waits or LongWaits(clock)
        self.names_in_doubt: Callable[[], str] = lambda: ""
        """What a suspicious hub announced; empty when it is believed."""
        self._told_doubt = ""
        self._grow_long = DueOnce(limits.SLOW_READ_AFTER_S, self.long_waits.grew_long)
        self._time_out: DueOnce[asyncio.Future[None]] = DueOnce(
            read_timeout_s, lambda arrival: settle(arrival, TimeoutError())
        )
        self._store = store
        self._fetcher = fetcher
        self._recent = fetcher.recent
        self._observer = observer
        self._clock = clock
        self._read_timeout_s = read_timeout_s
        self._waits = waits
        self._next_id = 1
        self.waiting = 0
        """Reads that wait for the hub now."""
        self.open_handles = 0
        self.lent_handles = 0
        """Those of them whose reads are the kernel's own."""
        self._open_versions: dict[bytes, int] = {}
        self.admission = Admission(fetcher.memory, lambda: fetcher.held_bytes)
        """Where reads that need the hub wait while memory is short."""
        self.on_short_of_memory: Callable[[], None] = lambda: None

    def is_open(self, version: bytes) -> bool:
        """Somebody has it open at the mount."""
        return version in self._open_versions

    def open(self, node: Node, task_id: int) -> Handle:
        handle = Handle(self._next_id, node.path(), node.entry.version, node.entry.size_bytes)
        self._next_id += 1
        self._count(handle.version)
        self._observer.opened(handle, task_id)
        return handle

    def _count(self, version: bytes) -> None:
        self.open_handles += 1
        self._open_versions[version] = self._open_versions.get(version, 0) + 1

    def reopen(self, path: bytes, version: bytes, size_bytes: int, lent: bool) -> Handle:
        """A handle that an earlier worker gave out: the same version, whatever stands at its name now."""
        handle = Handle(self._next_id, path, version, size_bytes, kept=lent)
        self._next_id += 1
        self._count(version)
        self._observer.opened(handle, 0)
        if lent:
            self._store.hold(version)
            self._observer.lent(handle)
        return handle

    def keep(self, handle: Handle) -> None:
        """The kernel reads it by itself, through a descriptor that it had before: keep the version until ``release``."""
        self._store.hold(handle.version)
        handle.kept = True
        self._observer.lent(handle)

    def release(self, handle: Handle) -> None:
        self.open_handles -= 1
        others = self._open_versions.pop(handle.version, 1) - 1
        if others:
            self._open_versions[handle.version] = others
        if handle.borrowed:
            self.lent_handles -= 1
            self._store.return_fd(handle.version)
        if handle.kept:
            self._store.let_go(handle.version)
        self._observer.closed(handle)

    def passthrough_fd(self, handle: Handle) -> int | None:
        """A descriptor the kernel may read by itself, kept until ``release``; None unless all blocks are verified."""
        if handle.size_bytes == 0 or self._store.state(handle.version, handle.size_bytes) != "verified":
            return None
        try:
            fd = self._store.borrow_fd(handle.version, handle.size_bytes)
        except BlocksMissing:  # its file cannot be opened now (descriptors): the plain path serves it
            return None
        handle.borrowed = True
        self.lent_handles += 1
        self._observer.lent(handle)
        return fd

    def read_nowait(
        self, handle: Handle, offset_bytes: int, length_bytes: int, task_id: int
    ) -> bytes | bytearray | memoryview | None:
        """The bytes if they are at hand; None when the disk or the hub must be waited for."""
        length_bytes = min(length_bytes, handle.size_bytes - offset_bytes)
        if length_bytes <= 0:
            return b""
        landed = self._recent.find(handle.version, offset_bytes, length_bytes)
        if landed is None:
            landed = self._fetcher.find_landed(handle.version, offset_bytes, length_bytes)
        if landed is not None:
            if not landed.was_read:
                landed.was_read = True
                self._store.touch(handle.version, handle.size_bytes, landed.offset_bytes, len(landed.data))
            self._observer.read(handle, task_id, offset_bytes, length_bytes, "hit")
            return landed.part(offset_bytes, length_bytes)
        data = self._store.read_nowait(handle.version, handle.size_bytes, offset_bytes, length_bytes)
        if data is not None:
            self._observer.read(handle, task_id, offset_bytes, length_bytes, "hit")
        return data

    async def read(
        self, handle: Handle, offset_bytes: int, length_bytes: int, task_id: int, waited_s: float = 0.0
    ) -> bytes | bytearray | memoryview:
        """All the bytes up to the version's size. Raises StaleVersion, DeadlineExceeded or what the hub answered.

        ``waited_s``: of its read timeout, what earlier workers had.
        """
        length_bytes = min(length_bytes, handle.size_bytes - offset_bytes)
        if length_bytes <= 0:
            return b""
        until_s = self._clock() + _left_s(self._read_timeout_s, waited_s)
        while True:
            try:
                return await self._read(handle, offset_bytes, length_bytes, task_id, waited_s)
            except MemoryError:  # another process may have it; a reader would rather wait than fail
                self.on_short_of_memory()
                if self._read_timeout_s and self._clock() >= until_s:
                    raise
            await asyncio.sleep(limits.MEMORY_RETRY_S)

    async def _read(
        self, handle: Handle, offset_bytes: int, length_bytes: int, task_id: int, waited_s: float
    ) -> bytes | bytearray | memoryview:
        blocks = covering(offset_bytes, length_bytes, handle.size_bytes)
        missing: Sequence[BlockRange] = self._store.missing(handle.version, handle.size_bytes, blocks)
        if not missing:
            try:
                data = await self._store.read(handle.version, handle.size_bytes, offset_bytes, length_bytes)
            except BlocksMissing as absent:
                missing = absent.ranges
            else:
                self._observer.read(handle, task_id, offset_bytes, length_bytes, "hit")
                return data
        return await self._read_missing(handle, blocks, offset_bytes, length_bytes, missing, task_id, waited_s)

    async def _read_missing(
        self,
        handle: Handle,
        blocks: BlockRange,
        offset_bytes: int,
        length_bytes: int,
        missing: Sequence[BlockRange],
        task_id: int,
        waited_s: float,
    ) -> bytearray | memoryview:
        wait = _Wait(self, handle, task_id, offset_bytes, length_bytes)
        whole_s = self._time_for(handle, blocks, wait.began_s)
        timeout_s = _left_s(whole_s, waited_s)
        deadline_s = wait.began_s + timeout_s if timeout_s else None
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        want: Want | None = None
        fetch_bytes = sum(found.block_count for found in missing) * BLOCK_BYTES
        inside_bytes = 0
        entered = self.admission.enter_now(length_bytes, fetch_bytes)
        # Most have nothing to wait for but the bytes: one timer for all of them will do.
        only_bytes = entered and timeout_s == self._read_timeout_s and len(missing) == 1 and missing[0] == blocks
        try:
            async with _NO_TIMEOUT if only_bytes else asyncio.timeout(timeout_s or None):
                if not entered:
                    await self.admission.enter(length_bytes, fetch_bytes)
                inside_bytes = length_bytes
                want = Want(blocks, offset_bytes, length_bytes, lambda error: settle(arrival, error))
                late = self._fetcher.demand(handle.version, handle.size_bytes, want, missing, deadline_s=deadline_s)
                wait.asked(want, "hit" if not want.missing else "late" if late else "miss")
                await self._fill_from_cache(handle, want, missing, deadline_s)
                want.release_hold()
                if only_bytes and timeout_s:
                    self._time_out.add(arrival)
                await arrival
            wait.well = True
        except TimeoutError:
            error = DeadlineExceeded(f"no data from the hub within the read timeout of {self._read_timeout_s:g} s")
            wait.timed_out(error)
            if whole_s == self._read_timeout_s:
                self._note_given_up(handle, blocks)
            raise error from None
        except HeadraceError as error:
            wait.failure = str(error)
            self._log_failure(handle, offset_bytes, error)
            raise
        finally:
            self._time_out.drop(arrival)
            if want is not None:
                self._fetcher.give_up(want)
            if inside_bytes:
                self.admission.leave(inside_bytes)
            wait.end()
        assert want.buffer is not None, "what has arrived whole was filled in"
        return want.buffer

    def _time_for(self, handle: Handle, blocks: BlockRange, now_s: float) -> float:
        """The read timeout; little when it has just passed for some of these blocks, 0 for no limit.

        When its readahead fails the kernel asks at once for the first page alone, and the reader still waits: without
        this it would wait twice. Once for each failure, so that a reader who tries again by himself has all the time.
        """
        for given_up in handle.gave_up:
            at_s, failed = given_up
            if now_s - at_s < limits.READ_ASKED_AGAIN_S and subtract([blocks], failed) != [blocks]:
                # Only this one: other readers of the same open file are asked for again just now, too.
                handle.gave_up = tuple(other for other in handle.gave_up if other is not given_up)
                return min(limits.READ_ASKED_AGAIN_TIMEOUT_S, self._read_timeout_s)
        return self._read_timeout_s

    def _note_given_up(self, handle: Handle, blocks: BlockRange) -> None:
        """One readahead may be several requests, which all fail now."""
        now_s = self._clock()
        recent = [(at_s, failed) for at_s, failed in handle.gave_up if now_s - at_s < limits.READ_ASKED_AGAIN_S]
        handle.gave_up = (*recent, (now_s, blocks))

    async def _fill_from_cache(
        self, handle: Handle, want: Want, missing: Sequence[BlockRange], deadline_s: float | None
    ) -> None:
        """The blocks of the read that need not be fetched; those that turn out to be gone are fetched after all."""
        if len(missing) == 1 and missing[0] == want.blocks:
            return
        present = [want.blocks]
        for absent in missing:
            present = subtract(present, absent)
        for part in present:
            start_bytes = part.first_block * BLOCK_BYTES
            try:
                data = await self._store.read(
                    handle.version, handle.size_bytes, start_bytes, byte_length(part, handle.size_bytes)
                )
            except BlocksMissing as absent_now:
                # Read the part again from the hub as a whole: simpler than piecing it together, and rare.
                log.debug("blocks left the cache during a read", blocks=absent_now.ranges)
                self._fetcher.demand(handle.version, handle.size_bytes, want, [part], deadline_s=deadline_s)
            else:
                want.fill(part.first_block, memoryview(data))

    def _log_failure(self, handle: Handle, offset_bytes: int, error: HeadraceError) -> None:
        error.logged = True
        if isinstance(error, StaleVersion):
            self._observer.gone(handle)
            if doubt := self.names_in_doubt():
                self._log_doubted(handle, offset_bytes, doubt)
                return
            log.warning(
                "an open file changed at the hub and its old bytes are not cached; the reader gets ESTALE, a new open gets the new file",
                path=handle.path,
                version=handle.version.hex(),
                offset_bytes=offset_bytes,
            )
        else:
            log.error(
                "a read failed", path=handle.path, offset_bytes=offset_bytes, error=str(error), code=error.wire_code
            )

    def _log_doubted(self, handle: Handle, offset_bytes: int, doubt: str) -> None:
        """Once for each thing announced: every read of what is not cached fails until the hub has the files again."""
        if doubt != self._told_doubt:
            self._told_doubt = doubt
            log.error(
                "the hub, which is suspicious, has not got a file that is still shown, and its blocks are not cached: such reads get "
                "ESTALE until it has",
                path=handle.path,
                offset_bytes=offset_bytes,
                seen=doubt,
            )


def _left_s(timeout_s: float, waited_s: float) -> float:
    """Of a read's timeout when it has waited with earlier workers: a second at least; 0 stays no limit."""
    return max(timeout_s - waited_s, min(limits.READ_ASKED_AGAIN_TIMEOUT_S, timeout_s))


class _Wait:
    """One read that may have to wait for the hub, and all who keep account of it: from its making to ``end``."""

    def __init__(self, reads: Reads, handle: Handle, task_id: int, offset_bytes: int, length_bytes: int) -> None:
        self.began_s = reads._clock()
        self.well = False
        self.failure = ""
        self._reads = reads
        self._handle = handle
        self._task_id = task_id
        self._offset_bytes = offset_bytes
        self._length_bytes = length_bytes
        self._result: ReadResult = "miss"
        self._flights: tuple[Flight, ...] = ()
        self._token = 0
        reads.waiting += 1
        self._long = reads.long_waits.begin(handle.path, offset_bytes)
        reads._grow_long.add(self._long)

    def asked(self, want: Want, result: ReadResult) -> None:
        reads = self._reads
        self._result = result
        if reads._waits is not None and want.missing:
            self._token = reads._waits.wait_began(self._handle, self._task_id, self.began_s)
            self._flights = tuple(want.flights)
        reads._observer.read(self._handle, self._task_id, self._offset_bytes, self._length_bytes, result)

    def timed_out(self, error: HeadraceError) -> None:
        self._reads.long_waits.timed_out(self._long, error)
        self.failure = str(error)

    def end(self) -> None:
        reads = self._reads
        reads._grow_long.drop(self._long)
        reads.long_waits.ended(self._long, well=self.well)
        reads.waiting -= 1
        ended_s = reads._clock()
        reads._observer.stalled(self._handle, self._task_id, ended_s - self.began_s)
        # The accounts take as long as all else between the bytes and the reader's waking (0.3 ms here): he goes first.
        asyncio.get_running_loop().call_soon(self._account, ended_s)

    def _account(self, ended_s: float) -> None:
        reads = self._reads
        if self.well:
            reads._store.touch(self._handle.version, self._handle.size_bytes, self._offset_bytes, self._length_bytes)
        if reads._waits is not None and self._token:
            waited = Waited(
                self.began_s,
                ended_s,
                self._offset_bytes,
                self._length_bytes,
                self._result,
                self._flights,
                self.failure,
            )
            reads._waits.wait_ended(self._token, self._handle, self._task_id, waited)
