"""The directory that the demonstration serves, and the windows its job reads from it."""

import json
from pathlib import Path

import numpy as np
import pytest

from bench.demo import dataset
from bench.demo.corpus import collect, encode, train
from bench.demo.formats import Tokens
from common.errors import UsageError


@pytest.fixture(scope="module")
def documents() -> list[Tokens]:
    return [np.arange(start, start + 150, dtype=np.uint32) for start in range(0, 15_000, 150)]


def test_every_form_holds_all_tokens(tmp_path: Path, documents: list[Tokens]) -> None:
    swept = dataset.build(tmp_path, documents)
    assert dataset.read_manifest(tmp_path) == swept
    assert {(Path(file.path).parts[0], file.dtype) for file in swept} == {
        ("nanogpt-uint16", "uint16"),
        ("nanogpt-uint32", "uint32"),
        ("megatron-uint16", "uint16"),
        ("megatron-int32", "int32"),
    }
    for file in swept:
        assert len(np.memmap(tmp_path / file.path, dtype=file.dtype, mode="r")) == file.tokens
    flat = [np.fromfile(tmp_path / "nanogpt-uint16" / name, dtype="<u2") for name in ("train.bin", "val.bin")]
    assert sorted(np.concatenate(flat).tolist()) == list(range(15_000))
    shards = [file for file in swept if file.path.startswith("megatron-int32")]
    assert len(shards) == dataset.SHARDS
    assert sum(file.tokens for file in shards) == 15_000
    assert all((tmp_path / file.path).with_suffix(".idx").exists() for file in shards)


def test_checksums_tell_files_apart(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"")
    names = dataset.files_below(tmp_path)
    assert names == ["b", "deep/a"]
    sums = dict(dataset.checksums(tmp_path, names))
    assert sums["deep/a"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert dataset.total_bytes(tmp_path, names) == 3


@pytest.mark.torch
def test_windows_cover_every_file_in_order(tmp_path: Path, documents: list[Tokens]) -> None:
    from bench.demo.job import TokenWindows

    swept = dataset.build(tmp_path, documents)
    windows = TokenWindows(tmp_path, swept, window_tokens=64)
    expected = []
    for file in swept:
        tokens = np.fromfile(tmp_path / file.path, dtype=file.dtype).tolist()
        expected += [tokens[start : start + 65] for start in range(0, file.tokens - 64, 64)]
    assert len(windows) == len(expected)
    assert [windows[index].tolist() for index in range(len(windows))] == expected


@pytest.mark.torch
def test_the_job_reports_each_batch_and_what_it_read(tmp_path: Path, documents: list[Tokens]) -> None:
    import argparse

    from bench.demo.job import run

    dataset.build(tmp_path, documents)
    arguments = argparse.Namespace(data=tmp_path, window=64, batch=8, batches=12, workers=2, step=0.001)
    first, second = run(arguments), run(arguments)
    assert len(first["batch_s"]) == len(first["wait_s"]) == 12
    assert min(first["batch_s"]) >= 0.001
    assert first["checksum"] == second["checksum"]
    (tmp_path / "nanogpt-uint16/train.bin").write_bytes(bytes(30_000))
    assert run(arguments)["checksum"] != first["checksum"]
    json.dumps(first)


def test_text_is_taken_in_order_up_to_the_budget(tmp_path: Path) -> None:
    for name, size in (("b.py", 150_000), ("a.txt", 100_000), ("c.rst", 70_000), ("d.bin", 50_000)):
        (tmp_path / name).write_bytes(name[0].encode() * size)
    texts = collect([tmp_path], 200_000)
    assert [(text[0], len(text)) for text in texts] == [("a", 100_000), ("b", 100_000)]


def test_too_little_text_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="found 0 bytes of text"):
        collect([tmp_path], 1_000_000)


def test_tokens_decode_to_the_text_and_end_each_document() -> None:
    texts = ["def f(x):\n    return x + 1\n" * 40, "naïve façade — 水\n"]
    tokenizer = train(texts * 3)
    done: list[int] = []
    found = encode(tokenizer, texts, done.append)
    end = tokenizer.token_to_id("<|endoftext|>")
    assert [int(ids[-1]) for ids in found] == [end, end]
    assert [tokenizer.decode(ids[:-1].tolist()) for ids in found] == texts
    assert done == [2]
