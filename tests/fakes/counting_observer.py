"""A server's observer that remembers what it was told."""

from __future__ import annotations

from common.wire.messages import Priority


class Counted:
    def __init__(self) -> None:
        self.connected_count = 0
        self.disconnected_count = 0
        self.sent_bytes: dict[str, int] = {}
        self.done: list[tuple[Priority, float]] = []
        self.codes: list[str] = []

    def connected(self, identity: str) -> None:
        self.connected_count += 1

    def disconnected(self, identity: str) -> None:
        self.disconnected_count += 1

    def sent(self, identity: str, wire_bytes: int) -> None:
        self.sent_bytes[identity] = self.sent_bytes.get(identity, 0) + wire_bytes

    def read_done(self, priority: Priority, seconds: float) -> None:
        self.done.append((priority, seconds))

    def refused(self, code: str) -> None:
        self.codes.append(code)
