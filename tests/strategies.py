"""Hypothesis strategies for the wire's vocabulary: paths, entries, changes, every message, and whole honest dialogues."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from common import limits
from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockRange
from common.digest import DIGEST_BYTES
from common.entries import Change, Entry, Kind
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

ids = st.binary(min_size=16, max_size=16)
revisions = st.integers(0, (1 << 63) - 1)
durations_ms = st.integers(0, limits.DURATION_MAX_MS)
request_ids = st.integers(1, (1 << 32) - 1)

_printable = st.characters(exclude_categories=("C", "Z"))
names = st.text(_printable, min_size=1, max_size=40)
labels = st.text(_printable, min_size=1, max_size=12)
free_texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)

path_names = st.binary(min_size=1, max_size=12).filter(
    lambda name: name not in (b".", b"..") and b"/" not in name and b"\0" not in name
)
paths = st.lists(path_names, min_size=1, max_size=4).map(b"/".join)

_modes = st.integers(0, 0o7777)
_sizes = st.integers(0, limits.FILE_MAX_BYTES)
_mtimes = st.integers(-(1 << 63), (1 << 63) - 1)
_targets = st.binary(min_size=1, max_size=30).filter(lambda target: b"\0" not in target)
files = st.builds(Entry, st.just(Kind.FILE), _modes, _sizes, _mtimes, ids)
directories = st.builds(Entry, st.just(Kind.DIRECTORY), _modes, _sizes, _mtimes)
symlinks = st.builds(Entry, st.just(Kind.SYMLINK), _modes, _sizes, _mtimes, st.just(b""), _targets)
entries = files | directories | symlinks

entry_lists = st.lists(st.tuples(paths, entries), max_size=12).map(tuple)


@st.composite
def change_lists(draw: st.DrawFn, after_revision: int = 0) -> tuple[Change, ...]:
    """Changes whose revisions rise from ``after_revision`` on."""
    changes: list[Change] = []
    revision = after_revision
    for path, entry in draw(st.lists(st.tuples(paths, st.none() | entries), max_size=12)):
        revision += draw(st.integers(1, 3))
        changes.append(Change(revision, path, entry))
    return tuple(changes)


@st.composite
def range_lists(draw: st.DrawFn, max_ranges: int = 6, max_blocks: int = 600) -> tuple[BlockRange, ...]:
    """The ranges of a READ: ascending, disjoint (maybe adjacent), within limits."""
    ranges: list[BlockRange] = []
    block = draw(st.integers(0, limits.BLOCK_INDEX_LIMIT // 2))
    for gap_blocks, block_count in draw(
        st.lists(st.tuples(st.integers(0, 1000), st.integers(1, max_blocks)), min_size=1, max_size=max_ranges)
    ):
        ranges.append(BlockRange(block + gap_blocks, block_count))
        block = ranges[-1].end_block
    return tuple(ranges)


@st.composite
def extent_ranges(draw: st.DrawFn, max_blocks: int = 4) -> BlockRange:
    """Blocks inside one extent."""
    block_count = draw(st.integers(1, max_blocks))
    extent = draw(st.integers(0, limits.BLOCK_INDEX_LIMIT // EXTENT_BLOCKS - 1))
    return BlockRange(extent * EXTENT_BLOCKS + draw(st.integers(0, EXTENT_BLOCKS - block_count)), block_count)


def payload_bytes(size_bytes: int) -> st.SearchStrategy[bytes]:
    """Bytes of this size that differ between draws without costing hypothesis a draw each."""
    return st.binary(min_size=1, max_size=8).map(lambda seed: (seed * (size_bytes // len(seed) + 1))[:size_bytes])


@st.composite
def data_messages(
    draw: st.DrawFn,
    blocks: BlockRange | None = None,
    last: bool | None = None,
    codecs: tuple[Codec, ...] = tuple(Codec),
) -> Data:
    found = blocks if blocks is not None else draw(extent_ranges())
    raw_bytes = found.block_count * BLOCK_BYTES - draw(st.integers(0, BLOCK_BYTES - 1))
    codec = draw(st.sampled_from(codecs))
    size_bytes = raw_bytes if codec is Codec.RAW else draw(st.integers(1, 5000))
    return Data(
        found,
        codec,
        raw_bytes,
        draw(payload_bytes(found.block_count * DIGEST_BYTES)),
        draw(st.booleans()) if last is None else last,
        draw(payload_bytes(size_bytes)),
    )


_codecs = st.lists(st.sampled_from((Codec.ZSTD, Codec.LZ4)), unique=True).map(lambda more: (Codec.RAW, *more))
_capabilities = st.lists(labels, unique=True, max_size=4).map(tuple)
nonces = st.binary(min_size=32, max_size=32)
_plain_hellos = st.builds(
    Hello,
    st.lists(st.integers(1, 65535), min_size=1, max_size=4, unique=True).map(tuple),
    names,
    names,
    ids,
    _codecs,
    _capabilities,
)
hellos = st.builds(
    lambda hello, nonce: replace(hello, capabilities=(*hello.capabilities, "token"), nonce=nonce) if nonce else hello,
    _plain_hellos.filter(lambda hello: "token" not in hello.capabilities),
    st.just(b"") | nonces,
)
welcomes = st.builds(
    Welcome,
    st.integers(1, 65535),
    names,
    ids,
    revisions,
    st.integers(1, limits.DURATION_MAX_MS),
    _codecs,
    _capabilities,
)
subscribes = st.one_of(
    st.builds(Subscribe, ids, revisions),
    st.just(Subscribe(b"", 0)),
    st.builds(Subscribe, ids, revisions, revisions),
    st.builds(Subscribe, st.just(b""), st.just(0), st.none(), labels),
)
snapshot_pages = st.builds(SnapshotPage, ids, revisions, st.integers(12, 1 << 40), st.booleans(), entry_lists)


@st.composite
def change_messages(draw: st.DrawFn) -> Changes:
    after_revision = draw(st.integers(0, 1 << 60))
    changes = draw(change_lists(after_revision))
    last_revision = changes[-1].revision if changes else after_revision
    return Changes(
        draw(ids), after_revision, last_revision + draw(st.integers(0, 5)), changes, draw(st.just(b"") | ids)
    )


heartbeats = st.builds(Heartbeat, ids, revisions, st.none() | st.integers(-(1 << 63), (1 << 63) - 1))
reads = st.builds(Read, ids, range_lists(), st.sampled_from(Priority), durations_ms)
promotes = st.builds(Promote, st.sampled_from(Priority), durations_ms)
tokens = st.integers(0, (1 << 64) - 1)
stats = st.builds(
    Stats, st.dictionaries(labels, st.floats(allow_nan=False, allow_infinity=False), max_size=limits.STATS_MAX_ITEMS)
)
errors = st.builds(Error, labels, free_texts, st.booleans())
goodbyes = st.builds(Goodbye, free_texts)

_order_bytes = st.integers(1, limits.ORDER_REPORT_MAX_BYTES)
_pieces = st.binary(max_size=300)
kept_orders = st.builds(
    KeptOrder, ids, _order_bytes, st.integers(1, limits.ORDER_REPORT_MAX_STEPS), labels, st.booleans()
)


@st.composite
def reports(draw: st.DrawFn) -> Report:
    piece, offset_bytes = draw(_pieces), draw(st.integers(0, 1 << 20))
    total_bytes = max(1, offset_bytes + len(piece) + draw(st.integers(0, 1 << 20)))
    return Report(draw(tokens), draw(ids), total_bytes, offset_bytes, draw(st.booleans()), piece)


@st.composite
def order_pieces(draw: st.DrawFn) -> Piece:
    piece, offset_bytes = draw(_pieces), draw(st.integers(0, 1 << 20))
    total_bytes = offset_bytes + len(piece) + draw(st.integers(0, 1 << 20))
    return Piece(draw(tokens), offset_bytes, total_bytes, piece, draw(st.just("") | labels), draw(free_texts))


order_messages = st.one_of(
    reports(),
    st.builds(Reported, tokens, st.integers(0, limits.ORDER_REPORT_MAX_BYTES), st.just("") | labels, free_texts),
    st.builds(Orders, tokens),
    st.builds(
        Kept,
        tokens,
        st.lists(kept_orders, max_size=limits.ORDER_KEPT_LISTED, unique_by=lambda order: order.digest).map(tuple),
        st.just("") | labels,
        free_texts,
    ),
    st.builds(Fetch, tokens, ids, st.integers(0, limits.ORDER_REPORT_MAX_BYTES)),
    order_pieces(),
)

messages: st.SearchStrategy[Message] = st.one_of(
    order_messages,
    hellos,
    welcomes,
    subscribes,
    snapshot_pages,
    change_messages(),
    heartbeats,
    reads,
    data_messages(),
    st.just(Cancel()),
    promotes,
    st.builds(Ping, tokens),
    st.builds(Pong, tokens),
    stats,
    errors,
    goodbyes,
    st.builds(Check, tokens, paths),
    st.builds(Challenge, nonces, nonces),
    st.builds(Proof, nonces),
    st.builds(Checked, tokens, ids, revisions, st.just("") | labels, free_texts),
)
