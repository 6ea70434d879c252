"""What the main process and a serving process say to each other, and how it is packed. Both ends are of one release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgpack


class Start(NamedTuple):
    """Main's first word. ``datasets``: name to (path, its open descriptor). ``rate_bytes_per_s``: what a socket may reach at most.

    ``share_bytes_per_s``: as in Share, until the first of them. ``processes``: how many serve, which divide the memory.
    ``security``: ``tls`` (three paths) and ``token`` (a path) or None, ``audit``: whether to send Audit. ``identities``: as in Identities.
    ``orders``: whether orders of spokes are kept.
    """

    datasets: Mapping[str, tuple[bytes, int]]
    state_dir: bytes
    compression: str
    rate_bytes_per_s: float | None
    share_bytes_per_s: float | None
    weights: Mapping[str, float]
    processes: int
    log_level: str
    log_format: str
    security: Mapping[str, Any]
    identities: Mapping[str, Any]
    orders: bool = False


class Ready(NamedTuple):
    """The serving process can serve."""


class Take(NamedTuple):
    """Main hands over a connection, whose descriptor travels with this. ``received``: what was read from it already."""

    number: int
    received: bytes


class Ended(NamedTuple):
    """A connection that was handed over is no more."""

    number: int


class Moved(NamedTuple):
    """The catalog has come to this revision. ``replaced``: versions gone or elsewhere, None: any."""

    dataset: str
    head_revision: int
    replaced: Sequence[bytes] | None


class Holding(NamedTuple):
    """Why the catalog is held as it is, and for how long it has been; said again and again while it is, and once with no reason."""

    dataset: str
    reason: str
    for_s: float


class Failed(NamedTuple):
    """No change of this dataset can come any more."""

    dataset: str
    code: str
    text: str


class Share(NamedTuple):
    """Of the total rate; None: no limit."""

    rate_bytes_per_s: float | None


class Demand(NamedTuple):
    """``weight``: of the spokes that wait for something. ``held``: the share kept something back. ``sent_bytes``: ever."""

    weight: float
    held: bool
    sent_bytes: int


class Report(NamedTuple):
    """What was counted since the start (hub.counts.Counts as a table), and who is linked (SpokeViews as tables)."""

    counts: Mapping[str, Any]
    raw_bytes: int
    packed_bytes: int
    connections: int
    spokes: Sequence[Mapping[str, Any]]


class Ask(NamedTuple):
    """Look at a path: ``check`` as a CHECK does, else as a reader that found the file moved. Answered by Answer."""

    number: int
    dataset: str
    path: bytes
    check: bool


class Answer(NamedTuple):
    """``code``: of the error, empty when there is none."""

    number: int
    revision: int
    code: str
    text: str


class Identities(NamedTuple):
    """The table of identities from now on (common.serving.access)."""

    table: Mapping[str, Any]


class Audit(NamedTuple):
    """A line for the audit log, which the main process writes."""

    facts: Mapping[str, Any]


class OrderAsk(NamedTuple):
    """A spoke's question about orders, as its frame. Answered by OrderReply."""

    number: int
    dataset: str
    identity: str
    spoke_id: bytes
    frame: bytes


class OrderReply(NamedTuple):
    """The answer, as its frame."""

    number: int
    frame: bytes


class Stop(NamedTuple):
    """Say GOODBYE to all, report once more, and end."""


Message = (
    Start | Ready | Take | Ended | Moved | Failed | Share | Demand | Report | Ask | Answer | Stop | Identities | Audit
    | OrderAsk | OrderReply | Holding
)  # fmt: skip
_KINDS: tuple[type[Message], ...] = (
    Start, Ready, Take, Ended, Moved, Failed, Share, Demand, Report, Ask, Answer, Stop, Identities, Audit, OrderAsk, OrderReply,
    Holding,
)  # fmt: skip
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}


def pack(message: Message) -> bytes:
    packed: bytes = msgpack.packb((_NUMBERS[type(message)], *message))
    return packed


def unpack(data: bytes | bytearray) -> Message:
    number, *fields = msgpack.unpackb(data, strict_map_key=False, use_list=False)
    message: Message = _KINDS[number](*fields)
    return message
