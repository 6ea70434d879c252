"""SEMANTICS.md names a test for each promise; this holds it to that.

A bullet or a paragraph names at least one test that exists. What promises nothing (why, limits of a promise, advice) is
quoted (``> ``) and says so by that alone. So a sentence can only be added with a test, or as no promise.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
NAMED = re.compile(r"`([a-z_/0-9]+\.py)::(test_\w+)`")
TEXT = (TESTS.parent / "SEMANTICS.md").read_text("utf-8")


def paragraphs(text: str) -> Iterator[str]:
    """Bullets and paragraphs, each in one line; headings, quotes and the page's first paragraph are none."""
    lines: list[str] = []
    for line in [*text.split("\n## ", 1)[1].splitlines()[1:], ""]:
        if not line.strip() or line.startswith(("- ", "#", "> ")):
            if lines:
                yield " ".join(lines)
            lines = []
        if line.strip() and not line.startswith(("#", ">")):
            lines.append(line.strip())


def test_every_test_that_the_semantics_name_exists() -> None:
    named = NAMED.findall(TEXT)
    assert len(named) > 150
    missing = [
        f"{file}::{function}"
        for file, function in named
        if not re.search(rf"^\s*(async )?def {function}\(", _text(TESTS / file), re.MULTILINE)
    ]
    assert missing == []


@pytest.mark.parametrize("said", list(paragraphs(TEXT)), ids=lambda said: said[:60])
def test_every_promise_names_its_test(said: str) -> None:
    assert NAMED.search(said), f"name the test that holds it, or quote it (> ) if it promises nothing: {said}"


@pytest.mark.parametrize("said", list(paragraphs(TEXT)), ids=lambda said: said[:60])
def test_no_promise_stands_behind_the_last_test(said: str) -> None:
    """What follows a test's name in the same bullet would pass for held by it."""
    rest = re.split(NAMED, said)[-1] if NAMED.search(said) else ""
    assert not rest.strip(" .,;"), f"give it a bullet and a test of its own: {rest}"


def test_a_promise_without_a_test_is_found() -> None:
    text = (
        "# T\n\nFirst.\n\n## A\n\n- held — `x/test_a.py::test_b`\n- not\n  held\n> why\n> more\n\nbare\n\n## B\n\nlast"
    )
    assert [said for said in paragraphs(text) if not NAMED.search(said)] == ["- not held", "bare", "last"]


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""
