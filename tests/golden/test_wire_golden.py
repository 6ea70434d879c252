"""Golden bytes: PROTOCOL.md's promise that a message looks the same for ever. A file here changes only with a new version.

``HEADRACE_GOLDEN_WRITE=1`` writes files that are missing (never one that exists).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.blocks import BlockRange
from common.entries import Change, Entry, Kind
from common.errors import ProtocolError
from common.wire.frame import HEADER_BYTES, FrameType, parse_header
from common.wire.message_codec import TYPE_OF, decode, encode
from common.wire.messages import (
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
    Hello,
    Kept,
    KeptOrder,
    Message,
    Orders,
    Piece,
    Ping,
    Pong,
    Priority,
    Promote,
    Proof,
    Read,
    Report,
    Reported,
    SnapshotPage,
    Stats,
    Subscribe,
    Welcome,
)

GOLDEN = Path(__file__).parent / "wire"
CATALOG = bytes(range(16))
VERSION = bytes(range(0xF0, 0x100))
FILE = Entry(Kind.FILE, 0o640, 1_048_577, 1_700_000_000_123_456_789, VERSION)
ENTRIES = (
    (b"train", Entry(Kind.DIRECTORY, 0o755, 0, -1)),
    (b"README", FILE),
    (b"train/a b\n.bin", FILE),
    (b"train/\xff\xfe", Entry(Kind.SYMLINK, 0o777, 6, 5, b"", b"../a b")),
)

SAMPLES: dict[str, tuple[int, Message]] = {
    "hello": (0, Hello((1, 2), "c4", "räck-7", CATALOG, (Codec.RAW, Codec.ZSTD), ("future",))),
    "welcome": (0, Welcome(1, "c4", CATALOG, 1 << 40, 2000, (Codec.RAW,), ())),
    "welcome-buffer": (0, Welcome(1, "c4", CATALOG, 300, 2000, (Codec.RAW, Codec.ZSTD), (), 4_194_304)),
    "subscribe-new": (1, Subscribe(b"", 0)),
    "subscribe-resume": (2, Subscribe(CATALOG, 300)),
    "snapshot": (1, SnapshotPage(CATALOG, 300, 4, True, ENTRIES)),
    "snapshot-empty": (1, SnapshotPage(CATALOG, 0, 0, True, ())),
    "changes": (
        2,
        Changes(CATALOG, 300, 304, (Change(301, b"train/x", None), Change(303, *ENTRIES[1]), Change(304, *ENTRIES[3]))),
    ),
    "changes-former": (1, Changes(CATALOG, 304, 304, (), VERSION)),
    "heartbeat": (2, Heartbeat(CATALOG, 304)),
    "heartbeat-held": (
        2,
        Heartbeat(CATALOG, 304, 5, "/data/räck cannot be reached: No such file or directory", 61_500),
    ),
    "read": (
        9,
        Read(VERSION, (BlockRange(0, 1), BlockRange(255, 300), BlockRange((1 << 40) - 1, 1)), Priority.PREFETCH, 1500),
    ),
    "data-raw-last": (9, Data(BlockRange(256, 1), Codec.RAW, 5, b"\x11" * 8, True, b"bytes")),
    "data-zstd": (0xFFFF_FFFF, Data(BlockRange(0, 2), Codec.ZSTD, 8192, b"\x22" * 16, False, b"packed")),
    "cancel": (9, Cancel()),
    "promote": (9, Promote(Priority.DEMAND, 0)),
    "ping": (0, Ping(0xFFFF_FFFF_FFFF_FFFF)),
    "pong": (0, Pong(7)),
    "stats": (0, Stats({"hit_ratio": 0.995, "stall_s": 3.0})),
    "error-request": (9, Error("stale", "train/x changed", False)),
    "error-connection": (0, Error("unknown-dataset", "no dataset 'c5' here; c4", False)),
    "goodbye": (0, Goodbye("restart")),
    "subscribe-revision": (1, Subscribe(CATALOG, 300, 290)),
    "subscribe-snapshot": (1, Subscribe(b"", 0, None, "epoch-1")),
    "check": (0, Check(0xFFFF_FFFF_FFFF_FFFF, b"train/\xff\xfe")),
    "checked": (0, Checked(7, CATALOG, 304)),
    "hello-token": (0, Hello((1,), "c4", "rack-7", CATALOG, (Codec.RAW,), ("token",), bytes(range(32)))),
    "challenge": (0, Challenge(bytes(range(32, 64)), bytes(range(64, 96)))),
    "proof": (0, Proof(bytes(range(96, 128)))),
    "report": (0, Report(7, CATALOG, 70_000, 65_536, True, b"bytes")),
    "report-ask": (0, Report(0xFFFF_FFFF_FFFF_FFFF, CATALOG, 70_000, 0, False, b"")),
    "reported": (0, Reported(7, 65_541)),
    "reported-not": (0, Reported(8, 0, "disk", "the disk is full")),
    "orders": (0, Orders(9)),
    "kept": (
        0,
        Kept(9, (KeptOrder(CATALOG, 70_000, 1_536, "gpu-3", True), KeptOrder(VERSION, 300, 64, "räck-7", False))),
    ),
    "kept-none": (0, Kept(9, (), "disk", "the disk is gone")),
    "fetch": (0, Fetch(10, VERSION, 65_536)),
    "piece": (0, Piece(10, 65_536, 70_000, b"more bytes")),
    "piece-not": (0, Piece(11, 0, 0, b"", "order", "not kept")),
    "checked-not": (0, Checked(8, CATALOG, 304, "source-read", "the disk is away")),
}


def _hex_lines(frame: bytes, map_bytes: int) -> str:
    """Header, map and payload, each from a new line, 32 bytes a line."""
    parts = (frame[:HEADER_BYTES], frame[HEADER_BYTES : HEADER_BYTES + map_bytes], frame[HEADER_BYTES + map_bytes :])
    lines = [part[start : start + 32].hex(" ") for part in parts for start in range(0, len(part), 32)]
    return "\n".join(lines) + "\n"


def test_every_frame_type_has_golden_bytes() -> None:
    assert {TYPE_OF[type(message)] for _, message in SAMPLES.values()} == set(FrameType)
    assert {path.stem for path in GOLDEN.glob("*.hex")} == set(SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
def test_golden_bytes(name: str) -> None:
    request_id, message = SAMPLES[name]
    path = GOLDEN / f"{name}.hex"
    head, payload = encode(message, request_id)
    frame = head + payload
    if not path.exists() and os.environ.get("HEADRACE_GOLDEN_WRITE") == "1":
        path.write_text(_hex_lines(frame, len(head) - HEADER_BYTES))
    golden = bytes.fromhex(path.read_text())
    assert _hex_lines(frame, len(head) - HEADER_BYTES) == path.read_text()
    header = parse_header(golden)
    map_end = HEADER_BYTES + header.map_bytes
    assert header.request_id == request_id
    assert decode(header, golden[HEADER_BYTES:map_end], golden[map_end:]) == message


@pytest.mark.parametrize("name", ["changes", "changes-former", "snapshot", "snapshot-empty"])
def test_names_of_a_hub_that_sends_no_digests(name: str) -> None:
    request_id, message = SAMPLES[name]
    golden = bytes.fromhex((GOLDEN.parent / "wire_before_digests" / f"{name}.hex").read_text())
    header = parse_header(golden)
    map_end = HEADER_BYTES + header.map_bytes
    assert decode(header, golden[HEADER_BYTES:map_end], golden[map_end:]) == message
    assert header.request_id == request_id


@pytest.mark.parametrize("name", ["changes", "changes-former", "snapshot"])
def test_a_flipped_bit_in_names_is_refused(name: str) -> None:
    _, message = SAMPLES[name]
    head, payload = encode(message)
    header = parse_header(head)
    for bit in range(0, 8 * len(payload), 7):
        flipped = bytearray(payload)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ProtocolError, match="digest"):
            decode(header, head[HEADER_BYTES:], flipped)
