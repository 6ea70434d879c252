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
    ],
)
def test_a_recipe_is_a_command_of_its_own(words: list[str]) -> None:
    app = typer.Typer(cls=plan_cli.PlanGroup)
    app.callback()(plan_cli.at_mountpoint)

    @app.command()
    def recipe(context: typer.Context, name: str, prefix: str = "", seed: int = 0) -> None:
        typer.echo(f"{context.obj} {name} {prefix} {seed}")

    @app.command("list")
    def nothing_else() -> None: ...

    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.output) == (0, "/mnt megatron p 1\n")
