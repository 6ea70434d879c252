"""What both commands do at a terminal: errors to one clear line and an exit code."""

from __future__ import annotations

import errno
import functools
import inspect
import io
import os
import sys
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

import typer

from common.errors import HeadraceError, UsageError

EXIT_FAILED = 1
EXIT_USAGE = 2

ParamT = ParamSpec("ParamT")
ResultT = TypeVar("ResultT")


def exit_code(error: HeadraceError) -> int:
    """What a command that ends with this error exits with."""
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED


def exit_codes(command: Callable[ParamT, ResultT]) -> Callable[ParamT, ResultT]:
    """Wrap a command: a UsageError ends it with 2, any other HeadraceError with 1, each with its text on stderr."""

    @functools.wraps(command)
    def wrapped(*args: ParamT.args, **kwargs: ParamT.kwargs) -> ResultT:
        # A path may be no text: escaped, as on stderr, where the locale does not put its bytes out as they are.
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return command(*args, **kwargs)
        except UsageError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(EXIT_USAGE) from None
        except HeadraceError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(EXIT_FAILED) from None
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or error.filename is not None:
                raise
            typer.echo(f"error: what this says could not be written: {error.strerror}", err=True)
            raise typer.Exit(EXIT_FAILED) from None

    wrapped.__doc__ = reflowed(command.__doc__)
    return wrapped


def reflowed(text: str | None) -> str | None:
    """A docstring as help: paragraphs in one line each, for the terminal to fold at its own width; those that begin with a backspace
    stay as they are."""
    if text is None:
        return None
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(part if part.startswith("\b") else " ".join(part.split()) for part in paragraphs)


def printable(name: str) -> str:
    """A name may hold anything, also what moves the cursor or ends the line: what cannot be printed is escaped."""
    if name.isprintable():
        return name
    # Bytes that are no text came in as halves of surrogate pairs, and go out as the bytes they are.
    return "".join(
        letter
        if letter.isprintable()
        else f"\\x{ord(letter) - 0xDC00:02x}"
        if "\udc80" <= letter <= "\udcff"
        else letter.encode("unicode_escape").decode()
        for letter in name
    )


def open_standard_files() -> None:
    """Where 0, 1 or 2 is closed, /dev/null takes its place: else a pipe or socket of ours would, and a process we start would close it."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def warn(lines: Iterable[str]) -> None:
    """To stderr, one line each."""
    for line in lines:
        typer.echo(f"warning: {line}", err=True)
