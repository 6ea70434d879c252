"""Recipes give the reads that the loaders themselves made, as recorded from them in loaders.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="recipes need NumPy")

from recipe_cases import CASES, Case
from recipe_support import expanded, recipe_on, summary

GOLDEN = json.loads((Path(__file__).parent / "recipes" / "loaders.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_recipe_reads_what_its_loader_read(case: Case, tmp_path: Path) -> None:
    case.prepare(tmp_path)
    recipe = recipe_on(tmp_path, case.recipe, **case.options)
    found = [[summary(lane) for lane in lanes] for lanes in expanded(recipe, case.epochs)]
    assert found == GOLDEN["cases"][case.name]


def test_every_recorded_case_is_still_a_case() -> None:
    assert set(GOLDEN["cases"]) == {case.name for case in CASES}
