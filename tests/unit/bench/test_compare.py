"""bench.compare: what it reads, and what it refuses."""

import csv
from pathlib import Path

import pytest

from bench.compare.__main__ import draw, measure, parse, write_csv
from bench.compare.work import choose, prepare
from common.errors import HeadraceError, UsageError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    prepare(tmp_path / "data", 300_000, 120)
    return tmp_path / "data"


def test_each_kind_of_work_has_files_of_its_own() -> None:
    sizes = {"a": 900_000, "b": 800_000, "c": 700_000, "d": 600_000, "x/1": 10, "x/2": 5000, "empty": 0}
    choice = choose(sizes, 10**6, 1)
    assert choice.sequential == ("a",)  # c would be above the limit
    assert choice.random == ("b",)
    assert choice.small == ("x/1",)


def test_a_dataset_that_does_not_do_is_refused() -> None:
    with pytest.raises(UsageError, match="--prepare"):
        choose({"a": 10**6, "b": 5}, 10**6, 10)


def test_the_same_directory_by_two_names(directory: Path, tmp_path: Path) -> None:
    rows = measure({"one": directory, "other": directory}, 10**6, 50, 40, 2)
    assert len(rows) == 4 * 2 * 2
    assert all(row.speed > 0 for row in rows)
    write_csv(rows, tmp_path / "c.csv")
    with (tmp_path / "c.csv").open() as file:
        assert [row["system"] for row in csv.DictReader(file)] == [row.system for row in rows]


def test_a_picture(directory: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert draw(measure({"one": directory}, 10**6, 50, 40, 1), tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_other_bytes_are_told(directory: Path, tmp_path: Path) -> None:
    prepare(tmp_path / "wrong", 300_000, 120)
    path = tmp_path / "wrong" / "shard-0.bin"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    with pytest.raises(HeadraceError, match="same bytes"):
        measure({"one": directory, "other": tmp_path / "wrong"}, 10**6, 50, 40, 1)


def test_other_names_are_told(directory: Path, tmp_path: Path) -> None:
    prepare(tmp_path / "fewer", 300_000, 119)
    with pytest.raises(HeadraceError, match="same files"):
        measure({"one": directory, "other": tmp_path / "fewer"}, 10**6, 50, 40, 1)


@pytest.mark.parametrize(
    "words", [[], ["x"], ["=x"], ["a=/nowhere/at/all"], ["a=/tmp", "a=/tmp"], ["a=/tmp", "--rounds", "0"]]
)
def test_wrong_use_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        parse(words)
