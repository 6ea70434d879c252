"""Directories as READDIR and READDIRPLUS see them.

An open directory keeps the names as they were when its reading began, so that a position means the same name while
the directory changes: what stays is listed exactly once. Reading from the start again shows what is there then.

A position is the place in that list and a checksum of the name before it, so that the next worker, which has no list yet,
finds where an open directory was left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from zlib import crc32

from common.entries import Kind
from common.errors import StaleVersion
from common.limits import FUSE_LISTING_MAX_BYTES
from spoke.fuse import kernel
from spoke.fuse.attributes import DIRENT_TYPE, Ownership
from spoke.fuse.inodes import Inode, InodeTable
from spoke.fuse.virtual import DIRECTORY_ID, DIRECTORY_NAME, VirtualDirectory
from spoke.namespace.tree import Node

_NOW = kernel.lifetime(0)
_DOTS = 2  # places 0 and 1
_PLACE_SHIFT, _NAME_MASK = 32, (1 << 32) - 1


def _position(place: int, name: bytes) -> int:
    """Where to go on behind ``name``, when ``place`` entries have been listed."""
    return place << _PLACE_SHIFT | crc32(name)


class Listing:
    """One open directory. ``resumed``: an earlier worker began to list it."""

    __slots__ = ("_inode", "_nodes", "_resumed")

    def __init__(self, inode: Inode, resumed: bool = False) -> None:
        self._inode = inode
        self._nodes: list[Node] = list(inode.node.children.values()) if resumed else []
        self._resumed = resumed

    def plain(self, position: int, room_bytes: int) -> bytes:
        """READDIR from ``position`` on: as many entries as fit."""
        place = self._place(position)
        parts = self._begin(place, plus=False)
        for next_place, node in self._fitting(place, room_bytes, parts, kernel.dirent_bytes):
            next_position = _position(next_place, node.name)
            parts.append(kernel.pack_dirent(node.serial, next_position, DIRENT_TYPE[node.kind], node.name))
        return b"".join(parts)

    def plus(
        self, position: int, room_bytes: int, inodes: InodeTable, ownership: Ownership, lifetime: kernel.Lifetime
    ) -> bytes:
        """READDIRPLUS: every entry but the dots counts as looked up."""
        place = self._place(position)
        parts = self._begin(place, plus=True)
        for next_place, node in self._fitting(place, room_bytes, parts, kernel.direntplus_bytes):
            inode = inodes.current(node, 1)
            next_position = _position(next_place, node.name)
            fields = ownership.fields(node.serial, node.name, node.entry)
            kind = DIRENT_TYPE[node.kind]
            parts.append(
                kernel.pack_direntplus(inode.node_id, lifetime, lifetime, fields, next_position, kind, node.name)
            )
        return b"".join(parts)

    def _place(self, position: int) -> int:
        place, checksum = position >> _PLACE_SHIFT, position & _NAME_MASK
        if not self._resumed or place <= _DOTS:
            return place
        # Names keep their order and go to the end when they are new; those removed meanwhile move the rest forward.
        nodes = self._nodes
        for index in range(min(place - _DOTS, len(nodes)) - 1, -1, -1):
            if crc32(nodes[index].name) == checksum:
                return index + _DOTS + 1
        raise StaleVersion(
            f"{self._inode.node.path()!r} changed while it was listed and the spoke restarted; list it again"
        )

    def _begin(self, place: int, plus: bool) -> list[bytes]:
        own = self._inode.node
        if place == 0:  # opened just now, or rewound
            self._nodes = list(own.children.values())
            self._resumed = False
        dots = ((b".", own), (b"..", own.parent or own))
        return [
            _unlooked(name, node.serial, _position(index + 1, name), Kind.DIRECTORY, plus)
            for index, (name, node) in enumerate(dots)
            if index >= place
        ]

    def _fitting(
        self, place: int, room_bytes: int, begun: list[bytes], measure: Callable[[bytes], int]
    ) -> Iterator[tuple[int, Node]]:
        own, nodes = self._inode.node, self._nodes
        hidden = DIRECTORY_NAME if self._inode.node_id == kernel.ROOT_NODE_ID else None  # listing looks up
        left_bytes = min(room_bytes, FUSE_LISTING_MAX_BYTES) - sum(map(len, begun))
        for index in range(max(0, place - _DOTS), len(nodes)):
            node = nodes[index]
            if node.parent is not own or node.name == hidden:
                continue  # removed since the listing began, or hidden by ours
            left_bytes -= measure(node.name)
            if left_bytes < 0:
                return
            yield index + _DOTS + 1, node


def list_virtual(directory: VirtualDirectory, position: int, room_bytes: int, plus: bool) -> bytes:
    """READDIR or READDIRPLUS of ``.headrace/``."""
    names = [b".", b"..", *directory.names]
    parts: list[bytes] = []
    used_bytes = 0
    for index in range(position, len(names)):
        is_dot = index < _DOTS
        number = directory.fields(DIRECTORY_ID if is_dot else directory.find(names[index]) or 0)[0]
        part = _unlooked(names[index], number, index + 1, Kind.DIRECTORY if is_dot else Kind.FILE, plus)
        used_bytes += len(part)
        if used_bytes > room_bytes:
            break
        parts.append(part)
    return b"".join(parts)


def _unlooked(name: bytes, inode_number: int, next_position: int, kind: Kind, plus: bool) -> bytes:
    """An entry that is not looked up: the dots, and what is not in the tree."""
    type_bits = DIRENT_TYPE[kind]
    if not plus:
        return kernel.pack_dirent(inode_number, next_position, type_bits, name)
    fields = kernel.bare_fields(inode_number, type_bits << 12)
    return kernel.pack_direntplus(0, _NOW, _NOW, fields, next_position, type_bits, name)
