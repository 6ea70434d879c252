"""Recipes into order files: segments, where the next begins, refusals of damaged and foreign index files."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("numpy", reason="recipes need NumPy")

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from recipe_support import document_lengths, lane_steps, recipe_on, write_litdata, write_mds, write_megatron, write_rows

from common.errors import DiskError, HeadraceError, UsageError
from spoke.orders.mapped import open_order
from spoke.prefetch.chains import FileFacts
from spoke.recipes.command import is_through, progress
from spoke.recipes.expand import Expansion, Place
from spoke.recipes.litdata_order import Job, dealt_evenly, dealt_whole
from spoke.recipes.mds_shuffle import Partition, World
from spoke.recipes.model import Recipe
from spoke.recipes.options import Options
from spoke.recipes.scratch import Scratch
from spoke.recipes.webdataset import _braces


def facts(directory: Path, recipe: Recipe) -> list[FileFacts]:
    return [
        FileFacts(path, f"{number:016d}".encode(), (directory / os.fsdecode(path)).stat().st_size)
        for number, path in enumerate(recipe.paths)
    ]


def test_segments_join_to_all_lanes_and_overlap_by_some_part(tmp_path: Path) -> None:
    write_rows(tmp_path / "r", 200 * 6000)
    recipe = recipe_on(tmp_path, "fixed-records", files="r", record_bytes=200, world_size=3, seed=2)
    expansion = Expansion(recipe, last_epoch=2)
    lanes = [
        [step[1] for epoch in range(2) for step in lane_steps(recipe, lane, epoch, piece=2000)] for lane in range(3)
    ]
    place: Place | None = Place(0, 0)
    segments = 0
    seen = [0, 0, 0]
    while place is not None:
        made = expansion.write(tmp_path / "o", f"x{segments}", place, facts(tmp_path, recipe), {}, max_steps=4000)
        order = open_order(tmp_path / "o")
        begin = made.begin.epoch * 2000 + made.begin.sample
        for lane in range(3):
            offsets = [order.step(lane, at).offset_bytes for at in range(order.length(lane))]
            assert offsets == lanes[lane][begin : begin + len(offsets)]
            seen[lane] = begin + len(offsets)
        assert made.end.epoch * 2000 + made.end.sample == seen[0]
        assert made.steps < 4400
        if made.resume is not None:
            assert 0 < seen[0] - (made.resume.epoch * 2000 + made.resume.sample) < made.steps
        place = made.resume
        segments += 1
    assert seen == [4000, 4000, 4000]
    assert segments >= 3


def test_a_recipe_that_has_nothing_at_a_place_says_so(tmp_path: Path) -> None:
    write_rows(tmp_path / "r", 200)
    recipe = recipe_on(tmp_path, "fixed-records", files="r", record_bytes=200)
    with pytest.raises(UsageError, match="nothing to read from epoch 3"):
        Expansion(recipe, last_epoch=2).write(tmp_path / "o", "x", Place(3, 0), facts(tmp_path, recipe), {})


def test_large_arrays_lie_on_disk_and_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.limits.RECIPE_MEMORY_ARRAY_BYTES", 1000)
    numbers = Scratch(tmp_path).arange(5, 1005, np.int32)
    assert numbers.tolist() == list(range(5, 1005))
    assert os.listdir(tmp_path) == []
    with pytest.raises(DiskError, match=r"needs \d+ bytes of scratch"):
        Scratch(tmp_path).empty(1 << 58, np.uint8)


def test_the_order_is_the_same_from_scratch_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_megatron(tmp_path / "p", document_lengths(200, 1))
    options = {"prefix": "p", "seq_length": 64, "split": "1,0,0", "num_samples": 900}
    before = lane_steps(recipe_on(tmp_path, "megatron", **options), 0)
    monkeypatch.setattr("common.limits.RECIPE_MEMORY_ARRAY_BYTES", 100)
    monkeypatch.setattr("common.limits.RECIPE_PIECE_ROWS", 17)
    monkeypatch.setattr("common.limits.RECIPE_READ_BYTES", 100)
    assert lane_steps(recipe_on(tmp_path, "megatron", **options), 0) == before


def test_pytorchs_permutation_without_pytorch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="compared with PyTorch")
    from spoke.recipes.torch_random import _permutation

    for count, seed in [(0, 1), (1, 1), (2, 0), (1000, 5), (4097, (1 << 40) + 3)]:
        generator = torch.Generator()
        generator.manual_seed(seed)
        assert (
            _permutation(count, seed, Scratch(tmp_path)).tolist() == torch.randperm(count, generator=generator).tolist()
        )


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5))
def test_dealing_gives_every_item_once_or_drops_it(sizes: list[int], ranks: int, workers: int, batch: int) -> None:
    for drop_last in (False, True):
        job = Job(ranks, 1, workers, batch, drop_last)
        for parts in (dealt_evenly(range(len(sizes)), sizes, job), dealt_whole(sizes, job)):
            items = [(chunk, item) for part in parts for chunk, first, end in part for item in range(first, end)]
            assert len(set(items)) == len(items)
            assert len(parts) == ranks * workers
            if not drop_last:
                assert len(items) == sum(sizes)


@given(st.integers(40, 500), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.integers(1, 4))
def test_a_partition_covers_all_samples(count: int, canonical: int, nodes: int, ranks: int) -> None:
    partition = Partition(count, World(nodes, ranks, canonical))
    each = partition.samples_per_rank
    found = [partition.samples(rank, 0, each).tolist() for rank in range(nodes * ranks)]
    assert {sample for rank in found for sample in rank} == set(range(count))
    # In pieces as in one.
    assert partition.samples(0, 0, 3).tolist() + partition.samples(0, 3, each).tolist() == found[0]


def test_braces() -> None:
    assert list(_braces("a-{08..11}.tar")) == ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]
    assert list(_braces("{x,y}{1..2}")) == ["x1", "x2", "y1", "y2"]
    assert list(_braces("plain")) == ["plain"]


def test_how_far_an_order_is() -> None:
    lanes = [{"lane": 0, "position": 5, "length": 10}, {"lane": 3, "position": 10, "length": 10}]
    assert progress({"lanes": lanes}) == 1.0
    assert progress({"lanes": []}) == 0.0
    assert not is_through({"state": "locked", "lanes": lanes})
    assert is_through({"state": "locked", "lanes": lanes[1:]})


# --- refusals --------------------------------------------------------------------------------------------


def damaged_idx(kind: str) -> bytes:
    head = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, 3, 4)
    return {
        "empty": b"",
        "not an index": b"PK\x03\x04" + bytes(100),
        "cut": head + bytes(10),
        "version": struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 2, 8, 3, 4) + bytes(100),
        "huge": struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, 1 << 62, 4) + bytes(100),
    }[kind]


@pytest.mark.parametrize("kind", ["empty", "not an index", "cut", "version", "huge"])
def test_an_idx_that_is_none(tmp_path: Path, kind: str) -> None:
    (tmp_path / "p.idx").write_bytes(damaged_idx(kind))
    (tmp_path / "p.bin").write_bytes(b"x" * 10)
    with pytest.raises(UsageError, match=r"p\.idx"):
        recipe_on(tmp_path, "megatron", prefix="p", seq_length=8, split="1,0,0")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda index: index.update(version=3), "version 2 is known"),
        (lambda index: index["shards"][0].update(format="json"), "only mds"),
        (lambda index: index["shards"][0].update(zip_data={"basename": "x"}), "compressed"),
        (lambda index: index["shards"][0]["raw_data"].update(basename="../x"), "called"),
        (lambda index: index.pop("shards"), "not the index of an MDS"),
    ],
)
def test_an_mds_index_that_cannot_be(tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str) -> None:
    write_mds(tmp_path / "d", [5, 5])
    index = json.loads((tmp_path / "d" / "index.json").read_text())
    change(index)
    (tmp_path / "d" / "index.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match=said):
        recipe_on(tmp_path, "mds", dir="d")


def test_a_shard_whose_table_does_not_fit_its_index(tmp_path: Path) -> None:
    write_mds(tmp_path / "d", [5, 5])
    shard = tmp_path / "d" / "shard.00001.mds"
    data = bytearray(shard.read_bytes())
    data[0] = 9
    shard.write_bytes(data)
    recipe = recipe_on(tmp_path, "mds", dir="d")
    with pytest.raises(UsageError, match="do not belong together"):
        lane_steps(recipe, 0)


def test_jobs_that_cannot_be(tmp_path: Path) -> None:
    write_rows(tmp_path / "r", 1000)
    write_litdata(tmp_path / "l", [3])
    refused = [
        ("fixed-records", {"files": "r", "record_bytes": 2000}),
        ("fixed-records", {"files": "../r", "record_bytes": 2}),
        ("fixed-records", {"files": "/elsewhere/r", "record_bytes": 2}),
        ("fixed-records", {"files": "missing", "record_bytes": 2}),
        ("olmo-core", {"paths": "r", "sequence_length": 8, "global_batch_size": 12}),
        ("olmo-core", {"paths": "r", "sequence_length": 8, "global_batch_size": 24, "data_parallel_size": 2}),
        ("webdataset", {"shards": "r"}),
        ("litdata", {"dir": "l", "world_size": 3, "nodes": 2}),
        ("litdata", {"dir": "l", "block_size": 8}),
        ("megatron", {"prefix": "r"}),
    ]
    with pytest.raises(UsageError, match="no whole record of 2000 bytes lies in r"):
        recipe_on(tmp_path, "fixed-records", files="r", record_bytes=2000)
    for name, options in refused:
        with pytest.raises(UsageError):
            recipe_on(tmp_path, name, **options)


@given(st.binary(max_size=300), st.integers(0, 50))
def test_index_files_of_noise_are_refused_and_never_crash(noise: bytes, cut: int) -> None:
    head = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, len(noise) % 7, 1)[:cut]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "p.idx").write_bytes(head + noise)
        (directory / "p.bin").write_bytes(noise)
        (directory / "index.json").write_bytes(noise)
        for recipe, options in [
            ("megatron", {"prefix": "p", "seq_length": 8, "split": "1,0,0", "num_samples": 3}),
            ("mds", {"dir": "."}),
            ("litdata", {"dir": "."}),
        ]:
            with contextlib.suppress(HeadraceError):
                recipe_on(directory, recipe, **options)


def test_recipes_write_what_they_used_into_their_notes(tmp_path: Path) -> None:
    write_mds(tmp_path / "d", [Random(1).randrange(3, 9) for _ in range(4)])
    asked = Options("mds", {"dir": "d"})
    from recipe_support import LocalFiles

    from spoke.recipes.command import make

    make("mds", asked, LocalFiles(str(tmp_path), None, Scratch(tmp_path)))
    assert asked.notes["seed"] == "9176 (default)"
    assert asked.notes["dir"] == "d (given)"
