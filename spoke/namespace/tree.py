"""The mirrored tree in memory: lookup, children, changes in order.

A million entries must fit well under 1 GB, so a node is a slotted object and a directory without children has no dict.
Nothing here does I/O or reads a clock, nothing recurses, and every change says what a kernel that cached the old
state must be told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import count, repeat
from types import MappingProxyType
from typing import NamedTuple

from common.entries import Change, Entry, Kind
from common.errors import PeerError
from spoke.namespace.packing import (
    DIRECTORY,
    FILE,
    KINDS,
    files_in,
    pack_entry,
    packed_size_bytes,
    packed_version,
    same_content,
    unpack_entry,
)

FIRST_SERIAL = 2
"""The root has 1."""
ROOT_ENTRY = Entry(Kind.DIRECTORY, 0o755, 0, 0)
_NO_CHILDREN: Mapping[bytes, Node] = MappingProxyType({})


class SequenceBroken(PeerError):
    """A change that cannot follow what the tree holds (unknown parent, older revision): only a resync helps."""

    wire_code = "sequence-broken"
    retryable = True


class Node:
    """One name. ``serial`` is unique for the life of the tree and serves as the inode number; ``parent`` is None once removed.

    ``packed``: the entry as packing.py lays it out; ``entry`` builds the value anew each time (about a microsecond).
    ``mark`` belongs to whoever compares the tree with a snapshot (see :meth:`Tree.next_mark`).
    """

    __slots__ = ("_children", "mark", "name", "packed", "parent", "serial")

    def __init__(self, name: bytes, parent: Node | None, packed: bytes, serial: int, mark: int = 0) -> None:
        self.name = name
        self.parent = parent
        self.packed = packed
        self.serial = serial
        self.mark = mark
        self._children: dict[bytes, Node] | None = None

    @property
    def entry(self) -> Entry:
        return unpack_entry(self.packed)

    @property
    def kind(self) -> Kind:
        return KINDS[self.packed[0]]  # type: ignore[return-value]

    @property
    def is_directory(self) -> bool:
        return self.packed[0] == DIRECTORY

    @property
    def is_file(self) -> bool:
        return self.packed[0] == FILE

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

    def release_children(self) -> list[Node]:
        """Take all children out (of a removed directory: nothing is ever found in it again)."""
        if self._children is None:
            return []
        children = list(self._children.values())
        self._children = None
        return children


class Event(Enum):
    """What happened to a name, in the terms of a kernel that may have cached it."""

    APPEARED = "appeared"  # a cached "no such name" is now wrong
    REMOVED = "removed"  # with all below it
    REPLACED = "replaced"  # another kind stands there now: another node
    CONTENT = "content"  # same node: version, size or symlink target changed: cached pages are wrong
    ATTRIBUTES = "attributes"  # same node, same bytes: mode or times changed


class Invalidation(NamedTuple):
    """One name that changed below ``parent``. The root is its own parent, with the name ``b""``.

    ``node``: what stood there before (None if APPEARED); ``new``: what stands there now (None if REMOVED; the same
    object as ``node`` for CONTENT and ATTRIBUTES). ``old_entry``: the entry before (None if APPEARED).
    """

    event: Event
    parent: Node
    name: bytes
    node: Node | None
    new: Node | None
    old_entry: Entry | None


class Tree:
    """The names of one dataset at ``revision`` of the change log ``catalog_id`` (``b""``: nothing loaded yet).

    ``entry_count`` leaves the root out; ``file_bytes`` sums the sizes of all files (two names of one version count twice).
    ``epoch`` is odd while a snapshot is being applied, when the names of two revisions mix, and rises on each such turn.
    """

    def __init__(self, first_serial: int = FIRST_SERIAL) -> None:
        self.root = Node(b"", None, pack_entry(ROOT_ENTRY), 1)
        self.revision = 0
        self.catalog_id = b""
        self.entry_count = 0
        self.file_bytes = 0
        self.epoch = 0
        self._next_serial = first_serial
        self._mark = 0
        self._live: Counter[bytes] = Counter()

    # --- reading -----------------------------------------------------------------------------------------

    def lookup(self, parent: Node, name: bytes) -> Node | None:
        return parent.children.get(name)

    def resolve(self, path: bytes) -> Node | None:
        """The node at a path (``b""`` is the root), or None."""
        node: Node | None = self.root
        if path:
            for name in path.split(b"/"):
                children = node._children  # type: ignore[union-attr]
                if children is None:
                    return None
                node = children.get(name)
                if node is None:
                    return None
        return node

    def is_live(self, version: bytes) -> bool:
        """Some name has this version now (a version gone between two changes of a rename may come back)."""
        return version in self._live

    def live_versions(self) -> Mapping[bytes, int]:
        """Version to the number of names that have it: a read-only view, not a copy."""
        return MappingProxyType(self._live)

    def walk(self, top: Node | None = None) -> Iterator[Node]:
        """``top`` (default: the root) and all below it, a parent before its children. Do not change the tree meanwhile."""
        stack = [self.root if top is None else top]
        while stack:
            node = stack.pop()
            yield node
            if node._children:
                stack.extend(reversed(node._children.values()))

    # --- changing ----------------------------------------------------------------------------------------

    def apply(self, change: Change) -> list[Invalidation]:
        """Take one step of the change log; ``revision`` becomes the change's.

        Raises SequenceBroken, with the tree as it was, for a revision that goes back, an unknown parent, or a change
        that would take the root away.
        """
        if change.revision < self.revision:
            raise SequenceBroken(f"change of revision {change.revision} came after revision {self.revision}")
        invalidations = self.remove(change.path) if change.entry is None else self.upsert(change.path, change.entry)
        self.revision = change.revision
        return invalidations

    def upsert(self, path: bytes, entry: Entry) -> list[Invalidation]:
        """Put ``entry`` at ``path``. The same kind keeps its node; another kind replaces it with all below it.

        Raises SequenceBroken for an unknown parent, ValueError for an entry that cannot be.
        """
        return self.upsert_packed(path, pack_entry(entry))

    def upsert_packed(self, path: bytes, packed: bytes) -> list[Invalidation]:
        """As :meth:`upsert`, for an entry in the form of packing.py."""
        if not path:
            return self._update_root(packed)
        parent_path, _, name = path.rpartition(b"/")
        parent = self.resolve(parent_path)
        if parent is None or not parent.is_directory:
            raise SequenceBroken(f"{path!r} arrived but its parent is not a known directory")
        node = parent._children.get(name) if parent._children is not None else None
        if node is None:
            return [Invalidation(Event.APPEARED, parent, name, None, self.add_child(parent, name, packed), None)]
        old = node.packed
        if old == packed:
            return []
        old_entry = unpack_entry(old)
        if old[0] != packed[0]:
            self._cut(parent, node)
            return [Invalidation(Event.REPLACED, parent, name, node, self.add_child(parent, name, packed), old_entry)]
        self._uncount(old)
        node.packed = packed
        self._count(packed)
        return [Invalidation(_what_changed(old, packed), parent, name, node, node, old_entry)]

    def add_child(self, parent: Node, name: bytes, packed: bytes) -> Node:
        """A name known to be new below a directory of this tree, its entry in the form of packing.py: for loading, fast."""
        node = Node(name, parent, packed, self._next_serial, self._mark)
        self._next_serial += 1
        children = parent._children
        if children is None:
            parent._children = {name: node}
        else:
            children[name] = node
        self._count(packed)
        return node

    def add_children(self, parent: Node, names: Sequence[bytes], packed_entries: Sequence[bytes]) -> None:
        """Many of :meth:`add_child` below one directory. Raises ValueError for a name that is there already."""
        children = parent._children if parent._children is not None else {}
        parent._children = children
        expected = len(children) + len(names)
        nodes = map(Node, names, repeat(parent), packed_entries, count(self._next_serial), repeat(self._mark))
        children.update(zip(names, nodes, strict=True))
        file_bytes, versions = files_in(packed_entries)
        self._live.update(versions)
        self._next_serial += len(names)
        self.entry_count += len(names)
        self.file_bytes += file_bytes
        if len(children) != expected:
            raise ValueError(f"a name came twice below {parent.path()!r}")

    def remove(self, path: bytes) -> list[Invalidation]:
        """Take ``path`` away with all below it; a name that is not there is not an error."""
        node = self.resolve(path)
        if node is None:
            return []
        return self.remove_node(node)

    def remove_node(self, node: Node) -> list[Invalidation]:
        parent = node.parent
        if parent is None:
            raise SequenceBroken("the root cannot be removed" if node is self.root else "the node was removed before")
        self._cut(parent, node)
        return [Invalidation(Event.REMOVED, parent, node.name, node, None, node.entry)]

    def next_mark(self) -> int:
        """A value that no node's ``mark`` has yet: whoever compares the tree with a snapshot marks what it named."""
        self._mark += 1
        return self._mark

    def fresh(self) -> Tree:
        """An empty tree whose serials go on where ours stand: to be filled apart and adopted."""
        return Tree(self._next_serial)

    def adopt(self, other: Tree) -> list[Invalidation]:
        """Take over all of ``other`` (made by :meth:`fresh`, useless afterwards) at once; this tree must be empty."""
        assert self.entry_count == 0, "only an empty tree adopts another"
        told = self._update_root(other.root.packed) if other.root.packed != self.root.packed else []
        for child in other.root.release_children():
            child.parent = self.root
            self.root.attach(child)
            told.append(Invalidation(Event.APPEARED, self.root, child.name, None, child, None))
        self.entry_count, self.file_bytes = other.entry_count, other.file_bytes
        self._live, self._next_serial = other._live, other._next_serial
        return told

    # --- accounts ----------------------------------------------------------------------------------------

    def _update_root(self, packed: bytes) -> list[Invalidation]:
        if packed[0] != DIRECTORY:
            raise SequenceBroken("the root can only be a directory")
        root, old = self.root, self.root.packed
        if old == packed:
            return []
        root.packed = packed
        return [Invalidation(_what_changed(old, packed), root, b"", root, root, unpack_entry(old))]

    def _cut(self, parent: Node, top: Node) -> None:
        parent.detach(top.name)
        # Undone link by link, so that the memory comes back at once and no removed directory lists anything.
        stack = [top]
        while stack:
            node = stack.pop()
            self._uncount(node.packed)
            stack.extend(node.release_children())
            node.parent = None

    def _count(self, packed: bytes) -> None:
        self.entry_count += 1
        if packed[0] == FILE:
            self.file_bytes += packed_size_bytes(packed)
            self._live[packed_version(packed)] += 1

    def _uncount(self, packed: bytes) -> None:
        self.entry_count -= 1
        if packed[0] == FILE:
            self.file_bytes -= packed_size_bytes(packed)
            version = packed_version(packed)
            left = self._live[version] - 1
            if left:
                self._live[version] = left
            else:
                del self._live[version]


def _what_changed(old: bytes, new: bytes) -> Event:
    return Event.ATTRIBUTES if same_content(old, new) else Event.CONTENT
