"""Messages to frames and back: the short keys of PROTOCOL.md and the types behind them.

``encode`` checks before it writes, ``decode`` checks what it read; nothing but ProtocolError escapes either. Payloads
are passed through, never copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast

import msgpack
from xxhash import xxh3_64_intdigest

from common import limits
from common.blocks import BlockRange
from common.errors import ProtocolError
from common.wire import messages as m
from common.wire.entry_codec import decode_changes, decode_entries, encode_changes, encode_entries
from common.wire.frame import FLAG_LAST, FLAG_OPTIONAL, OPTIONAL_TYPES, FrameHeader, FrameType, pack_header
from common.wire.rules import ID_BYTES, check, check_data

Payload = bytes | bytearray | memoryview
_Map = dict[str, Any]
_T = TypeVar("_T")
_ANSWERS = (m.Checked, m.Reported, m.Kept, m.Piece)
_PACKER_BYTES = 4096  # grows when it must; the default of 256 KiB would be mapped and unmapped for each frame

TYPE_OF: Mapping[type, FrameType] = {
    m.Hello: FrameType.HELLO,
    m.Welcome: FrameType.WELCOME,
    m.Subscribe: FrameType.SUBSCRIBE,
    m.SnapshotPage: FrameType.SNAPSHOT,
    m.Changes: FrameType.CHANGES,
    m.Heartbeat: FrameType.HEARTBEAT,
    m.Read: FrameType.READ,
    m.Data: FrameType.DATA,
    m.Cancel: FrameType.CANCEL,
    m.Promote: FrameType.PROMOTE,
    m.Ping: FrameType.PING,
    m.Pong: FrameType.PONG,
    m.Stats: FrameType.STATS,
    m.Error: FrameType.ERROR,
    m.Goodbye: FrameType.GOODBYE,
    m.Check: FrameType.CHECK,
    m.Checked: FrameType.CHECKED,
    m.Challenge: FrameType.CHALLENGE,
    m.Proof: FrameType.PROOF,
    m.Report: FrameType.REPORT,
    m.Reported: FrameType.REPORTED,
    m.Orders: FrameType.ORDERS,
    m.Kept: FrameType.KEPT,
    m.Fetch: FrameType.FETCH,
    m.Piece: FrameType.PIECE,
}


def cut_text(text: str, max_bytes: int = limits.TEXT_MAX_BYTES) -> str:
    """Free text made fit for the wire: at most ``max_bytes`` of UTF-8, what UTF-8 cannot say escaped."""
    encoded = text.encode("utf-8", "backslashreplace")
    return encoded.decode() if len(encoded) <= max_bytes else encoded[: max_bytes - 3].decode("utf-8", "ignore") + "…"


# --- out -------------------------------------------------------------------------------------------------


def encode(message: m.Message, request_id: int = 0) -> tuple[bytes, Payload]:
    """Header and map in one ``bytes``, and the payload (empty for most types).

    The texts of ERROR and GOODBYE are cut to their limit. Raises ProtocolError when the message breaks a rule.
    """
    if isinstance(message, m.Error):
        message = m.Error(message.code, cut_text(message.message), message.retryable)
    elif isinstance(message, m.Goodbye):
        message = m.Goodbye(cut_text(message.reason))
    elif isinstance(message, _ANSWERS) and message.message:
        message = replace(message, message=cut_text(message.message))
    check(message)
    frame_type = TYPE_OF[type(message)]
    fields, payload = _ENCODERS[frame_type](message)
    packed: bytes = msgpack.Packer(buf_size=_PACKER_BYTES).pack(fields)
    if len(packed) > limits.FRAME_MAP_MAX_BYTES:
        raise ProtocolError(f"a map of {len(packed)} bytes; {limits.FRAME_MAP_MAX_BYTES} are allowed")
    flags = FLAG_LAST if isinstance(message, m.Error) or (isinstance(message, m.Data) and message.last) else 0
    if frame_type in OPTIONAL_TYPES:
        flags |= FLAG_OPTIONAL
    payload_bytes = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    return pack_header(frame_type, flags, request_id, len(packed), payload_bytes) + packed, payload


def _offers(message: m.Hello | m.Welcome) -> _Map:
    return {"z": [int(codec) for codec in message.codecs], "c": message.capabilities}


def _pin(message: m.Subscribe) -> _Map:
    """Keys that only a pinned SUBSCRIBE has."""
    pin: _Map = {} if message.pin_revision is None else {"p": message.pin_revision}
    return {**pin, "n": message.pin_snapshot} if message.pin_snapshot else pin


def _flat(ranges: tuple[BlockRange, ...]) -> list[int]:
    return [number for blocks in ranges for number in blocks]


def _names(fields: _Map, payload: Payload, revision: int) -> tuple[_Map, Payload]:
    """Names, sizes and versions decide what blocks are asked for: TCP's checksum misses one damaged packet in 65,536."""
    return {**fields, "x": xxh3_64_intdigest(payload, seed=revision)}, payload


