"""Sequences of files read in directory order: which whole files come next, and how many of them to fetch ahead.

A chain begins when a file's successor is opened after it and proves itself with the second such step. It is keyed by
place (the file that should come next), so that several workers may take turns at it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from common import limits
from spoke.prefetch.window import Window


class FileFacts(NamedTuple):
    """A file as it was opened: ``version`` names its bytes."""

    path: bytes
    version: bytes
    size_bytes: int


NextFile = Callable[[bytes], FileFacts | None]
"""The file after this path in its directory's order, or None: a pure look-up in the tree."""

_PROOF_STEPS = 2
_HISTORY_FILES = 32
_ORDERED_SHARE = 0.45


class Chain:
    """``steps``: how often a file's successor did follow. ``ahead``: paths anticipated and not begun, with their sizes.

    ``read_bytes``: sizes of the small files begun, which is what their window rests on.
    """

    __slots__ = ("_front", "ahead", "ahead_bytes", "last_path", "read_bytes", "steps", "window")

    def __init__(self, now_s: float, path: bytes) -> None:
        self.steps = 0
        self.window = Window(now_s)
        self.ahead: OrderedDict[bytes, int] = OrderedDict()
        self.ahead_bytes = 0
        self.read_bytes = 0
        self.last_path = path
        self._front = path

    def begun(self, path: bytes) -> None:
        """A file of the chain is read: it is no longer ahead."""
        self.ahead_bytes -= self.ahead.pop(path, 0)
        self.last_path = path
        if not self.ahead:
            self._front = path

    def extend(self, next_file: NextFile, window_bytes: int) -> list[FileFacts]:
        """Anticipate files until ``window_bytes`` are ahead."""
        found: list[FileFacts] = []
        while self.ahead_bytes < window_bytes and len(self.ahead) < limits.PREFETCH_CHAIN_MAX_FILES:
            facts = next_file(self._front)
            if facts is None or facts.path in self.ahead:
                break
            self._front = facts.path
            self.ahead[facts.path] = facts.size_bytes
            self.ahead_bytes += facts.size_bytes
            found.append(facts)
        return found


class Chains:
    """The chains followed now, by the path that continues each; the oldest is forgotten."""

    def __init__(self, next_file: NextFile) -> None:
        self.next_file = next_file
        self.forgotten_bytes = 0
        """Anticipated in chains that were forgotten, and never read, since last taken by the planner."""
        self._by_next_path: OrderedDict[bytes, Chain] = OrderedDict()
        self._step_share = 0.5

    def proven(self, chain: Chain) -> bool:
        """The chain has shown two steps, and files mostly do come in order now: in a small directory chance makes steps too."""
        return chain.steps >= _PROOF_STEPS and self._step_share >= _ORDERED_SHARE

    def begun(self, now_s: float, path: bytes) -> Chain:
        """The first read of a file: the chain it continues, or a new one of no steps."""
        chain = self._by_next_path.pop(path, None)
        if chain is None:
            chain = next((known for known in self._by_next_path.values() if path in known.ahead), None)
            if chain is None:
                chain = Chain(now_s, path)
            else:  # out of turn, by another worker
                self._by_next_path = OrderedDict(
                    (key, known) for key, known in self._by_next_path.items() if known is not chain
                )
        stepped = chain.last_path != path
        chain.steps += stepped
        self._step_share += (stepped - self._step_share) / _HISTORY_FILES
        chain.begun(path)
        following = self.next_file(path)
        if following is not None:
            self._by_next_path[following.path] = chain
            if len(self._by_next_path) > limits.PREFETCH_MAX_CHAINS:
                self.forgotten_bytes += self._by_next_path.popitem(last=False)[1].ahead_bytes
        return chain
