"""``plan MOUNTPOINT --recipe NAME …`` is the command ``recipe NAME …``, wherever the options stand."""

import pytest
import typer
from typer.testing import CliRunner

from spoke import plan_cli


@pytest.mark.parametrize(
    "words",
    [
        ["/mnt", "--recipe", "megatron", "--prefix", "p", "--seed", "1"],
        ["/mnt", "--recipe=megatron", "--prefix", "p", "--seed", "1"],
        ["/mnt", "--prefix", "p", "--recipe", "megatron", "--seed", "1"],
        ["/mnt", "recipe", "megatron", "--prefix", "p", "--seed", "1"],
        ["--recipe", "megatron", "/mnt", "--prefix", "p", "--seed", "1"],
        ["--recipe=megatron", "/mnt", "--prefix", "p", "--seed", "1"],
    ],
)
def test_a_recipe_is_a_command_of_its_own(words: list[str]) -> None:
    app = typer.Typer(cls=plan_cli.PlanGroup)
    app.callback(invoke_without_command=True)(plan_cli.at_mountpoint)

    @app.command()
    def recipe(context: typer.Context, name: str, prefix: str = "", seed: int = 0) -> None:
        typer.echo(f"{context.obj} {name} {prefix} {seed}")

    @app.command("list")
    def nothing_else() -> None: ...

    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.output) == (0, "/mnt megatron p 1\n")


def test_the_mountpoint_alone_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, str]] = []
    nothing = {"active": [], "orders": [], "refused_messages": {}, "last_refusal": None}

    def ask(mountpoint: object, command: str) -> object:
        asked.append((str(mountpoint), command))
        return dict(nothing)

    monkeypatch.setattr(plan_cli, "ask", ask)
    done = CliRunner().invoke(plan_cli.app, ["/mnt"])
    assert (done.exit_code, done.output) == (0, "no plans\n")
    assert asked == [("/mnt", "plans"), ("/mnt", "orders")]


def test_a_recipe_without_a_mountpoint_says_where_it_stands() -> None:
    done = CliRunner().invoke(plan_cli.app, ["--recipe", "megatron", "--prefix", "p", "/mnt"])
    assert done.exit_code == 2
    assert "plan MOUNTPOINT --recipe megatron" in done.output


def test_a_declared_plan_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spoke follows it by an order of its own, which says nothing more."""
    plan = {"name": "a", "state": "locked", "read_steps": 1, "kept_steps": 3, "files": 1, "idle_s": 2.0, "left_out": {}}
    orders = [
        {"name": name, "reason": reason, "state": "waiting", "lanes": []}
        for name, reason in (("plan:a", "plan"), ("megatron:seed=1", "recipe"))
    ]
    answers = {
        "plans": {"active": [plan], "refused_messages": {}, "last_refusal": None},
        "orders": {"orders": orders},
    }
    monkeypatch.setattr(plan_cli, "ask", lambda _mountpoint, command: answers[command])
    done = CliRunner().invoke(plan_cli.app, ["/mnt", "list"])
    assert done.output.splitlines() == [
        "a  1 of 3 steps read, in 1 files, locked, last used 2 s ago",
        "megatron:seed=1  by recipe, waiting",
    ]
