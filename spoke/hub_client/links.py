"""One connection to the hub: the socket edge of the wire, its handshake, its liveness.

A link owns its transport and the wire connection; what the messages mean is its owner's affair. It never
dials again: :mod:`spoke.hub_client.keeper` makes a new link for that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol, cast

from common import limits
from common.errors import (
    AuthenticationFailed,
    DeadlineExceeded,
    HeadraceError,
    HubUnreachable,
    ProtocolError,
    from_wire,
)
from common.log import get_logger
from common.tcp import open_window, tune, wake_at
from common.tls_transport import TLS_HELD_BACK_BYTES, Tls
from common.units import format_address
from common.wire.connection import Closed, Connection, Role
from common.wire.messages import Challenge, Error, Goodbye, Hello, Message, Ping, Pong, Welcome
from spoke.hub_client.addresses import Address
from spoke.hub_client.credentials import Credentials, Greeting

log = get_logger(__name__)


class LinkOwner(Protocol):
    def link_message(self, link: Link, request_id: int, message: Message) -> None:
        """Anything but the handshake, PING and PONG."""

    def link_taken(self) -> None:
        """What one look into a socket brought has been dealt with."""

    def link_closed(self, link: Link, error: HeadraceError) -> None:
        """The link is gone; called once."""


class Outstanding(Protocol):
    """What a link's owner waits for on it."""

    sent_s: float


