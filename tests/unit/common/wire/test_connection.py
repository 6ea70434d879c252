"""The table of legal moves and what stands behind it, end against end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common import limits
from common.blocks import BlockRange
from common.errors import ProtocolError
from common.wire.connection import Closed, Connection, LocalProtocolError, Received, Role, State
from common.wire.frame import FLAG_LAST, FLAG_OPTIONAL, FrameType
from common.wire.handshake import negotiate
from common.wire.message_codec import TYPE_OF, encode
from common.wire.messages import (
    TOKEN,
    Cancel,
    Challenge,
    Changes,
    Check,
    Checked,
    Codec,
    Data,
    Error,
    Fetch,
    Goodbye,
    Heartbeat,
    Kept,
    Message,
    Orders,
    Piece,
    Ping,
    Pong,
    Priority,
    Promote,
    Proof,
    Report,
    Reported,
    SnapshotPage,
    Stats,
    Subscribe,
)
from common.wire.moves import FEED, MAY_RECEIVE, MAY_SEND
from tests.wire_dialogues import CATALOG, HELLO, WELCOME, carry, data, drain, greeted, read

SAMPLES: list[tuple[Message, int]] = [
    (HELLO, 0),
    (WELCOME, 0),
    (Subscribe(CATALOG, 3), 0),
    (SnapshotPage(CATALOG, 1, 0, True, ()), 0),
    (Changes(CATALOG, 1, 1, ()), 0),
    (Heartbeat(CATALOG, 1), 0),
    (read((0, 1)), 5),
    (data(BlockRange(0, 1), True), 4),
    (Cancel(), 4),
    (Promote(Priority.DEMAND, 5), 4),
    (Ping(1), 0),
    (Pong(1), 0),
    (Stats({}), 0),
    (Error("internal", "", False), 0),
    (Goodbye(""), 0),
    (Check(1, b"d/f"), 0),
    (Checked(1, CATALOG, 3), 0),
    (Challenge(b"n" * 32, b"p" * 32), 0),
    (Proof(b"p" * 32), 0),
    (Report(1, CATALOG, 5, 0, False, b"bytes"), 0),
    (Reported(1, 5), 0),
    (Orders(1), 0),
    (Kept(1, ()), 0),
    (Fetch(1, CATALOG, 0), 0),
    (Piece(1, 0, 5, b"bytes"), 0),
]
HELLO_WITH_TOKEN = replace(HELLO, capabilities=(TOKEN,), nonce=b"n" * 32)


def _in_state(role: Role, state: State) -> Connection:
    """A connection in this state; READY ones have READ 4, one subscription and one PING each way open."""
    spoke, hub = Connection(Role.SPOKE), Connection(Role.HUB)
    found = {Role.SPOKE: spoke, Role.HUB: hub}[role]
    if state is State.START:
        return found
    spoke.send(HELLO_WITH_TOKEN)
    carry(spoke, hub)
    if state in (State.HELLO_SENT, State.HELLO_RECEIVED):
        return found
    if state in (State.CHALLENGED, State.PROVEN):
        hub.send(Challenge(b"n" * 32, b"p" * 32))
        carry(hub, spoke)
        if state is State.PROVEN:
            spoke.send(Proof(b"p" * 32))
            carry(spoke, hub)
        return found
    hub.send(WELCOME)
    carry(hub, spoke)
    spoke.send(Subscribe(b"", 0))
    spoke.send(read((0, 1)), 4)
    spoke.send(Ping(1))
    carry(spoke, hub)
    hub.send(Ping(1))
    carry(hub, spoke)
    if state is State.CLOSED:
        found.send(Goodbye("done"))
        found.data_to_send()
    return found


@pytest.mark.parametrize(("role", "state"), list(MAY_SEND), ids=lambda value: value.value)
def test_every_message_in_every_state_is_sent_or_refused_as_the_table_says(role: Role, state: State) -> None:
    assert {TYPE_OF[type(message)] for message, _ in SAMPLES} == set(FrameType)
    for message, request_id in SAMPLES:
        connection = _in_state(role, state)
        if TYPE_OF[type(message)] in MAY_SEND[role, state]:
            connection.send(message, request_id)
            assert connection.pending_bytes > 0
        else:
            with pytest.raises(LocalProtocolError):
                connection.send(message, request_id)
            assert connection.state is state
            assert connection.pending_bytes == 0


@pytest.mark.parametrize(("role", "state"), [key for key in MAY_RECEIVE if key[1] is not State.CLOSED], ids=str)
def test_every_message_in_every_state_is_received_or_refused_as_the_table_says(role: Role, state: State) -> None:
    for message, request_id in SAMPLES:
        frame_type = TYPE_OF[type(message)]
        wire_id = 1 if frame_type in FEED else 2 if frame_type is FrameType.SUBSCRIBE else request_id
        head, payload = encode(message, wire_id)
        connection = _in_state(role, state)
        if frame_type in MAY_RECEIVE[role, state]:
            assert connection.receive_data(head + payload)[0] == Received(wire_id, message)
        else:
            with pytest.raises(ProtocolError):
                connection.receive_data(head + payload)
            assert connection.state is State.CLOSED
            told = Connection(role.peer).receive_data(drain(connection))
            assert isinstance(told[0], Received)
            assert isinstance(told[0].message, Error)
            assert told[0].message.code == "protocol"


def test_a_spoke_that_offers_no_token_is_not_challenged() -> None:
    spoke, hub = Connection(Role.SPOKE), Connection(Role.HUB)
    spoke.send(HELLO)
    carry(spoke, hub)
    with pytest.raises(LocalProtocolError, match="offers no token"):
        hub.send(Challenge(b"n" * 32, b"p" * 32))
    head, payload = encode(Challenge(b"n" * 32, b"p" * 32))
    with pytest.raises(ProtocolError, match="offers no token"):
        spoke.receive_data(head + payload)


def test_a_read_is_answered_extent_by_extent_and_its_id_is_free_again() -> None:
    spoke, hub = greeted()
    spoke.send(read((250, 10)), 9)
    assert carry(spoke, hub) == [Received(9, read((250, 10)))]
    hub.send(data(BlockRange(256, 4), False), 9)
    hub.send(data(BlockRange(250, 6), True), 9)
    assert not hub.is_open(9)
    assert spoke.is_open(9)
    assert carry(hub, spoke) == [
        Received(9, data(BlockRange(256, 4), False)),
        Received(9, data(BlockRange(250, 6), True)),
    ]
    assert not spoke.is_open(9)
    spoke.send(read((0, 1)), 9)
    assert spoke.is_open(9)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (data(BlockRange(5, 1), False), "not owed"),
        (data(BlockRange(1, 2), False), "not owed"),
        (data(BlockRange(0, 2), True), "still owed"),
        (replace(data(BlockRange(0, 2), False), codec=Codec.LZ4), "not agreed"),
    ],
)
def test_an_answer_that_does_not_fit_the_read_is_refused_on_both_sides(answer: Data, reason: str) -> None:
    spoke, hub = greeted()
    spoke.send(read((0, 2), (8, 2)), 1)
    carry(spoke, hub)
    with pytest.raises(LocalProtocolError, match=reason):
        hub.send(answer, 1)
    head, payload = encode(answer, 1)
    with pytest.raises(ProtocolError, match=reason):
        spoke.receive_data(head + payload)


def test_a_block_sent_twice_and_a_missing_last_flag_are_refused() -> None:
    spoke, hub = greeted()
    spoke.send(read((0, 2)), 1)
    carry(spoke, hub)
    hub.send(data(BlockRange(0, 1), False), 1)
    with pytest.raises(LocalProtocolError, match="not owed"):
        hub.send(data(BlockRange(0, 1), False), 1)
    with pytest.raises(LocalProtocolError, match="LAST=0 with 0 blocks"):
        hub.send(data(BlockRange(1, 1), False), 1)


def test_data_after_cancel_is_dropped_until_the_hub_ends_the_request() -> None:
    spoke, hub = greeted()
    spoke.send(read((0, 2)), 1)
    spoke.send(read((0, 2)), 2)
    carry(spoke, hub)
    hub.send(data(BlockRange(0, 1), False), 1)
    hub.send(data(BlockRange(0, 2), True), 2)
    late = drain(hub)
    spoke.send(Cancel(), 1)
    spoke.send(Cancel(), 2)
    assert spoke.open_reads == 0
    with pytest.raises(LocalProtocolError):
        spoke.send(read((0, 1)), 1)  # the hub has not ended it
    assert spoke.receive_data(late) == []
    assert carry(spoke, hub) == [Received(1, Cancel())]  # 2 was done: nothing to withdraw
    hub.send(Error("cancelled", "", True), 1)
    assert carry(hub, spoke) == []
    spoke.send(read((0, 1)), 1)
    spoke.send(read((0, 1)), 2)
    assert carry(spoke, hub) == [Received(1, read((0, 1))), Received(2, read((0, 1)))]
    assert spoke.open_reads == hub.open_reads == 2


def test_cancel_while_the_payload_is_on_its_way_drops_it() -> None:
    spoke, hub = greeted()
    spoke.send(read((0, 2)), 1)
    carry(spoke, hub)
    hub.send(data(BlockRange(0, 2), True), 1)
    late = drain(hub)
    assert spoke.receive_data(late[:3000]) == []
    spoke.send(Cancel(), 1)
    assert spoke.receive_data(late[3000:]) == []
    spoke.send(read((0, 1)), 1)


def test_cancel_and_promote_of_a_finished_read_are_dropped_where_they_are_sent() -> None:
    spoke, _ = greeted()
    spoke.data_to_send()
    spoke.send(Cancel(), 77)
    spoke.send(Promote(Priority.DEMAND, 0), 77)
    assert spoke.pending_bytes == 0


def test_a_new_subscription_silences_the_one_before() -> None:
    spoke, hub = greeted()
    spoke.send(Subscribe(b"", 0))
    carry(spoke, hub)
    hub.send(Heartbeat(CATALOG, 1))
    late = drain(hub)
    spoke.send(Subscribe(CATALOG, 1))
    assert spoke.receive_data(late) == []
    assert carry(spoke, hub) == [Received(2, Subscribe(CATALOG, 1))]
    hub.send(Heartbeat(CATALOG, 2), 1)  # a feed that did not know it was replaced
    hub.send(Heartbeat(CATALOG, 3))
    assert carry(hub, spoke) == [Received(2, Heartbeat(CATALOG, 3))]


def test_reads_above_the_limit_are_refused_with_overloaded_and_the_rest_live_on() -> None:
    spoke, hub = greeted()
    for request_id in range(1, limits.REQUESTS_MAX_OUTSTANDING + 1):
        spoke.send(read((0, 1)), request_id)
    with pytest.raises(LocalProtocolError, match="are open"):
        spoke.send(read((0, 1)), 5000)
    assert len(carry(spoke, hub)) == limits.REQUESTS_MAX_OUTSTANDING
    head, _ = encode(read((0, 1)), 5000)
    assert hub.receive_data(head) == []
    assert hub.open_reads == limits.REQUESTS_MAX_OUTSTANDING
    assert b"overloaded" in drain(hub)
    spoke.send(Cancel(), 1)
    spoke.send(read((0, 1)), 5000)
    assert carry(spoke, hub) == [Received(1, Cancel()), Received(5000, read((0, 1)))]


def test_new_request_ids_pass_over_those_in_use() -> None:
    spoke, _ = greeted()
    spoke.send(read((0, 1)), 1)
    spoke.send(read((0, 1)), 2)
    spoke.send(Cancel(), 2)
    assert spoke.new_request_id() == 3


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"), [((1,), (1,), 1), ((1, 2), (2, 3), 2), ((2, 1), (1,), 1), ((3, 4), (4, 3, 2), 4)]
)
def test_the_highest_common_version_is_agreed(ours: tuple[int, ...], theirs: tuple[int, ...], agreed: int) -> None:
    assert negotiate(ours, theirs) == agreed
    spoke, hub = Connection(Role.SPOKE, theirs), Connection(Role.HUB, ours)
    spoke.send(replace(HELLO, versions=theirs))
    carry(spoke, hub)
    assert hub.version == agreed
    hub.send(replace(WELCOME, version=agreed))
    carry(hub, spoke)
    assert (spoke.version, spoke.state) == (agreed, State.READY)


def test_no_common_version_closes_both_ends_and_names_the_reason() -> None:
    spoke, hub = Connection(Role.SPOKE, (1,)), Connection(Role.HUB, (2, 3))
    spoke.send(HELLO)
    assert carry(spoke, hub) == [Closed("no common protocol version: offered [1], spoken here [2, 3]", False)]
    told, closed = carry(hub, spoke)
    assert isinstance(told, Received)
    assert isinstance(told.message, Error)
    assert told.message.code == "version-mismatch"
    assert isinstance(closed, Closed)


@pytest.mark.parametrize(
    "welcome",
    [
        replace(WELCOME, version=2),
        replace(WELCOME, dataset="another"),
        replace(WELCOME, codecs=(Codec.RAW, Codec.LZ4)),
    ],
)
def test_a_welcome_that_does_not_answer_the_hello_is_refused_on_both_sides(welcome: Message) -> None:
    spoke, hub = Connection(Role.SPOKE), Connection(Role.HUB)
    spoke.send(HELLO)
    carry(spoke, hub)
    with pytest.raises(LocalProtocolError):
        hub.send(welcome)
    assert hub.state is State.HELLO_RECEIVED
    with pytest.raises(ProtocolError):
        spoke.receive_data(encode(welcome)[0])


def test_pongs_answer_pings_in_order_and_pings_are_bounded() -> None:
    spoke, hub = greeted()
    for token in range(limits.PINGS_MAX_OUTSTANDING):
        spoke.send(Ping(token))
    with pytest.raises(LocalProtocolError):
        spoke.send(Ping(99))
    carry(spoke, hub)
    with pytest.raises(LocalProtocolError):
        hub.send(Pong(1))
    hub.send(Pong(0))
    assert carry(hub, spoke) == [Received(0, Pong(0))]
    with pytest.raises(ProtocolError, match="oldest"):
        spoke.receive_data(encode(Pong(7))[0])


def test_goodbye_and_end_of_stream_close_and_what_is_said_afterwards_is_dropped() -> None:
    spoke, hub = greeted()
    spoke.send(read((0, 1)), 1)
    carry(spoke, hub)
    hub.send(Goodbye("restart"))
    assert carry(hub, spoke) == [
        Received(0, Goodbye("restart")),
        Closed("the peer said goodbye: restart", orderly=True),
    ]
    spoke.send(read((0, 1)), 2)
    assert spoke.pending_bytes == 0
    assert spoke.receive_eof() == []
    with pytest.raises(LocalProtocolError):
        hub.send(data(BlockRange(0, 1), True), 1)

    spoke, hub = greeted()
    assert hub.receive_eof() == [Closed("the connection ended without GOODBYE in state 'ready'", orderly=False)]
    hub.send(Ping(1))
    assert hub.pending_bytes == 0
    spoke.receive_data(b"\0\0\0")
    assert spoke.receive_eof() == [Closed("the connection ended inside a frame", orderly=False)]


def test_unknown_types_are_skipped_only_when_optional_and_only_when_ready() -> None:
    def unknown(flags: int, body: bytes) -> bytes:
        head = bytearray(encode(Goodbye(""))[0][:16])
        head[0:4] = len(body).to_bytes(4, "little")
        head[4:8] = (1).to_bytes(4, "little")
        head[8:10] = (999).to_bytes(2, "little")
        head[10:12] = flags.to_bytes(2, "little")
        return bytes(head) + body

    spoke, _ = greeted()
    ping = encode(Ping(4))[0]
    frame = unknown(FLAG_OPTIONAL | 0x80, b"\x80" + b"x" * 300_000)
    assert spoke.receive_data(frame + ping) == [Received(0, Ping(4))]
    with pytest.raises(ProtocolError, match="not marked optional"):
        spoke.receive_data(unknown(0, b"\x80"))
    with pytest.raises(ProtocolError, match="unknown frame type"):
        Connection(Role.HUB).receive_data(unknown(FLAG_OPTIONAL, b"\x80"))


@pytest.mark.parametrize(("offset", "value"), [(10, 4), (10, FLAG_LAST), (11, 1), (12, 9)])
def test_flags_and_ids_that_mean_nothing_are_refused(offset: int, value: int) -> None:
    spoke, _ = greeted()
    frame = bytearray(encode(Ping(4))[0])
    frame[offset] = value
    with pytest.raises(ProtocolError):
        spoke.receive_data(frame)


def test_a_http_client_is_told_off() -> None:
    hub = Connection(Role.HUB)
    with pytest.raises(ProtocolError):
        hub.receive_data(b"GET / HTTP/1.1\r\nHost: hub\r\n\r\n")
    assert hub.receive_data(b"more") == []
    assert hub.buffer_updated(3) == []


def test_large_payloads_are_sent_as_views_and_received_in_place() -> None:
    spoke, hub = greeted()
    spoke.send(read((0, 256)), 1)
    carry(spoke, hub)
    message = data(BlockRange(0, 256), True)
    hub.send(message, 1)
    hub.send(Ping(1))
    pending_bytes = hub.pending_bytes
    head, payload, ping = hub.data_to_send()
    assert isinstance(payload, memoryview)
    assert payload.obj is message.payload
    assert pending_bytes == len(head) + len(payload) + len(ping)
    assert hub.pending_bytes == 0
    assert hub.data_to_send() == []

    assert spoke.receive_data(head) == []
    landing = spoke.get_buffer(-1)
    assert len(landing) == 1 << 20
    target = landing.obj
    landing[:] = payload
    landing.release()
    [event] = spoke.buffer_updated(1 << 20)
    assert isinstance(event, Received)
    assert isinstance(event.message, Data)
    assert isinstance(event.message.payload, memoryview)
    assert event.message.payload.obj is target
    assert event.message == message
