"""The path of a version, for log lines and reports. The tree is asked by paths alone, so this walks it: rare, and in turns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from common.entries import Kind
from spoke.namespace.tree import Tree

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
