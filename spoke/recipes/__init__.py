"""Recipes: the reads of well-known loaders, computed from public things (index files, seed, sequence length, world size).

A recipe needs no line of user code. It runs in the process of the command, reads the dataset's index files through the mount,
and writes orders (``spoke/orders``) that the daemon follows. NumPy is needed and is an extra, so nothing is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

NAMES = ("fixed-records", "litdata", "mds", "megatron", "olmo-core", "webdataset")


def run(
    name: str,
    options: Mapping[str, str | list[str]],
    mountpoint: Path | str,
    *,
    say: Callable[[str], object] = print,
    follow: bool = True,
) -> Mapping[str, object]:
    """Expand a recipe, have the daemon load it, and (``follow``) stay until its last segment is loaded; facts of what was made.

    ``options``: as after ``--recipe NAME``, without the dashes. Raises UsageError for what cannot be, HeadraceError for the rest.
    """
    from spoke.recipes.command import run_recipe

    return run_recipe(name, options, mountpoint, say=say, follow=follow)
