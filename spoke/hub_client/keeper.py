"""Keeps the links to the hub up: as many as the path wants, dialled again when they go, dropped when they do not keep up.

Owns who is connected and what the path is like (round trip, rate, since when the hub is away). What travels over the links
is :mod:`spoke.hub_client.client`'s affair.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from random import Random
from typing import Protocol

from common import limits
from common.backoff import Backoff, delay_s
from common.errors import (
    AuthenticationFailed,
    HeadraceError,
    HubUnreachable,
    NotAllowed,
    PeerError,
    UnknownDataset,
    UsageError,
)
from common.log import get_logger
from common.runtime import cancel_and_wait
from common.wire.messages import Hello, Welcome
from spoke.hub_client import sizing
from spoke.hub_client.addresses import Addresses
from spoke.hub_client.credentials import Credentials
from spoke.hub_client.links import Link, LinkOwner

log = get_logger(__name__)


class Traffic(LinkOwner, Protocol):
    """Who uses the links. Its ``link_closed`` tells :meth:`LinkKeeper.lost`."""

    def link_up(self, link: Link) -> None:
        """It may be used from now on."""

    def is_waited_for(self) -> bool:
        """A reader waits for something that was not asked for yet."""


class LinkKeeper:
    """``start()`` begins to dial. ``bulk_links`` 0: as many as the path wants, by round trip, rate and what the kernels buffer for one."""

    def __init__(
        self,
        host: str,
        port: int,
        hello: Hello,
        traffic: Traffic,
        *,
        bulk_links: int,
        clock: Callable[[], float],
        dice: Random,
        credentials: Credentials | None = None,
    ) -> None:
        given = credentials or Credentials()
        self._credentials = given._replace(hub_name=given.hub_name or host)  # what is dialled is a number by then
        self._host = host
        self._port = port
        self._hello = hello
        self._traffic = traffic
        self._bulk_links = bulk_links
        self._clock = clock
        self._dice = dice
        self._addresses = Addresses(host, port)
        self._receive_buffer_bytes = sizing.receive_buffer_bytes()
        self.up: list[Link] = []
        """Those that may be used."""
        self._keepers: list[asyncio.Task[None]] = []
        self._liveness: asyncio.Task[None] | None = None
        self._link_gone: dict[Link, asyncio.Event] = {}
        self._contact: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rtt_s: float | None = None
        self._arrivals = _RateMeter()
        self._measured_s = clock()
        self._looked_at_s = clock()
        self._looked_at: dict[Link, int] = {}
        self._closing = False
        self._waited_for = asyncio.Event()
        self._told_no_link = False
        self._lost: list[str] = []
        self._tell_lost: asyncio.TimerHandle | None = None
        self.away_since_s: float | None = clock()
        """Since when there has been no link at all; None while there is one."""
        self._was_away_s = 0.0
        self.last_error: HeadraceError | None = None
        self.refusal: HeadraceError | None = None
        """The hub's word that it does not give us this dataset, until it does."""
        self.dials_total = 0
        self._closed_links_bytes = 0

    # --- life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._keepers.append(asyncio.create_task(self._keep_link("control"), name="hub link 0 (control)"))
        self._keep_bulk_links(self._bulk_links or limits.BULK_LINKS_MIN)
        self._liveness = asyncio.create_task(self._check_links(), name="hub link liveness")

    async def stop_dialling(self) -> None:
        """What is up stays up, for :meth:`goodbye`."""
        self._closing = True
        if self._tell_lost is not None:
            self._tell_lost.cancel()
        await cancel_and_wait(self._liveness, *self._keepers)

    async def goodbye(self, reason: str, grace_s: float | None = None) -> None:
        """Say GOODBYE on every link; ends within about ``grace_s``."""
        await asyncio.gather(*(link.goodbye(reason, grace_s) for link in list(self.up)))

    def _keep_bulk_links(self, wanted: int) -> None:
        """Never fewer than before: one that carries nothing costs nothing."""
        for number in range(len(self._keepers), wanted + 1):
            self._keepers.append(asyncio.create_task(self._keep_link("bulk"), name=f"hub link {number} (bulk)"))

    def _fit_links(self) -> None:
        """Open more when the path holds more than those there are can carry."""
        welcome = self.welcome
        if self._bulk_links or self._rtt_s is None or welcome is None:
            return
        window_bytes = sizing.window_bytes(self._receive_buffer_bytes, welcome.send_buffer_bytes)
        wanted = sizing.wanted_links(self._rtt_s, self.rate_bytes_per_s, window_bytes)
        if wanted >= len(self._keepers):
            log.info("more links for this path", links=wanted, rtt_s=round(self._rtt_s, 4), window_bytes=window_bytes)
            self._keep_bulk_links(wanted)

    async def first_contact(self, timeout_s: float) -> None:
        """Return once the hub has welcomed us; raises what it answered, or HubUnreachable after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._contact)
        except TimeoutError:
            raise HubUnreachable(
                f"no hub within {timeout_s:g} s; the last try said: {self.last_error or 'no answer yet'}"
            ) from None

    async def _keep_link(self, role: str) -> None:
        """Dial, serve until the link is gone, back off, again: for ever."""
        backoff = Backoff(limits.REDIAL_FIRST_S, limits.REDIAL_CAP_S)
        refusals = 0
        while True:
            failed: HeadraceError | None = None
            link = Link(role, self._hello, self._traffic, self._clock, self._credentials)
            gone = self._link_gone[link] = asyncio.Event()
            try:
                self.dials_total += 1
                address = await self._addresses.find()
                try:
                    await link.open(address)
                except HubUnreachable:
                    self._addresses.failed(address)
                    raise
                refusals = 0
                up_s = self._clock()
                self._is_up(link)
                await gone.wait()
                failed = link.error
                if self._clock() - up_s >= limits.REDIAL_SETTLED_S:
                    backoff.reset()
            except HeadraceError as error:
                failed = error
                self._note_failure(role, error)
            finally:
                if not (self._closing and link.is_open):  # else close() still has to say goodbye on it
                    link.close(HubUnreachable("the spoke dropped the link"))
                self._link_gone.pop(link, None)
            if isinstance(failed, (AuthenticationFailed, NotAllowed)):
                # Somebody must act first: not hurried by readers that wait.
                first_s, cap_s = limits.REDIAL_REFUSED_FIRST_S, limits.REDIAL_REFUSED_CAP_S
                await asyncio.sleep(delay_s(refusals, first_s, cap_s, self._dice))
                refusals += 1
            else:
                await self._pause(backoff.next_delay_s(self._dice))

    async def _pause(self, delay_s: float) -> None:
        """Between two dials; cut short when a reader begins to wait meanwhile."""
        ended_s = self._clock() + delay_s
        if not self._is_waited_for:
            self._waited_for.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._waited_for.wait()
        await asyncio.sleep(min(ended_s - self._clock(), limits.REDIAL_WAITED_FOR_S * self._dice.uniform(0.5, 1.0)))

    @property
    def _is_waited_for(self) -> bool:
        """A reader waits, and there is no link on which to ask."""
        return not self.up and self._traffic.is_waited_for()

    def hurry(self) -> None:
        """A reader waits: while there is no link, the pause between two dials is cut short."""
        if not self.up:
            self._waited_for.set()

    def _note_failure(self, role: str, error: HeadraceError) -> None:
        self.last_error = error
        if isinstance(error, (NotAllowed, UnknownDataset)):
            self.refusal = error
        if role == "control" and not self._told_no_link:
            self._told_no_link = True  # once for each time that there is none
            log.warning("no link to the hub; dialling goes on", hub=f"{self._host}:{self._port}", error=str(error))
        if isinstance(error, (UsageError, PeerError)) and not error.retryable and not self._contact.done():
            self._contact.set_exception(error)
            self._contact.exception()  # retrieved: nobody need be waiting

    async def _check_links(self) -> None:
        while True:
            await asyncio.sleep(limits.LINK_CHECK_INTERVAL_S)
            now_s = self._clock()
            for link in list(self.up):
                link.check_alive(now_s)
            self._drop_laggards(now_s)
            measured = [link.rtt_s for link in self.up if link.rtt_s is not None]
            if measured:
                # Queues only ever add: the least of the links, eased upwards by 5 % a second when the path changes.
                least_s = min(measured)
                self._rtt_s = least_s if self._rtt_s is None else min(least_s, self._rtt_s * 1.05)
            self.measure()
            self._fit_links()

    def measure(self) -> None:
        """Once a round trip while bytes arrive: what may be asked for grows with it, and a long path must not wait for a clock."""
        now_s = self._clock()
        if now_s - self._measured_s >= max(limits.RATE_SAMPLE_S, self._rtt_s or 0.0):
            self._measured_s = now_s
            self._arrivals.tick(now_s, self.wire_bytes_total)

    def _drop_laggards(self, now_s: float) -> None:
        """A link that does not keep up with the others is dialled anew, and what it owed comes over the others.

        Silence is one sign (a broken path); the other is a READ that waits many times as long as they do elsewhere.
        """
        rtt_s = self._rtt_s or 0.0
        elapsed_s = now_s - self._looked_at_s
        moved = {link: link.received_bytes - self._looked_at.get(link, 0) for link in self.up}
        self._looked_at_s, self._looked_at = now_s, {link: link.received_bytes for link in self.up}
        busy = [link for link in self.up if link.requests]
        all_rate = sum(moved.values()) / elapsed_s if elapsed_s > 0 else 0.0
        for link, moved_bytes in moved.items():
            link.rate_bytes_per_s = moved_bytes / elapsed_s if elapsed_s > 0 else 0.0
        outstanding_bytes = sum(link.outstanding_bytes for link in busy)
        for link in list(self.up):
            heard_s = [other.last_heard_s for other in self.up if other is not link]
            others_quiet_s = now_s - max(heard_s, default=float("-inf"))
            oldest = next(iter(link.requests.values()), None)
            if link.is_waiting and sizing.is_stalled(now_s - link.last_heard_s, rtt_s, others_quiet_s):
                link.close(HubUnreachable(f"silent for {now_s - link.last_heard_s:.1f} s while other links are not"))
            elif oldest is not None and sizing.lags(
                age_s=now_s - oldest.sent_s,
                rate_bytes_per_s=moved[link] / elapsed_s if elapsed_s > 0 else 0.0,
                all_rate_bytes_per_s=all_rate,
                links=len(busy),
                outstanding_bytes=outstanding_bytes,
                rtt_s=rtt_s,
                link_age_s=now_s - (link.dialled_s or now_s),
            ):
                link.close(HubUnreachable("it lags far behind the other links"))

    def _is_up(self, link: Link) -> None:
        self.up.append(link)
        self._waited_for.clear()
        if self.away_since_s is not None:
            self._was_away_s, self.away_since_s = self._clock() - self.away_since_s, None
        self.last_error = self.refusal = None
        if link.rtt_s is not None and (self._rtt_s is None or link.rtt_s < self._rtt_s):
            self._rtt_s = link.rtt_s
            self._fit_links()
        if not self._contact.done():
            self._contact.set_result(None)
        if link.role == "control":
            self._told_no_link = False
            log.info("linked to the hub", hub=f"{self._host}:{self._port}", dataset=self._hello.dataset,
                     away_s=round(self._was_away_s, 1))  # fmt: skip
        self._traffic.link_up(link)

    def lost(self, link: Link, error: HeadraceError) -> bool:
        """A link is gone. False if it had never been up."""
        gone = self._link_gone.get(link)
        if gone is not None:
            gone.set()
        if link not in self.up:
            return False
        self.up.remove(link)
        if isinstance(error, (NotAllowed, UnknownDataset)):
            self.refusal = error
        self._closed_links_bytes += link.received_bytes
        self.last_error = error
        if not self.up:
            self.away_since_s = self._clock()
        self._note_loss(link, error)
        return True

    def _note_loss(self, link: Link, error: HeadraceError) -> None:
        """Those that are lost together make one line."""
        if self._closing:
            return
        self._lost.append(f"{link.role}: {error}")
        if self._tell_lost is None:
            loop = asyncio.get_running_loop()
            self._tell_lost = loop.call_later(limits.LINKS_LOST_TOLD_AFTER_S, self._say_lost)

    def _say_lost(self) -> None:
        lost, self._lost, self._tell_lost = self._lost, [], None
        log.warning("links to the hub lost", lost=len(lost), left=len(self.up), error=lost[0])

    # --- what is known of the path ------------------------------------------------------------------------

    @property
    def control(self) -> Link | None:
        """The link of the feed, while there is one."""
        return next((link for link in self.up if link.role == "control" and link.is_open), None)

    @property
    def connected(self) -> bool:
        """The control link is up (the feed flows)."""
        return self.control is not None

    def in_words(self) -> str:
        """How it stands with the hub, for the log and for ``status``."""
        if self.away_since_s is not None:
            return f"no link for {self._clock() - self.away_since_s:.0f} s: {self.last_error or 'no answer yet'}"
        quiet_s = self._clock() - max((link.last_heard_s for link in self.up), default=self._clock())
        return f"{len(self.up)} links, last heard {quiet_s:.1f} s ago"

    @property
    def welcome(self) -> Welcome | None:
        return next((link.welcome for link in self.up if link.welcome is not None), None)

    @property
    def rtt_s(self) -> float | None:
        """Round trip to the hub without queues, None before the first answer."""
        return self._rtt_s

    @property
    def wire_bytes_total(self) -> int:
        """All bytes received from the hub: data, names, framing."""
        return self._closed_links_bytes + sum(link.received_bytes for link in self.up)

    @property
    def rate_bytes_per_s(self) -> float:
        """The best rate of arrivals lately (0 before anything came)."""
        return self._arrivals.best_bytes_per_s

    @property
    def carried_bytes_per_s(self) -> float:
        """The best rate that held for a while, also long ago (0 before any did): what a large fetch may expect."""
        return self._arrivals.carried_bytes_per_s

    def facts(self) -> list[Mapping[str, object]]:
        """Facts of each link, for ``status``."""
        return [
            {
                "role": link.role,
                "rtt_s": link.rtt_s,
                "received_bytes": link.received_bytes,
                "outstanding_bytes": link.outstanding_bytes,
                "requests": len(link.requests),
            }
            for link in self.up
        ]


_RESTS_BELOW = 0.1  # of the best rate: signs of life, or the end of a transfer


class _RateMeter:
    """The best arrival rate, forgotten by 2 % a second so that a slower path shows within a minute.

    ``carried_bytes_per_s``: over spans of a second and a MiB at least, so that a few names are no rate, forgotten by 0.5 % a span and
    not while nothing comes.
    """

    def __init__(self) -> None:
        self.best_bytes_per_s = 0.0
        self.carried_bytes_per_s = 0.0
        self._span_from = (0.0, 0)
        self._last_s: float | None = None
        self._last_bytes = 0

    def tick(self, now_s: float, received_bytes: int) -> None:
        if self._last_s is not None and now_s > self._last_s:
            elapsed_s = now_s - self._last_s
            seen = (received_bytes - self._last_bytes) / elapsed_s
            rests = seen < self.best_bytes_per_s * _RESTS_BELOW
            self.best_bytes_per_s = max(seen, self.best_bytes_per_s * 0.98**elapsed_s)
            self._carried(now_s, received_bytes, rests=rests)
        self._last_s = now_s
        self._last_bytes = received_bytes

    def _carried(self, now_s: float, received_bytes: int, *, rests: bool) -> None:
        from_s, from_bytes = self._span_from
        if not rests and now_s - from_s < limits.RATE_SPAN_S:
            return
        moved_bytes, span_s = received_bytes - from_bytes, now_s - from_s
        if not rests and moved_bytes >= limits.RATE_SPAN_MIN_BYTES:
            self.carried_bytes_per_s = max(moved_bytes / span_s, 0.995 * self.carried_bytes_per_s)
        elif not rests and span_s < limits.RATE_SPAN_MAX_S:
            return
        self._span_from = now_s, received_bytes
