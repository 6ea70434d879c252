"""One connection of the wire, without the wire: bytes in, events out; messages in, bytes out.

Keeps the state, the table of open READs, the number of the subscription, and what the two ends agreed. There is no
socket, no clock and no loop in here. Not for use from several threads.
"""

from __future__ import annotations

from typing import NamedTuple

from common import limits
from common.errors import Overloaded, ProtocolError, VersionMismatch
from common.wire import messages as m
from common.wire.frame import WIRE_VERSIONS, FrameHeader, FrameType
from common.wire.handshake import Handshake
from common.wire.message_codec import TYPE_OF, DataHead, Payload, cut_text, decode, decode_data_head, encode
from common.wire.moves import FEED, MAY_RECEIVE, MAY_SEND, WITHOUT_ID, Role, State
from common.wire.receiver import Receiver
from common.wire.requests import ID_LIMIT, OpenPings, OpenRead, OpenReads

__all__ = ["WIRE_VERSIONS", "Closed", "Connection", "Event", "LocalProtocolError", "Received", "Role", "State"]

_COPY_BELOW_BYTES = 8192
"""Payloads below this are joined with their header: cheaper than a chunk, and maybe a packet, of their own."""

_Head = m.Message | DataHead | bytes


class LocalProtocolError(AssertionError):
    """We were about to break the protocol: a bug on this side. Nothing was sent and nothing has changed."""


class Received(NamedTuple):
    """``request_id``: of the READ, or the number of the subscription, or 0."""

    request_id: int
    message: m.Message


class Closed(NamedTuple):
    """Nothing more will come. ``orderly``: the peer said GOODBYE."""

    reason: str
    orderly: bool


Event = Received | Closed


