"""Node ids: lookups and forgets against a model, versions and retirement."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from common.entries import Entry, Kind
from spoke.fuse.inodes import FIRST_NODE_ID, InodeTable
from spoke.fuse.kernel import ROOT_NODE_ID
from spoke.namespace.tree import Tree


def _file(version: int, mode: int = 0o644, size_bytes: int = 10) -> Entry:
    return Entry(Kind.FILE, mode, size_bytes, 0, b"%016d" % version)


def test_a_new_version_is_a_new_node_id_and_the_old_one_keeps_its_own() -> None:
    tree = Tree()
    tree.upsert(b"f", _file(1, size_bytes=10))
    node = tree.resolve(b"f")
    assert node is not None
    table = InodeTable(tree.root)
    old = table.current(node)
    old.lookups += 1
    tree.upsert(b"f", _file(2, size_bytes=99))
    assert old.is_outdated
    new = table.current(node)
    new.lookups += 1
    assert new.node_id > old.node_id >= FIRST_NODE_ID
    assert (old.entry.size_bytes, new.entry.size_bytes) == (10, 99)
    table.forget(old.node_id, 1)
    assert table.get(old.node_id) is None
    assert table.known(node) is new


def test_a_new_mode_is_the_same_node_id() -> None:
    tree = Tree()
    tree.upsert(b"f", _file(1))
    node = tree.resolve(b"f")
    assert node is not None
    table = InodeTable(tree.root)
    inode = table.current(node)
    tree.upsert(b"f", _file(1, mode=0o400))
    assert table.current(node) is inode
    assert inode.entry.mode == 0o400
    assert not inode.is_outdated


def test_the_root_stays() -> None:
    tree = Tree()
    table = InodeTable(tree.root)
    table.forget(ROOT_NODE_ID, 1)
    assert table.retire(tree.root) is None
    assert table.get(ROOT_NODE_ID) is table.current(tree.root) is table.root


def test_names_the_kernel_may_hold() -> None:
    tree = Tree()
    tree.upsert(b"d", Entry(Kind.DIRECTORY, 0o755, 0, 0))
    tree.upsert(b"d/f", _file(1))
    directory, file = tree.resolve(b"d"), tree.resolve(b"d/f")
    assert directory is not None
    assert file is not None
    table = InodeTable(tree.root)
    for node in (directory, file):
        table.current(node).lookups += 1
    old = table.retire(file)
    assert old is not None
    table.current(file).lookups += 1
    names = sorted(table.cached_names())
    parent = table.current(directory).node_id
    assert names == [(ROOT_NODE_ID, b"d"), (parent, b"f"), (parent, b"f")]


class Kernel(RuleBasedStateMachine):
    """The table never loses a node id that the kernel holds, and keeps none that it has given back."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = Tree()
        self.table = InodeTable(self.tree.root)
        self.held: dict[int, int] = {}
        self.content: dict[int, bytes] = {}
        self.versions = 0

    @rule(name=st.sampled_from([b"a", b"b", b"c"]))
    def edit(self, name: bytes) -> None:
        self.versions += 1
        self.tree.upsert(name, _file(self.versions))

    @rule(name=st.sampled_from([b"a", b"b", b"c"]))
    def remove(self, name: bytes) -> None:
        self.tree.remove(name)

    @rule(name=st.sampled_from([b"a", b"b", b"c"]))
    def lookup(self, name: bytes) -> None:
        node = self.tree.resolve(name)
        if node is not None:
            inode = self.table.current(node)
            inode.lookups += 1
            assert inode.entry.version == node.entry.version
            assert self.content.setdefault(inode.node_id, node.entry.version) == node.entry.version
            self.held[inode.node_id] = self.held.get(inode.node_id, 0) + 1

    @rule(name=st.sampled_from([b"a", b"b", b"c"]))
    def retire(self, name: bytes) -> None:
        node = self.tree.resolve(name)
        if node is not None:
            self.table.retire(node)

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        if self.held:
            node_id = data.draw(st.sampled_from(sorted(self.held)))
            lookups = data.draw(st.integers(1, self.held[node_id]))
            self.table.forget(node_id, lookups)
            self.held[node_id] -= lookups
            if not self.held[node_id]:
                del self.held[node_id]

    @invariant()
    def agree(self) -> None:
        for node_id, lookups in self.held.items():
            inode = self.table.get(node_id)
            assert inode is not None
            assert inode.lookups == lookups
            assert inode.entry.version == self.content[node_id]
        assert len(self.table) == len(self.held) + 1


TestKernel = Kernel.TestCase
TestKernel.settings = settings(max_examples=60, stateful_step_count=30)
