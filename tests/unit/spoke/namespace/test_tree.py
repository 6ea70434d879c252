"""The tree: what a change does to nodes, accounts and the kernel's caches."""

from __future__ import annotations

import gc

import pytest
from names_support import contents, directory, file, filled, symlink

from common.entries import Change, Entry, Kind
from spoke.namespace.packing import check_packed, pack_entry, unpack_entry
from spoke.namespace.tree import Event, SequenceBroken, Tree


@pytest.fixture
def tree() -> Tree:
    return filled({b"d": directory(), b"d/f": file(1, 100), b"d/g": file(1, 100), b"l": symlink(b"d/f")})


def test_names_are_found_by_path_and_by_parent(tree: Tree) -> None:
    node = tree.resolve(b"d/f")
    assert node is not None
    assert node.entry == file(1, 100)
    assert node.path() == b"d/f"
    assert tree.lookup(tree.root, b"d") is node.parent
    assert tree.resolve(b"") is tree.root
    assert tree.resolve(b"d/f/x") is None
    assert tree.resolve(b"d/absent") is None
    assert tree.resolve(b"absent/f") is None
    assert (tree.entry_count, tree.file_bytes) == (4, 200)


def test_a_version_lives_as_long_as_a_name_has_it(tree: Tree) -> None:
    version = file(1).version
    assert tree.live_versions() == {version: 2}
    tree.remove(b"d/f")
    assert tree.is_live(version)
    tree.upsert(b"d/g", file(2))
    assert not tree.is_live(version)
    assert tree.live_versions() == {file(2).version: 1}


def test_a_name_that_appears_is_told_for_negative_entries(tree: Tree) -> None:
    (told,) = tree.apply(Change(6, b"d/h", file(3)))
    assert told.event is Event.APPEARED
    assert (told.parent, told.name) == (tree.resolve(b"d"), b"h")
    assert told.node is None
    assert told.new is tree.resolve(b"d/h")
    assert tree.revision == 6


@pytest.mark.parametrize(
    ("entry", "event"),
    [
        (file(2, 100), Event.CONTENT),
        (file(1, 101), Event.CONTENT),
        (file(1, 100, mode=0o600), Event.ATTRIBUTES),
        (file(1, 100, mtime_ns=8), Event.ATTRIBUTES),
    ],
)
def test_the_same_kind_keeps_node_and_serial(tree: Tree, entry: Entry, event: Event) -> None:
    node = tree.resolve(b"d/f")
    assert node is not None
    serial = node.serial
    (told,) = tree.upsert(b"d/f", entry)
    assert told.event is event
    assert told.node is told.new is tree.resolve(b"d/f") is node
    assert told.old_entry == file(1, 100)
    assert (node.serial, node.entry) == (serial, entry)
    assert tree.upsert(b"d/f", entry) == []


def test_a_directory_that_only_changes_size_keeps_its_content(tree: Tree) -> None:
    (told,) = tree.upsert(b"d", Entry(Kind.DIRECTORY, 0o755, 4096, 2))
    assert told.event is Event.ATTRIBUTES
    assert len(told.parent.children) == 2
    assert tree.resolve(b"d/f") is not None


def test_a_symlink_with_another_target_changes_content(tree: Tree) -> None:
    (told,) = tree.upsert(b"l", symlink(b"d/g"))
    assert told.event is Event.CONTENT


def test_another_kind_replaces_node_and_subtree(tree: Tree) -> None:
    old, below = tree.resolve(b"d"), tree.resolve(b"d/f")
    assert old is not None
    assert below is not None
    (told,) = tree.upsert(b"d", file(9, 5))
    assert told.event is Event.REPLACED
    assert told.node is old
    assert told.new is tree.resolve(b"d")
    assert told.new is not old
    assert told.new.serial > old.serial
    assert old.parent is None
    assert below.parent is None
    assert not old.children
    assert contents(tree) == {b"d": file(9, 5), b"l": symlink(b"d/f")}
    assert (tree.entry_count, tree.file_bytes) == (2, 5)


def test_removal_takes_all_below_and_tells_the_top_only(tree: Tree) -> None:
    root = tree.root
    (told,) = tree.remove(b"d")
    assert (told.event, told.parent, told.name, told.new) == (Event.REMOVED, root, b"d", None)
    assert (tree.entry_count, tree.file_bytes, dict(tree.live_versions())) == (1, 0, {})
    assert tree.remove(b"d") == []


@pytest.mark.parametrize(
    "change",
    [
        Change(6, b"absent/f", file(1)),
        Change(6, b"d/f/below", file(1)),
        Change(6, b"", None),
        Change(6, b"", file(1)),
        Change(4, b"d/h", file(1)),
    ],
)
def test_what_cannot_follow_is_refused_and_changes_nothing(tree: Tree, change: Change) -> None:
    before = contents(tree)
    with pytest.raises(SequenceBroken):
        tree.apply(change)
    assert (contents(tree), tree.revision) == (before, 5)


def test_the_root_has_attributes_like_any_directory(tree: Tree) -> None:
    (told,) = tree.apply(Change(6, b"", directory(0o500)))
    assert told.event is Event.ATTRIBUTES
    assert told.parent is told.node is tree.root
    assert tree.root.entry == directory(0o500)
    assert tree.entry_count == 4


def test_a_very_deep_tree_needs_no_stack() -> None:
    tree = Tree()
    node = tree.root
    for _ in range(5000):
        node = tree.add_child(node, b"d", pack_entry(directory()))
    assert sum(1 for _ in tree.walk()) == 5001
    assert len(node.path().split(b"/")) == 5000
    tree.remove(b"d")
    assert tree.entry_count == 0


def test_a_removed_subtree_leaves_no_cycles_to_collect() -> None:
    tree = filled({b"d": directory()} | {b"d/%d" % number: file(number) for number in range(50)})
    gc.collect()
    gc.disable()
    try:
        tree.remove(b"d")
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_name_given_twice_to_a_load_is_noticed() -> None:
    tree = Tree()
    with pytest.raises(ValueError, match="twice"):
        tree.add_children(tree.root, [b"a", b"a"], [pack_entry(directory())] * 2)


@pytest.mark.parametrize(
    "entry",
    [
        Entry(Kind.FILE, 0o644, 1, 1, b"short"),
        Entry(Kind.FILE, 0o644, 1, 1, b"v" * 16, b"target"),
        Entry(Kind.DIRECTORY, 0o644, 1, 1, b"v" * 16),
        Entry(Kind.DIRECTORY, 0o755, 1, 1, b"", b"target"),
        Entry(Kind.FILE, 0o644, -1, 1, b"v" * 16),
        Entry(Kind.FILE, 1 << 16, 1, 1, b"v" * 16),
    ],
)
def test_entries_that_cannot_be_are_not_packed(entry: Entry) -> None:
    with pytest.raises(ValueError):
        pack_entry(entry)


@pytest.mark.parametrize("packed", [b"", b"\1", pack_entry(file(1))[:-1], b"\7" + pack_entry(directory())[1:]])
def test_bytes_that_are_no_entry_are_not_unpacked(packed: bytes) -> None:
    with pytest.raises(ValueError):
        check_packed(packed)
    with pytest.raises(ValueError):
        unpack_entry(packed)
