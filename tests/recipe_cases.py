"""Small datasets and jobs on which recipes are compared with the loaders themselves (``real_loaders``) and with golden lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from recipe_support import (
    document_lengths,
    write_litdata,
    write_mds,
    write_megatron,
    write_rows,
    write_shards,
    write_tokens,
)

Value = str | int | float | list[str]


@dataclass(frozen=True)
class Case:
    """``options``: of the recipe, paths relative to the directory. ``epochs``: how many are compared."""

    name: str
    recipe: str
    prepare: Callable[[Path], object]
    options: Mapping[str, Value]
    epochs: int = 1


def _megatron(directory: Path) -> None:
    for number, (documents, mean, code) in enumerate([(300, 300, 8), (120, 40, 4), (57, 150, 8)]):
        write_megatron(directory / f"p{number}", document_lengths(documents, number, mean), seed=number, code=code)


def _mds(directory: Path) -> None:
    dice = Random(5)
    write_mds(directory / "d", [dice.randrange(1, 90) for _ in range(23)])


def _litdata(directory: Path) -> None:
    dice = Random(6)
    write_litdata(directory / "d", [dice.randrange(1, 700) for _ in range(17)])


def _tokens(directory: Path) -> None:
    dice = Random(7)
    write_tokens(directory / "d", [dice.randrange(100, 4000) for _ in range(11)])


def _rows(directory: Path) -> None:
    for number, size_bytes in enumerate([40_000, 12_345, 999, 64_000]):
        write_rows(directory / f"r{number}.npy", size_bytes, seed=number)
    for number, size_bytes in enumerate([20_000, 6_172, 499, 32_000]):
        write_rows(directory / f"m{number}.npy", size_bytes, seed=10 + number)


def _shards(directory: Path) -> None:
    write_shards(directory / "d", 37)


_M = {"seed": 1234, "seq-length": 128}
_BLEND = "0.3 p0 0.5 p1 0.2 p2"
_ROWS = [f"r{number}.npy" for number in range(4)]
_MASKS = [f"m{number}.npy" for number in range(4)]

CASES = [
    Case("megatron-one-epoch", "megatron", _megatron, {**_M, "prefix": "p0", "split": "99,1,0"}),
    Case(
        "megatron-many-epochs-last-apart", "megatron", _megatron,
        {**_M, "prefix": "p1", "split": "99,1,0", "num-samples": 90, "seed": 7},
    ),
    Case(
        "megatron-many-epochs-last-with-the-others", "megatron", _megatron,
        {**_M, "prefix": "p1", "split": "100,0,0", "num-samples": 157},
    ),
    Case(
        "megatron-validation-ranks", "megatron", _megatron,
        {**_M, "prefix": "p0", "split": "60,40", "part": "valid", "num-samples": 700, "micro-batch-size": 3,
         "data-parallel-size": 4, "consumed-samples": 24},
    ),
    Case(
        "megatron-blend", "megatron", _megatron,
        {**_M, "prefix": _BLEND, "split": "100, 0, 0", "num-samples": 400, "micro-batch-size": 2, "data-parallel-size": 2},
    ),
    Case("megatron-blend-by-size", "megatron", _megatron, {**_M, "train-data-path": "p0 p1 p2", "seed": 5}),
    Case("megatron-cyclic", "megatron", _megatron,
         {**_M, "prefix": "p0", "split": "99,1,0", "dataloader-type": "cyclic", "micro-batch-size": 2,
          "data-parallel-size": 2, "num-samples": 301}, epochs=2),
    Case("megatron-cyclic-unsharded", "megatron", _megatron,
         {**_M, "prefix": "p0", "split": "99,1,0", "dataloader-type": "cyclic", "micro-batch-size": 2,
          "data-parallel-size": 2, "no-data-sharding": "yes", "num-samples": 301}, epochs=2),
    *(
        Case(
            f"mds-{algorithm}", "mds", _mds,
            {"dir": "d", "shuffle-algo": algorithm, "seed": 9176, "num-canonical-nodes": 4, "world-size": 4,
             "ranks-per-node": 2, "shuffle-block-size": 120}, epochs=2,
        )
        for algorithm in ("py1e", "py1br", "py1s", "py2s")
    ),
    Case("mds-unshuffled-more-nodes", "mds", _mds,
         {"dir": "d", "shuffle": "no", "num-canonical-nodes": 2, "world-size": 12, "ranks-per-node": 3}),
    Case("mds-resumed", "mds", _mds,
         {"dir": "d", "num-canonical-nodes": 2, "world-size": 2, "sample-in-epoch": 96, "shuffle-block-size": 64}),
    Case("litdata-full", "litdata", _litdata,
         {"dir": "d", "shuffle": "full", "seed": 42, "world-size": 2, "num-workers": 3, "batch-size": 4, "drop-last": "yes"},
         epochs=2),
    Case("litdata-full-nodes", "litdata", _litdata,
         {"dir": "d", "shuffle": "full", "seed": 3, "world-size": 4, "nodes": 2, "num-workers": 2, "batch-size": 4,
          "drop-last": "no", "item-window": 0}, epochs=2),
    Case("litdata-window", "litdata", _litdata,
         {"dir": "d", "shuffle": "window", "seed": 42, "world-size": 1, "num-workers": 2, "batch-size": 4,
          "drop-last": "no"}, epochs=2),
    Case("litdata-tokens", "litdata", _tokens,
         {"dir": "d", "shuffle": "full", "seed": 1, "block-size": 33, "num-workers": 2, "batch-size": 2,
          "drop-last": "no"}, epochs=2),
    Case("olmo-core", "olmo-core", _rows,
         {"paths": _ROWS, "sequence-length": 64, "seed": 34521, "global-batch-size": 64 * 12, "data-parallel-size": 3},
         epochs=2),
    Case("olmo-core-chunks-masks", "olmo-core", _rows,
         {"paths": _ROWS, "label-mask-paths": _MASKS, "sequence-length": 16, "seed": 1, "chunk-size": 4,
          "global-batch-size": 16 * 8, "data-parallel-size": 2, "batches-processed": 3}),
    Case("webdataset-shuffle", "webdataset", _shards,
         {"shards": "d/s-{0000..0036}.tar", "seed": 17, "shardshuffle": 10, "world-size": 2, "num-workers": 2}),
    Case("webdataset-detshuffle", "webdataset", _shards,
         {"shards": "d/s-{0000..0036}.tar", "seed": 17, "shardshuffle": 1000, "detshuffle": "yes",
          "persistent-workers": "yes"}, epochs=2),
    Case("webdataset-environment", "webdataset", _shards,
         {"shards": "d/s-{0000..0036}.tar", "wds-seed": "4711", "shardshuffle": 100}),
    Case("fixed-records", "fixed-records", _rows,
         {"files": _ROWS, "record-bytes": 100, "header-bytes": 128, "seed": 3, "world-size": 3}, epochs=2),
    Case("fixed-records-drop-last", "fixed-records", _rows,
         {"files": _ROWS, "record-bytes": 61, "seed": 11, "world-size": 4, "drop-last": "yes"}),
]  # fmt: skip

BY_NAME = {case.name: case for case in CASES}
