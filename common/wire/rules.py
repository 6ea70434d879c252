"""What a message must satisfy whoever made it: bounds and consistency of its fields.

One set of rules for both directions: the sender checks before it encodes, the receiver after it decoded. Types are
the decoder's affair (and mypy's); entries are checked in columns by :mod:`common.wire.entry_codec`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockRange
from common.digest import DIGEST_BYTES
from common.entries import VERSION_BYTES, is_safe_path
from common.errors import ProtocolError
from common.wire import messages as m

ID_BYTES = 16
NONCE_BYTES = PROOF_BYTES = 32
REVISION_LIMIT = 1 << 63
TOKEN_LIMIT = 1 << 64


def check(message: m.Message) -> None:
    """Raises ProtocolError, naming the field, when ``message`` breaks a rule of PROTOCOL.md."""
    rule = _RULES.get(type(message))
    if rule is not None:
        rule(message)


def check_data(blocks: BlockRange, codec: m.Codec, raw_bytes: int, digests: bytes, payload_bytes: int) -> None:
    """The rules of DATA, before a payload exists."""
    first_block, block_count = blocks
    if not (0 <= first_block < limits.BLOCK_INDEX_LIMIT and 0 < block_count <= EXTENT_BLOCKS):
        raise ProtocolError(f"blocks {first_block}+{block_count} are out of range")
    if first_block % EXTENT_BLOCKS + block_count > EXTENT_BLOCKS:
        raise ProtocolError(f"blocks {first_block}+{block_count} cross an extent's boundary")
    if not (block_count - 1) * BLOCK_BYTES < raw_bytes <= block_count * BLOCK_BYTES:
        raise ProtocolError(f"{raw_bytes} bytes are not {block_count} blocks of which only the last may be short")
    if len(digests) != block_count * DIGEST_BYTES:
        raise ProtocolError(f"{len(digests)} bytes of digests for {block_count} blocks")
    if codec is m.Codec.RAW:
        if payload_bytes != raw_bytes:
            raise ProtocolError(f"a raw payload of {payload_bytes} bytes announced as {raw_bytes}")
    elif not 0 < payload_bytes <= limits.FRAME_PAYLOAD_MAX_BYTES:
        raise ProtocolError(f"a payload of {payload_bytes} bytes; 1 to {limits.FRAME_PAYLOAD_MAX_BYTES} are allowed")


def _within(name: str, value: int, low: int, limit: int) -> None:
    if not low <= value < limit:
        raise ProtocolError(f"{name} is {value}, outside {low} to {limit - 1}")


def _check_text(name: str, text: str, max_bytes: int, *, empty: bool = False, printable: bool = True) -> None:
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise ProtocolError(f"{name} cannot be written in UTF-8") from None
    if size_bytes > max_bytes or (size_bytes == 0 and not empty):
        raise ProtocolError(f"{name} has {size_bytes} bytes; {0 if empty else 1} to {max_bytes} are allowed")
    if printable and not text.isprintable():
        raise ProtocolError(f"{name} {text!r} holds characters that cannot be printed")


def _check_blob(name: str, blob: bytes, size_bytes: int) -> None:
    if len(blob) != size_bytes:
        raise ProtocolError(f"{name} has {len(blob)} bytes instead of {size_bytes}")


def _check_duration(name: str, duration_ms: int, low_ms: int = 0) -> None:
    _within(name, duration_ms, low_ms, limits.DURATION_MAX_MS + 1)


def _check_offers(codecs: Sequence[m.Codec], capabilities: Sequence[str]) -> None:
    if m.Codec.RAW not in codecs:
        raise ProtocolError("codecs lack RAW, which every end must take")
    for name, items in (("codecs", codecs), ("capabilities", capabilities)):
        if len(items) > limits.HELLO_MAX_ITEMS or len(set(items)) != len(items):
            raise ProtocolError(f"{name} are repeated, or more than {limits.HELLO_MAX_ITEMS}")
    for capability in capabilities:
        _check_text("capability", capability, limits.LABEL_MAX_BYTES)


def _hello(message: m.Hello) -> None:
    versions = message.versions
    if not 0 < len(versions) <= limits.HELLO_MAX_ITEMS or len(set(versions)) != len(versions):
        raise ProtocolError(f"versions are none, repeated, or more than {limits.HELLO_MAX_ITEMS}")
    for version in versions:
        _within("version", version, 1, 1 << 16)
    _check_text("dataset", message.dataset, limits.TEXT_MAX_BYTES)
    _check_text("identity", message.identity, limits.TEXT_MAX_BYTES)
    _check_blob("spoke_id", message.spoke_id, ID_BYTES)
    _check_offers(message.codecs, message.capabilities)
    if message.nonce or m.TOKEN in message.capabilities:
        _check_blob("nonce", message.nonce, NONCE_BYTES)


def _challenge(message: m.Challenge) -> None:
    _check_blob("nonce", message.nonce, NONCE_BYTES)
    _check_blob("proof", message.proof, PROOF_BYTES)


def _proof(message: m.Proof) -> None:
    _check_blob("proof", message.proof, PROOF_BYTES)


def _welcome(message: m.Welcome) -> None:
    _within("version", message.version, 1, 1 << 16)
    _check_text("dataset", message.dataset, limits.TEXT_MAX_BYTES)
    _check_blob("catalog_id", message.catalog_id, ID_BYTES)
    _within("head_revision", message.head_revision, 0, REVISION_LIMIT)
    _check_duration("heartbeat_interval_ms", message.heartbeat_interval_ms, 1)
    _check_offers(message.codecs, message.capabilities)
    _within("send_buffer_bytes", message.send_buffer_bytes, 0, 1 << 40)


def _subscribe(message: m.Subscribe) -> None:
    if message.catalog_id or message.from_revision:  # nothing known: both empty
        _check_blob("catalog_id", message.catalog_id, ID_BYTES)
    _within("from_revision", message.from_revision, 0, REVISION_LIMIT)
    if message.pin_revision is not None:
        _within("pin_revision", message.pin_revision, 0, REVISION_LIMIT)
    if message.pin_snapshot:
        _check_text("pin_snapshot", message.pin_snapshot, limits.LABEL_MAX_BYTES)
    if message.pin_revision is not None and message.pin_snapshot:
        raise ProtocolError("a SUBSCRIBE is pinned to a revision or to a snapshot, not to both")


def _snapshot(message: m.SnapshotPage) -> None:
    _check_blob("catalog_id", message.catalog_id, ID_BYTES)
    _within("revision", message.revision, 0, REVISION_LIMIT)
    _within("entry_count", message.entry_count, len(message.entries), REVISION_LIMIT)


def _changes(message: m.Changes) -> None:
    _check_blob("catalog_id", message.catalog_id, ID_BYTES)
    if message.former_id:
        _check_blob("former_id", message.former_id, ID_BYTES)
    _within("after_revision", message.after_revision, 0, REVISION_LIMIT)
    _within("to_revision", message.to_revision, message.after_revision, REVISION_LIMIT)
    revision = message.after_revision
    for change in message.changes:
        if change.revision <= revision:
            raise ProtocolError(f"revision {change.revision} follows {revision}")
        revision = change.revision
    if revision > message.to_revision:
        raise ProtocolError(f"revision {revision} is beyond to_revision {message.to_revision}")


def _heartbeat(message: m.Heartbeat) -> None:
    _check_blob("catalog_id", message.catalog_id, ID_BYTES)
    _within("head_revision", message.head_revision, 0, REVISION_LIMIT)
    if message.root_mtime_ns is not None:
        _within("root_mtime_ns", message.root_mtime_ns, -(1 << 63), 1 << 63)
    _check_text("held", message.held, limits.TEXT_MAX_BYTES, empty=True, printable=False)
    _check_duration("held_ms", message.held_ms)


def _read(message: m.Read) -> None:
    _check_blob("file_version", message.file_version, VERSION_BYTES)
    if not 0 < len(message.ranges) <= limits.READ_MAX_RANGES:
        raise ProtocolError(f"{len(message.ranges)} ranges; 1 to {limits.READ_MAX_RANGES} are allowed")
    end_block = total_blocks = 0
    for first_block, block_count in message.ranges:
        if first_block < end_block or block_count < 1:
            raise ProtocolError(f"range {first_block}+{block_count} is empty, or not after the one before it")
        end_block = first_block + block_count
        total_blocks += block_count
    if end_block > limits.BLOCK_INDEX_LIMIT or total_blocks > limits.READ_MAX_BLOCKS:
        raise ProtocolError(f"{total_blocks} blocks up to index {end_block} are more than a READ may name")
    _check_duration("deadline_ms", message.deadline_ms)


def _data(message: m.Data) -> None:
    payload = message.payload
    payload_bytes = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    check_data(message.blocks, message.codec, message.raw_bytes, message.digests, payload_bytes)


def _promote(message: m.Promote) -> None:
    _check_duration("deadline_ms", message.deadline_ms)


def _token(message: m.Ping | m.Pong | m.Report | m.Reported | m.Orders | m.Kept | m.Fetch | m.Piece) -> None:
    _within("token", message.token, 0, TOKEN_LIMIT)


def _stats(message: m.Stats) -> None:
    if len(message.values) > limits.STATS_MAX_ITEMS:
        raise ProtocolError(f"{len(message.values)} numbers in STATS; {limits.STATS_MAX_ITEMS} are allowed")
    for name, value in message.values.items():
        _check_text("a STATS name", name, limits.LABEL_MAX_BYTES)
        if not math.isfinite(value):
            raise ProtocolError(f"{name} is {value}")


def _check_path(message: m.Check) -> None:
    _within("token", message.token, 0, TOKEN_LIMIT)
    if not message.path or not is_safe_path(message.path):
        raise ProtocolError(f"CHECK of {message.path!r:.200}, which is not a safe path")


def _checked(message: m.Checked) -> None:
    _within("token", message.token, 0, TOKEN_LIMIT)
    _check_blob("catalog_id", message.catalog_id, ID_BYTES)
    _within("revision", message.revision, 0, REVISION_LIMIT)
    _check_text("code", message.code, limits.LABEL_MAX_BYTES, empty=True)
    _check_text("message", message.message, limits.TEXT_MAX_BYTES, empty=True, printable=False)


def _error(message: m.Error) -> None:
    _check_text("code", message.code, limits.LABEL_MAX_BYTES)
    _check_text("message", message.message, limits.TEXT_MAX_BYTES, empty=True, printable=False)


def _goodbye(message: m.Goodbye) -> None:
    _check_text("reason", message.reason, limits.TEXT_MAX_BYTES, empty=True, printable=False)


def _check_answer(message: m.Reported | m.Kept | m.Piece) -> None:
    _token(message)
    _check_text("code", message.code, limits.LABEL_MAX_BYTES, empty=True)
    _check_text("message", message.message, limits.TEXT_MAX_BYTES, empty=True, printable=False)


def _check_piece(offset_bytes: int, total_bytes: int, payload: bytes | bytearray | memoryview) -> None:
    _within("total_bytes", total_bytes, 0, limits.ORDER_REPORT_MAX_BYTES + 1)
    payload_bytes = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    if payload_bytes > limits.ORDER_PIECE_BYTES or not 0 <= offset_bytes <= total_bytes - payload_bytes:
        raise ProtocolError(f"{payload_bytes} bytes from {offset_bytes} on are no piece of {total_bytes}")


def _report(message: m.Report) -> None:
    _token(message)
    _check_blob("digest", message.digest, ID_BYTES)
    _within("total_bytes", message.total_bytes, 1, limits.ORDER_REPORT_MAX_BYTES + 1)
    _check_piece(message.offset_bytes, message.total_bytes, message.payload)


def _reported(message: m.Reported) -> None:
    _check_answer(message)
    _within("offset_bytes", message.offset_bytes, 0, limits.ORDER_REPORT_MAX_BYTES + 1)


def _kept(message: m.Kept) -> None:
    _check_answer(message)
    if len(message.orders) > limits.ORDER_KEPT_LISTED:
        raise ProtocolError(f"{len(message.orders)} orders in KEPT; {limits.ORDER_KEPT_LISTED} are allowed")
    for order in message.orders:
        _check_blob("digest", order.digest, ID_BYTES)
        _within("total_bytes", order.total_bytes, 1, limits.ORDER_REPORT_MAX_BYTES + 1)
        _within("steps", order.steps, 1, limits.ORDER_REPORT_MAX_STEPS + 1)
        _check_text("teller", order.teller, limits.LABEL_MAX_BYTES)
    if len({order.digest for order in message.orders}) != len(message.orders):
        raise ProtocolError("KEPT names an order twice")


def _fetch(message: m.Fetch) -> None:
    _token(message)
    _check_blob("digest", message.digest, ID_BYTES)
    _within("offset_bytes", message.offset_bytes, 0, limits.ORDER_REPORT_MAX_BYTES + 1)


def _piece(message: m.Piece) -> None:
    _check_answer(message)
    _check_piece(message.offset_bytes, message.total_bytes, message.payload)


_RULES: dict[type, Callable[[Any], None]] = {
    m.Hello: _hello,
    m.Welcome: _welcome,
    m.Subscribe: _subscribe,
    m.SnapshotPage: _snapshot,
    m.Changes: _changes,
    m.Heartbeat: _heartbeat,
    m.Read: _read,
    m.Data: _data,
    m.Promote: _promote,
    m.Ping: _token,
    m.Pong: _token,
    m.Stats: _stats,
    m.Error: _error,
    m.Goodbye: _goodbye,
    m.Check: _check_path,
    m.Checked: _checked,
    m.Challenge: _challenge,
    m.Proof: _proof,
    m.Report: _report,
    m.Reported: _reported,
    m.Orders: _token,
    m.Kept: _kept,
    m.Fetch: _fetch,
    m.Piece: _piece,
}
