"""Drives the replica: feeds it the hub's messages one by one, writes its journal, passes on what changed.

The replica decides; this is its I/O shell. Long work (a snapshot of a million names) goes in steps, with other work
of the event loop in between, and the link is paused while messages pile up.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from common import limits
from common.errors import HeadraceError, PeerError, ProtocolError, RevisionUnavailable
from common.log import get_logger
from common.runtime import cancel_and_wait
from common.wire.messages import PIN, Subscribe, Welcome
from spoke.namespace.journal import Journal
from spoke.namespace.replica import FeedMessage, Outcome, Replica
from spoke.namespace.suspicion_record import keep
from spoke.namespace.tree import Invalidation

log = get_logger(__name__)


class FeedLink(Protocol):
    """The connection the feed comes by, as far as the follower needs it."""

    @property
    def is_open(self) -> bool: ...
    @property
    def welcome(self) -> Welcome | None: ...
    @property
    def error(self) -> HeadraceError | None: ...
    def send(self, message: Subscribe) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self, error: HeadraceError) -> None: ...


class Follower:
    """``on_changes`` is told what the kernel must hear, in order. ``accept()`` believes a loss that was held back."""

    def __init__(
        self,
        replica: Replica,
        journal: Journal,
        on_changes: Callable[[Sequence[Invalidation]], None],
        clock: Callable[[], float],
    ) -> None:
        self._replica = replica
        self._journal = journal
        self._on_changes = on_changes
        self._clock = clock
        self._link: FeedLink | None = None
        self._backlog: deque[FeedMessage] = deque()
        self._paused = False
        self._subscribe_wanted = False
        self._accept_wanted = False
        self._work = asyncio.Event()
        self._changed = asyncio.Condition()
        self.task: asyncio.Task[None] | None = None
        self.messages_total = 0
        self.refusal: HeadraceError | None = None
        """Why the hub will not give the tree that is asked for; asking again does not help."""
        self._collector_held = False
        self._kept_suspicion = replica.suspicious

    def start(self) -> None:
        self.task = asyncio.create_task(self._run(), name="replica follower")

    async def close(self) -> None:
        await cancel_and_wait(self.task)
        self._hold_collector(False)

    async def usable(self, silence_timeout_s: float) -> None:
        """Return once there is a tree to show; raises HeadraceError when nothing comes from the hub for so long.

        Raises what the hub answered when it will not give the tree asked for.
        """
        while not self._replica.usable:
            if self.refusal is not None:
                raise self.refusal
            seen = self.messages_total
            try:
                async with asyncio.timeout(silence_timeout_s), self._changed:
                    await self._changed.wait()
            except TimeoutError:
                if self.messages_total == seen:
                    raise HeadraceError(
                        f"the hub sends no names: nothing for {silence_timeout_s:g} s, and none are on this disk yet"
                    ) from None
            if self.task is not None and self.task.done():
                raise HeadraceError("the replica's follower has died; the log says why")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once ``condition`` holds; it is looked at after each message. For ever if it never does."""
        async with self._changed:
            await self._changed.wait_for(condition)

    def accept(self) -> None:
        """Believe the loss of names that the replica holds back."""
        self._accept_wanted = True
        self._work.set()

    # --- FeedFollower ------------------------------------------------------------------------------------

    def feed_up(self, link: FeedLink) -> None:
        self._link = link
        self._paused = False
        self._subscribe_wanted = True
        self._work.set()

    def feed_message(self, link: FeedLink, message: FeedMessage) -> None:
        if link is not self._link:
            return
        self._backlog.append(message)
        self.messages_total += 1
        if len(self._backlog) > limits.FEED_BACKLOG_MAX and not self._paused:
            self._paused = True
            link.pause()
        self._work.set()

    def feed_lost(self, link: FeedLink) -> None:
        if link is self._link:
            if isinstance(link.error, RevisionUnavailable):
                self.refusal = link.error
            self._link = None
            self._backlog.clear()
            self._work.set()

    # --- work --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        replica = self._replica
        while True:
            await self._work.wait()
            self._work.clear()
            if self._link is None:
                replica.disconnected()
                self._hold_collector(False)
            if self._accept_wanted:
                self._accept_wanted = False
                await self._do(replica.accept(self._clock()))
                await self._keep_suspicion()
            self._subscribe()
            while self._backlog and self._link is not None:
                await self._take(self._link, self._backlog.popleft())
                await self._keep_suspicion()
                self._hold_collector(replica.is_building)
                await asyncio.sleep(0)  # let reads go in between
                if self._paused and len(self._backlog) < limits.FEED_BACKLOG_MAX // 2:
                    self._paused = False
                    self._link.resume()
            async with self._changed:
                self._changed.notify_all()

    async def _take(self, link: FeedLink, message: FeedMessage) -> None:
        try:
            await self._do(self._replica.receive(message, self._clock()))
        except ProtocolError as error:
            log.error("the hub's names cannot be believed", error=str(error))
            link.close(error)

    async def _do(self, outcome: Outcome) -> None:
        while True:
            if outcome.invalidations:
                self._on_changes(outcome.invalidations)
            if outcome.journal is not None:
                self._journal.append(outcome.journal)
            if outcome.rewrite:
                self._journal.rewrite()
            if outcome.resubscribe:
                self._subscribe_wanted = True
            if not outcome.more:
                break
            await asyncio.sleep(0)  # let reads go in between
            outcome = self._replica.proceed(self._clock())
        self._subscribe()

    async def _keep_suspicion(self) -> None:
        """A restart must not forget that the hub is suspicious."""
        suspicion = self._replica.suspicious
        if suspicion is self._kept_suspicion:
            return
        self._kept_suspicion = suspicion
        try:
            await asyncio.to_thread(keep, self._journal.directory, suspicion)
        except OSError as error:
            log.error(
                "that the hub is suspicious, or no more, cannot be kept on disk; a restart judges anew",
                error=str(error),
            )

    def _hold_collector(self, hold: bool) -> None:
        """A million new objects would make the garbage collector walk all of them again and again, to find nothing."""
        if hold == self._collector_held:
            return
        self._collector_held = hold
        if hold:
            gc.disable()
        else:
            gc.freeze()
            gc.enable()

    def _subscribe(self) -> None:
        if self._subscribe_wanted and self._link is not None and self._link.is_open:
            self._subscribe_wanted = False
            if self._replica.pin_reached:
                return  # nothing that the hub could say would change it
            welcome = self._link.welcome
            if self._replica.pin is not None and (welcome is None or PIN not in welcome.capabilities):
                self.refusal = PeerError("this hub is too old to give a pinned tree; start it in a newer release")
                return
            self._backlog.clear()
            self._link.send(self._replica.subscribe_request(self._clock()))
