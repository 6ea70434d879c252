"""What is put out for people."""

from __future__ import annotations

from rich.console import Console

from common.terminal import printable
from spoke.top import _named


def test_names_are_printed_and_what_cannot_be_is_escaped() -> None:
    assert printable("train/añ 名.bin") == "train/añ 名.bin"
    assert printable("\udcff\udc80 名") == "\\xff\\x80 名"
    assert printable("a\x1b[31m\r\n\x7f\x9b") == "a\\x1b[31m\\r\\n\\x7f\\x9b"


def test_a_table_takes_names_as_they_are() -> None:
    console = Console(width=100, no_color=True)
    with console.capture() as shown:
        console.print(
            _named("path", "file", [{"lost_s": 1.0, "stall_s": 1.0, "waits": 2, "path": "[red]x[/red]\x1b[0m"}])
        )
    assert "[red]x[/red]\\x1b[0m" in shown.get()
