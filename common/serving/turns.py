"""Turns at what a source gives only a few at once: snapshots. One identity holds half of them at most, so that others get theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from common import limits
from common.entries import Entry
from common.serving.source import Snapshot, TreeSource


class SnapshotTurns:
    """By identity. What nobody holds or waits for is forgotten."""

    def __init__(self, at_once: int = limits.SNAPSHOTS_PER_IDENTITY_MAX) -> None:
        self._at_once = at_once
        self._slots: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}

    async def take(self, identity: str) -> None:
        semaphore, users = self._slots.setdefault(identity, (asyncio.Semaphore(self._at_once), []))
        users.append(None)
        try:
            await semaphore.acquire()
        except BaseException:
            self._leave(identity)
            raise

    def give_back(self, identity: str) -> None:
        self._slots[identity][0].release()
        self._leave(identity)

    def _leave(self, identity: str) -> None:
        _, users = self._slots[identity]
        users.pop()
        if not users:
            del self._slots[identity]

    def __len__(self) -> int:
        return len(self._slots)


class InTurn:
    """A source whose snapshots wait for their turn; else the source itself."""

    def __init__(self, source: TreeSource, turns: SnapshotTurns, identity: str) -> None:
        self._source = source
        self._turns = turns
        self._identity = identity

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    async def snapshot(self, revision: int | None = None) -> Snapshot:
        await self._turns.take(self._identity)
        try:
            snapshot = await self._source.snapshot(revision)
        except BaseException:
            self._turns.give_back(self._identity)
            raise
        pages = _Pages(snapshot.pages, self._turns, self._identity)
        return Snapshot(snapshot.revision, snapshot.entry_count, pages)


def in_turn(source: TreeSource, turns: SnapshotTurns, identity: str) -> TreeSource:
    return cast(TreeSource, InTurn(source, turns, identity))


class _Pages(AsyncIterator[Sequence[tuple[bytes, Entry]]]):
    """Gives the turn back when the last page was taken, or when it is closed."""

    def __init__(
        self, pages: AsyncIterator[Sequence[tuple[bytes, Entry]]], turns: SnapshotTurns, identity: str
    ) -> None:
        self._pages = pages
        self._turns = turns
        self._identity = identity
        self._ended = False

    async def __anext__(self) -> Sequence[tuple[bytes, Entry]]:
        try:
            return await anext(self._pages)
        except BaseException:
            self._end()
            raise

    async def aclose(self) -> None:
        self._end()
        close = getattr(self._pages, "aclose", None)
        if close is not None:
            await close()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._turns.give_back(self._identity)
