"""Every command says what it does, with an example where it takes more than a mountpoint; both programs."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from hub import cli as hub_cli
from spoke import cli as spoke_cli

COMMANDS = [
    (application, words)
    for application, known in (
        (spoke_cli.app, ["mount", "umount", "status", "top", "explain", "bugreport", "accept", "doctor", "warm", "pin", "unpin", "plan",
                         "purge", "upgrade", "cache", "cache ls", "cache du", "cache evict", "cache pin", "cache unpin",
                         "cache purge", "cache verify", "verify", "estimate"]),
        (hub_cli.app, ["serve", "status", "snapshot"]),
    )
    for words in known
]  # fmt: skip
WITH_EXAMPLE = {
    "mount",
    "umount",
    "status",
    "top",
    "explain",
    "bugreport",
    "accept",
    "doctor",
    "cache ls",
    "cache du",
    "cache evict",
    "cache purge",
    "cache verify",
    "purge",
    "verify",
    "estimate",
}


@pytest.mark.parametrize(("application", "words"), COMMANDS)
def test_help(application: typer.Typer, words: str) -> None:
    answer: Any = CliRunner().invoke(application, [*words.split(), "--help"], env={"COLUMNS": "200"})
    assert answer.exit_code == 0
    assert "Usage:" in answer.output
    assert ("Example" in answer.output) >= (words in WITH_EXAMPLE)


def test_words_that_are_none_are_refused_with_exit_code_2() -> None:
    for words in (
        ["tops"],
        ["cache", "rm"],
        ["explain"],
        ["cache", "ls"],
        ["top", "/", "--interval", "x"],
        ["top", "/", "--interval", "1ms"],
    ):
        assert CliRunner().invoke(spoke_cli.app, words).exit_code == 2, words
