"""What a message must satisfy: each broken rule is refused on the way out and on the way in."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from common import limits
from common.blocks import BlockRange
from common.errors import ProtocolError
from common.wire import message_codec, rules
from common.wire.frame import HEADER_BYTES, FrameHeader, FrameType, parse_header
from common.wire.message_codec import cut_text, decode, encode
from common.wire.messages import (
    Changes,
    Codec,
    Error,
    Goodbye,
    Message,
    Ping,
    Priority,
    Promote,
    Read,
    SnapshotPage,
    Stats,
    Subscribe,
)
from tests.wire_dialogues import CATALOG, HELLO, VERSION, WELCOME, data

DATA = data(BlockRange(254, 2), False)
READ = Read(VERSION, (BlockRange(0, 1),), Priority.DEMAND, 0)

BROKEN: list[Message] = [
    replace(HELLO, versions=()),
    replace(HELLO, versions=(1, 1)),
    replace(HELLO, versions=(0,)),
    replace(HELLO, versions=(65536,)),
    replace(HELLO, dataset=""),
    replace(HELLO, dataset="x" * 1025),
    replace(HELLO, dataset="a\nb"),
    replace(HELLO, identity="ä" * 513),
    replace(HELLO, spoke_id=b"short"),
    replace(HELLO, codecs=(Codec.ZSTD,)),
    replace(HELLO, capabilities=("a", "a")),
    replace(HELLO, capabilities=("x" * 65,)),
    replace(WELCOME, catalog_id=b""),
    replace(WELCOME, head_revision=-1),
    replace(WELCOME, head_revision=1 << 63),
    replace(WELCOME, heartbeat_interval_ms=0),
    Subscribe(b"", 4),
    Subscribe(b"x" * 15, 0),
    SnapshotPage(CATALOG, 1, -1, True, ()),
    SnapshotPage(b"", 1, 0, True, ()),
    Changes(CATALOG, 5, 4, ()),
    replace(READ, file_version=b""),
    replace(READ, ranges=()),
    replace(READ, ranges=(BlockRange(0, 0),)),
    replace(READ, ranges=(BlockRange(0, limits.READ_MAX_BLOCKS + 1),)),
    replace(READ, ranges=(BlockRange(4, 2), BlockRange(5, 1))),
    replace(READ, ranges=(BlockRange(4, 2), BlockRange(0, 1))),
    replace(READ, ranges=tuple(BlockRange(2 * index, 1) for index in range(limits.READ_MAX_RANGES + 1))),
    replace(READ, ranges=(BlockRange(limits.BLOCK_INDEX_LIMIT - 1, 2),)),
    replace(READ, deadline_ms=-1),
    replace(DATA, blocks=BlockRange(255, 2)),
    replace(DATA, blocks=BlockRange(limits.BLOCK_INDEX_LIMIT, 2)),
    replace(DATA, blocks=BlockRange(0, 0)),
    replace(DATA, raw_bytes=4096, payload=b"x" * 4096),
    replace(DATA, raw_bytes=8193, payload=b"x" * 8193),
    replace(DATA, digests=b"x" * 8),
    replace(DATA, payload=b"x" * 8191),
    replace(DATA, codec=Codec.ZSTD, payload=b""),
    Promote(Priority.DEMAND, limits.DURATION_MAX_MS + 1),
    Ping(-1),
    Stats({"x": math.nan}),
    Stats({"x": math.inf}),
    Stats({"": 1.0}),
    Stats({str(number): 1.0 for number in range(limits.STATS_MAX_ITEMS + 1)}),
    Error("", "no code", False),
]


@pytest.mark.parametrize("message", BROKEN, ids=lambda message: str(message)[:60])
def test_a_broken_message_is_refused_out_and_in(message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProtocolError):
        encode(message)
    monkeypatch.setattr(message_codec, "check", lambda _: None)
    try:
        head, payload = encode(message)
    except OverflowError:
        return  # msgpack cannot even say it
    monkeypatch.setattr(message_codec, "check", rules.check)
    with pytest.raises(ProtocolError):
        decode(parse_header(head), head[HEADER_BYTES:], payload)


@pytest.mark.parametrize("message", [HELLO, WELCOME, READ, DATA], ids=lambda message: type(message).__name__)
def test_a_missing_key_or_one_of_another_type_is_refused_and_an_unknown_one_ignored(message: Message) -> None:
    head, payload = encode(message)
    header = parse_header(head)
    fields: dict[str, Any] = msgpack.unpackb(head[HEADER_BYTES:])

    def changed(new_fields: dict[Any, Any]) -> Message:
        packed = msgpack.packb(new_fields)
        return decode(header._replace(map_bytes=len(packed)), packed, payload)

    assert changed({**fields, "future": [1, {"a": None}], b"raw": 2.5}) == message
    for key, right in fields.items():
        for wrong in (None, True, 1.5, "text", b"blob", [None], {"a": 1}, -1):
            if type(wrong) is not type(right):
                with pytest.raises(ProtocolError):
                    changed({**fields, key: wrong})
        with pytest.raises(ProtocolError):
            changed({name: value for name, value in fields.items() if name != key})


def test_codecs_never_heard_of_are_not_agreed_but_do_not_hurt() -> None:
    head, _ = encode(HELLO)
    fields = msgpack.unpackb(head[HEADER_BYTES:])
    fields["z"].append(77)
    assert decode(parse_header(head), msgpack.packb(fields), b"") == HELLO
    for message, key in ((DATA, "z"), (READ, "p")):
        head, payload = encode(message)
        fields = {**msgpack.unpackb(head[HEADER_BYTES:]), key: 77}
        with pytest.raises(ProtocolError, match="unknown"):
            decode(parse_header(head), msgpack.packb(fields), payload)


@pytest.mark.parametrize(
    "packed",
    [
        b"\xc1",
        b"\x81\xa1d",
        b"\x81\xa1d\xa2\xff\xff",
        b"\x90",
        b"\x01",
        b"\x81\x01\x01",
        b"\x80\x80",
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa1v\xdd\xff\xff\xff\xff",
        b"\x81\xa1v\xc6\xff\xff\xff\xff",
        b"\x81\x90\x01",
        b"\x81\xa1d\xd4\xff\x01",
        b"\x91" * 60_000,
    ],
    ids=lambda packed: packed[:8].hex(),
)
def test_maps_that_are_not_what_they_should_be_are_refused(packed: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(FrameHeader(FrameType.HELLO, 0, 0, len(packed), 0), packed, b"")


def test_free_text_is_cut_by_the_sender_and_escaped() -> None:
    head, _ = encode(Goodbye("é" * 2000 + "\udcff"))
    message = decode(parse_header(head), head[HEADER_BYTES:], b"")
    assert isinstance(message, Goodbye)
    assert 1020 <= len(message.reason.encode()) <= limits.TEXT_MAX_BYTES
    assert message.reason.endswith("é…")
    assert cut_text("short \udcff") == "short \\udcff"
