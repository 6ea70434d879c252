"""The directory the hub serves: the same tokens as nanoGPT and Megatron files, in 2 and in 4 bytes a token.

Also the manifest: which of the files a job sweeps, with the type of their tokens, as JSON beside them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.demo.formats import Tokens, write_flat, write_megatron

MANIFEST = "manifest.json"
SHARDS = 4
VALIDATION_SHARE = 50
"""One document in so many goes to nanoGPT's val.bin."""


@dataclass(frozen=True)
class TokenFile:
    """``path`` is relative to the dataset's directory; ``dtype`` is numpy's name."""

    path: str
    dtype: str
    tokens: int


def build(directory: Path, documents: Sequence[Tokens]) -> list[TokenFile]:
    """Write all files and the manifest; returns what a job sweeps, in order."""
    training = [document for number, document in enumerate(documents) if number % VALIDATION_SHARE]
    validation = list(documents[::VALIDATION_SHARE])
    swept: list[TokenFile] = []
    for dtype in ("uint16", "uint32"):
        flat = directory / f"nanogpt-{dtype}"
        flat.mkdir(parents=True)
        write_flat(flat / "val.bin", validation, dtype)
        swept.append(TokenFile(f"{flat.name}/train.bin", dtype, write_flat(flat / "train.bin", training, dtype)))
    for dtype in ("uint16", "int32"):
        folder = directory / f"megatron-{dtype}"
        folder.mkdir()
        for shard in range(SHARDS):
            prefix = folder / f"text-{shard:05d}-of-{SHARDS:05d}_document"
            tokens = write_megatron(prefix, documents[shard::SHARDS], dtype)
            swept.append(TokenFile(f"{folder.name}/{prefix.name}.bin", dtype, tokens))
    (directory / MANIFEST).write_text(json.dumps([asdict(file) for file in swept], indent=1) + "\n")
    return swept


def read_manifest(directory: Path) -> list[TokenFile]:
    return [TokenFile(**item) for item in json.loads((directory / MANIFEST).read_text())]


def files_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def checksums(directory: Path, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(name, SHA-256) of each file, in order."""
    for name in names:
        with (directory / name).open("rb") as file:
            yield name, hashlib.file_digest(file, "sha256").hexdigest()


def total_bytes(directory: Path, names: Sequence[str]) -> int:
    return sum((directory / name).stat().st_size for name in names)