_ENCODERS: Mapping[FrameType, Callable[[Any], tuple[_Map, Payload]]] = {
    FrameType.HELLO: lambda o: (
        {
            "v": o.versions,
            "d": o.dataset,
            "i": o.identity,
            "s": o.spoke_id,
            **_offers(o),
            **({"n": o.nonce} if o.nonce else {}),
        },
        b"",
    ),
    FrameType.WELCOME: lambda o: (
        {
            "v": o.version,
            "d": o.dataset,
            "k": o.catalog_id,
            "r": o.head_revision,
            "h": o.heartbeat_interval_ms,
            **_offers(o),
            **({"w": o.send_buffer_bytes} if o.send_buffer_bytes else {}),
        },
        b"",
    ),
    FrameType.SUBSCRIBE: lambda o: ({"k": o.catalog_id, "r": o.from_revision, **_pin(o)}, b""),
    FrameType.SNAPSHOT: lambda o: _names(
        {"k": o.catalog_id, "r": o.revision, "n": o.entry_count, "l": o.last}, encode_entries(o.entries), o.revision
    ),
    FrameType.CHANGES: lambda o: _names(
        {"k": o.catalog_id, "a": o.after_revision, "t": o.to_revision, **({"f": o.former_id} if o.former_id else {})},
        encode_changes(o.changes),
        o.to_revision,
    ),
    FrameType.HEARTBEAT: lambda o: (
        {
            "k": o.catalog_id,
            "r": o.head_revision,
            **({"m": o.root_mtime_ns} if o.root_mtime_ns is not None else {}),
            **({"w": o.held, "s": o.held_ms} if o.held else {}),
        },
        b"",
    ),
    FrameType.READ: lambda o: (
        {"f": o.file_version, "b": _flat(o.ranges), "p": int(o.priority), "t": o.deadline_ms},
        b"",
    ),
    FrameType.DATA: lambda o: (
        {
            "b": o.blocks.first_block,
            "n": o.blocks.block_count,
            "z": int(o.codec),
            "u": o.raw_bytes,
            "x": o.digests,
        },
        o.payload,
    ),
    FrameType.CANCEL: lambda o: ({}, b""),
    FrameType.PROMOTE: lambda o: ({"p": int(o.priority), "t": o.deadline_ms}, b""),
    FrameType.PING: lambda o: ({"t": o.token}, b""),
    FrameType.PONG: lambda o: ({"t": o.token}, b""),
    FrameType.STATS: lambda o: ({"s": o.values}, b""),
    FrameType.ERROR: lambda o: ({"c": o.code, "m": o.message, "y": o.retryable}, b""),
    FrameType.GOODBYE: lambda o: ({"m": o.reason}, b""),
    FrameType.CHECK: lambda o: ({"t": o.token, "f": o.path}, b""),
    FrameType.CHECKED: lambda o: (
        {"t": o.token, "k": o.catalog_id, "r": o.revision, "c": o.code, "m": o.message},
        b"",
    ),
    FrameType.CHALLENGE: lambda o: ({"n": o.nonce, "p": o.proof}, b""),
    FrameType.PROOF: lambda o: ({"p": o.proof}, b""),
    FrameType.REPORT: lambda o: (
        {"t": o.token, "x": o.digest, "n": o.total_bytes, "o": o.offset_bytes, "u": o.followed},
        o.payload,
    ),
    FrameType.REPORTED: lambda o: ({"t": o.token, "o": o.offset_bytes, "c": o.code, "m": o.message}, b""),
    FrameType.ORDERS: lambda o: ({"t": o.token}, b""),
    FrameType.KEPT: lambda o: (
        {
            "t": o.token,
            "x": b"".join(order.digest for order in o.orders),
            "n": [order.total_bytes for order in o.orders],
            "s": [order.steps for order in o.orders],
            "i": [order.teller for order in o.orders],
            "u": [order.proven for order in o.orders],
            "c": o.code,
            "m": o.message,
        },
        b"",
    ),
    FrameType.FETCH: lambda o: ({"t": o.token, "x": o.digest, "o": o.offset_bytes}, b""),
    FrameType.PIECE: lambda o: (
        {"t": o.token, "o": o.offset_bytes, "n": o.total_bytes, "c": o.code, "m": o.message},
        o.payload,
    ),
}


# --- in --------------------------------------------------------------------------------------------------


