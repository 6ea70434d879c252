"""The words of the command become the recipe's name and options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from common.errors import UsageError
from spoke import recipes
from spoke.recipes import cli


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def run(name: str, options: dict[str, Any], mountpoint: Path, *, say: object, follow: bool) -> None:
        calls.append((name, options, mountpoint, follow))

    monkeypatch.setattr(cli, "run", run)
    return calls


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()

    @app.callback()
    def at(context: typer.Context, mountpoint: Path) -> None:
        context.obj = mountpoint

    app.command("recipe", context_settings=cli.FREE_OPTIONS)(cli.recipe)
    return app


def test_options_are_the_loaders_own(app: typer.Typer, asked: list[Any]) -> None:
    words = [
        "/mnt",
        "recipe",
        "megatron",
        "--prefix",
        "0.3",
        "a",
        "0.7",
        "b",
        "--seed=5",
        "--once",
        "--no-data-sharding",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    options = {"prefix": ["0.3", "a", "0.7", "b"], "seed": ["5"], "no-data-sharding": []}
    assert asked == [("megatron", options, Path("/mnt"), False)]


def test_a_word_that_is_no_option_is_refused(app: typer.Typer, asked: list[Any]) -> None:
    done = CliRunner().invoke(app, ["/mnt", "recipe", "mds", "stray", "--dir", "d"])
    assert done.exit_code == 2
    assert not asked


def test_a_recipe_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(UsageError, match="there are fixed-records, litdata"):
        recipes.run("nemo", {}, "/mnt")


def test_without_numpy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'headrace\[recipes\]'"):
        recipes.run("mds", {}, "/mnt")
