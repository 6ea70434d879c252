"""Every command says what it does, with an example where it takes more than a mountpoint; both programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from common.terminal import reflowed
from hub import cli as hub_cli
from spoke import cli as spoke_cli

COMMANDS = [
    (application, words)
    for application, known in (
        (spoke_cli.app, ["mount", "umount", "status", "top", "explain", "bugreport", "accept", "doctor", "warm", "pin", "unpin", "plan",
                         "purge", "upgrade", "cache", "cache ls", "cache du", "cache evict", "cache pin", "cache unpin",
                         "cache purge", "cache verify", "verify", "estimate", "completion"]),
        (hub_cli.app, ["serve", "status", "snapshot", "completion"]),
    )
    for words in known
]  # fmt: skip
WITH_EXAMPLE = {
    "serve",
    "upgrade",
    "warm",
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
    "completion",
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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_reads_names_the_program(shell: str) -> None:
    for application, program in ((spoke_cli.app, "headrace-spoke"), (hub_cli.app, "headrace-hub")):
        answer = CliRunner().invoke(application, ["completion", shell])
        assert answer.exit_code == 0
        assert program in answer.output
        assert f"complete_{shell}" in answer.output
    assert CliRunner().invoke(spoke_cli.app, ["completion", "tcsh"]).exit_code == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands(tmp_path: Path) -> None:
    program = tmp_path / "headrace-spoke"
    root = str(Path(__file__).parents[3])
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {root!r})\nfrom spoke.cli import main\nmain()\n"
    )
    program.chmod(0o755)
    asked = 'COMP_WORDS=(headrace-spoke est); COMP_CWORD=1; _headrace_spoke_completion headrace-spoke; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", f'eval "$(headrace-spoke completion bash)"\n{asked}'],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert done.stdout.split() == ["estimate"], done.stderr


def test_paragraphs_are_folded_by_the_terminal_and_examples_stay_as_they_are() -> None:
    assert reflowed("""One\n    two.\n\n    Three\n    four.\n\n    \b\n    Example:\n      a b\n    """) == (
        "One two.\n\nThree four.\n\n\b\nExample:\n  a b"
    )
    shown = CliRunner().invoke(spoke_cli.app, ["explain", "--help"], env={"COLUMNS": "100"}).output
    assert not [line for line in shown.splitlines() if line.strip() == "the round trip;"]
