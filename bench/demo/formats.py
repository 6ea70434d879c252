"""Token files as training jobs know them: nanoGPT's flat ``.bin`` and Megatron's ``.bin`` with ``.idx``.

Little-endian throughout. A Megatron ``.idx``: 9 bytes ``MMIDIDX\\0\\0``, uint64 version 1, uint8 dtype code, uint64
number of sequences, uint64 length of the document index, then int32 lengths (tokens) and int64 pointers (bytes) of the
sequences, then the int64 document index (sequence number at which each document starts, and the number of sequences at
the end). Source: Megatron-LM, megatron/core/datasets/indexed_dataset.py.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
MEGATRON_VERSION = 1
# Megatron has no unsigned 4-byte type; token ids below 2^31 have the same bytes as int32 and as uint32.
MEGATRON_DTYPE_CODES: dict[str, int] = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}

Tokens = npt.NDArray[Any]


def write_flat(path: Path, documents: Sequence[Tokens], dtype: str) -> int:
    """nanoGPT's form: the documents' token ids one after the other, no header. Returns the number of tokens."""
    with path.open("wb") as file:
        return sum(file.write(_packed(document, dtype)) for document in documents) // np.dtype(dtype).itemsize


def write_megatron(prefix: Path, documents: Sequence[Tokens], dtype: str) -> int:
    """Megatron's form: ``<prefix>.bin`` and ``<prefix>.idx``, one sequence a document. Returns the number of tokens."""
    tokens = write_flat(prefix.with_name(prefix.name + ".bin"), documents, dtype)
    lengths = np.array([len(document) for document in documents], dtype="<i4")
    ends_bytes = np.cumsum(lengths, dtype="<i8") * np.dtype(dtype).itemsize
    pointers = np.concatenate(([0], ends_bytes[:-1])).astype("<i8") if len(lengths) else ends_bytes
    document_index = np.arange(len(lengths) + 1, dtype="<i8")
    header = MEGATRON_MAGIC + struct.pack(
        "<QBQQ", MEGATRON_VERSION, MEGATRON_DTYPE_CODES[dtype], len(lengths), len(document_index)
    )
    with prefix.with_name(prefix.name + ".idx").open("wb") as file:
        for part in (header, lengths.tobytes(), pointers.tobytes(), document_index.tobytes()):
            file.write(part)
    return tokens


def _packed(document: Tokens, dtype: str) -> bytes:
    limits = np.iinfo(dtype)
    if len(document) and (int(document.min()) < limits.min or int(document.max()) > limits.max):
        raise ValueError(f"token ids {int(document.min())}..{int(document.max())} do not fit into {dtype}")
    return document.astype(np.dtype(dtype).newbyteorder("<")).tobytes()
