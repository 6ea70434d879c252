"""One timer for many things that are due after the same time, most of which never are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class DueOnce(Generic[_Item]):
    """``fire(item)`` once ``after_s`` have passed since ``add``, unless ``drop`` comes first. One timer for all: those of the loop cost
    as much as all else that is done for a read that is on its way (two of them 10 us)."""

    def __init__(self, after_s: float, fire: Callable[[_Item], object]) -> None:
        self._after_s = after_s
        self._fire = fire
        self._due_s: dict[_Item, float] = {}  # the first to be added is the first due
        self._timer: asyncio.TimerHandle | None = None

    def add(self, item: _Item) -> None:
        loop = asyncio.get_running_loop()
        self._due_s[item] = due_s = loop.time() + self._after_s
        if self._timer is None:
            self._timer = loop.call_at(due_s, self._look)

    def drop(self, item: _Item) -> None:
        """Nothing if it is not there, or was fired. The timer is left: it finds the next one, or none."""
        self._due_s.pop(item, None)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._due_s:
            item, due_s = next(iter(self._due_s.items()))
            if due_s > loop.time():
                self._timer = loop.call_at(due_s, self._look)
                return
            del self._due_s[item]
            self._fire(item)
