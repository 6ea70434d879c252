"""Entries and changes as payloads: what is refused, how they are cut into frames, how small they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import limits
from common.entries import Change, Entry, Kind
from common.errors import ProtocolError
from common.wire.entry_codec import (
    EntryPacker,
    Row,
    decode_changes,
    decode_entries,
    encode_changes,
    encode_entries,
    split_changes,
    split_entries,
)
from tests.strategies import entries, paths

FILE = Entry(Kind.FILE, 0o644, 10, 20, b"v" * 16)
LINK = Entry(Kind.SYMLINK, 0o777, 3, 20, b"", b"../elsewhere")
DIRECTORY = Entry(Kind.DIRECTORY, 0o755, 0, -5)


@pytest.mark.parametrize(
    ("path", "entry"),
    [
        (b"", DIRECTORY),
        (b"/absolute", FILE),
        (b"a//b", FILE),
        (b"a/../b", FILE),
        (b"a/..", FILE),
        (b"./a", FILE),
        (b"a\0b", FILE),
        (b"x" * 256, FILE),
        (b"/".join([b"x" * 255] * 16) + b"/y", FILE),
        (b"a", replace(FILE, version=b"")),
        (b"a", replace(FILE, version=b"v" * 15)),
        (b"a", replace(DIRECTORY, version=b"v" * 16)),
        (b"a", replace(LINK, version=b"v" * 16)),
        (b"a", replace(FILE, target=b"x")),
        (b"a", replace(LINK, target=b"")),
        (b"a", replace(LINK, target=b"a\0")),
        (b"a", replace(LINK, target=b"x" * 4096)),
        (b"a", replace(FILE, mode=0o10000)),
        (b"a", replace(FILE, mode=-1)),
        (b"a", replace(FILE, size_bytes=-1)),
        (b"a", replace(FILE, size_bytes=limits.FILE_MAX_BYTES + 1)),
        (b"a", replace(FILE, mtime_ns=1 << 63)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_entry_that_breaks_a_rule_is_refused(path: bytes, entry: Entry) -> None:
    with pytest.raises(ProtocolError):
        encode_entries([(b"good", FILE), (path, entry)])
    with pytest.raises(ProtocolError):
        encode_changes([Change(1, path, entry)])


def test_the_longest_path_passes() -> None:
    path = b"/".join([b"x" * 255] * 16)
    assert len(path) == 4095
    assert decode_entries(encode_entries([(path, FILE)])) == ((path, FILE),)


def _group(**columns: Any) -> list[Any]:
    fields: dict[str, Any] = {
        "directory": b"d",
        "names": [b"a", b"b", b"c"],
        "kinds": b"\1\2\3",
        "modes": bytes(6),
        "sizes": bytes(24),
        "mtimes": bytes(24),
        "versions": b"v" * 16,
        "targets": [b"t"],
    }
    return list({**fields, **columns}.values())


@pytest.mark.parametrize(
    "columns",
    [
        {"directory": b"../up"},
        {"directory": 7},
        {"names": []},
        {"names": [b"a", b"b", b".."]},
        {"names": [b"a", b"b", b"c/d"]},
        {"names": [b"a", b"b", 3]},
        {"names": [b"a", b"b"]},
        {"names": b"abc"},
        {"kinds": b"\1\2\4"},
        {"kinds": b"\1\2\0"},
        {"kinds": [1, 2, 3]},
        {"modes": b"\xff" * 6},
        {"modes": bytes(5)},
        {"sizes": b"\xff" * 24},
        {"sizes": bytes(23)},
        {"mtimes": bytes(25)},
        {"versions": b"v" * 32},
        {"targets": []},
        {"targets": [b""]},
        {"targets": [b"a\0"]},
        {"targets": [1]},
        {"targets": 1},
    ],
    ids=str,
)
def test_columns_that_do_not_fit_together_are_refused(columns: dict[str, Any]) -> None:
    assert len(decode_entries(msgpack.packb([_group()]))) == 3
    with pytest.raises(ProtocolError):
        decode_entries(msgpack.packb([_group(**columns)]))


def test_a_column_more_is_ignored_and_one_less_refused() -> None:
    group = _group()
    assert decode_entries(msgpack.packb([[*group, b"future"]])) == decode_entries(msgpack.packb([group]))
    with pytest.raises(ProtocolError):
        decode_entries(msgpack.packb([group[:-1]]))
    with pytest.raises(ProtocolError):
        decode_changes(msgpack.packb([group]))


def test_more_entries_than_a_page_may_hold_are_refused_even_over_many_groups() -> None:
    many = [(b"f%d" % number, FILE) for number in range(limits.SNAPSHOT_PAGE_MAX_ENTRIES + 1)]
    with pytest.raises(ProtocolError):
        encode_entries(many)
    with pytest.raises(ProtocolError, match="more than"):
        decode_entries(msgpack.packb([_group()] * 1366))


@pytest.mark.parametrize("payload", [b"", b"\x91", b"\x80", b"\xc0", b"\x91\x01", b"\xdd\xff\xff\xff\xff", b"\x90\x90"])
def test_payloads_that_are_no_groups_are_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_entries(payload)


def test_pages_are_cut_at_the_count_and_at_the_bytes_and_lose_nothing() -> None:
    long = [(b"%d/" % number + b"x" * 250, replace(LINK, target=b"t" * 4000)) for number in range(700)]
    short = [(b"s%d" % number, FILE) for number in range(9000)]
    pages = list(split_entries(long + short))
    assert [item for page in pages for item in page] == long + short
    assert all(len(encode_entries(page)) <= limits.FRAME_PAYLOAD_MAX_BYTES for page in pages)
    assert max(map(len, pages)) == limits.SNAPSHOT_PAGE_MAX_ENTRIES
    changes = [Change(number, path, entry) for number, (path, entry) in enumerate(long, 1)] + [Change(800, b"x", None)]
    cut = list(split_changes(changes))
    assert len(cut) > 1
    assert [item for page in cut for item in decode_changes(encode_changes(page))] == changes
    assert list(split_entries([])) == []


def test_neighbours_share_their_directory() -> None:
    entries = [(b"a/rather/long/directory/shard-%05d.bin" % number, FILE) for number in range(1000)]
    assert len(encode_entries(entries)) / 1000 < 56


def rows(entries: list[tuple[bytes, Entry]]) -> list[Row]:
    """As a catalog has them."""
    return [
        (
            *path.rpartition(b"/")[::2],
            int(entry.kind),
            entry.mode,
            entry.size_bytes,
            entry.mtime_ns,
            entry.version,
            entry.target,
        )
        for path, entry in entries
    ]


@given(
    st.lists(st.tuples(paths, entries), max_size=30, unique_by=lambda item: item[0]),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_rows_packed_in_pages_are_the_entries(found: list[tuple[bytes, Entry]], page_entries: int, step: int) -> None:
    packer = EntryPacker(page_entries)
    packed = rows(found)
    pages = [page for start in range(0, len(packed), step) for page in packer.add(packed[start : start + step])]
    pages.append(packer.flush())
    assert max(map(len, pages)) <= page_entries
    assert [item for page in pages for item in page] == found
    for page in pages:
        assert decode_entries(encode_entries(page)) == page == tuple(page)


def test_rows_too_long_for_one_frame_are_split() -> None:
    link = Entry(Kind.SYMLINK, 0o777, 4000, 0, b"", b"t" * 4000)
    found = [(b"d/%d" % number, link) for number in range(600)]
    pages = [*(packer := EntryPacker()).add(rows(found)), packer.flush()]
    assert [item for page in pages for item in page] == found
    assert max(len(page.payload) for page in pages) <= limits.FRAME_PAYLOAD_MAX_BYTES
    assert len(pages) > 2


@pytest.mark.parametrize(
    "row",
    [
        (b"", b"a/b", 1, 0, 0, 0, bytes(16), b""),
        (b"..", b"a", 1, 0, 0, 0, bytes(16), b""),
        (b"", b"a", 4, 0, 0, 0, b"", b""),
        (b"", b"a", 1, 0, -1, 0, bytes(16), b""),
        (b"", b"a", 1, 0, 0, 0, bytes(15), b""),
        (b"", b"a", 3, 0, 0, 0, b"", b""),
        (b"", b"a", 300, 0, 0, 0, b"", b""),
    ],
)
def test_a_row_that_breaks_a_rule_is_refused(row: Row) -> None:
    with pytest.raises(ProtocolError):
        list(EntryPacker().add([row]))
