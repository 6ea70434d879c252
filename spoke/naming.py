"""The names of versions, for log lines, reports and orders. The tree is asked by paths alone, so this walks it: rare, and in turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from common import limits
from common.entries import Kind
from spoke.namespace.tree import Node, Tree

_NODES_A_TURN = 2000


def find_paths(tree: Tree, versions: Iterable[bytes]) -> dict[bytes, bytes]:
    """As ``paths_of``, in one go."""
    wanted = set(versions)
    return {
        node.entry.version: node.path()
        for node in tree.walk()
        if node.kind is Kind.FILE and node.entry.version in wanted
    }


async def paths_of(tree: Tree, versions: Iterable[bytes]) -> dict[bytes, bytes]:
    """One path of each version that has one now, in a walk of the tree; a version that no name has is left out."""
    wanted = {version for version in versions if tree.is_live(version)}
    found: dict[bytes, bytes] = {}
    if not wanted:
        return found
    for number, node in enumerate(tree.walk(), start=1):
        if node.kind is Kind.FILE and node.entry.version in wanted:
            found[node.entry.version] = node.path()
            wanted.discard(node.entry.version)
            if not wanted:
                break
        if not number % _NODES_A_TURN:
            await asyncio.sleep(0)
    return found


async def files_in_turns(tree: Tree) -> AsyncIterator[Node]:
    """All files, a million names in slices; ends early when names change between two: what was found then has to do."""
    for number, node in enumerate(tree.walk()):
        if node.is_file:
            yield node
        if number % limits.NAME_SEARCH_SLICE == limits.NAME_SEARCH_SLICE - 1:
            epoch, revision = tree.epoch, tree.revision
            await asyncio.sleep(0)
            if (tree.epoch, tree.revision) != (epoch, revision):
                return
