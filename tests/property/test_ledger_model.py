"""The ledger against a model, with a kill before any store into memory: a number whose reply left means the same for ever."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from spoke.fuse import ledger as module
from spoke.fuse.ledger import Ledger

NODE_BYTES = 120_000  # few records fill a segment: records move, segments come and go


class Killed(BaseException):
    """SIGKILL, as far as memory can tell."""


class Fuse:
    """Counts stores, and kills before the last one."""

    def __init__(self) -> None:
        self.left = 1 << 60

    def store(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1


class Watched:
    """Memory whose stores are counted."""

    def __init__(self, inner: Any, fuse: Fuse) -> None:
        self._inner, self._fuse = inner, fuse

    def __getitem__(self, at: Any) -> Any:
        return self._inner[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        if isinstance(at, slice) and len(value) > 8:  # a copy may stop in its middle
            half = at.start + len(value) // 2
            self._fuse.store()
            self._inner[at.start : half] = value[: half - at.start]
            self._fuse.store()
            self._inner[half : at.stop] = value[half - at.start :]
            return
        self._fuse.store()
        self._inner[at] = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self._inner)


def watch(ledger: Ledger, fuse: Fuse) -> None:
    original = module._Segment.__init__

    def made(segment: Any, memory: Any) -> None:
        original(segment, memory)
        segment.words = Watched(segment.words, fuse)
        segment.memory = Watched(memory, fuse)

    for segment in ledger._segments:
        if not isinstance(segment.words, Watched):
            segment.words = Watched(segment.words, fuse)
            segment.memory = Watched(segment.memory, fuse)
    ledger._map_next = lambda: _map_watched(ledger, made)  # type: ignore[method-assign]


def _map_watched(ledger: Ledger, made: Any) -> int:
    index = Ledger._map_next(ledger)
    made(ledger._segments[index], ledger._segments[index].memory)
    return index


class Life:
    """One mount over several workers: what the kernel was told is ``nodes`` and ``handles``."""

    def __init__(self) -> None:
        self.fuse = Fuse()
        self.ledger = Ledger.create({})
        self.nodes: dict[int, tuple[bytes, int]] = {}
        self.handles: dict[int, int] = {}
        self.slots: dict[tuple[bool, int], int] = {}
        self.in_doubt: set[tuple[bool, int]] = set()
        self.next_number = 1024
        self.begin()

    def begin(self) -> None:
        self.ledger.moved = lambda is_handle, number, slot: self.slots.__setitem__((is_handle, number), slot)
        watch(self.ledger, self.fuse)

    def do(self, action: str, choice: int) -> None:
        if action == "node":
            number, self.next_number = self.next_number, self.next_number + 1
            path = bytes([choice % 256]) * (NODE_BYTES + choice % 1000)
            self.in_doubt.add((False, number))
            self.slots[False, number] = self.ledger.add_node(number, number, path, b"packed")
            self.ledger.set_lookups(self.slots[False, number], 1)
            self.nodes[number] = (path, 1)
        elif action == "handle" and self.nodes:
            node_id = sorted(self.nodes)[choice % len(self.nodes)]
            number, self.next_number = self.next_number, self.next_number + 1
            self.in_doubt.add((True, number))
            self.ledger.giving_out(number)
            self.slots[True, number] = self.ledger.add_handle(number, node_id, number * 2, choice % 3)
            self.handles[number] = node_id
        elif action == "look" and self.nodes:
            number = sorted(self.nodes)[choice % len(self.nodes)]
            path, lookups = self.nodes[number]
            self.ledger.set_lookups(self.slots[False, number], lookups + 1)
            self.nodes[number] = (path, lookups + 1)
        elif action == "close" and self.handles:
            number = sorted(self.handles)[choice % len(self.handles)]
            self.in_doubt.add((True, number))
            self.handles.pop(number)  # the kernel let go before we heard of it
            self.ledger.drop(self.slots.pop((True, number)))
        elif action == "forget" and self.nodes:
            number = sorted(self.nodes)[choice % len(self.nodes)]
            if number not in self.handles.values():
                self.in_doubt.add((False, number))
                self.nodes.pop(number)
                self.ledger.drop(self.slots.pop((False, number)))

    def next_worker(self) -> None:
        self.fuse.left = 1 << 60
        self.ledger = Ledger.adopt(self.ledger.fd)
        nodes, handles = self.ledger.records()
        found = {node.node_id: node for node in nodes}
        for number, (path, lookups) in self.nodes.items():
            node = found[number]
            assert (node.path, node.serial, node.packed) == (path, number, b"packed")
            assert node.lookups in (lookups, lookups + 1)  # the store of a lookup whose reply never left
            self.nodes[number] = (path, node.lookups)
        opened = {handle.handle_id: handle.node_id for handle in handles}
        for number, node_id in self.handles.items():
            assert opened[number] == node_id
        for is_handle, number in [(False, number) for number in found] + [(True, number) for number in opened]:
            assert number in (self.handles if is_handle else self.nodes) or (is_handle, number) in self.in_doubt
        self.slots = {(False, node.node_id): node.slot for node in nodes}
        self.slots |= {(True, handle.handle_id): handle.slot for handle in handles}
        for handle in handles:  # as Operations does with what nobody was told
            if handle.handle_id not in self.handles:
                self.ledger.drop(self.slots.pop((True, handle.handle_id)))
        for node in nodes:
            if node.node_id not in self.nodes:
                self.ledger.drop(self.slots.pop((False, node.node_id)))
        assert self.ledger.node_ids_from(0) > max(self.nodes, default=-1)
        assert self.ledger.handle_ids_from(0) > max(self.handles, default=-1)
        self.in_doubt.clear()
        self.begin()


ACTIONS = st.tuples(
    st.sampled_from(["node", "node", "node", "handle", "look", "close", "forget", "forget"]), st.integers(0, 5000)
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.lists(ACTIONS, max_size=60), st.integers(0, 400)), min_size=1, max_size=5))
def test_what_the_kernel_was_told_survives_a_kill_before_any_store(
    lives: list[tuple[list[tuple[str, int]], int]],
) -> None:
    life = Life()
    try:
        for actions, stores in lives:
            life.fuse.left = stores
            try:
                for action, choice in actions:
                    life.do(action, choice)
            except Killed:
                pass
            life.next_worker()
    finally:
        os.close(life.ledger.fd)
