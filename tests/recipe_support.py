"""Recipes on plain directories: what the tests of recipes share."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from spoke.recipes.command import make
from spoke.recipes.files import MountedFiles
from spoke.recipes.model import Recipe, Steps
from spoke.recipes.options import Options
from spoke.recipes.scratch import Scratch


class LocalFiles(MountedFiles):
    """A directory in place of a mount: a file's version is its size and mtime."""

    def _version(self, file: str | int) -> bytes:
        found = os.stat(file)
        return hashlib.md5(
            f"{found.st_ino} {found.st_size} {found.st_mtime_ns}".encode(), usedforsecurity=False
        ).digest()


def recipe_on(directory: Path, name: str, **options: Any) -> Recipe:
    given = {key.replace("_", "-"): value if isinstance(value, list) else str(value) for key, value in options.items()}
    asked = Options(name, given)
    made: Recipe = make(name, asked, LocalFiles(str(directory), None, Scratch(directory)))
    asked.finish()
    return made


def lane_steps(recipe: Recipe, lane: int, epoch: int = 0, piece: int = 7) -> list[tuple[str, int, int]]:
    """(path, offset, length) of all reads of a lane in an epoch, asked for in pieces."""
    made = recipe.epoch(epoch)
    steps: list[tuple[str, int, int]] = []
    for begin in range(0, made.samples(lane), piece):
        steps.extend(rows(recipe, made.steps(lane, begin, min(begin + piece, made.samples(lane)))))
    return steps


def rows(recipe: Recipe, steps: Steps) -> list[tuple[str, int, int]]:
    return [
        (os.fsdecode(recipe.paths[file]), offset, length)
        for file, offset, length in zip(*(column.tolist() for column in steps), strict=True)
    ]


def digest(steps: Sequence[Any]) -> str:
    """A short name for a long list of numbers and texts."""
    return hashlib.sha256(repr(list(steps)).encode()).hexdigest()[:24]


def write_megatron(prefix: Path, lengths: Sequence[int], seed: int = 0, code: int = 8) -> None:
    """A .bin of random tokens and its .idx."""
    token_bytes = {8: 2, 4: 4}[code]
    lengths_array = np.asarray(lengths, np.int32)
    pointers = np.concatenate([[0], np.cumsum(lengths_array.astype(np.int64))[:-1]]) * token_bytes
    prefix.with_name(prefix.name + ".bin").write_bytes(
        np.random.default_rng(seed).integers(0, 60_000, int(lengths_array.sum())).astype(f"<u{token_bytes}").tobytes()
    )
    prefix.with_name(prefix.name + ".idx").write_bytes(
        struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, code, len(lengths), len(lengths) + 1)
        + lengths_array.tobytes()
        + pointers.astype(np.int64).tobytes()
        + np.arange(len(lengths) + 1, dtype=np.int64).tobytes()
    )


def document_lengths(count: int, seed: int, mean: int = 300) -> list[int]:
    """Of documents, some of them empty, some long."""
    dice = Random(seed)
    return [dice.choice((0, 1, dice.randrange(2 * mean), dice.randrange(mean), 8 * mean)) for _ in range(count)]


def write_mds(directory: Path, shard_sizes: Sequence[int], seed: int = 0, sample_bytes: int = 200) -> None:
    """Shards of random samples in one column of bytes, with an index.json as MosaicML's writer makes it."""
    dice = Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    infos = []
    for number, count in enumerate(shard_sizes):
        samples = []
        for _ in range(count):
            data = dice.randbytes(dice.randrange(1, 2 * sample_bytes))
            samples.append(struct.pack("<I", len(data)) + data)
        config = b"{}"
        offsets = np.cumsum([4 + 4 * (count + 1) + len(config), *map(len, samples)]).astype("<u4")
        data = struct.pack("<I", count) + offsets.tobytes() + config + b"".join(samples)
        name = f"shard.{number:05d}.mds"
        (directory / name).write_bytes(data)
        infos.append({
            "column_encodings": ["bytes"], "column_names": ["x"], "column_sizes": [None], "compression": None,
            "format": "mds", "hashes": [], "raw_data": {"basename": name, "bytes": len(data), "hashes": {}},
            "samples": count, "size_limit": 1 << 26, "version": 2, "zip_data": None,
        })  # fmt: skip
    (directory / "index.json").write_text(json.dumps({"version": 2, "shards": infos}))


