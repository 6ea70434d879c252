"""The table of legal moves: who may send which frame in which state.

The connection asks this table for every frame, sent or received; PROTOCOL.md shows it to people.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from common.wire.frame import FrameType as F


class Role(Enum):
    HUB = "hub"
    SPOKE = "spoke"

    __hash__ = object.__hash__  # Enum's own is written in Python, and each frame looks some up

    @property
    def peer(self) -> Role:
        return Role.SPOKE if self is Role.HUB else Role.HUB


class State(Enum):
    """Spoke: START, HELLO_SENT, READY, CLOSED. Hub: START, HELLO_RECEIVED, READY, CLOSED.

    With a token both pass through CHALLENGED and PROVEN before READY.
    """

    START = "start"
    HELLO_SENT = "hello sent"
    HELLO_RECEIVED = "hello received"
    CHALLENGED = "challenged"
    PROVEN = "proven"
    READY = "ready"
    CLOSED = "closed"

    __hash__ = object.__hash__


_END = frozenset({F.ERROR, F.GOODBYE})
_EITHER_READY = _END | {F.PING, F.PONG}
_SPOKE_READY = _EITHER_READY | {F.SUBSCRIBE, F.READ, F.CANCEL, F.PROMOTE, F.STATS, F.CHECK, F.REPORT, F.ORDERS, F.FETCH}
_HUB_READY = _EITHER_READY | {F.SNAPSHOT, F.CHANGES, F.HEARTBEAT, F.DATA, F.CHECKED, F.REPORTED, F.KEPT, F.PIECE}
_NOTHING: frozenset[F] = frozenset()

MAY_SEND: Mapping[tuple[Role, State], frozenset[F]] = {
    (Role.SPOKE, State.START): _END | {F.HELLO},
    (Role.SPOKE, State.HELLO_SENT): _END,
    (Role.SPOKE, State.CHALLENGED): _END | {F.PROOF},
    (Role.SPOKE, State.PROVEN): _END,
    (Role.SPOKE, State.READY): _SPOKE_READY,
    (Role.SPOKE, State.CLOSED): _NOTHING,
    (Role.HUB, State.START): _END,
    (Role.HUB, State.HELLO_RECEIVED): _END | {F.CHALLENGE, F.WELCOME},
    (Role.HUB, State.CHALLENGED): _END,
    (Role.HUB, State.PROVEN): _END | {F.WELCOME},
    (Role.HUB, State.READY): _HUB_READY,
    (Role.HUB, State.CLOSED): _NOTHING,
}

MAY_RECEIVE: Mapping[tuple[Role, State], frozenset[F]] = {
    (Role.SPOKE, State.START): _END,
    (Role.SPOKE, State.HELLO_SENT): _END | {F.CHALLENGE, F.WELCOME},
    (Role.SPOKE, State.CHALLENGED): _END,
    (Role.SPOKE, State.PROVEN): _END | {F.WELCOME},
    (Role.SPOKE, State.READY): _HUB_READY,
    (Role.SPOKE, State.CLOSED): _NOTHING,
    (Role.HUB, State.START): _END | {F.HELLO},
    (Role.HUB, State.HELLO_RECEIVED): _END,
    (Role.HUB, State.CHALLENGED): _END | {F.PROOF},
    (Role.HUB, State.PROVEN): _END,
    (Role.HUB, State.READY): _SPOKE_READY,
    (Role.HUB, State.CLOSED): _NOTHING,
}

FEED = frozenset({F.SNAPSHOT, F.CHANGES, F.HEARTBEAT})
"""Their request id is the number of the subscription they answer."""

WITHOUT_ID = frozenset(
    {F.HELLO, F.WELCOME, F.CHALLENGE, F.PROOF, F.PING, F.PONG, F.STATS, F.GOODBYE, F.CHECK, F.CHECKED}
    | {F.REPORT, F.REPORTED, F.ORDERS, F.KEPT, F.FETCH, F.PIECE}
)
"""About the connection: their request id is 0."""
