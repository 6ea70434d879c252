"""Which files hold token ids, and how: nanoGPT's ``.bin``, Megatron's ``.bin`` with ``.idx``, NumPy's ``.npy``.

==================  ====================================================================================================
``NAME.bin``        ids one after the other, little-endian, no header: uint16 as nanoGPT writes them, or as ``--dtype`` says
``NAME.bin, .idx``  Megatron-LM's indexed dataset, version 1 of its index: type and lengths of its sequences stand there
``NAME.npy``        NumPy's format: whole numbers of 2, 4 or 8 bytes; several dimensions are read row after row
==================  ====================================================================================================

A directory is searched to its depths, and its files are joined in the order of their names. All else is refused with what
was seen. The user's own files are only ever read: ``excerpt`` copies what the runs need.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bench.demo.formats import MEGATRON_DTYPE_CODES, MEGATRON_MAGIC, MEGATRON_VERSION
from common.errors import UsageError

Kind = Literal["flat", "megatron", "npy"]
Numbers = npt.NDArray[np.int64]

KINDS: dict[Kind, str] = {"flat": "flat .bin (nanoGPT)", "megatron": ".bin with .idx (Megatron)", "npy": ".npy"}
DTYPES = ("uint16", "uint32", "int32")
"""Of flat files; the others say theirs themselves."""
ALLOWED = "NAME.bin of uint16 ids (nanoGPT), NAME.bin with NAME.idx (Megatron), or NAME.npy"
HEADER = struct.Struct("<8xxQBQQ")
LLM_C_MAGICS = (20240520, 20240801)
LOOKED_AT = 1 << 16
"""Ids at the front of a flat file that are looked at for halves of larger ids."""
PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class TokenFile:
    """``tokens`` ids of ``dtype`` from ``offset_bytes`` on. ``lengths``: of its sequences, where the format has them."""

    path: Path
    kind: Kind
    dtype: np.dtype[Any]
    offset_bytes: int
    tokens: int
    lengths: Numbers | None = None

    def map(self) -> npt.NDArray[Any]:
        """Read-only, one dimension."""
        return np.memmap(self.path, self.dtype, "r", self.offset_bytes, (self.tokens,))


def find(path: Path, flat_dtype: str | None) -> list[TokenFile]:
    """The token files at ``path``: a file, a Megatron prefix, or a directory. ``flat_dtype`` None: uint16, once looked at.

    Raises UsageError for anything that is not read, with what was seen and what is allowed.
    """
    if path.is_dir():
        candidates = sorted(file for file in path.rglob("*") if file.suffix in (".bin", ".npy") and file.is_file())
        if not candidates:
            seen = sorted({file.suffix or file.name for file in path.rglob("*") if file.is_file()})[:6]
            raise UsageError(f"{path} holds no token files (it has {', '.join(seen) or 'nothing'}); allowed: {ALLOWED}")
    elif path.is_file():
        candidates = [path.with_suffix(".bin") if path.suffix == ".idx" else path]
    elif path.with_name(path.name + ".bin").is_file():
        candidates = [path.with_name(path.name + ".bin")]
    else:
        raise UsageError(f"there is no {path}, and no {path.name}.bin beside it")
    found = [_look(file, flat_dtype) for file in candidates]
    if len(kinds := {file.kind: file for file in found}) > 1:
        told = " and ".join(f"{file.path.name} ({KINDS[kind]})" for kind, file in kinds.items())
        raise UsageError(f"{path} holds {told}; name one of them, or a directory with one kind of files")
    return found


def _look(path: Path, flat_dtype: str | None) -> TokenFile:
    try:
        if path.suffix == ".npy":
            made = _npy(path)
        elif path.suffix == ".bin":
            index = path.with_suffix(".idx")
            made = _megatron(path, index) if index.exists() else _flat(path, flat_dtype)
        else:
            raise UsageError(f"{path} is not a token file that is read here; allowed: {ALLOWED}")
    except OSError as error:
        raise UsageError(f"{error.filename or path} cannot be read: {error.strerror}") from None
    if flat_dtype is not None and made.kind != "flat" and np.dtype(flat_dtype) != made.dtype:
        raise UsageError(f"{path.name} says itself that its ids are {made.dtype}; leave out --dtype {flat_dtype}")
    if not made.tokens:
        raise UsageError(f"{path} holds no ids")
    return made


def _flat(path: Path, flat_dtype: str | None) -> TokenFile:
    dtype = np.dtype(flat_dtype or "uint16").newbyteorder("<")
    size_bytes = path.stat().st_size
    if size_bytes % dtype.itemsize:
        raise UsageError(f"{path} has {size_bytes:,} bytes, which is no whole number of {dtype} ids")
    made = TokenFile(path, "flat", dtype, 0, size_bytes // dtype.itemsize)
    if flat_dtype is not None:  # and nothing is read: a job that is timed asks like this
        return made
    with path.open("rb") as file:
        front = file.read(2 * LOOKED_AT)
    if int.from_bytes(front[:4], "little") in LLM_C_MAGICS:
        raise UsageError(f"{path} begins with the header of llm.c's format, which is not read; allowed: {ALLOWED}")
    halves = np.frombuffer(front[: len(front) // 4 * 4], "<u2")
    if len(halves) >= 64 and not halves[1::2].any() and halves[0::2].any():
        raise UsageError(f"{path} looks like ids of 4 bytes (each second half is 0); say --dtype uint32")
    return made


def _npy(path: Path) -> TokenFile:
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        why = (
            "no NumPy header; raw ids, as OLMo has them, are read when named .bin" if not _is_npy(path) else str(error)
        )
        raise UsageError(f"{path}: {why}") from None
    if mapped.dtype.kind not in "iu" or mapped.dtype.itemsize not in (2, 4, 8) or mapped.ndim < 1:
        raise UsageError(
            f"{path} holds {mapped.dtype} of shape {mapped.shape}; allowed: rows of whole numbers of 2, 4 or 8 bytes"
        )
    if mapped.ndim > 1 and not mapped.flags.c_contiguous:
        raise UsageError(f"{path} is stored column after column; save it with numpy.ascontiguousarray")
    return TokenFile(path, "npy", mapped.dtype, int(mapped.offset), int(mapped.size))


def _is_npy(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(6) == b"\x93NUMPY"


def _megatron(path: Path, index: Path) -> TokenFile:
    with index.open("rb") as file:
        head = file.read(HEADER.size)
        if head[: len(MEGATRON_MAGIC)] != MEGATRON_MAGIC or len(head) < HEADER.size:
            raise UsageError(f"{index} does not begin like Megatron's index (MMIDIDX), but with {head[:9]!r}")
        version, code, sequences, _documents = HEADER.unpack(head)
        if version != MEGATRON_VERSION:
            raise UsageError(f"{index} has version {version}; only {MEGATRON_VERSION} is read")
        names = [name for name, number in MEGATRON_DTYPE_CODES.items() if number == code]
        if not names:
            raise UsageError(f"{index} names type {code}, which is not one of ids: {MEGATRON_DTYPE_CODES}")
        dtype = np.dtype(names[0]).newbyteorder("<")
        tables = file.read(12 * sequences)
    if len(tables) != 12 * sequences:
        raise UsageError(f"{index} ends within its tables: {sequences:,} sequences need {12 * sequences:,} bytes")
    lengths = np.frombuffer(tables, "<i4", sequences).astype(np.int64)
    pointers = np.frombuffer(tables, "<i8", sequences, 4 * sequences)
    starts = np.cumsum(lengths) - lengths
    if (lengths < 0).any() or not np.array_equal(pointers, starts * dtype.itemsize):
        raise UsageError(f"{index}: its sequences do not lie one after the other; only such files are read")
    tokens = int(lengths.sum())
    if path.stat().st_size != tokens * dtype.itemsize:
        raise UsageError(
            f"{index} speaks of {tokens:,} {dtype} ids, {tokens * dtype.itemsize:,} bytes; {path.name} has {path.stat().st_size:,}"
        )
    return TokenFile(path, "megatron", dtype, 0, tokens, lengths)


def excerpt(files: Sequence[TokenFile], tokens: int, directory: Path) -> list[Path]:
    """Write the first ``tokens`` ids of all files into ``directory``, in their format and by their names. Returns what holds ids.

    Megatron's are cut at the end of a sequence, so a few more may be taken. Raises OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    left = tokens
    for number, file in enumerate(files):
        if left <= 0:
            break
        target = directory / file.path.name
        if target in written:  # the same name in two folders
            target = directory / f"{number:05d}-{file.path.name}"
        taken = min(left, file.tokens)
        if file.lengths is not None:
            sequences = int(np.searchsorted(np.cumsum(file.lengths), taken)) + 1
            lengths = file.lengths[:sequences]
            taken = int(lengths.sum())
            _write_index(target.with_suffix(".idx"), lengths, file.dtype)
        with target.open("wb") as out:
            if file.kind == "npy":
                shape = {"descr": np.lib.format.dtype_to_descr(file.dtype), "fortran_order": False, "shape": (taken,)}
                np.lib.format.write_array_header_1_0(out, shape)
            with file.path.open("rb") as source:
                source.seek(file.offset_bytes)
                left_bytes = taken * file.dtype.itemsize
                while left_bytes and (piece := source.read(min(PIECE_BYTES, left_bytes))):
                    out.write(piece)
                    left_bytes -= len(piece)
        written.append(target)
        left -= taken
    return written


def _write_index(path: Path, lengths: Numbers, dtype: np.dtype[Any]) -> None:
    code = MEGATRON_DTYPE_CODES[dtype.name]
    head = MEGATRON_MAGIC + struct.pack("<QBQQ", MEGATRON_VERSION, code, len(lengths), len(lengths) + 1)
    pointers = (np.cumsum(lengths) - lengths) * dtype.itemsize
    tables = (lengths.astype("<i4"), pointers.astype("<i8"), np.arange(len(lengths) + 1, dtype="<i8"))
    path.write_bytes(head + b"".join(table.tobytes() for table in tables))


def change(file: TokenFile) -> None:
    """Other ids in the same file, by rename: its second half first. Its length and what else it holds stay."""
    partial = file.path.with_name(f".{file.path.name}.partial")
    with file.path.open("rb") as source, partial.open("wb") as out:
        out.write(source.read(file.offset_bytes))
        middle = file.tokens // 2
        ids = file.map()
        for part in (ids[middle:], ids[:middle]):
            part.tofile(out)
        source.seek(file.offset_bytes + file.tokens * file.dtype.itemsize)
        shutil.copyfileobj(source, out)
    partial.replace(file.path)