class DataHead(NamedTuple):
    """DATA but for its payload: what is checked before a buffer of that size is made."""

    blocks: BlockRange
    codec: m.Codec
    raw_bytes: int
    digests: bytes
    last: bool


def decode(header: FrameHeader, packed_map: Payload, payload: Payload) -> m.Message:
    """The message of a whole frame of known type; ``payload`` becomes DATA's own. Raises ProtocolError."""
    assert header.type is not None
    if header.type is FrameType.DATA:
        return m.Data(*decode_data_head(header, packed_map), payload)
    fields = _unpack_map(packed_map)
    message = _DECODERS[header.type](fields, payload)
    check(message)
    if header.type is FrameType.ERROR and not header.last:
        raise ProtocolError("ERROR without the flag LAST")
    return message


def decode_data_head(header: FrameHeader, packed_map: Payload) -> DataHead:
    """Raises ProtocolError when the map and the payload's announced length do not make a DATA."""
    fields = _unpack_map(packed_map)
    blocks = BlockRange(_get(fields, "b", int), _get(fields, "n", int))
    head = DataHead(blocks, _codec(fields), _get(fields, "u", int), _get(fields, "x", bytes), header.last)
    check_data(blocks, head.codec, head.raw_bytes, head.digests, header.payload_bytes)
    return head


def _unpack_map(packed_map: Payload) -> _Map:
    try:
        fields = msgpack.unpackb(
            packed_map,
            raw=False,
            use_list=True,
            strict_map_key=True,
            max_str_len=limits.FRAME_MAP_MAX_BYTES,
            max_bin_len=limits.FRAME_MAP_MAX_BYTES,
            max_array_len=2 * limits.READ_MAX_RANGES,
            max_map_len=1024,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"a map that is not valid msgpack: {error}") from None
    if type(fields) is not dict:
        raise ProtocolError(f"a {type(fields).__name__} where a frame's map should be")
    return fields


def _get(fields: _Map, key: str, kind: type[_T]) -> _T:
    """The value of ``key``, of exactly this type (a bool is not an int here)."""
    value = fields.get(key)
    if type(value) is not kind:
        raise ProtocolError(f"key {key!r} holds {type(value).__name__} instead of {kind.__name__}")
    return value


def _get_list(fields: _Map, key: str, kind: type[_T]) -> tuple[_T, ...]:
    items = _get(fields, key, cast(type[list[_T]], list))
    if not set(map(type, items)) <= {kind}:
        raise ProtocolError(f"key {key!r} holds items that are not {kind.__name__}")
    return tuple(items)


_CODECS = {int(codec): codec for codec in m.Codec}
_PRIORITIES = {int(priority): priority for priority in m.Priority}


def _codec(fields: _Map) -> m.Codec:
    code = _get(fields, "z", int)
    if code not in _CODECS:
        raise ProtocolError(f"codec {code} is unknown")
    return _CODECS[code]


def _priority(fields: _Map) -> m.Priority:
    code = _get(fields, "p", int)
    if code not in _PRIORITIES:
        raise ProtocolError(f"priority {code} is unknown")
    return _PRIORITIES[code]


def _known_codecs(fields: _Map) -> tuple[m.Codec, ...]:
    """A newer peer may offer codecs we have never heard of: they are not agreed, no more."""
    return tuple(_CODECS[code] for code in _get_list(fields, "z", int) if code in _CODECS)


def _ranges(fields: _Map) -> tuple[BlockRange, ...]:
    numbers = _get_list(fields, "b", int)
    if len(numbers) % 2:
        raise ProtocolError("the ranges of a READ are not pairs")
    return tuple(map(BlockRange, numbers[::2], numbers[1::2]))


def _numbers(fields: _Map) -> dict[str, float]:
    numbers = _get(fields, "s", cast(type[dict[Any, Any]], dict))
    for name, value in numbers.items():
        if type(name) is not str or type(value) not in (int, float):
            raise ProtocolError("STATS are not names with numbers")
    return {name: float(value) for name, value in numbers.items()}


def _checked(fields: _Map, payload: Payload, revision: int) -> Payload:
    """The payload, if it is what its sender took the digest of; one without a digest comes from an older hub."""
    if "x" in fields and _get(fields, "x", int) != xxh3_64_intdigest(payload, seed=revision):
        raise ProtocolError(
            "a page of names came with bytes that do not match its digest: the path damages what it carries"
        )
    return payload


