"""Directories as READDIR and READDIRPLUS see them.

An open directory keeps the names as they were when its reading began, so that a position means the same name while
the directory changes: what stays is listed exactly once. Reading from the start again shows what is there then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from common.entries import Kind
from common.limits import FUSE_LISTING_MAX_BYTES
from spoke.fuse import kernel
from spoke.fuse.attributes import DIRENT_TYPE, Ownership
from spoke.fuse.inodes import Inode, InodeTable
from spoke.fuse.virtual import DIRECTORY_ID, VirtualDirectory
from spoke.namespace.tree import Node

_NOW = kernel.lifetime(0)
_DOTS = 2  # positions 0 and 1


class Listing:
    """One open directory."""

    __slots__ = ("_inode", "_nodes")

    def __init__(self, inode: Inode) -> None:
        self._inode = inode
        self._nodes: list[Node] = []

    def plain(self, position: int, room_bytes: int) -> bytes:
        """READDIR from ``position`` on: as many entries as fit."""
        parts = self._begin(position, plus=False)
        for next_position, node in self._fitting(position, room_bytes, parts, kernel.dirent_bytes):
            parts.append(kernel.pack_dirent(node.serial, next_position, DIRENT_TYPE[node.kind], node.name))
        return b"".join(parts)

    def plus(
        self, position: int, room_bytes: int, inodes: InodeTable, ownership: Ownership, lifetime: kernel.Lifetime
    ) -> bytes:
        """READDIRPLUS: every entry but the dots counts as looked up."""
        parts = self._begin(position, plus=True)
        for next_position, node in self._fitting(position, room_bytes, parts, kernel.direntplus_bytes):
            inode = inodes.current(node)
            inode.lookups += 1
            fields = ownership.fields(node.serial, node.name, node.entry)
            kind = DIRENT_TYPE[node.kind]
            parts.append(
                kernel.pack_direntplus(inode.node_id, lifetime, lifetime, fields, next_position, kind, node.name)
            )
        return b"".join(parts)

    def _begin(self, position: int, plus: bool) -> list[bytes]:
        own = self._inode.node
        if position == 0:  # opened just now, or rewound
            self._nodes = list(own.children.values())
        dots = ((b".", own), (b"..", own.parent or own))
        return [
            _unlooked(name, node.serial, index + 1, Kind.DIRECTORY, plus)
            for index, (name, node) in enumerate(dots)
            if index >= position
        ]

    def _fitting(
        self, position: int, room_bytes: int, begun: list[bytes], measure: Callable[[bytes], int]
    ) -> Iterator[tuple[int, Node]]:
        own, nodes = self._inode.node, self._nodes
        left_bytes = min(room_bytes, FUSE_LISTING_MAX_BYTES) - sum(map(len, begun))
        for index in range(max(0, position - _DOTS), len(nodes)):
            node = nodes[index]
            if node.parent is not own:
                continue  # removed since the listing began
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
        number = directory.fields(DIRECTORY_ID if is_dot else DIRECTORY_ID + index - 1)[0]
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
