"""What a hub counts about those it serves."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.wire.messages import Priority

IDENTITIES_MAX = 1000
"""Spokes with a series of their own; a fleet that changes names for ever is counted together as ``other``."""


@dataclass
class Counts:
    """Observer of the server (common.serving.observer)."""

    sent_bytes: dict[str, int] = field(default_factory=dict)
    reads_done: dict[Priority, int] = field(default_factory=lambda: dict.fromkeys(Priority, 0))
    read_seconds: dict[Priority, float] = field(default_factory=lambda: dict.fromkeys(Priority, 0.0))
    refusals: dict[str, int] = field(default_factory=dict)
    connections_total: int = 0

    def connected(self, identity: str) -> None:
        self.connections_total += 1

    def disconnected(self, identity: str) -> None:
        """Who is linked now is the server's to say."""

    def sent(self, identity: str, wire_bytes: int) -> None:
        if identity not in self.sent_bytes and len(self.sent_bytes) >= IDENTITIES_MAX:
            identity = "other"
        self.sent_bytes[identity] = self.sent_bytes.get(identity, 0) + wire_bytes

    def read_done(self, priority: Priority, seconds: float) -> None:
        self.reads_done[priority] += 1
        self.read_seconds[priority] += seconds

    def refused(self, code: str) -> None:
        self.refusals[code] = self.refusals.get(code, 0) + 1
