"""What options a recipe has, for its help: as RECIPES.md lists them, so that there is one list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import resources

_OUTSIDE_BRACKETS = r"(?=`--)(?![^(]*\))"
_NEXT_OPTION = re.compile(rf"(?:[,;]| or) {_OUTSIDE_BRACKETS}")
_LAST_NEEDED = re.compile(rf"; {_OUTSIDE_BRACKETS}")


def option_lines(recipe: str) -> list[str]:
    """``--seed 1234``: a line for each option of a recipe, the needed ones first, then for each that all have. Plain text."""
    text = resources.files("spoke.recipes").joinpath("RECIPES.md").read_text("utf-8")
    rows = list(_rows(text))
    needed, others = _LAST_NEEDED.split(next(row[2] for row in rows if row[0] == f"`{recipe}`"), maxsplit=1)
    lines = [
        "needed:",
        *_indented(_NEXT_OPTION.split(needed)),
        "with their defaults:",
        *_indented(_NEXT_OPTION.split(others)),
        "as all recipes have them:",
        *_indented(": ".join(row) for row in rows if row[0].startswith("`--")),
    ]
    return [line.replace("`", "") for line in lines]


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("| ").split(" | ")]
