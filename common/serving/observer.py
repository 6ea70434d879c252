"""What a server tells whoever counts: metrics stand behind this, the server does not know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from common.errors import HeadraceError
from common.wire.messages import Hello, Priority


class Observer(Protocol):
    """All calls come from the loop's thread and must not block. ``identity``: the spoke's stable name (untrusted text)."""

    def connected(self, identity: str) -> None:
        """A connection of this spoke was welcomed."""

    def disconnected(self, identity: str) -> None: ...

    def sent(self, identity: str, wire_bytes: int) -> None:
        """Bytes of DATA, SNAPSHOT and CHANGES frames handed to the socket."""

    def read_done(self, priority: Priority, seconds: float) -> None:
        """A READ was answered whole, ``seconds`` after it came."""

    def refused(self, code: str) -> None:
        """A READ, a subscription or a connection was answered with ERROR ``code``."""


class Auditor(Protocol):
    """Who did what, for a record. All calls come from the loop's thread and must not block. ``address``: of the other end."""

    def connected(self, address: str, hello: Hello, names: Sequence[str]) -> None:
        """A connection was let in; ``names``: all that its certificate has."""

    def opened(self, address: str, hello: Hello, version: bytes) -> None:
        """It asks for blocks of this file version; once for each READ."""

    def refused(self, address: str, hello: Hello | None, error: HeadraceError) -> None:
        """It was not let in, or shut out; ``hello``: None before it was let in."""


class NoObserver:
    """Counts nothing."""

    def connected(self, identity: str) -> None: ...
    def disconnected(self, identity: str) -> None: ...
    def sent(self, identity: str, wire_bytes: int) -> None: ...
    def read_done(self, priority: Priority, seconds: float) -> None: ...
    def refused(self, code: str) -> None: ...
