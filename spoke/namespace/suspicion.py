"""Whether news from the hub looks like the loss of a dataset: pure counting, no I/O and no clock.

A hub whose disk went away sees an empty directory and says so in good faith. An entry counts as lost when its name
goes and nothing takes its place: a file whose version lives on under another name was renamed, and a directory or
symlink that went is set off against one that came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from common import limits
from common.entries import Change, Entry, Kind
from spoke.namespace.packing import DIRECTORY, FILE, packed_version
from spoke.namespace.tree import Node, Tree


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What was seen: ``lost_entries`` of ``entries`` would go. ``revision``: where the hub stands by its own account.

    ``lost_before``: how many of those had gone already, in smaller steps a moment before, and are not in the tree any more.
    """

    entries: int
    lost_entries: int
    revision: int
    catalog_id: bytes
    since_s: float
    lost_before: int = 0

    def __str__(self) -> str:
        return f"the hub announces the loss of {self.lost_entries} of {self.entries} names (revision {self.revision})"


def is_suspicious(entries: int, lost_entries: int) -> bool:
    """The decision: more than half of a tree that is not tiny."""
    return entries >= limits.SUSPICIOUS_MIN_ENTRIES and lost_entries > entries * limits.SUSPICIOUS_LOSS_FRACTION


class Loss:
    """Names that go and names that come, and what of the former is lost."""

    def __init__(self) -> None:
        self._gone_versions: dict[bytes, int] = {}
        self._balance = {DIRECTORY: 0, int(Kind.SYMLINK): 0}  # gone minus come
        self._come_versions: set[bytes] = set()

    def went(self, packed: bytes) -> None:
        if packed[0] == FILE:
            version = packed_version(packed)
            self._gone_versions[version] = self._gone_versions.get(version, 0) + 1
        else:
            self._balance[packed[0]] += 1

    def came(self, kind: int, version: bytes) -> None:
        if kind == FILE:
            self._come_versions.add(version)
        else:
            self._balance[kind] -= 1

    def lost_entries(self) -> int:
        files = sum(count for version, count in self._gone_versions.items() if version not in self._come_versions)
        return files + sum(max(0, balance) for balance in self._balance.values())


def forecast(tree: Tree, changes: Iterable[Change]) -> int:
    """How many entries of the tree as it stands these changes would lose; the tree is not touched."""
    gone, came = gone_and_come(tree, changes)
    loss = Loss()
    for node in gone:
        loss.went(node.packed)
    for entry in came:
        loss.came(entry.kind, entry.version)
    return loss.lost_entries()


def gone_and_come(tree: Tree, changes: Iterable[Change]) -> tuple[dict[Node, None], list[Entry]]:
    """The nodes that these changes would take away, and the entries they would bring."""
    entry_at: dict[bytes, Entry | None] = {}  # what each path ends as; a later removal above it wins
    removed_later: set[bytes] = set()
    for change in reversed(tuple(changes)):
        if not removed_later.isdisjoint(_ancestors(change.path)):
            continue
        entry_at.setdefault(change.path, change.entry)
        if change.entry is None:
            removed_later.add(change.path)
    gone: dict[Node, None] = {}  # in the order of the tree, for those who are shown the first
    for path, entry in entry_at.items():
        node = tree.resolve(path)
        if node is not None and (path in removed_later or entry is None or entry.kind != node.packed[0]):
            _collect(tree, node, gone)
    return gone, [entry for entry in entry_at.values() if entry is not None]


@dataclass(slots=True)
class Losses:
    """What a loss means to people. ``examples``: the first paths, in order of the tree; ``cached_bytes``: what is here of the files."""

    files: int = 0
    others: int = 0
    file_bytes: int = 0
    cached_bytes: int = 0
    examples: list[bytes] = field(default_factory=list)

    def add(
        self, nodes: Iterable[Node], kept_versions: set[bytes], present_bytes: Callable[[bytes, int], int]
    ) -> Iterator[None]:
        """Count nodes that would go, in steps; a file whose version lives on under another name is not lost."""
        for count, node in enumerate(nodes, 1):
            if count % limits.REPLICA_STEP_ENTRIES == 0:
                yield
            if node.packed[0] != FILE:
                self.others += 1
                continue
            entry = node.entry
            if entry.version in kept_versions:
                continue
            self.files += 1
            self.file_bytes += entry.size_bytes
            self.cached_bytes += present_bytes(entry.version, entry.size_bytes)
            if len(self.examples) < limits.LOSS_EXAMPLES:
                self.examples.append(node.path())


def could_lose_much(tree: Tree, changes: Iterable[Change], lost_before: int) -> bool:
    """A cheap first look, so that ordinary batches cost nothing: only removals and replacements can lose names."""
    removals = 0
    for change in changes:
        node = None if change.entry is not None and change.entry.kind is Kind.DIRECTORY else tree.resolve(change.path)
        if node is None or (change.entry is not None and not node.is_directory):
            continue
        if node.is_directory and node.children:
            return True
        removals += 1
    return is_suspicious(tree.entry_count + lost_before, lost_before + removals)


def _collect(tree: Tree, top: Node, gone: dict[Node, None]) -> None:
    stack = [top]
    while stack:
        node = stack.pop()
        if node not in gone:
            gone[node] = None
            stack.extend(node.children.values())


def _ancestors(path: bytes) -> Iterable[bytes]:
    while path:
        path, _, _ = path.rpartition(b"/")
        if path:
            yield path
