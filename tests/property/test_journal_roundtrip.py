"""The journal under any history: what was written comes back; what was cut comes back as an earlier state, never another."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from names_support import CATALOG, Model, batch, contents, fitting, steps

from common.entries import Entry
from spoke.namespace import journal_file
from spoke.namespace.journal_file import LOG, SNAPSHOT, SNAPSHOT_NAME, Header
from spoke.namespace.tree import Tree


def write(where: Path, tree: Tree, records: list[bytes]) -> None:
    header = Header(SNAPSHOT, 1, CATALOG, tree.revision)
    written = where / "new"
    pages = list(journal_file.snapshot_records(tree))
    end = journal_file.end_record(tree.revision, sum(entries for entries, _ in pages))
    written.write_bytes(header.encode() + b"".join(data for _, data in pages) + end)
    journal_file.install(where, written, header, records)


@settings(max_examples=40)
@given(steps, st.lists(steps, max_size=4), st.integers(0, 2**20))
def test_a_log_cut_anywhere_gives_a_state_that_was(
    first: list[tuple[bytes, Entry | None]], later: list[list[tuple[bytes, Entry | None]]], cut: int
) -> None:
    tree, model = Tree(), Model()
    tree.catalog_id = CATALOG
    for change in batch(0, *fitting(model, first)).changes:
        tree.apply(change)
    states, records, ends = {tree.revision: dict(model)}, [], [journal_file.HEADER_BYTES]
    written = Tree()
    written.catalog_id = CATALOG
    for path in sorted(model):
        written.upsert(path, model[path])
    revision = written.revision = tree.revision
    for wanted in later:
        message = batch(revision, *fitting(model, wanted))
        revision = message.to_revision
        states[revision] = dict(model)
        records.append(journal_file.changes_record(message))
        ends.append(ends[-1] + len(records[-1]))
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        write(where, written, records)
        assert contents(journal_file.load(where).tree) == model
        log = journal_file.log_path(where, 1)
        data = log.read_bytes()
        assert len(data) == ends[-1]
        cut_bytes = journal_file.HEADER_BYTES + cut % (len(data) - journal_file.HEADER_BYTES + 1)
        log.write_bytes(data[:cut_bytes])
        loaded = journal_file.load(where)
        assert contents(loaded.tree) == states[loaded.tree.revision]
        assert loaded.log_bytes == max(end for end in ends if end <= cut_bytes) == log.stat().st_size


@settings(max_examples=60)
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_in_place_of_a_file_are_an_empty_tree(data: bytes, keep_header: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        tree = Tree()
        tree.catalog_id = CATALOG
        write(where, tree, [])
        path = where / SNAPSHOT_NAME
        head = path.read_bytes()[: journal_file.HEADER_BYTES] if keep_header else b""
        path.write_bytes(head + data)
        loaded = journal_file.load(where)
        assert (loaded.tree.entry_count, loaded.tree.catalog_id, loaded.generation) == (0, b"", 0)


def test_header_of_a_log_is_no_snapshot() -> None:
    data = Header(LOG, 1, CATALOG, 4).encode()
    assert Header.decode(data, LOG) == Header(LOG, 1, CATALOG, 4)
    try:
        Header.decode(data, SNAPSHOT)
    except journal_file.Damaged:
        return
    raise AssertionError("a log was read as a snapshot")