def _kept_orders(fields: _Map) -> tuple[m.KeptOrder, ...]:
    digests = _get(fields, "x", bytes)
    columns = (
        [digests[at : at + ID_BYTES] for at in range(0, len(digests), ID_BYTES)],
        _get_list(fields, "n", int),
        _get_list(fields, "s", int),
        _get_list(fields, "i", str),
        _get_list(fields, "u", bool),
    )
    if len(set(map(len, columns))) != 1:
        raise ProtocolError(f"KEPT has columns of {', '.join(str(len(column)) for column in columns)} orders")
    return tuple(map(m.KeptOrder, *columns))


_DECODERS: Mapping[FrameType, Callable[[_Map, Payload], m.Message]] = {
    FrameType.HELLO: lambda f, _: m.Hello(
        _get_list(f, "v", int),
        _get(f, "d", str),
        _get(f, "i", str),
        _get(f, "s", bytes),
        _known_codecs(f),
        _get_list(f, "c", str),
        _get(f, "n", bytes) if "n" in f else b"",
    ),
    FrameType.WELCOME: lambda f, _: m.Welcome(
        _get(f, "v", int),
        _get(f, "d", str),
        _get(f, "k", bytes),
        _get(f, "r", int),
        _get(f, "h", int),
        _known_codecs(f),
        _get_list(f, "c", str),
        _get(f, "w", int) if "w" in f else 0,
    ),
    FrameType.SUBSCRIBE: lambda f, _: m.Subscribe(
        _get(f, "k", bytes),
        _get(f, "r", int),
        _get(f, "p", int) if "p" in f else None,
        _get(f, "n", str) if "n" in f else "",
    ),
    FrameType.SNAPSHOT: lambda f, payload: m.SnapshotPage(
        _get(f, "k", bytes),
        revision := _get(f, "r", int),
        _get(f, "n", int),
        _get(f, "l", bool),
        decode_entries(_checked(f, payload, revision)),
    ),
    FrameType.CHANGES: lambda f, payload: m.Changes(
        _get(f, "k", bytes),
        _get(f, "a", int),
        revision := _get(f, "t", int),
        decode_changes(_checked(f, payload, revision)),
        _get(f, "f", bytes) if "f" in f else b"",
    ),
    FrameType.HEARTBEAT: lambda f, _: m.Heartbeat(
        _get(f, "k", bytes),
        _get(f, "r", int),
        _get(f, "m", int) if "m" in f else None,
        *((_get(f, "w", str), _get(f, "s", int)) if "w" in f else ()),
    ),
    FrameType.READ: lambda f, _: m.Read(_get(f, "f", bytes), _ranges(f), _priority(f), _get(f, "t", int)),
    FrameType.CANCEL: lambda f, _: m.Cancel(),
    FrameType.PROMOTE: lambda f, _: m.Promote(_priority(f), _get(f, "t", int)),
    FrameType.PING: lambda f, _: m.Ping(_get(f, "t", int)),
    FrameType.PONG: lambda f, _: m.Pong(_get(f, "t", int)),
    FrameType.STATS: lambda f, _: m.Stats(_numbers(f)),
    FrameType.ERROR: lambda f, _: m.Error(_get(f, "c", str), _get(f, "m", str), _get(f, "y", bool)),
    FrameType.GOODBYE: lambda f, _: m.Goodbye(_get(f, "m", str)),
    FrameType.CHECK: lambda f, _: m.Check(_get(f, "t", int), _get(f, "f", bytes)),
    FrameType.CHECKED: lambda f, _: m.Checked(
        _get(f, "t", int), _get(f, "k", bytes), _get(f, "r", int), _get(f, "c", str), _get(f, "m", str)
    ),
    FrameType.CHALLENGE: lambda f, _: m.Challenge(_get(f, "n", bytes), _get(f, "p", bytes)),
    FrameType.PROOF: lambda f, _: m.Proof(_get(f, "p", bytes)),
    FrameType.REPORT: lambda f, payload: m.Report(
        _get(f, "t", int), _get(f, "x", bytes), _get(f, "n", int), _get(f, "o", int), _get(f, "u", bool), payload
    ),
    FrameType.REPORTED: lambda f, _: m.Reported(
        _get(f, "t", int), _get(f, "o", int), _get(f, "c", str), _get(f, "m", str)
    ),
    FrameType.ORDERS: lambda f, _: m.Orders(_get(f, "t", int)),
    FrameType.KEPT: lambda f, _: m.Kept(_get(f, "t", int), _kept_orders(f), _get(f, "c", str), _get(f, "m", str)),
    FrameType.FETCH: lambda f, _: m.Fetch(_get(f, "t", int), _get(f, "x", bytes), _get(f, "o", int)),
    FrameType.PIECE: lambda f, payload: m.Piece(
        _get(f, "t", int), _get(f, "o", int), _get(f, "n", int), payload, _get(f, "c", str), _get(f, "m", str)
    ),
}
