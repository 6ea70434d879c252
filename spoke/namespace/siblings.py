"""Which file comes after which in a directory's order: what a loader that walks a directory will open next."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict

from common import limits
from spoke.namespace.tree import Invalidation, Node, Tree


class Siblings:
    """Sorted names of the directories asked about lately. Tell it of every change of the tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._sorted: OrderedDict[int, list[bytes]] = OrderedDict()

    def after(self, path: bytes) -> Node | None:
        """The next regular file by name in the same directory, or None."""
        directory, _, name = path.rpartition(b"/")
        parent = self._tree.resolve(directory)
        if parent is None:
            return None
        names = self._names_of(parent)
        for position in range(bisect_right(names, name), len(names)):
            node = parent.children.get(names[position])
            if node is not None and node.is_file:
                return node
        return None

    def changed(self, invalidation: Invalidation) -> None:
        self._sorted.pop(invalidation.parent.serial, None)

    def _names_of(self, directory: Node) -> list[bytes]:
        names = self._sorted.get(directory.serial)
        if names is None:
            names = self._sorted[directory.serial] = sorted(directory.children)
            if len(self._sorted) > limits.SIBLING_DIRECTORIES_MAX:
                self._sorted.popitem(last=False)
        return names
