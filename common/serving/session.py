"""One connection of a spoke, as asyncio's protocol: what comes is given to whom it concerns, what goes is written, and its end.

What to send is decided as late as the socket allows: frames wait in the ``outbox`` until the transport's buffer is
empty and the kernel's unsent queue short (TCP_NOTSENT_LOWAT), so demand overtakes prefetch that is already read.
Who is there is ``admission``'s to say, answers that take time are ``slow_answers``'. Nothing a peer says takes more
down than its own connection.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Protocol, cast

from common import limits
from common.errors import AuthenticationFailed, Cancelled, HeadraceError, Overloaded, ProtocolError
from common.log import SayingLimit, get_logger
from common.serving.admission import Admission, TokenCheck, identified
from common.serving.egress import Egress, Packed
from common.serving.observer import Auditor, Observer
from common.serving.orders import OrderDesk
from common.serving.outbox import Outbox
from common.serving.packing_choice import PackingChoice
from common.serving.requests import Pick
from common.serving.slow_answers import SlowAnswers, internal_error
from common.serving.source import Source
from common.serving.turns import SnapshotTurns
from common.tcp import OptionSocket, PathFacts, limit_rate, path_facts, renew_bbr, tune
from common.units import format_address
from common.wire import messages as m
from common.wire.connection import Closed, Connection, LocalProtocolError, Role

log = get_logger(__name__)


_WRITE_BYTES = 64 * 1024
"""Small frames are gathered up to here for one system call; what is given to the socket can not be overtaken."""


class Host(Protocol):
    """What a session needs of its server."""

    egress: Egress
    observer: Observer
    auditor: Auditor | None
    orders: OrderDesk | None
    snapshot_turns: SnapshotTurns
    refusal_log: SayingLimit
    codecs: Sequence[m.Codec]
    socket_rate_bytes_per_s: float | None
    send_buffer_bytes: int

    def opened(self, session: Session) -> None:
        """A connection was accepted. Raises Overloaded when there are too many."""

    def token(self) -> bytes | None:
        """What a spoke must prove to have; None: nothing."""

    def welcome(self, session: Session, hello: m.Hello, names: Sequence[str]) -> Admission:
        """``names``: what the other end may call itself, what it does first. Raises NotAllowed, UnknownDataset, Overloaded."""

    def admit_read(self, session: Session) -> None:
        """Raises Overloaded when its identity has too many READs in flight. Asked only where Admission says so."""

    def heard_stats(self, session: Session, stats: m.Stats) -> None: ...

    def packing(self, session: Session) -> PackingChoice | None:
        """Of the path to its spoke. Asked once it wants to send something there."""

    def closed(self, session: Session) -> None: ...


class Session(asyncio.BufferedProtocol):
    """Made by the server for each accepted connection; ``wait_closed`` returns when nothing of it is left.

    ``received``: what somebody has taken from its socket before.
    """

    def __init__(self, host: Host, link_id: int, received: bytes = b"") -> None:
        self.link_id = link_id
        self._received_before = received
        self.hello: m.Hello | None = None
        self.address = ""
        self.host_address = ""
        """The same without the port."""
        self.sent_bytes = 0
        self.names: Sequence[str] = ()
        """What the other end may call itself; empty before it was let in."""
        self.expires_s = math.inf
        """When its certificate does, in seconds since 1970."""
        self.answer_s: float | None = None
        """Until the PING behind WELCOME was answered, in seconds: the whole path's round trip, where TCP's ends at a proxy."""
        self._pinged_s: float | None = None
        self._packing: PackingChoice | None = None
        self._host = host
        self._auditor = host.auditor
        self._egress = host.egress
        self._connection = Connection(Role.HUB)
        self._source: Source | None = None
        self._counts_reads = False
        self._token_check = TokenCheck(host.token)
        self._transport: asyncio.Transport | None = None
        self._outbox = Outbox()
        self._answers = SlowAnswers(self, host, self._outbox)
        self._write_paused = False
        self._read_paused = False
        self._flush_scheduled = False
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None  # until HELLO, later until the abort
        self._lost = asyncio.Event()

    # --- Link: what the egress sees -------------------------------------------------------------------------

    @property
    def source(self) -> Source:
        assert self._source is not None
        return self._source

    @property
    def is_closing(self) -> bool:
        return self._closing

    @property
    def codecs(self) -> Sequence[m.Codec]:
        return self._connection.codecs

    @property
    def waiting_bytes(self) -> int:
        unsent_bytes = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._outbox.extents.waiting_bytes + unsent_bytes

    @property
    def packing(self) -> PackingChoice | None:
        if self._packing is None:
            self._packing = self._host.packing(self)
        return self._packing

    def stage(self, pick: Pick, packed: Packed) -> None:
        self._outbox.extents.add(pick, packed)
        if pick.request.priority is m.Priority.DEMAND and not self._flush_scheduled and not self._write_paused:
            self.flush()  # a reader waits: not another step of the loop for the sake of one system call
        else:
            self.flush_soon()

    def refuse(self, request_id: int, error: HeadraceError) -> None:
        self._outbox.extents.drop(request_id)
        self._send_error(error, request_id)

    # --- asyncio.BufferedProtocol ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        # Paused as soon as one byte does not fit into the kernel; what is written then is still ours to choose.
        transport.set_write_buffer_limits(high=0)
        sock: OptionSocket = transport.get_extra_info("socket")
        tune(sock, max_rate_bytes_per_s=self._host.socket_rate_bytes_per_s, bulk_sender=True)
        peer = transport.get_extra_info("peername")
        self.address = _readable_address(peer)
        self.host_address = str(peer[0]) if isinstance(peer, tuple) else self.address
        self._timer = asyncio.get_running_loop().call_later(limits.HELLO_TIMEOUT_S, self._hello_overdue)
        try:
            self._host.opened(self)
        except Overloaded as error:
            self._fail(error)
        received, self._received_before = memoryview(self._received_before), b""
        while received and not self._closing:
            buffer = self.get_buffer(len(received))
            size_bytes = min(len(buffer), len(received))
            buffer[:size_bytes] = received[:size_bytes]
            received = received[size_bytes:]
            self.buffer_updated(size_bytes)

    def secured(self) -> None:
        """TLS stands. Who is there is asked when it says HELLO."""

    def insecure(self, error: AuthenticationFailed) -> None:
        """TLS does not, or no longer; the peer was told, the connection ends."""
        if not self._closing:
            self._closing = True
            self._note_refusal(error)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._connection.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for event in self._connection.buffer_updated(nbytes):
                if self._closing:
                    break
                if isinstance(event, Closed):
                    log.debug("the spoke ended a connection", reason=event.reason, address=self.address)
                    self.close()
                else:
                    self._handle(event.request_id, event.message)
            self._write_pending()
            if self._source is not None and not self._closing:
                self._egress.pump()
        except HeadraceError as error:
            self._fail(error)
        except Exception:
            log.exception("handling a message failed, closing the connection", address=self.address)
            self._fail(internal_error())

    def eof_received(self) -> bool:
        self._connection.receive_eof()
        return False  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self._source is not None:
            self._egress.detach(self)
        self._outbox.extents.clear()
        self._answers.cancel()
        self._host.closed(self)
        self._lost.set()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._read_paused and self._transport is not None:
            self._read_paused = False
            self._transport.resume_reading()
        self.flush()
        if self._source is not None and not self._closing:
            self._egress.pump()

    # --- requests -------------------------------------------------------------------------------------------

    def _handle(self, request_id: int, message: m.Message) -> None:
        match message:
            case m.Read():
                self._read(request_id, message)
            case m.Cancel():
                if self._egress.end(self, request_id):
                    self._outbox.extents.drop(request_id)
                    self._send_error(Cancelled("withdrawn"), request_id)
            case m.Promote():
                request = self._egress.promote(self, request_id, message.priority, message.deadline_ms)
                if request is not None:
                    self._outbox.extents.promote(request)
            case m.Ping():
                self.send(m.Pong(message.token))
            case m.Stats():
                self._host.heard_stats(self, message)
            case m.Subscribe():
                self._answers.start_feed(request_id, message)
            case m.Check():
                self._answers.check(message)
            case m.Report() | m.Orders() | m.Fetch():
                self._answers.ask_about_orders(message)
            case m.Hello():
                self._greet(message)
            case m.Proof():
                self._welcome(self._token_check.proven(message))
            case m.Pong():
                if self.answer_s is None and self._pinged_s is not None:
                    self.answer_s = asyncio.get_running_loop().time() - self._pinged_s
            case m.Goodbye() | m.Error():
                pass  # the connection reports the end by itself
            case _:
                raise ProtocolError(f"{type(message).__name__} is not for a server")

    def _greet(self, hello: m.Hello) -> None:
        challenge = self._token_check.challenge(hello)
        if challenge is not None:
            self.send(challenge)
        else:
            self._welcome(hello)

    def _welcome(self, offered: m.Hello) -> None:
        assert self._transport is not None
        known, names, self.expires_s = identified(offered, self._transport.get_extra_info("peercert"))
        hello, source, weight, self._counts_reads = self._host.welcome(self, known, names)
        self.names = names
        codecs = tuple(codec for codec in hello.codecs if codec in self._host.codecs)
        version = self._connection.version
        assert version is not None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.hello = hello
        self._source = source
        self._egress.attach(self, hello.spoke_id, weight, self.host_address)
        heartbeat_ms = round(limits.HEARTBEAT_INTERVAL_S * 1000)
        self.send(
            m.Welcome(
                version,
                hello.dataset,
                source.catalog_id,
                source.head_revision,
                heartbeat_ms,
                codecs=codecs,
                capabilities=tuple(name for name in hello.capabilities if name in self._capabilities),
                send_buffer_bytes=self._host.send_buffer_bytes,
            )
        )
        if len(codecs) > 1:
            self._pinged_s = asyncio.get_running_loop().time()
            self.send(m.Ping(1))
        self._host.observer.connected(hello.identity)
        if self._auditor is not None:
            self._auditor.connected(self.address, hello, names)

    @property
    def _capabilities(self) -> Sequence[str]:
        return [name for name in m.CAPABILITIES if name != m.ORDERS or self._host.orders is not None]

    def _read(self, request_id: int, read: m.Read) -> None:
        try:
            if self._counts_reads:
                self._host.admit_read(self)
            self._egress.submit(self, request_id, read.file_version, read.ranges, read.priority, read.deadline_ms)
        except Overloaded as error:
            self._host.observer.refused(error.wire_code)
            self._send_error(error, request_id)
            return
        if self._auditor is not None:
            self._auditor.opened(self.address, cast(m.Hello, self.hello), read.file_version)

    # --- out ------------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Extents that become ready in one step of the loop leave with one system call."""
        if not self._flush_scheduled and not self._write_paused:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write what the outbox has, most urgent first, until the socket is full."""
        self._flush_scheduled = False
        try:
            while not self._write_paused and not self._closing:
                if not self._queue_next():
                    break
                if self._connection.pending_bytes >= _WRITE_BYTES:
                    self._write_pending()
            self._write_pending()
            if not self._write_paused:
                self._outbox.written()
        except Exception:
            log.exception("sending failed, closing the connection", address=self.address)
            self._fail(internal_error())

    def _queue_next(self) -> bool:
        """Give the next frame to the connection, and count it; False when there is none."""
        frame = self._outbox.next()
        if frame is None:
            return False
        before_bytes = self._connection.pending_bytes
        self._connection.send(frame.message, frame.request_id)
        wire_bytes = self._connection.pending_bytes - before_bytes
        if frame.pick is not None:
            self._egress.sent(frame.pick, wire_bytes, last=frame.pick.is_last)
        self.sent_bytes += wire_bytes
        if self.hello is not None:
            self._host.observer.sent(self.hello.identity, wire_bytes)
        return True

    def send(self, message: m.Message, request_id: int = 0) -> None:
        """Write one frame now."""
        self._connection.send(message, request_id)
        self._write_pending()

    def _send_error(self, error: HeadraceError, request_id: int = 0) -> None:
        try:
            self.send(m.Error(error.wire_code, str(error), error.retryable), request_id)
        except LocalProtocolError:
            log.exception("could not answer a request", request_id=request_id, error=str(error))

    def _write_pending(self) -> None:
        transport = self._transport
        if not self._connection.pending_bytes or transport is None or transport.is_closing():
            return
        transport.writelines(self._connection.data_to_send())
        if (
            self._write_paused
            and not self._read_paused
            and transport.get_write_buffer_size() > limits.FRAME_PAYLOAD_MAX_BYTES + limits.REPLIES_UNSENT_MAX_BYTES
        ):
            # Replies pile up for a peer that does not read them: stop taking its requests until it does.
            self._read_paused = True
            transport.pause_reading()

    # --- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close once what is queued has been written, or CLOSE_GRACE_S later without."""
        self._closing = True
        self._answers.end_feed()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._write_pending()
        transport.close()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(limits.CLOSE_GRACE_S, transport.abort)

    def say_goodbye(self, reason: str) -> None:
        """Close in order."""
        if not self._closing:
            self._connection.send(m.Goodbye(reason))
            self.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        await self._lost.wait()
        await self._answers.wait_ended()

    def path(self) -> PathFacts | None:
        """What TCP says about this connection."""
        return path_facts(self._transport.get_extra_info("socket")) if self._transport is not None else None

    def limit_rate(self, max_rate_bytes_per_s: float | None) -> None:
        """How fast the kernel may send on this connection; None: as its congestion control likes."""
        if self._transport is not None and not self._transport.is_closing():
            limit_rate(self._transport.get_extra_info("socket"), max_rate_bytes_per_s)

    def renew(self) -> None:
        """Spare this connection the pause in which BBR measures the round trip."""
        if self._transport is not None and not self._transport.is_closing():
            renew_bbr(self._transport.get_extra_info("socket"))

    def _hello_overdue(self) -> None:
        self._timer = None
        self._fail(ProtocolError(f"no HELLO within {limits.HELLO_TIMEOUT_S:g} s"))

    def drop_half_open(self) -> None:
        self._fail(Overloaded("too many connections that have not said HELLO"))

    def _fail(self, error: HeadraceError) -> None:
        """End the connection with ERROR; the connection may have queued it itself."""
        if self._closing:
            return
        self._note_refusal(error)
        self._send_error(error)
        self.close()

    def shut_out(self, error: HeadraceError) -> None:
        """It may not go on, though it was let in."""
        self._fail(error)

    def _note_refusal(self, error: HeadraceError) -> None:
        unsaid = self._host.refusal_log.may_say()
        if unsaid is not None:
            log.info(
                "closing a connection",
                address=self.address,
                code=error.wire_code,
                reason=str(error),
                unsaid_before=unsaid,
            )
        self._host.observer.refused(error.wire_code)
        if self._auditor is not None:
            self._auditor.refused(self.address, self.hello, error)


def _readable_address(peer: object) -> str:
    return format_address(peer[0], peer[1]) if isinstance(peer, tuple) and len(peer) >= 2 else str(peer)
