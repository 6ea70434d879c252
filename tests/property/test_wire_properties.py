"""For all messages and all cuts: round trip, the same events however the bytes arrive, no foreign error, bounded memory."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from common import limits
from common.blocks import BlockRange, split_at_extents
from common.entries import Change, Entry
from common.errors import ProtocolError
from common.wire.connection import Closed, Connection, Event, Received, Role
from common.wire.entry_codec import decode_changes, decode_entries, encode_changes, encode_entries
from common.wire.frame import HEADER_BYTES, FrameType, parse_header
from common.wire.message_codec import TYPE_OF, cut_text, decode, encode
from common.wire.messages import Error, Goodbye, Message
from tests import strategies
from tests.wire_dialogues import WELCOME, answering_hub, asking_spoke, data, greeted, hello_bytes, read, welcome_bytes

ANSWERS = answering_hub()
_, ASKED = asking_spoke()


def test_the_strategies_make_every_message() -> None:
    assert set(TYPE_OF.values()) == set(FrameType)


@settings(max_examples=300)
@given(strategies.messages, strategies.request_ids)
@example(Goodbye("x" * limits.TEXT_MAX_BYTES), 1)
def test_round_trip(message: Message, request_id: int) -> None:
    head, payload = encode(message, request_id)
    header = parse_header(head)
    assert header.type is TYPE_OF[type(message)]
    assert header.request_id == request_id
    assert header.map_bytes == len(head) - HEADER_BYTES
    assert header.payload_bytes == len(payload)
    assert decode(header, head[HEADER_BYTES:], payload) == message


@settings(max_examples=100)
@given(strategies.entry_lists)
def test_entries_round_trip(entries: tuple[tuple[bytes, Entry], ...]) -> None:
    assert decode_entries(encode_entries(entries)) == entries


@settings(max_examples=100)
@given(strategies.change_lists())
def test_changes_round_trip(changes: tuple[Change, ...]) -> None:
    assert decode_changes(encode_changes(changes)) == changes


@settings(max_examples=100)
@given(st.text(max_size=300), st.integers(4, 400))
def test_cut_text_fits_and_keeps_what_fits(text: str, max_bytes: int) -> None:
    found = cut_text(text, max_bytes)
    assert len(found.encode()) <= max_bytes
    if max(text, default="") < "\ud800" and len(text.encode()) <= max_bytes:
        assert found == text


def _listening_spoke() -> Connection:
    spoke, _ = asking_spoke()
    return spoke


def _listening_hub() -> Connection:
    return Connection(Role.HUB)


def _pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [stream[start:end] for start, end in pairwise(places)]


def _hear(connection: Connection, pieces: list[bytes]) -> list[Event]:
    return [event for piece in pieces for event in connection.receive_data(piece)]


WHOLE = _hear(_listening_spoke(), [ANSWERS])


def test_the_whole_answer_is_heard() -> None:
    assert len(WHOLE) == 13
    assert isinstance(WHOLE[-1], Closed)
    assert WHOLE[1] == Received(1, data(BlockRange(0, 3), True, 2 * 4096 + 17))


@settings(max_examples=150)
@given(st.lists(st.integers(0, 1 << 30), max_size=12))
@example(list(range(len(ANSWERS))))
def test_split_anywhere_gives_the_same_events(cuts: list[int]) -> None:
    assert _hear(_listening_spoke(), _pieces(ANSWERS, cuts)) == WHOLE


def test_split_anywhere_gives_the_hub_the_same_events() -> None:
    hello = hello_bytes()
    events: list[list[Event]] = []
    for cut in range(len(ASKED) - len(hello)):
        hub = _listening_hub()
        assert len(_hear(hub, _pieces(hello, [cut]))) == 1
        hub.send(WELCOME)
        asked = ASKED[len(hello) :]
        events.append(_hear(hub, [asked[:cut], asked[cut:]]))
    assert len(events[0]) == 9
    assert all(heard == events[0] for heard in events)


@given(st.integers(0, len(ANSWERS) - 1))
@settings(max_examples=100)
def test_truncation_gives_a_prefix_of_the_events_and_then_closed(length: int) -> None:
    spoke = _listening_spoke()
    heard = spoke.receive_data(ANSWERS[:length])
    assert heard == WHOLE[: len(heard)]
    [closed] = spoke.receive_eof()
    assert isinstance(closed, Closed)
    assert not closed.orderly


_edits = st.lists(
    st.tuples(
        st.sampled_from(("change", "delete", "insert")), st.integers(0, 1 << 30), st.binary(min_size=1, max_size=24)
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=300)
@given(_edits, st.sampled_from((ANSWERS, welcome_bytes(), ASKED)), st.lists(st.integers(0, 1 << 30), max_size=3))
def test_edited_bytes_raise_only_protocol_error_and_close(
    edits: list[tuple[str, int, bytes]], stream: bytes, cuts: list[int]
) -> None:
    edited = bytearray(stream)
    for how, number, piece in edits:
        place = number % (len(edited) + 1)
        edited[place : place + (0 if how == "insert" else len(piece))] = b"" if how == "delete" else piece
    connection = _listening_hub() if stream is ASKED else _listening_spoke()
    try:
        _hear(connection, _pieces(bytes(edited), cuts))
    except ProtocolError as error:
        assert connection.state.value == "closed"
        told = encode(Error("protocol", str(error), False))[0]
        assert b"".join(connection.data_to_send()).endswith(told)
    connection.receive_eof()


@settings(max_examples=100)
@given(strategies.range_lists(), st.data())
def test_a_read_answered_in_any_order_and_cut_is_whole_exactly_at_last(
    ranges: tuple[BlockRange, ...], source: st.DataObject
) -> None:
    spoke, hub = greeted()
    spoke.send(read(*ranges), 1)
    for chunk in spoke.data_to_send():
        hub.receive_data(chunk)
    parts = [part for blocks in ranges for part in split_at_extents(blocks)]
    order = source.draw(st.permutations(parts))
    for number, part in enumerate(order, 1):
        assert hub.is_open(1)
        hub.send(data(part, number == len(order), part.block_count * 4096 - 1), 1)
    assert not hub.is_open(1)
    events = [event for chunk in hub.data_to_send() for event in spoke.receive_data(chunk)]
    assert len(events) == len(order)
    assert not spoke.is_open(1)


def _peak_bytes(connection: Connection, stream: bytes) -> int:
    tracemalloc.start()
    try:
        for start in range(0, len(stream), 65536):
            connection.receive_data(stream[start : start + 65536])
    except ProtocolError:
        pass
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak_bytes


def _header(body_bytes: int, map_bytes: int, frame_type: int, request_id: int, flags: int = 0) -> bytes:
    return b"".join(
        number.to_bytes(width, "little")
        for number, width in ((body_bytes, 4), (map_bytes, 4), (frame_type, 2), (flags, 2), (request_id, 4))
    )


def test_a_claimed_length_costs_no_memory_before_it_is_allowed() -> None:
    claims = [
        _header(0xFFFF_FFFF, 0xFFFF_FFFF, FrameType.DATA, 1),
        _header(0xFFFF_FFFF, 10, FrameType.DATA, 1),
        _header(1 << 20, 10, FrameType.PING, 0),
        _header(1 << 20, 10, FrameType.DATA, 12345),  # not asked for
        _header(1 << 20, 3, FrameType.DATA, 1) + b"\x81\xa1b",  # a map that is cut
        _header((1 << 20) + 1, 1, FrameType.DATA, 1) + b"\x80",  # a map without its keys
        _header(1 << 20, 1, FrameType.SNAPSHOT, 7) + b"\x80",  # a subscription never made
    ]
    for claim in claims:
        assert _peak_bytes(_listening_spoke(), claim) < 64 * 1024


def test_an_array_in_a_payload_cannot_claim_more_than_a_page() -> None:
    for claim in (b"\xdd\x00\xff\xff\xff", b"\x91\x98\xc4\x00\xdd\x00\xff\xff\xff"):
        stream = _header(1 + len(claim), 1, FrameType.SNAPSHOT, 1) + b"\x80" + claim
        assert _peak_bytes(_listening_spoke(), stream) < 256 * 1024


def test_hostile_nesting_and_array_claims_stay_bounded() -> None:
    deep = b"\x91" * 65_000
    wide = b"\xdc\x04\x00" * 21_000
    page = b"\xdc\x10\x00" * 300_000
    for stream in (
        _header(len(deep), len(deep), FrameType.HEARTBEAT, 1) + deep,
        _header(len(wide), len(wide), FrameType.HEARTBEAT, 1) + wide,
        _header(1 + len(page), 1, FrameType.SNAPSHOT, 1) + b"\x80" + page,
    ):
        assert _peak_bytes(_listening_spoke(), stream) < 24 << 20
