"""Token files: what nanoGPT and Megatron would read."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.demo.formats import Tokens, write_flat, write_megatron

DOCUMENTS: list[Tokens] = [np.array(ids, dtype=np.uint32) for ids in ([1, 2, 3], [4], [31999, 0])]


def read_megatron(prefix: Path) -> tuple[str, list[list[int]], list[int]]:
    """A reader written from the layout alone: (dtype, sequences, document index)."""
    raw = prefix.with_name(prefix.name + ".idx").read_bytes()
    assert raw[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, index_length = struct.unpack_from("<QBQQ", raw, 9)
    assert version == 1
    dtype = {4: "<i4", 8: "<u2"}[code]
    place = 34
    lengths = struct.unpack_from(f"<{sequences}i", raw, place)
    place += 4 * sequences
    pointers = struct.unpack_from(f"<{sequences}q", raw, place)
    place += 8 * sequences
    index = struct.unpack_from(f"<{index_length}q", raw, place)
    assert place + 8 * index_length == len(raw)
    data = prefix.with_name(prefix.name + ".bin").read_bytes()
    found = [
        np.frombuffer(data, dtype, count=length, offset=pointer).tolist()
        for length, pointer in zip(lengths, pointers, strict=True)
    ]
    assert len(data) == sum(lengths) * np.dtype(dtype).itemsize
    return dtype, found, list(index)


def test_the_index_is_these_bytes(tmp_path: Path) -> None:
    assert write_megatron(tmp_path / "text", DOCUMENTS, "uint16") == 6
    golden = (
        "4d4d494449445800 00"  # MMIDIDX, two zero bytes
        "0100000000000000 08"  # version 1, dtype code 8: uint16
        "0300000000000000 0400000000000000"  # three sequences, a document index of four
        "03000000 01000000 02000000"  # lengths in tokens
        "0000000000000000 0600000000000000 0800000000000000"  # pointers in bytes
        "0000000000000000 0100000000000000 0200000000000000 0300000000000000"
    )
    assert (tmp_path / "text.idx").read_bytes() == bytes.fromhex(golden)
    assert (tmp_path / "text.bin").read_bytes() == bytes.fromhex("0100 0200 0300 0400 ff7c 0000")


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 65535), min_size=1, max_size=20), max_size=10),
    st.sampled_from(["uint16", "int32"]),
)
def test_megatron_files_read_back(tmp_path_factory: pytest.TempPathFactory, ids: list[list[int]], dtype: str) -> None:
    prefix = tmp_path_factory.mktemp("megatron") / "a.b_document"  # a dot in the name stays
    count = write_megatron(prefix, [np.array(document, dtype=np.uint32) for document in ids], dtype)
    seen_dtype, sequences, index = read_megatron(prefix)
    assert count == sum(map(len, ids))
    assert np.dtype(seen_dtype) == np.dtype(dtype)
    assert sequences == ids
    assert index == list(range(len(ids) + 1))


def test_the_flat_form_has_no_header(tmp_path: Path) -> None:
    assert write_flat(tmp_path / "train.bin", DOCUMENTS, "uint32") == 6
    assert np.memmap(tmp_path / "train.bin", dtype="<u4", mode="r").tolist() == [1, 2, 3, 4, 31999, 0]


def test_ids_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="do not fit into uint16"):
        write_flat(tmp_path / "train.bin", [np.array([65536], dtype=np.uint32)], "uint16")
