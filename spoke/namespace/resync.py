"""A snapshot compared with the live tree page by page, and applied to it only once it is whole.

Nodes that stay keep their identity and serial, so a resync disturbs neither open files nor the kernel's caches. Until
the snapshot is complete the live tree is only marked, never changed. All work goes in steps of bounded length.
"""

from __future__ import annotations

from collections.abc import Iterator

from common import limits
from common.errors import ProtocolError
from common.wire.messages import SnapshotPage
from spoke.namespace.packing import DIRECTORY, FILE, packed_groups, packed_version
from spoke.namespace.suspicion import Loss
from spoke.namespace.tree import Invalidation, Node, SequenceBroken, Tree


class StagedSnapshot:
    """What a snapshot would change: names that differ, and (after :meth:`sweep`) names it does not hold.

    Memory grows with the differences, not with the tree.
    """

    def __init__(self, tree: Tree, first: SnapshotPage) -> None:
        if first.entry_count > limits.TREE_MAX_ENTRIES:
            raise ProtocolError(f"a snapshot of {first.entry_count} names; at most {limits.TREE_MAX_ENTRIES} are held")
        self.catalog_id = first.catalog_id
        self.revision = first.revision
        self.entry_count = first.entry_count
        self.received = 0
        self.lost_entries = 0
        self._tree = tree
        self._mark = tree.next_mark()
        self._different: list[tuple[bytes, bytes]] = []
        self._new_directories: set[bytes] = set()
        self._gone: list[Node] = []
        # A first load has nothing to compare with: it is built apart, and adopted at once.
        self._built = tree.fresh() if tree.entry_count == 0 else None

    @property
    def is_first(self) -> bool:
        """There was no tree to compare it with."""
        return self._built is not None

    def belongs(self, page: SnapshotPage) -> bool:
        return page.catalog_id == self.catalog_id and page.revision == self.revision

    def add(self, page: SnapshotPage) -> None:
        """Take one page. Raises SequenceBroken when a parent is missing, a name comes twice, or more come than announced."""
        try:
            for directory, names, packed in packed_groups(page.entries):
                if self._built is not None:
                    _build(self._built, directory, names, packed)
                else:
                    self._compare(directory, names, packed)
        except ValueError as error:
            raise ProtocolError(f"a snapshot's entry: {error}") from error
        self.received += len(page.entries)
        if self.received > self.entry_count or (page.last and self.received != self.entry_count):
            raise SequenceBroken(f"a snapshot of {self.entry_count} names brought {self.received}")

    def _compare(self, directory: bytes, names: list[bytes], entries: list[bytes]) -> None:
        mark, tree, new_directories = self._mark, self._tree, self._new_directories
        parent = tree.resolve(directory)
        known = parent is not None and parent.is_directory and (parent.mark == mark or parent is tree.root)
        if not known and directory not in new_directories:
            raise SequenceBroken(f"names in {directory!r} came in a snapshot before it")
        prefix = directory + b"/" if directory else b""
        children = parent.children if parent is not None else {}
        for name, packed in zip(names, entries, strict=True):
            if not prefix and not name:
                self._compare_root(packed)
                continue
            node = children.get(name)
            path = prefix + name
            if (new_directories and path in new_directories) or (node is not None and node.mark == mark):
                raise SequenceBroken(f"{path!r} came twice in a snapshot")
            if node is None or node.packed != packed:
                self._different.append((path, packed))
                if packed[0] == DIRECTORY:
                    new_directories.add(path)
            if node is not None and node.packed[0] == packed[0]:
                node.mark = mark

    def _compare_root(self, packed: bytes) -> None:
        if packed[0] != DIRECTORY:
            raise SequenceBroken("the root came in a snapshot as no directory")
        if self._tree.root.packed != packed:
            self._different.append((b"", packed))

    def sweep(self) -> Iterator[None]:
        """Find what the snapshot does not hold, in steps; then ``lost_entries`` is known."""
        loss, mark, steps = Loss(), self._mark, 0
        stack = list(self._tree.root.children.values())
        while stack:
            node = stack.pop()
            if node.mark != mark:
                if node.parent is None or node.parent.mark == mark or node.parent is self._tree.root:
                    self._gone.append(node)
                loss.went(node.packed)
            stack.extend(node.children.values())
            steps += 1
            if steps % (8 * limits.REPLICA_STEP_ENTRIES) == 0:
                yield
        for _, packed in self._different if self._gone else ():
            loss.came(packed[0], packed_version(packed))
            steps += 1
            if steps % (8 * limits.REPLICA_STEP_ENTRIES) == 0:
                yield
        self.lost_entries = loss.lost_entries()

    def gone(self) -> Iterator[Node]:
        """All nodes that would go, after :meth:`sweep`: those of removed directories too."""
        stack = list(self._gone)  # found from the tree's end to its beginning
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(list(node.children.values())))

    def came_versions(self) -> set[bytes]:
        """Of files that the snapshot has under names that are new or changed."""
        return {packed_version(packed) for _, packed in self._different if packed[0] == FILE}

    def apply(self) -> Iterator[list[Invalidation]]:
        """Change the live tree in steps; each yields what the kernel must be told. Only after :meth:`sweep`.

        What came is added before what went is removed, so that the version of a renamed file is never dead in between.
        """
        tree = self._tree
        tree.epoch += 1
        told: list[Invalidation] = [] if self._built is None else tree.adopt(self._built)
        self._built = None
        # In arrival order, a parent before its children; taken from the end so that memory comes back on the way.
        self._different.reverse()
        steps = 0
        while self._different:
            path, packed = self._different.pop()
            told += tree.upsert_packed(path, packed)
            steps += 1
            if steps % limits.REPLICA_STEP_ENTRIES == 0:
                yield told
                told = []
        for node in self._gone:
            if node.parent is not None:  # else it went with a name of another kind that replaced it
                before = tree.entry_count
                told += tree.remove_node(node)
                steps += before - tree.entry_count
                if steps >= limits.REPLICA_STEP_ENTRIES:
                    yield told
                    told, steps = [], 0
        self._gone = []
        tree.catalog_id, tree.revision = self.catalog_id, self.revision
        tree.epoch += 1
        yield told


def _build(tree: Tree, directory: bytes, names: list[bytes], entries: list[bytes]) -> None:
    """Add new names, a parent before its children, to a tree that nobody else sees."""
    if not directory and names[0] == b"":
        tree.upsert_packed(b"", entries[0])
        names, entries = names[1:], entries[1:]
    parent = tree.resolve(directory)
    if parent is None or not parent.is_directory:
        raise SequenceBroken(f"{names[0]!r} came in a snapshot before its parent directory {directory!r}")
    try:
        tree.add_children(parent, names, entries)
    except ValueError as error:
        raise SequenceBroken(f"in a snapshot, {error}") from error
