"""Small files are replaced whole, and synced before and after their name moves."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from common.durable import NEW_SUFFIX, replace_file


def test_it_replaces_a_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    path.with_name(path.name + NEW_SUFFIX).write_text("left by a crash, and longer than what follows")
    for text in ("first", "ä second"):
        replace_file(path, text)
        assert path.read_text("utf-8") == text
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    assert [found.name for found in tmp_path.iterdir()] == ["note.json"]


def test_bytes_are_synced_before_the_name_moves_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_sync(fd: int) -> None:
        done.append("sync " + ("directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file"))
        fsync(fd)

    def noted_replace(source: Path, target: Path) -> None:
        done.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_replace)
    replace_file(tmp_path / "note", "x")
    assert done == ["sync file", "rename", "sync directory"]


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    (tmp_path / f"note{NEW_SUFFIX}").symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"):
        replace_file(tmp_path / "note", "x")
    assert other.read_text() == "kept"
