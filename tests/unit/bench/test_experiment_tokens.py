"""The token files that the experiment reads, cuts and changes, and what it says of others."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.demo.formats import write_megatron
from bench.experiment.tokens import change, excerpt, find
from common.errors import UsageError

IDS = np.arange(1000) * 7 % 50_000


def flat(directory: Path) -> Path:
    IDS.astype("<u2").tofile(directory / "train.bin")
    return directory / "train.bin"


def npy(directory: Path) -> Path:
    np.save(directory / "train.npy", IDS.astype(np.int32).reshape(10, 100))
    return directory / "train.npy"


def megatron(directory: Path) -> Path:
    write_megatron(directory / "train", [IDS[:300], IDS[300:310], IDS[310:]], "int32")
    return directory / "train.idx"


@pytest.mark.parametrize("make", [flat, npy, megatron])
def test_each_format_is_read_cut_and_changed(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    (tmp_path / "mine").mkdir()
    path = make(tmp_path / "mine")
    before = {file.name: file.read_bytes() for file in (tmp_path / "mine").iterdir()}
    for way_in in (path, path.parent):
        (file,) = find(way_in, None)
        assert file.map().tolist() == IDS.tolist()

    written = excerpt([file], 305, tmp_path / "cut")
    (cut,) = find(tmp_path / "cut", None)
    assert written == [cut.path]
    assert (cut.kind, cut.dtype) == (file.kind, file.dtype)
    taken = 310 if file.kind == "megatron" else 305  # whole sequences
    assert cut.map().tolist() == IDS[:taken].tolist()
    if file.kind == "megatron":
        assert cut.lengths is not None
        assert cut.lengths.tolist() == [300, 10]

    change(cut)
    (changed,) = find(tmp_path / "cut", None)
    assert changed.map().tolist() == [*IDS[taken // 2 : taken], *IDS[: taken // 2]]
    assert {file.name: file.read_bytes() for file in (tmp_path / "mine").iterdir()} == before


def test_an_excerpt_goes_on_in_the_next_file(tmp_path: Path) -> None:
    for name, ids in (("a", IDS[:400]), ("b", IDS[400:]), ("c", IDS)):
        ids.astype("<u2").tofile(tmp_path / f"{name}.bin")
    assert [path.name for path in excerpt(find(tmp_path, None), 700, tmp_path / "cut")] == ["a.bin", "b.bin"]
    assert [file.tokens for file in find(tmp_path / "cut", None)] == [400, 300]


def test_a_megatron_prefix_is_a_path_too(tmp_path: Path) -> None:
    megatron(tmp_path)
    assert find(tmp_path / "train", None)[0].kind == "megatron"


def wrong_index(directory: Path) -> Path:
    megatron(directory)
    with (directory / "train.bin").open("ab") as file:
        file.write(b"xxxx")
    return directory


def foreign_index(directory: Path) -> Path:
    flat(directory)
    (directory / "train.idx").write_bytes(b"TNTIDX\0\0" + bytes(90))
    return directory


def cut_index(directory: Path) -> Path:
    path = megatron(directory)
    path.write_bytes(path.read_bytes()[:50])
    return path


def both(directory: Path) -> Path:
    flat(directory)
    np.save(directory / "other.npy", IDS)
    return directory


def written(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        (directory / name).write_bytes(content)
        return directory / name

    return make


def floats(directory: Path) -> Path:
    np.save(directory / "x.npy", np.ones(50))
    return directory / "x.npy"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda directory: directory / "nowhere", "there is no"),
        (lambda directory: directory, "holds no token files"),
        (written("x.parquet", b"PAR1"), "allowed: NAME.bin"),
        (written("x.bin", b"xyz"), "no whole number"),
        (written("x.bin", b""), "holds no ids"),
        (written("x.bin", IDS.astype("<u4").tobytes()), "--dtype uint32"),
        (written("x.bin", (20240520).to_bytes(4, "little") + bytes(2044)), "llm.c"),
        (written("x.npy", IDS.astype("<u2").tobytes()), "named .bin"),
        (floats, "float64"),
        (wrong_index, "speaks of 1,000 int32 ids"),
        (foreign_index, "MMIDIDX"),
        (cut_index, "ends within"),
        (both, "name one of them"),
    ],
)
def test_anything_else_is_refused_with_what_was_seen(tmp_path: Path, make: Callable[[Path], Path], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find(make(tmp_path), None)


def test_a_dtype_that_the_file_contradicts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave out --dtype"):
        find(npy(tmp_path), "uint16")
    IDS.astype("<u4").tofile(tmp_path / "x.bin")
    assert find(tmp_path / "x.bin", "uint32")[0].map().tolist() == IDS.tolist()
