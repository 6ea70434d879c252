"""The command ``completion`` of both programs: what a shell must read to complete their words."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from common.terminal import exit_codes


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def add_completion(app: typer.Typer, program: str) -> None:
    """Adds the command to ``app``, for the program of this name."""

    def completion(shell: Annotated[Shell, typer.Argument(help="Whose script to print.", show_default=False)]) -> None:
        from typer._completion_shared import get_completion_script

        variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
        typer.echo(get_completion_script(prog_name=program, complete_var=variable, shell=shell.value))

    completion.__doc__ = f"""Print what a shell reads to complete commands, options and mountpoints; --install-completion keeps it.

    \b
    Examples:
      eval "$({program} completion bash)"
      {program} completion fish > ~/.config/fish/completions/{program}.fish
    """
    app.command()(exit_codes(completion))
