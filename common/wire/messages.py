"""The messages of PROTOCOL.md as values: fields, bounds, and their msgpack form.

A message is a frame type, a small msgpack map with short keys, and (DATA, SNAPSHOT, CHANGES) a raw payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from common.blocks import BlockRange
from common.entries import Change, Entry

PIN = "pin"
"""Capability: the hub understands a pinned SUBSCRIBE."""

CHECK = "check"
"""Capability: the hub answers CHECK."""

TOKEN = "token"
"""Capability of a spoke: it has a token, and proves so when it is challenged."""

ORDERS = "orders"
"""Capability: the hub keeps orders that spokes learned, and answers REPORT, ORDERS and FETCH."""

CAPABILITIES = (PIN, CHECK, ORDERS)


class Priority(IntEnum):
    """Who waits. Lower is sooner; the order is the protocol's."""

    DEMAND = 0
    PREFETCH = 1


class Codec(IntEnum):
    RAW = 0
    ZSTD = 1
    LZ4 = 2


@dataclass(frozen=True, slots=True)
class Hello:
    """Spoke to hub, first. ``identity``: the spoke's stable name; ``spoke_id``: 16 bytes that tie its connections together.

    ``nonce``: 32 bytes never used before, of a spoke that has a token (capability TOKEN); else empty.
    """

    versions: tuple[int, ...]
    dataset: str
    identity: str
    spoke_id: bytes
    codecs: tuple[Codec, ...] = (Codec.RAW,)
    capabilities: tuple[str, ...] = ()
    nonce: bytes = b""


@dataclass(frozen=True, slots=True)
class Challenge:
    """Hub to spoke, between HELLO and WELCOME: prove that you have the token, as ``proof`` shows that I have it (common.wire.proof)."""

    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class Proof:
    """Spoke to hub, the answer to CHALLENGE."""

    proof: bytes


@dataclass(frozen=True, slots=True)
class Welcome:
    """Hub to spoke, the answer to HELLO: what was agreed and what the hub is.

    ``send_buffer_bytes``: the most that the hub's kernel buffers for one connection; 0: not said.
    """

    version: int
    dataset: str
    catalog_id: bytes
    head_revision: int
    heartbeat_interval_ms: int
    codecs: tuple[Codec, ...] = (Codec.RAW,)
    capabilities: tuple[str, ...] = ()
    send_buffer_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Ask for the tree: from ``from_revision`` of ``catalog_id`` if the hub still can, else a snapshot. Empty id: nothing known.

    Pinned, the tree wanted is that of ``pin_revision``, or of the hub's snapshot named ``pin_snapshot``, and stays so.
    """

    catalog_id: bytes
    from_revision: int
    pin_revision: int | None = None
    pin_snapshot: str = ""

    @property
    def is_pinned(self) -> bool:
        return self.pin_revision is not None or self.pin_snapshot != ""


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    """A page of the tree at ``revision``; ``entries`` travel as the payload. ``last`` closes the snapshot; ``entry_count`` is its total."""

    catalog_id: bytes
    revision: int
    entry_count: int
    last: bool
    entries: Sequence[tuple[bytes, Entry]]


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes after ``after_revision`` up to and with ``to_revision``, in order, none left out.

    ``former_id``, if not empty: the catalog went on under a new id, and ``after_revision`` is one of that former one.
    """

    catalog_id: bytes
    after_revision: int
    to_revision: int
    changes: tuple[Change, ...]
    former_id: bytes = b""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The feed is alive; ``head_revision`` lets the spoke see a gap. ``root_mtime_ns``: of the dataset's own directory, None unsaid.

    ``held``: why the hub has held its catalog as it was for ``held_ms``; empty while it follows the directory.
    """

    catalog_id: bytes
    head_revision: int
    root_mtime_ns: int | None = None
    held: str = ""
    held_ms: int = 0


@dataclass(frozen=True, slots=True)
class Read:
    """Blocks of one version. ``deadline_ms``: the time the hub has from receipt (0 = none): clocks never cross the wire."""

    file_version: bytes
    ranges: tuple[BlockRange, ...]
    priority: Priority
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Data:
    """Blocks of one extent, answering READ; ``last``: the READ is complete.

    ``raw_bytes``: length after decoding; ``digests``: packed, of the raw bytes.
    """

    blocks: BlockRange
    codec: Codec
    raw_bytes: int
    digests: bytes
    last: bool
    payload: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Cancel:
    """Withdraw the request of this frame's id; the hub answers it with ERROR ``cancelled`` unless it was done."""


@dataclass(frozen=True, slots=True)
class Promote:
    """Somebody now waits for the request of this frame's id."""

    priority: Priority
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Ping:
    token: int


@dataclass(frozen=True, slots=True)
class Pong:
    token: int


@dataclass(frozen=True, slots=True)
class Stats:
    """What a spoke sees, for the hub's fleet view: name to number, at most ``limits.STATS_MAX_ITEMS``."""

    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Error:
    """A request (or, with request id 0, the connection) failed. ``code``: see common.errors; unknown codes read as ``peer``."""

    code: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The sender closes in order; ``reason`` is for a log line."""

    reason: str


@dataclass(frozen=True, slots=True)
class Check:
    """Look at this path now: is it what the catalog says? ``token``: chosen by the spoke, comes back in CHECKED."""

    token: int
    path: bytes


@dataclass(frozen=True, slots=True)
class Checked:
    """A replica at ``revision`` of ``catalog_id`` knows the path as it was when CHECK arrived, or later.

    ``code``: empty, or why the hub cannot say (common.errors), with ``message``.
    """

    token: int
    catalog_id: bytes
    revision: int
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """An order that a spoke learned (common.order_report), or a piece of it. ``payload``: its bytes from ``offset_bytes`` on, maybe
    none: then it only asks how far the hub has it. ``followed``: a job has read along it.
    """

    token: int
    digest: bytes
    total_bytes: int
    offset_bytes: int
    followed: bool
    payload: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Reported:
    """``offset_bytes``: from where on the hub wants it; all of it: it has it, or wants no more. ``code``: empty, or why it takes none."""

    token: int
    offset_bytes: int
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Orders:
    """Which orders of this dataset does the hub keep?"""

    token: int


@dataclass(frozen=True, slots=True)
class KeptOrder:
    """``teller``: the identity that told of it first, cut to a label. ``proven``: somebody followed it, or several told of it."""

    digest: bytes
    total_bytes: int
    steps: int
    teller: str
    proven: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """The orders that the hub keeps, the most useful first. ``code``: empty, or why it cannot say."""

    token: int
    orders: tuple[KeptOrder, ...]
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Fetch:
    """A piece of a kept order, from ``offset_bytes`` on."""

    token: int
    digest: bytes
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The answer to FETCH: bytes from ``offset_bytes`` on, of ``total_bytes``. ``code``: empty, or why there is none."""

    token: int
    offset_bytes: int
    total_bytes: int
    payload: bytes | bytearray | memoryview
    code: str = ""
    message: str = ""


Message = (
    Hello
    | Welcome
    | Subscribe
    | SnapshotPage
    | Changes
    | Heartbeat
    | Read
    | Data
    | Cancel
    | Promote
    | Ping
    | Pong
    | Stats
    | Error
    | Goodbye
    | Check
    | Checked
    | Challenge
    | Proof
    | Report
    | Reported
    | Orders
    | Kept
    | Fetch
    | Piece
)
