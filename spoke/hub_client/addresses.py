"""Where the hub's name leads: name service asked in a thread that may hang, and what it last said.

A lookup has no timeout and cannot be stopped. uvloop runs lookups on the four threads of libuv, which everything else of that
kind then waits for, the exit of the process too. So: one daemon thread at a time, and nobody waits for it longer than
NAME_TIMEOUT_S. Name service that is gone never cuts off a hub that is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple

from common import limits
from common.errors import HubUnreachable
from common.log import get_logger
from common.runtime import settle

log = get_logger(__name__)


class Address(NamedTuple):
    """``family``: AF_INET or AF_INET6; ``sockaddr``: numeric, as ``connect`` takes it."""

    family: int
    sockaddr: tuple[str | int, ...]


Lookup = Callable[[str, int], list[Address]]
"""Blocking; raises OSError."""


def look_up(host: str, port: int) -> list[Address]:
    """Ask the system's name service (getaddrinfo(3)). Numbers are answered at once. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [
        Address(family, (str(to[0]), *to[1:]))
        for family, _, _, _, to in found
        if family in (socket.AF_INET, socket.AF_INET6)
    ]


class Addresses:
    """``find()`` before each dial; ``lookup`` for tests."""

    def __init__(self, host: str, port: int, lookup: Lookup | None = None) -> None:
        self._host = host
        self._port = port
        self._lookup = lookup or look_up
        self._under_way: asyncio.Future[None] | None = None
        self._known: list[Address] = []
        self._failure = ""
        """Why the last lookup brought nothing, or brings nothing; told once."""

    async def find(self) -> Address:
        """Where to dial now: the name's first address, the next one after each that failed.

        Raises HubUnreachable when none is known.
        """
        lookup = self._under_way or self._start()
        if not (
            self._known and self._failure
        ):  # else: known to fail, so not waited for; it tells when it does not any more
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limits.NAME_TIMEOUT_S):
                    await asyncio.shield(lookup)
            if not lookup.done():
                self._failed(f"no answer within {limits.NAME_TIMEOUT_S:g} s")
        if not self._known:
            raise HubUnreachable(f"name service does not tell where {self._host!r} is: {self._failure}")
        return self._known[0]

    def failed(self, address: Address) -> None:
        """Nobody answered there: try the others first."""
        if len(self._known) > 1 and self._known[0] == address:
            self._known.append(self._known.pop(0))

    def _start(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        lookup = self._under_way = loop.create_future()

        def run() -> None:
            found: list[Address] = []
            failure = ""
            try:
                found = self._lookup(self._host, self._port)
            except (OSError, ValueError) as error:  # ValueError: a name that cannot be one (UnicodeError)
                failure = getattr(error, "strerror", None) or str(error)
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._looked_up, found, failure)

        threading.Thread(target=run, name="name service", daemon=True).start()
        return lookup

    def _looked_up(self, found: list[Address], failure: str) -> None:
        assert self._under_way is not None
        lookup, self._under_way = self._under_way, None
        if found:
            if self._failure and self._known:
                log.info("name service answers again", name=self._host)
            if set(found) != set(self._known):  # else: keep what was learned about them
                self._known = found
            self._failure = ""
        else:
            self._failed(failure or "no addresses")
        settle(lookup, None)

    def _failed(self, failure: str) -> None:
        if self._known and not self._failure:
            log.warning(
                "name service fails; the hub is dialled where its name led last", name=self._host, error=failure
            )
        self._failure = failure
