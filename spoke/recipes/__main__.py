"""``python -m spoke.recipes MOUNTPOINT --recipe NAME …``: the same as ``headrace-spoke plan``, for processes that start it themselves."""

from __future__ import annotations

import sys

import typer

from common.terminal import exit_codes
from spoke.recipes import run
from spoke.recipes.running_job import parse_arguments


@exit_codes
def _main(arguments: list[str]) -> None:
    options = dict(parse_arguments(arguments[1:]))
    name = options.pop("recipe", [])
    once = options.pop("once", None) is not None
    if not arguments or arguments[0].startswith("--") or len(name) != 1:
        typer.echo("usage: python -m spoke.recipes MOUNTPOINT --recipe NAME [--once] [--OPTION VALUE …]", err=True)
        raise typer.Exit(2)
    run(name[0], options, arguments[0], say=typer.echo, follow=not once)


if __name__ == "__main__":
    try:
        _main(sys.argv[1:])
    except typer.Exit as ended:
        sys.exit(ended.exit_code)