def write_litdata(directory: Path, chunk_sizes: Sequence[int], seed: int = 0, item_bytes: int = 120) -> None:
    """Chunks of items of one leaf of bytes, as ``litdata.optimize`` writes them, with their index.json."""
    dice = Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    chunks = []
    for number, count in enumerate(chunk_sizes):
        items = []
        for _ in range(count):
            data = dice.randbytes(dice.randrange(1, 2 * item_bytes))
            items.append(struct.pack("<I", len(data)) + data)
        offsets = np.cumsum([4 * (count + 2), *map(len, items)]).astype("<u4")
        name = f"chunk-0-{number}.bin"
        data = struct.pack("<I", count) + offsets.tobytes() + b"".join(items)
        (directory / name).write_bytes(data)
        chunks.append({"chunk_bytes": len(data), "chunk_size": count, "dim": None, "filename": name})
    spec = '[1, {"type": null, "context": null, "children_spec": []}]'
    config = {
        "chunk_bytes": 1 << 26, "chunk_size": None, "compression": None, "data_format": ["bytes"], "data_spec": spec,
        "encryption": None, "item_loader": "PyTreeLoader",
    }  # fmt: skip
    (directory / "index.json").write_text(json.dumps({"chunks": chunks, "config": config, "updated_at": "0"}))


def write_tokens(directory: Path, chunk_tokens: Sequence[int], seed: int = 0) -> None:
    """Chunks of uint16 tokens for LitData's TokensLoader: one item a chunk."""
    directory.mkdir(parents=True, exist_ok=True)
    chunks = []
    for number, tokens in enumerate(chunk_tokens):
        body = np.random.default_rng(seed + number).integers(0, 60_000, tokens).astype("<u2").tobytes()
        name = f"chunk-0-{number}.bin"
        data = struct.pack("<III", 1, 12, 12 + len(body)) + body
        (directory / name).write_bytes(data)
        chunks.append({"chunk_bytes": len(data), "chunk_size": 1, "dim": tokens, "filename": name})
    config = {
        "chunk_bytes": 1 << 26, "chunk_size": None, "compression": None, "data_format": ["no_header_numpy:5"],
        "data_spec": '[1, {"type": null, "context": null, "children_spec": []}]', "encryption": None,
        "item_loader": "TokensLoader",
    }  # fmt: skip
    (directory / "index.json").write_text(json.dumps({"chunks": chunks, "config": config, "updated_at": "0"}))


def write_rows(path: Path, size_bytes: int, seed: int = 0) -> None:
    path.write_bytes(Random(seed).randbytes(size_bytes))


def write_shards(directory: Path, count: int, seed: int = 0) -> None:
    """Tar shards of two small samples each."""
    import io
    import tarfile

    directory.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        with tarfile.open(directory / f"s-{number:04d}.tar", "w") as shard:
            for sample in range(2):
                data = Random(seed + number).randbytes(50)
                info = tarfile.TarInfo(f"{number:04d}{sample}.bin")
                info.size = len(data)
                shard.addfile(info, io.BytesIO(data))


def summary(reads: Sequence[tuple[str, int, int]]) -> dict[str, Any]:
    """What a golden file keeps of a list of reads."""
    return {"reads": len(reads), "first": [list(read) for read in reads[:3]], "digest": digest(reads)}


def expanded(recipe: Recipe, epochs: int) -> list[list[list[tuple[str, int, int]]]]:
    """For each epoch, for each lane: what to compare with a loader's own reads.

    LitData's tables are left out, and a WebDataset shard is one read: so the loaders' code shows them.
    """
    found = [
        [lane_steps(recipe, lane, epoch, piece=37) for lane in range(len(recipe.lanes))] for epoch in range(epochs)
    ]
    if recipe.name.startswith("litdata"):
        return [[[step for step in lane if step[1] > 0] for lane in lanes] for lanes in found]
    if recipe.name.startswith("webdataset"):
        return [[_whole(lane) for lane in lanes] for lanes in found]
    return found


def _whole(lane: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    shards: list[tuple[str, int, int]] = []
    for path, offset, length in lane:
        if offset == 0:
            shards.append((path, 0, length))
        else:
            assert shards[-1] == (path, 0, offset)
            shards[-1] = (path, 0, offset + length)
    return shards
