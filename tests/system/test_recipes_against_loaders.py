"""Recipes against the loaders as installed (the extra ``loaders``): the same reads in the same order."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="recipes need NumPy")

from real_loaders import NEEDS, real_lanes
from recipe_cases import CASES, Case
from recipe_support import expanded, recipe_on


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_recipe_reads_what_its_loader_reads(case: Case, tmp_path: Path) -> None:
    if importlib.util.find_spec(NEEDS[case.recipe].split(".")[0]) is None:
        pytest.skip(f"{NEEDS[case.recipe]} is not installed (pip install 'headrace[loaders]')")
    case.prepare(tmp_path)
    real = real_lanes(case, tmp_path)
    assert expanded(recipe_on(tmp_path, case.recipe, **case.options), case.epochs) == real
