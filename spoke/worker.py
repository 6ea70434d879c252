"""A worker's side of its supervisor: what it was handed, what it says, and what it is told (spoke/supervisor/channel.py)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from typing import Any

from common import limits
from common.errors import HeadraceError, MountpointError
from common.log import get_logger
from common.runtime import cancel_and_wait
from common.terminal import exit_code
from spoke.fuse.ledger import Ledger
from spoke.namespace.tree import FIRST_SERIAL
from spoke.supervisor.channel import Channel

log = get_logger(__name__)


class Handed:
    """What a worker starts with. ``facts``: the supervisor's account of itself. ``device_fd``, ``ledger``: of the mount to go on
    with, or None."""

    def __init__(self, facts: Mapping[str, Any], fds: list[int]) -> None:
        self.facts = dict(facts)
        self.device_fd: int | None = None
        self.ledger: Ledger | None = None
        if len(fds) == 2:
            self.device_fd = fds[0]
            self.ledger = Ledger.adopt(fds[1])

    @property
    def goes_on(self) -> bool:
        """There is a mount already."""
        return self.ledger is not None

    @property
    def first_serial(self) -> int:
        """Inode numbers from here on mean nothing to anybody yet."""
        return self.ledger.serials_from(FIRST_SERIAL) if self.ledger is not None else FIRST_SERIAL

    def check(self, mountpoint: str, dataset: str) -> None:
        """Raises MountpointError when these settings are for another mount than the one that is there."""
        identity = self.ledger.identity() if self.ledger is not None else {}
        for name, wanted in (("mountpoint", mountpoint), ("dataset", dataset)):
            if identity and identity.get(name) != wanted:
                raise MountpointError(
                    f"the running mount has the {name} {identity.get(name)!r}, and the settings now say {wanted!r}; "
                    "that takes another mount: unmount first"
                )


class SupervisorLine:
    """Use as an async context manager, in the loop whose turning is the sign of life."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.facts: dict[str, Any] = {}
        self._words: asyncio.Queue[tuple[dict[str, Any], list[int]] | None] = asyncio.Queue()
        self.release_asked = asyncio.Event()
        self.lost = asyncio.Event()
        """The supervisor is gone."""
        self.quiet = True
        """No thread of the last spoke still waits for its disk."""
        self._signs: asyncio.Task[None] | None = None

    async def __aenter__(self) -> SupervisorLine:
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._on_readable)
        self._signs = asyncio.create_task(self._keep_telling(), name="signs of life")
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, HeadraceError):
            self.say("failed", error=str(error), exit=exit_code(error))
        elif error is not None:
            self.say("failed", error=repr(error), exit=1)
        await cancel_and_wait(self._signs)
        if not self.lost.is_set():
            asyncio.get_running_loop().remove_reader(self._channel.fileno())

    def say(self, word: str, fds: tuple[int, ...] = (), **facts: object) -> None:
        self._channel.send(word, facts, fds)

    async def handed(self) -> Handed | None:
        """What the next ``start`` or ``take-back`` brings; None when it is to end instead. Raises LedgerUnusable."""
        while True:
            received = await self._words.get()
            if received is None or received[0]["say"] == "end":
                return None
            message, fds = received
            if message["say"] in ("start", "take-back"):
                self.facts.update(message)
                self.release_asked.clear()
                return Handed(message, fds)
            for fd in fds:
                os.close(fd)

    def _on_readable(self) -> None:
        try:
            while (received := self._channel.receive()) is not None:
                word = received[0].get("say")
                if word == "release":
                    self.release_asked.set()
                elif word == "facts":
                    self.facts.update(received[0])
                else:
                    self._words.put_nowait(received)
        except EOFError:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self.lost.set()
            self._words.put_nowait(None)

    async def _keep_telling(self) -> None:
        while True:
            self.say("alive")
            await asyncio.sleep(limits.SUPERVISED_SIGN_INTERVAL_S)


def give_up_mount(handed: Handed) -> None:
    """Close what was handed over and cannot be used."""
    for fd in (handed.device_fd, handed.ledger.fd if handed.ledger is not None else None):
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)
