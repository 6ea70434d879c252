"""Golden bytes of the names' journal: a file here changes only with a new format number.

``HEADRACE_GOLDEN_WRITE=1`` writes files that are missing (never one that exists).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.entries import Change, Entry, Kind
from common.wire.messages import Changes
from spoke.namespace import journal_file
from spoke.namespace.journal_file import LOG, SNAPSHOT, SNAPSHOT_NAME, Header
from spoke.namespace.tree import Tree

GOLDEN = Path(__file__).parent / "journal"
CATALOG, VERSION = bytes(range(16)), bytes(range(0xF0, 0x100))
MODEL = {
    b"README": Entry(Kind.FILE, 0o640, 1_048_577, 1_700_000_000_123_456_789, VERSION),
    b"train": Entry(Kind.DIRECTORY, 0o755, 0, -1),
    b"train/a b\n.bin": Entry(Kind.FILE, 0o640, 0, 5, VERSION),
    b"train/\xff\xfe": Entry(Kind.SYMLINK, 0o777, 6, 5, b"", b"../a b"),
}
CHANGES = Changes(
    CATALOG, 300, 306, (Change(301, b"train/\xff\xfe", None), Change(305, b"x", Entry(Kind.DIRECTORY, 0o700, 4096, 9)))
)


def _tree() -> Tree:
    tree = Tree()
    for path, entry in MODEL.items():
        tree.upsert(path, entry)
    tree.catalog_id, tree.revision = CATALOG, 300
    return tree


def _snapshot() -> bytes:
    pages = list(journal_file.snapshot_records(_tree()))
    end = journal_file.end_record(300, sum(entries for entries, _ in pages))
    return Header(SNAPSHOT, 7, CATALOG, 300).encode() + b"".join(data for _, data in pages) + end


def _log() -> bytes:
    return Header(LOG, 7, CATALOG, 300).encode() + journal_file.changes_record(CHANGES)


SAMPLES = {"snapshot": _snapshot, "log": _log}


def _lines(data: bytes) -> str:
    return "".join(data[at : at + 32].hex(" ") + "\n" for at in range(0, len(data), 32))


@pytest.mark.parametrize("name", SAMPLES)
def test_the_bytes_are_what_they_always_were(name: str) -> None:
    path, text = GOLDEN / f"{name}.hex", _lines(SAMPLES[name]())
    if os.environ.get("HEADRACE_GOLDEN_WRITE") and not path.exists():
        path.write_text(text)
    assert text == path.read_text()


def test_the_golden_files_load(tmp_path: Path) -> None:
    (tmp_path / SNAPSHOT_NAME).write_bytes(bytes.fromhex((GOLDEN / "snapshot.hex").read_text()))
    journal_file.log_path(tmp_path, 7).write_bytes(bytes.fromhex((GOLDEN / "log.hex").read_text()))
    loaded = journal_file.load(tmp_path)
    assert (loaded.generation, loaded.notes, loaded.tree.revision, loaded.tree.catalog_id) == (7, (), 306, CATALOG)
    found = {node.path(): node.entry for node in loaded.tree.walk() if node is not loaded.tree.root}
    expected = {path: entry for path, entry in MODEL.items() if path != b"train/\xff\xfe"}
    assert found == expected | {b"x": Entry(Kind.DIRECTORY, 0o700, 4096, 9)}
