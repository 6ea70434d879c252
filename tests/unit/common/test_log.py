"""Lines for a terminal, for a collector, and for systemd's journal with their priority."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from common import limits, log


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    handlers = logging.getLogger().handlers
    yield
    logging.getLogger().handlers = handlers
    structlog.reset_defaults()


def test_lines_are_json_where_nobody_reads_along_and_carry_bytes_readably() -> None:
    out = io.StringIO()
    log.configure("info", "auto", out)
    log.get_logger("here").warning("a read waits", path=b"a/\xff.bin", waited_s=5)
    log.get_logger("here").debug("too small")
    (line,) = out.getvalue().splitlines()
    said = json.loads(line)
    assert (said["event"], said["level"], said["module"], said["path"]) == (
        "a read waits",
        "warning",
        "here",
        "a/\\xff.bin",
    )


def test_what_a_file_is_called_moves_no_cursor_on_a_terminal() -> None:
    out = io.StringIO()
    log.configure("info", "console", out)
    try:
        raise OSError("no \x1b[2Jroom")
    except OSError:
        log.get_logger("here").exception("it\x1b[2J failed", path=b"a/\x1b[2J\n\xff", reason="gone\x1b[2J")
    first, *rest = out.getvalue().splitlines()
    for shown in (r"it\x1b[2J failed", r"path=a/\x1b[2J\n\xff", r"reason=gone\x1b[2J"):
        assert shown in first
    assert any(line.startswith("Traceback") for line in rest)
    assert "\x1b" not in out.getvalue()


def test_lines_for_the_journal_begin_with_their_priority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "journal").open("w+") as out:
        status = os.fstat(out.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        log.configure("debug", "json", out)
        for level in ("debug", "info", "warning", "error"):
            getattr(log.get_logger("here"), level)("said")
        log.get_logger("here").warning("two\nlines")
        out.seek(0)
        lines = out.read().splitlines()
        assert [line[:4] for line in lines] == ["<7>{", "<6>{", "<4>{", "<3>{", "<4>{"]
        assert json.loads(lines[2][3:])["event"] == "said"
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino + 1}")
    with (tmp_path / "journal").open("w+") as out:
        log.configure("info", "json", out)
        log.get_logger("here").info("said")
        out.seek(0)
        assert out.read()[0] == "{"


@pytest.mark.parametrize("value", ["", "8", "8:x", "a:b", "8:1:2"])
def test_nonsense_in_the_environment_is_no_journal(value: str) -> None:
    assert not log.is_journal(io.StringIO(), {"JOURNAL_STREAM": value})


def test_what_libraries_log_is_lines_like_ours_and_few() -> None:
    out = io.StringIO()
    log.configure("info", "json", io.StringIO())
    log.configure("info", "json", out)  # again: said once all the same
    for number in range(100):
        try:
            raise ValueError("a request line\nof many bytes")
        except ValueError:
            logging.getLogger("aiohttp.server").error("Error handling request %s", number, exc_info=True)
    logging.getLogger("asyncio").info("too small")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert 1 <= len(lines) <= 2 * limits.LIBRARY_LINES_PER_S, "they may have come in two seconds"
    assert (lines[0]["event"], lines[0]["level"], lines[0]["module"]) == (
        "Error handling request 0",
        "error",
        "aiohttp.server",
    )
    assert "ValueError: a request line" in lines[0]["exception"]
    closed = io.StringIO()
    closed.close()
    log.configure("info", "json", closed)
    logging.getLogger("aiohttp.server").warning("nobody hears it, and nobody fails")
