"""``headrace-spoke plan MOUNTPOINT --recipe NAME …``: the words after the recipe's name become its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

from common.errors import UsageError
from common.terminal import exit_codes
from spoke.recipes import NAMES, run
from spoke.recipes.option_table import option_lines
from spoke.recipes.running_job import parse_arguments

_NAMED = "headrace.recipe"


class RecipeCommand(TyperCommand):
    """Its help lists the options of the recipe that is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_NAMED] = next((word for word in args if word in NAMES), None)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        if (named := ctx.meta[_NAMED]) is not None:
            formatter.write("\n".join([f" Options of {named},", *(f"   {line}" for line in option_lines(named))]))


FREE_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of the command: each recipe has options of its own, named as its loader names them."""


@exit_codes
def recipe(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(NAMES)}.", show_default=False)],
    once: Annotated[
        bool, typer.Option("--once", help="Load the first segment and end; do not stay to make the next ones.")
    ] = False,
) -> None:
    """Compute what a known loader will read, from its seed and index files.

    Options are the loader's own, as --seed 1234; those of a recipe are listed by its name with --help.
    """
    words = list(context.args)
    if words and not words[0].startswith("--"):
        raise UsageError(f"{words[0]!r} is no option; options of a recipe begin with --")
    options: dict[str, Any] = dict(parse_arguments(words))
    run(name, options, cast(Path, context.obj), say=typer.echo, follow=not once)