class Link(asyncio.BufferedProtocol):
    """``role``: ``control`` (change stream, demand) or ``bulk``; a name for logs, the hub treats them alike."""

    def __init__(
        self,
        role: str,
        hello: Hello,
        owner: LinkOwner,
        clock: Callable[[], float],
        credentials: Credentials | None = None,
    ) -> None:
        self.role = role
        self.welcome: Welcome | None = None
        self.rtt_s: float | None = None
        self.received_bytes = 0
        self.outstanding_bytes = 0
        self.demand_bytes = 0
        """Of them, what somebody waits for, as the hub knows: it sends that before all else."""
        self.requests: dict[int, Outstanding] = {}
        self._owner = owner
        self._clock = clock
        self._connection = Connection(Role.SPOKE)
        self._credentials = credentials or Credentials()
        self._hello = hello
        self._greeting: Greeting | None = None
        self._address = "the hub's address"
        self._transport: asyncio.Transport | None = None
        self._closed = False
        self._gone = asyncio.Event()
        self.error: HeadraceError | None = None
        """Why it is closed, once it is."""
        self._ready: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self.last_heard_s = clock()
        self.dialled_s: float | None = None
        self.rate_bytes_per_s = 0.0
        """As last measured by the owner: how much may be waited for at once."""
        self._wake_at_bytes = 1
        self._held_back_bytes = 0
        """Of what is missing, so much may have left the socket already."""
        self._pings: dict[int, float] = {}
        self._ping_received_bytes = 0
        """What had come when the oldest ping that is unanswered was sent."""
        self._next_token = 1

    # --- life --------------------------------------------------------------------------------------------

    async def open(self, address: Address) -> Welcome:
        """Dial and shake hands.

        Raises HubUnreachable, DeadlineExceeded, AuthenticationFailed, or what the hub answered (UnknownDataset, …).
        """
        self._greeting = self._credentials.greeting(self._hello)
        loop = asyncio.get_running_loop()
        host, port = str(address.sockaddr[0]), int(address.sockaddr[1])
        self._address = format_address(host, port)
        try:
            async with asyncio.timeout(limits.DIAL_TIMEOUT_S):
                await loop.create_connection(lambda: self._secured(host), host, port, family=address.family)
        except TimeoutError:
            raise HubUnreachable(f"no answer from {self._address} within {limits.DIAL_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise HubUnreachable(f"cannot reach {self._address}: {error.strerror or error}") from None
        try:
            async with asyncio.timeout(limits.HELLO_TIMEOUT_S):
                welcome = await asyncio.shield(self._ready)
        except TimeoutError:
            silent = DeadlineExceeded(f"{self._address} took the connection but did not answer HELLO")
            self.close(silent)
            raise silent from None
        if self._closed:  # the hub's last word came with its first: nobody may ask anything here
            raise self.error or HubUnreachable("the hub closed the connection")
        return welcome

    def _secured(self, host: str) -> asyncio.BufferedProtocol:
        certificates = self._credentials.certificates
        if certificates is None:
            return self
        self._held_back_bytes = TLS_HELD_BACK_BYTES
        return Tls(self, certificates.client(), host=self._credentials.hub_name or host)

    @property
    def is_open(self) -> bool:
        return self.welcome is not None and not self._closed

    def close(self, error: HeadraceError) -> None:
        """Drop the connection at once; the owner hears of it before this returns."""
        if self._closed:
            return
        self._closed = True
        self._gone.set()
        self.error = error
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # retrieved: nobody need be waiting
        if self._transport is not None:
            self._transport.abort()
        self._owner.link_closed(self, error)

    async def goodbye(self, reason: str, grace_s: float | None = None) -> None:
        """Close in order, if the link is up: say it, and wait until the hub has closed, for ``grace_s`` (CLOSE_GRACE_S) at most.

        The socket is only shut for writing: closed with DATA unread it would send a reset, which can overtake the word.
        """
        if self.is_open and self._transport is not None and not self._transport.is_closing():
            self.send(Goodbye(reason))
            self._transport.write_eof()
            self.resume()  # what still comes is dropped, to the end
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limits.CLOSE_GRACE_S if grace_s is None else grace_s):
                    await self._gone.wait()
        self.close(HubUnreachable(reason))

    # --- sending -----------------------------------------------------------------------------------------

    def new_request_id(self) -> int:
        """An id that no READ of this link holds."""
        return self._connection.new_request_id()

    def send(self, message: Message, request_id: int = 0) -> None:
        self._connection.send(message, request_id)
        self._flush()

    def pause(self) -> None:
        """Take nothing from the socket until ``resume``: TCP then holds the hub back."""
        if self._transport is not None and not self._closed:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._closed:
            self._transport.resume_reading()

    def _flush(self) -> None:
        if self._transport is not None and self._connection.pending_bytes:
            for chunk in self._connection.data_to_send():
                self._transport.write(chunk)

    @property
    def is_waiting(self) -> bool:
        """A PING is unanswered."""
        return bool(self._pings)

    def check_alive(self, now_s: float) -> None:
        """Ping when the link has been quiet; close it when the last pings went unanswered and nothing else was heard."""
        if not self.is_open:
            return
        quiet_s = now_s - self.last_heard_s
        waited_s = now_s - next(iter(self._pings.values()), now_s)
        brought_bytes = self.received_bytes - self._ping_received_bytes
        if self._pings and quiet_s > limits.LINK_DEAD_AFTER_S:
            self.close(HubUnreachable(f"nothing heard from the hub for {quiet_s:.1f} s"))
        elif waited_s > limits.LINK_DEAD_AFTER_S and brought_bytes < waited_s * limits.LINK_CRAWL_BYTES_PER_S:
            self.close(HubUnreachable(f"the hub sent {brought_bytes} bytes in {waited_s:.1f} s and answers no ping"))
        elif len(self._pings) < limits.LINK_MAX_PINGS:
            if not self._pings:
                self._ping_received_bytes = self.received_bytes
            self._pings[self._next_token] = now_s
            self.send(Ping(self._next_token))
            self._next_token += 1

    # --- asyncio's side ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._closed:
            self._transport.abort()
            return
        # What is written leaves at once, and not after all else that this step of the loop does: a reader waits for it.
        self._transport.set_write_buffer_limits(high=0)
        sock = self._transport.get_extra_info("socket")
        tune(sock)
        open_window(sock, limits.LINK_WINDOW_BYTES)
        self.dialled_s = self._clock()
        assert self._greeting is not None
        self.send(self._greeting.hello)

    def secured(self) -> None:
        """HELLO leaves only now."""
        self.dialled_s = self._clock()

    def insecure(self, error: AuthenticationFailed) -> None:
        self.close(error)

    def eof_received(self) -> bool:
        return False  # the transport closes itself

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._connection.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.last_heard_s = self._clock()
        self.received_bytes += nbytes
        try:
            events = self._connection.buffer_updated(nbytes)
        except ProtocolError as error:
            if self.welcome is None:
                # Whoever dials says so, once: each of the links meets it again at each dial.
                error = ProtocolError(f"what answers at {self._address} does not speak Headrace's protocol ({error})")
            else:
                log.error("the hub broke the protocol", link=self.role, error=str(error))
            self._flush()  # the ERROR frame that tells the hub why
            self.close(error)
            return
        for event in events:
            if self._closed:
                return
            if isinstance(event, Closed):
                self.close(HubUnreachable(f"the hub closed the connection: {event.reason}"))
                return
            try:
                self._handle(event.request_id, event.message)
            except AuthenticationFailed as error:
                self.send(Error(error.wire_code, str(error), False))
                self.close(error)
                return
        self._flush()
        self._choose_wake()
        self._owner.link_taken()

    def _choose_wake(self) -> None:
        """Sleep through the middle of a large payload: each waking costs some 60 us here, and brings 64 kB without this."""
        missing_bytes = self._connection.payload_missing_bytes - self._held_back_bytes
        patience_bytes = min(limits.RECEIVE_WAKE_MAX_BYTES, int(self.rate_bytes_per_s * limits.RECEIVE_WAKE_MAX_S))
        wake_at_bytes = min(missing_bytes, patience_bytes)
        if wake_at_bytes < limits.RECEIVE_WAKE_MIN_BYTES:
            wake_at_bytes = 1
        if wake_at_bytes != self._wake_at_bytes and self._transport is not None:
            self._wake_at_bytes = wake_at_bytes
            wake_at(self._transport.get_extra_info("socket"), wake_at_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.receive_eof()
        self.close(HubUnreachable(f"connection to the hub lost: {exc or 'closed by the hub'}"))

    def _handle(self, request_id: int, message: Message) -> None:
        if isinstance(message, Challenge):
            assert self._greeting is not None
            self.send(self._greeting.answer(message))
            self.dialled_s = self._clock()
        elif isinstance(message, Welcome):
            assert self._greeting is not None
            self._greeting.welcomed()
            self.welcome = message
            if self.dialled_s is not None:
                self.rtt_s = self._clock() - self.dialled_s  # until the first PING is answered
            if not self._ready.done():
                self._ready.set_result(message)
        elif isinstance(message, Ping):
            self.send(Pong(message.token))
        elif isinstance(message, Pong):
            sent_s = self._pings.pop(message.token, None)
            self._ping_received_bytes = self.received_bytes
            if sent_s is not None:
                self.rtt_s = self._clock() - sent_s
        elif isinstance(message, Error) and request_id == 0:
            self.close(from_wire(message.code, message.message))
        elif isinstance(message, Goodbye):
            self.close(HubUnreachable(f"the hub said goodbye: {message.reason}"))
        else:
            self._owner.link_message(self, request_id, message)