class Connection:
    """``versions``: what this end speaks. See PROTOCOL.md; the message classes are in :mod:`common.wire.messages`."""

    def __init__(self, role: Role, versions: tuple[int, ...] = WIRE_VERSIONS) -> None:
        self.role = role
        self._state = State.START
        self._ended_by_peer = False
        self._handshake = Handshake(versions)
        self._reads = OpenReads()
        self._answer: tuple[OpenRead, int]
        """Of the DATA whose payload is on its way: its READ, and what that will be owed."""
        self._next_id = 1
        self._feed_number = 0
        self._pings_sent = OpenPings()
        self._pings_received = OpenPings()
        self._events: list[Event] = []
        self._queue: list[bytes | memoryview] = []
        self._pending_bytes = 0
        self._receiver: Receiver[_Head] = Receiver(self)

    # --- facts -------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._state

    @property
    def version(self) -> int | None:
        """The agreed protocol version; at the hub from HELLO on (WELCOME must name it), at the spoke from WELCOME on."""
        return self._handshake.version

    @property
    def codecs(self) -> tuple[m.Codec, ...]:
        """What DATA may be packed with; empty before READY."""
        return self._handshake.codecs

    @property
    def pending_bytes(self) -> int:
        """Bytes that ``data_to_send`` would give now."""
        return self._pending_bytes

    @property
    def open_reads(self) -> int:
        """READs neither ended nor withdrawn; at most ``limits.REQUESTS_MAX_OUTSTANDING``."""
        return self._reads.waiting_count

    @property
    def payload_missing_bytes(self) -> int:
        """What the payload that is arriving still lacks; nothing can be done with less. 0 between payloads."""
        return self._receiver.payload_missing_bytes

    def is_open(self, request_id: int) -> bool:
        """A READ of this id waits for its answer (withdrawn ones do not)."""
        return self._reads.is_waiting(request_id)

    def new_request_id(self) -> int:
        """An id that no READ of this connection holds, not even a withdrawn one the hub has not ended."""
        while self._next_id in self._reads:
            self._next_id = self._next_id % (ID_LIMIT - 1) + 1
        found = self._next_id
        self._next_id = found % (ID_LIMIT - 1) + 1
        return found

    # --- out ---------------------------------------------------------------------------------------------

    def send(self, message: m.Message, request_id: int = 0) -> None:
        """Queue one message.

        ``request_id``: of the READ for READ, DATA, CANCEL, PROMOTE and ERROR; 0 for all others (the connection numbers
        subscriptions itself; the hub may name the subscription a feed message answers, and one that was replaced is
        dropped). A payload is not copied: leave its bytes alone until they are sent.

        Dropped without a word, because the caller could not know yet: anything after the peer ended the connection,
        and CANCEL or PROMOTE of a READ that is ended or withdrawn.

        Raises LocalProtocolError when the message breaks a rule or is not legal now.
        """
        if self._ended_by_peer:
            return
        frame_type = TYPE_OF[type(message)]
        try:
            if frame_type not in MAY_SEND[self.role, self._state]:
                raise ProtocolError(f"{frame_type.name} may not be sent in state {self._state.value!r}")
            wire_id = self._outgoing_id(frame_type, request_id)
            if wire_id is None:
                return
            head, payload = encode(message, wire_id)
            self._note_sent(message, wire_id)
        except ProtocolError as error:
            raise LocalProtocolError(str(error)) from error
        self._enqueue(head, payload)

    def data_to_send(self) -> list[bytes | memoryview]:
        """What must be written, in order, and forget it here. Large payloads are views of what ``send`` was given."""
        chunks: list[bytes | memoryview] = []
        if not self._queue:
            return chunks
        small: list[bytes] = []
        for chunk in self._queue:
            if isinstance(chunk, bytes):
                small.append(chunk)
                continue
            chunks += [b"".join(small), chunk]  # a payload always follows its header
            small.clear()
        if small:
            chunks.append(b"".join(small))
        self._queue.clear()
        self._pending_bytes = 0
        return chunks

    def _enqueue(self, head: bytes, payload: Payload) -> None:
        self._queue.append(head)
        self._pending_bytes += len(head)
        view = memoryview(payload).cast("B") if payload else memoryview(b"")
        if view:
            self._pending_bytes += len(view)
            self._queue.append(bytes(view) if len(view) < _COPY_BELOW_BYTES else view)

    def _outgoing_id(self, frame_type: FrameType, request_id: int) -> int | None:
        """The id that goes into the header; None when the message has lost its purpose."""
        if frame_type in FEED:
            if not 0 <= request_id <= self._feed_number or self._feed_number == 0:
                raise ProtocolError(f"{frame_type.name} without a SUBSCRIBE")
            return self._feed_number if request_id in (0, self._feed_number) else None
        if frame_type is FrameType.READ:
            if self._reads.is_full:
                raise ProtocolError(f"more than {limits.REQUESTS_MAX_OUTSTANDING} READs are open")
            self._reads.check_new(request_id)
            return request_id
        if frame_type in (FrameType.CANCEL, FrameType.PROMOTE):
            return request_id if self._reads.is_waiting(request_id) else None
        if frame_type is FrameType.DATA or (frame_type is FrameType.ERROR and request_id):
            if self.role is Role.SPOKE or request_id not in self._reads:
                raise ProtocolError(f"{frame_type.name} for the id {request_id}, which is not open")
            return request_id
        if request_id:
            raise ProtocolError(f"{frame_type.name} with a request id")
        return self._feed_number + 1 if frame_type is FrameType.SUBSCRIBE else 0

    def _note_sent(self, message: m.Message, request_id: int) -> None:
        match message:
            case m.Data():
                self._handshake.check_codec(message.codec)
                self._reads.answer(request_id, message.blocks, message.last)
            case m.Read():
                self._reads.open(request_id, message.ranges)
            case m.Cancel():
                self._reads.withdraw(request_id)
            case m.Hello():
                self._handshake.hello_sent(message)
                self._state = State.HELLO_SENT
            case m.Challenge():
                self._handshake.challenge()
                self._state = State.CHALLENGED
            case m.Proof():
                self._state = State.PROVEN
            case m.Welcome():
                self._handshake.welcome(message)
                self._state = State.READY
            case m.Subscribe():
                self._feed_number = request_id
            case m.Ping():
                self._pings_sent.asked(message.token)
            case m.Pong():
                self._pings_received.answered(message.token)
            case m.Error() if request_id:
                self._reads.end(request_id)
            case m.Error() | m.Goodbye():
                self._close()
            case _:
                pass

    # --- in ----------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes | bytearray | memoryview) -> list[Event]:
        """Take bytes that were read elsewhere. Events and errors as for ``buffer_updated``."""
        view = memoryview(data).cast("B")
        events: list[Event] = []
        while view and self._state is not State.CLOSED:
            buffer = self.get_buffer(len(view))
            taken = min(len(buffer), len(view))
            buffer[:taken] = view[:taken]
            events += self.buffer_updated(taken)
            view = view[taken:]
        return events

    def get_buffer(self, _size_hint: int = -1) -> memoryview:
        """Where to read the next bytes into (asyncio.BufferedProtocol); a large payload's own buffer while it arrives."""
        return self._receiver.get_buffer()

    def buffer_updated(self, byte_count: int) -> list[Event]:
        """Judge ``byte_count`` bytes that were read into the buffer. Nothing is heard after the connection has closed.

        Raises ProtocolError for bytes PROTOCOL.md does not allow: the connection is then closed, messages that came
        whole in the same call are lost, and ``data_to_send`` holds the ERROR that tells the peer why.
        """
        if self._state is State.CLOSED:
            return []
        try:
            self._receiver.buffer_updated(byte_count)
        except ProtocolError as error:
            self._refuse(error)
            self._events = []
            raise
        events, self._events = self._events, []
        return events

    def receive_eof(self) -> list[Event]:
        """The peer's side of the stream has ended. Never raises: a cut connection is no breach of the protocol."""
        if self._state is State.CLOSED:
            return []
        where = "inside a frame" if self._receiver.inside_frame else f"without GOODBYE in state {self._state.value!r}"
        self._ended_by_peer = True
        self._close()
        return [Closed(f"the connection ended {where}", orderly=False)]

    # FrameOwner: called by the receiver.

    def wants(self, header: FrameHeader) -> bool:
        frame_type, request_id = header.type, header.request_id
        if frame_type is None:
            if self._state is not State.READY:
                raise ProtocolError(f"an unknown frame type in state {self._state.value!r}")
            return False
        if frame_type not in MAY_RECEIVE[self.role, self._state]:
            raise ProtocolError(
                f"{frame_type.name} may not be sent to a {self.role.value} in state {self._state.value!r}"
            )
        if frame_type in WITHOUT_ID and request_id:
            raise ProtocolError(f"{frame_type.name} with a request id")
        if frame_type in FEED:
            if not 0 < request_id <= self._feed_number:
                raise ProtocolError(f"{frame_type.name} for subscription {request_id}, which was never made")
            return request_id == self._feed_number
        if frame_type in (FrameType.CANCEL, FrameType.PROMOTE):
            return self._reads.is_waiting(request_id)
        if frame_type is FrameType.DATA or (frame_type is FrameType.ERROR and request_id):
            return self._wants_answer(header)
        if frame_type is FrameType.READ:
            self._reads.check_new(request_id)
        elif frame_type is FrameType.SUBSCRIBE and request_id != self._feed_number + 1:
            raise ProtocolError(f"subscription {request_id} follows {self._feed_number}")
        return True

    def _wants_answer(self, header: FrameHeader) -> bool:
        if self.role is Role.HUB or header.request_id not in self._reads:
            raise ProtocolError(f"an answer to request {header.request_id}, which is not open")
        if not self._reads.is_withdrawn(header.request_id):
            return True
        if header.last:
            self._reads.end(header.request_id)
        return False

    def head(self, header: FrameHeader, packed_map: memoryview) -> _Head:
        if header.type is FrameType.DATA:
            head = decode_data_head(header, packed_map)
            self._handshake.check_codec(head.codec)
            self._answer = self._reads.check_answer(header.request_id, head.blocks, head.last)
            return head
        return bytes(packed_map) if header.payload_bytes else decode(header, packed_map, b"")

    def complete(self, header: FrameHeader, head: _Head, payload: bytearray | memoryview) -> None:
        if isinstance(head, DataHead):
            # CANCEL may have been sent while the payload was on its way.
            if self._wants_answer(header):
                self._reads.answered(header.request_id, *self._answer)
                self._events.append(Received(header.request_id, m.Data(*head, payload)))
            return
        if header.type in FEED and header.request_id != self._feed_number:
            return
        message = decode(header, head, payload) if isinstance(head, bytes) else head
        if self._note_received(message, header.request_id):
            self._events.append(Received(header.request_id, message))
        if isinstance(message, m.Goodbye):
            self._end_by_peer(f"the peer said goodbye: {message.reason}", orderly=True)
        elif isinstance(message, m.Error) and header.request_id == 0:
            self._end_by_peer(f"the peer gave up: {message.code}: {message.message}", orderly=False)

    def _note_received(self, message: m.Message, request_id: int) -> bool:
        """False when the message was dealt with here."""
        match message:
            case m.Read() if self._reads.is_full:
                refusal = Overloaded(f"more than {limits.REQUESTS_MAX_OUTSTANDING} READs are open on this connection")
                self._enqueue(*encode(_error_message(refusal), request_id))
                return False
            case m.Read():
                self._reads.open(request_id, message.ranges)
            case m.Cancel():
                self._reads.withdraw(request_id)
            case m.Hello():
                return self._greet(message)
            case m.Challenge():
                self._handshake.challenge()
                self._state = State.CHALLENGED
            case m.Proof():
                self._state = State.PROVEN
            case m.Welcome():
                self._handshake.welcome(message)
                self._state = State.READY
            case m.Subscribe():
                self._feed_number = request_id
            case m.Ping():
                self._pings_received.asked(message.token)
            case m.Pong():
                self._pings_sent.answered(message.token)
            case m.Error() if request_id:
                self._reads.end(request_id)
            case _:
                pass
        return True

    # --- the handshake and the end ------------------------------------------------------------------------

    def _greet(self, hello: m.Hello) -> bool:
        try:
            self._handshake.hello_received(hello)
        except VersionMismatch as error:
            self._refuse(error)
            self._events.append(Closed(str(error), orderly=False))
            return False
        self._state = State.HELLO_RECEIVED
        return True

    def _refuse(self, error: ProtocolError | VersionMismatch) -> None:
        """Tell the peer why, and be closed. What is said afterwards is dropped: nobody listens."""
        self._enqueue(*encode(_error_message(error)))
        self._ended_by_peer = True
        self._close()

    def _end_by_peer(self, reason: str, *, orderly: bool) -> None:
        self._ended_by_peer = True
        self._close()
        self._events.append(Closed(reason, orderly))

    def _close(self) -> None:
        self._state = State.CLOSED
        self._reads.clear()
        self._receiver.stop()


def _error_message(error: ProtocolError | VersionMismatch | Overloaded) -> m.Error:
    return m.Error(error.wire_code, cut_text(str(error)), error.retryable)
