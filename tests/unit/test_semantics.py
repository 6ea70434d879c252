"""SEMANTICS.md names a test for each promise; this holds it to that."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
NAMED = re.compile(r"`([a-z_/]+\.py)::(test_\w+)`")


def test_every_test_that_the_semantics_name_exists() -> None:
    named = NAMED.findall((TESTS.parent / "SEMANTICS.md").read_text("utf-8"))
    assert len(named) > 25
    missing = [
        f"{file}::{function}"
        for file, function in named
        if not re.search(rf"^\s*(async )?def {function}\(", _text(TESTS / file), re.MULTILINE)
    ]
    assert missing == []


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""
