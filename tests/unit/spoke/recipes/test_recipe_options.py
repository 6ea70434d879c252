"""Options of recipes: ranks of their sources, refusals, and what a running job tells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import UsageError
from spoke.recipes.options import Options, rank_set
from spoke.recipes.running_job import job_options, parse_arguments


def test_what_was_given_wins_over_what_a_job_tells_and_both_are_noted() -> None:
    options = Options("megatron", {"seed": "7"})
    options.add_layer("process 5", {"seed": "8", "micro_batch_size": ["4"]})
    assert options.need("seed") == 7
    assert options.count("micro-batch-size", default=1) == 4
    assert options.count("consumed-samples", default=0) == 0
    assert options.notes == {
        "seed": "7 (given)",
        "micro-batch-size": "4 (process 5)",
        "consumed-samples": "0 (default)",
    }


def test_a_misspelt_option_is_refused_and_an_unknown_one_of_a_job_is_not() -> None:
    options = Options("mds", {"sed": "1"})
    options.add_layer("process 5", {"learning-rate": ["1"]})
    options.count("seed", default=0)
    with pytest.raises(UsageError, match=r"no option --sed; it has --seed"):
        options.finish()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n": "x"}, "not a whole number"),
        ({"n": "-1"}, "below 0"),
        ({"n": ["1", "2"]}, "takes one value"),
        ({"n": []}, "one value"),
    ],
)
def test_numbers_that_are_none(given: dict[str, str | list[str]], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Options("mds", given).integer("n")


def test_what_is_needed_and_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="the recipe mds needs --dir"):
        Options("mds", {}).need("dir")
    with pytest.raises(UsageError, match="it may be a, b"):
        Options("mds", {"kind": "c"}).choice("kind", among=("a", "b"), default="a")
    with pytest.raises(UsageError, match="yes or no"):
        Options("mds", {"flag": "perhaps"}).flag("flag")


def test_ranks() -> None:
    assert rank_set(None, 3) == [0, 1, 2]
    assert rank_set("0-2,5", 8) == [0, 1, 2, 5]
    for text in ("8", "x", "3-1", "1,1", ""):
        with pytest.raises(UsageError):
            rank_set(text, 8)


def test_arguments_as_loaders_take_them() -> None:
    words = [
        "train.py",
        "--seed",
        "1",
        "--data-path",
        "0.3",
        "a",
        "0.7",
        "b",
        "--flag",
        "--x=y=z",
        "--seed",
        "2",
        "--",
        "rest",
    ]
    assert parse_arguments(words) == {"seed": ["2"], "data-path": ["0.3", "a", "0.7", "b"], "flag": [], "x": ["y=z"]}


def test_a_running_job_tells_its_environment_and_command_line() -> None:
    job = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; print(flush=True); sys.stdin.read()",
            "--seq-length",
            "4096",
            "--split",
            "99,1,0",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "WORLD_SIZE": "64", "LOCAL_WORLD_SIZE": "8"},
    )
    try:
        assert job.stdout is not None
        job.stdout.readline()  # it runs: before that its memory has no environment yet
        told = job_options(job.pid)
    finally:
        job.communicate()
    assert told["world-size"] == "64"
    assert told["local-world-size"] == "8"
    assert told["seq-length"] == ["4096"]
    assert told["split"] == ["99,1,0"]


def test_a_job_that_is_not_there_or_says_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no such process"):
        job_options(1, proc=tmp_path)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "environ").write_bytes(b"A=1\0" * 100)
    monkeypatch.setattr("common.limits.RECIPE_PROC_MAX_BYTES", 20)
    with pytest.raises(UsageError, match="longer than 20"):
        job_options(1, proc=tmp_path)
