"""The words of the command become the recipe's name and options."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from common.errors import UsageError
from spoke import plan_cli, recipes
from spoke.recipes import cli, command

_MODULES = {
    "fixed-records": "fixed_records.py", "litdata": "litdata.py", "mds": "mds.py", "megatron": "megatron.py",
    "olmo-core": "olmo.py", "webdataset": "webdataset.py",
}  # fmt: skip
_NOT_SAID = {"litdata": [["local-world-size"]], "webdataset": [["wds-seed"]]}  # a job's environment tells them


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


@pytest.mark.parametrize("name", recipes.NAMES)
def test_help_lists_what_a_recipe_asks_for(name: str) -> None:
    shown = CliRunner().invoke(plan_cli.app, ["/nowhere", "--recipe", name, "--help"], env={"COLUMNS": "100"}).output
    listed = set(re.findall(r"--([a-z-]+)", shown.partition(f"Options of {name},")[2]))
    source = Path(recipes.__file__).with_name(_MODULES[name]).read_text() + Path(command.__file__).read_text()
    calls = [
        [word.value for word in call.args if isinstance(word, ast.Constant)]
        for call in ast.walk(ast.parse(source.replace("from __future__ import annotations", "")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("words", "text", "choice", "integer", "need", "count", "number", "flag")
        and ast.unparse(call.func.value) == "options"
    ]
    assert len(calls) > 15
    asked = {word for names in calls for word in names}
    assert [names for names in calls if names and not listed.intersection(names)] == _NOT_SAID.get(name, [])
    assert listed <= asked
