"""The tree against a plain dict: names, accounts, identities."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from names_support import Model, change_model, contents, few_entries, few_paths, fits
from strategies import entries

from common.entries import Change, Entry, Kind
from spoke.namespace.packing import pack_entry, same_content, unpack_entry
from spoke.namespace.tree import Event, SequenceBroken, Tree


@settings(max_examples=100)
@given(st.lists(st.tuples(few_paths, st.none() | few_entries), max_size=40))
def test_changes_do_what_the_change_log_means(wanted: list[tuple[bytes, Entry | None]]) -> None:
    tree, model = Tree(), Model()
    for revision, (path, entry) in enumerate(wanted, 1):
        before, old_node = dict(model), tree.resolve(path)
        serial = old_node.serial if old_node is not None else None
        if entry is not None and not fits(model, path):
            try:
                tree.apply(Change(revision, path, entry))
                raise AssertionError("an unknown parent was accepted")
            except SequenceBroken:
                assert contents(tree) == model
                continue
        told = tree.apply(Change(revision, path, entry))
        change_model(model, path, entry)
        assert bool(told) == (before != model)
        if old_node is not None and entry is not None:
            same_kind = before[path].kind is entry.kind
            new_node = tree.resolve(path)
            assert new_node is not None
            assert (new_node is old_node) == same_kind == (new_node.serial == serial)
        if told:
            kinds = {Event.APPEARED: path not in before, Event.REMOVED: entry is None}
            assert kinds.get(told[0].event, path in before and entry is not None)
    assert contents(tree) == model
    assert tree.entry_count == len(model)
    found_files = [entry for entry in model.values() if entry.kind is Kind.FILE]
    assert tree.file_bytes == sum(entry.size_bytes for entry in found_files)
    assert tree.live_versions() == Counter(entry.version for entry in found_files)
    serials = [node.serial for node in tree.walk()]
    assert len(set(serials)) == len(serials)


@settings(max_examples=200)
@given(entries, entries)
def test_every_entry_survives_packing(entry: Entry, other: Entry) -> None:
    packed = pack_entry(entry)
    assert unpack_entry(packed) == entry
    assert (packed == pack_entry(other)) == (entry == other)
    if entry.kind is other.kind is Kind.FILE:
        alike = (entry.version, entry.size_bytes) == (other.version, other.size_bytes)
        assert same_content(packed, pack_entry(other)) == alike
