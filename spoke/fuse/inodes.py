"""Which node ids the kernel knows, and what each stands for.

A node id is not an inode number. A node id stands for one content of one name for ever: when a file's version (or a
symlink's target) changes, the name gets a new node id, so pages of two versions never share a page cache, and a handle
opened before keeps its size. ``st_ino`` is the tree's serial and stays. Node ids are never used twice, so
the generation is always 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from common.entries import Entry, Kind
from spoke.fuse.kernel import ROOT_NODE_ID
from spoke.fuse.ledger import Ledger, NodeRecord
from spoke.namespace.packing import same_content, unpack_entry
from spoke.namespace.tree import Node, Tree

FIRST_NODE_ID = 1 << 10
"""Smaller ids are left to the root and to what is not in the tree (``.headrace``)."""


class Inode:
    """One node id. ``packed``: the attributes it answers with (spoke.namespace.packing), frozen in size and version when the
    tree moves on; until then the very object the tree's node holds, so that a walk of a million names costs no copy of them.

    ``lookups``: how often the kernel was given it and has not forgotten. ``cached_opens`` and ``passthrough_opens``:
    handles of either kind; the kernel refuses one while the other is open. ``slot``: its record in the ledger, -1 without one.
    """

    __slots__ = ("cached_opens", "lookups", "node", "node_id", "packed", "passthrough_opens", "slot")

    def __init__(self, node_id: int, node: Node) -> None:
        self.node_id = node_id
        self.node = node
        self.packed = node.packed
        self.lookups = 0
        self.cached_opens = 0
        self.passthrough_opens = 0
        self.slot = -1

    @property
    def entry(self) -> Entry:
        """Built anew each time."""
        return unpack_entry(self.packed)

    @property
    def kind(self) -> Kind:
        return Kind(self.packed[0])

    @property
    def is_outdated(self) -> bool:
        """The name is gone, or has other bytes now: whoever opens it must look it up again."""
        node = self.node
        return not one_node_id(node.packed, self.packed) or (node.parent is None and self.node_id != ROOT_NODE_ID)


def one_node_id(one: bytes, other: bytes) -> bool:
    """One node id may stand for both entries: nothing that the kernel caches by page differs. (A directory has no pages.)"""
    return one is other or (one[0] == other[0] and same_content(one, other))


class InodeTable:
    """Node ids given out and not forgotten. The root is always known. With a ``ledger`` each is written down there first."""

    def __init__(self, root: Node, ledger: Ledger | None = None) -> None:
        self._ledger = ledger
        self._by_id: dict[int, Inode] = {}
        self._current: dict[int, Inode] = {}  # by the node's serial
        self._next_id = ledger.node_ids_from(FIRST_NODE_ID) if ledger is not None else FIRST_NODE_ID
        self._parent: Node | None = None
        self._prefix = b""
        self._restored: tuple[bytes | None, Node | None] = (None, None)
        self.root = Inode(ROOT_NODE_ID, root)
        self._by_id[ROOT_NODE_ID] = self.root
        self._current[root.serial] = self.root

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, node_id: int) -> Inode | None:
        return self._by_id.get(node_id)

    def known(self, node: Node) -> Inode | None:
        """The inode that new lookups of ``node`` get, if the kernel has seen it."""
        return self._current.get(node.serial)

    def current(self, node: Node, lookups: int = 0) -> Inode:
        """As :meth:`known`, made if need be, and never with other bytes than the node has now. ``lookups``: how many more
        references the reply that is being made gives the kernel."""
        inode = self._current.get(node.serial)
        if inode is not None and (inode.packed is node.packed or one_node_id(inode.packed, node.packed)):
            inode.packed = node.packed
            inode.lookups += lookups
            if self._ledger is not None:
                self._ledger.set_lookups(inode.slot, inode.lookups)
            return inode
        inode = Inode(self._next_id, node)
        inode.lookups = lookups
        if self._ledger is not None:
            inode.slot = self._ledger.add_node(inode.node_id, node.serial, self._path(node), node.packed, lookups)
        self._next_id += 1
        self._by_id[inode.node_id] = inode
        self._current[node.serial] = inode
        return inode

    def _path(self, node: Node) -> bytes:
        """Siblings come one after another: their directory's path is made once."""
        if node.parent is None or node.parent.parent is None:
            return node.path()
        if node.parent is not self._parent:
            self._parent, self._prefix = node.parent, node.parent.path() + b"/"
        return self._prefix + node.name

    def restore(self, record: NodeRecord, tree: Tree) -> Inode:
        """A node id that an earlier worker gave out, in the order of node ids. Where the tree has moved on it is an outdated one."""
        directory, _, name = record.path.rpartition(b"/")
        if directory != self._restored[0]:
            self._restored = directory, tree.resolve(directory)
        parent = self._restored[1]
        node = parent.children.get(name) if parent is not None else None
        if node is None or node is tree.root or node.packed[0] != record.packed[0]:
            node = Node(name, None, record.packed, record.serial)
        elif node.serial != record.serial:
            self._current.pop(node.serial, None)
            node.serial = record.serial  # st_ino stays what it was
        inode = Inode(record.node_id, node)
        inode.slot, inode.lookups = record.slot, record.lookups
        if one_node_id(node.packed, record.packed):
            inode.packed = node.packed
            if node.parent is not None:
                self._current[node.serial] = inode
        else:
            inode.packed = record.packed
        self._by_id[inode.node_id] = inode
        return inode

    def moved(self, node_id: int, slot: int) -> None:
        """Its record in the ledger lies elsewhere now."""
        self._by_id[node_id].slot = slot

    def retire(self, node: Node) -> Inode | None:
        """Make the next lookup of ``node`` give a new node id; returns the old one, which goes on answering."""
        if node is self.root.node:
            return None
        return self._current.pop(node.serial, None)

    def forget(self, node_id: int, lookups: int) -> None:
        """The kernel gave back ``lookups`` references; at none left, and nothing open, the node id is gone for good."""
        inode = self._by_id.get(node_id)
        if inode is None or inode is self.root:
            return
        inode.lookups = max(0, inode.lookups - lookups)
        if self._ledger is not None:
            self._ledger.set_lookups(inode.slot, inode.lookups)
        self.drop_if_unused(inode)

    def drop_if_unused(self, inode: Inode) -> None:
        if inode.lookups or inode.cached_opens or inode.passthrough_opens or inode is self.root:
            return
        if self._by_id.pop(inode.node_id, None) is not None and self._ledger is not None:
            self._ledger.drop(inode.slot)
        if self._current.get(inode.node.serial) is inode:
            del self._current[inode.node.serial]

    def current_files(self) -> Iterator[Inode]:
        """Of files, those that new lookups get, as of now."""
        return (inode for inode in list(self._current.values()) if inode.kind is Kind.FILE)

    def cached_names(self) -> Iterator[tuple[int, bytes]]:
        """(parent's node id, name) of every name the kernel may hold, as of now."""
        for inode in list(self._by_id.values()):
            parent = inode.node.parent
            parent_inode = self._current.get(parent.serial) if parent is not None else None
            if parent_inode is not None:
                yield parent_inode.node_id, inode.node.name
