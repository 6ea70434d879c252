"""The mirrored tree in memory: lookup, children, changes in order.

A million entries must fit well under 1 GB, so a node is a slotted object and a directory without children has no dict.
Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from common.entries import Entry, Kind

ROOT_ENTRY = Entry(Kind.DIRECTORY, 0o755, 0, 0)
_NO_CHILDREN: Mapping[bytes, Node] = MappingProxyType({})


class Node:
    """One name. ``serial`` is unique for the life of the tree and serves as the inode number; ``parent`` is None once removed."""

    __slots__ = ("_children", "entry", "name", "parent", "serial")

    def __init__(self, name: bytes, parent: Node | None, entry: Entry, serial: int) -> None:
        self.name = name
        self.parent = parent
        self.entry = entry
        self.serial = serial
        self._children: dict[bytes, Node] | None = None

    @property
    def children(self) -> Mapping[bytes, Node]:
        """Names in the order they arrived (the hub sends them sorted)."""
        return self._children if self._children is not None else _NO_CHILDREN

    def path(self) -> bytes:
        """The path from the root; of a removed node, from where it was cut off."""
        names: list[bytes] = []
        node: Node | None = self
        while node is not None and node.name:
            names.append(node.name)
            node = node.parent
        return b"/".join(reversed(names))

    def attach(self, child: Node) -> None:
        if self._children is None:
            self._children = {}
        self._children[child.name] = child

    def detach(self, name: bytes) -> Node | None:
        child = self._children.pop(name, None) if self._children is not None else None
        if child is not None:
            child.parent = None
        return child
