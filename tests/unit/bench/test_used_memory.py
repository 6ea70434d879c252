"""Filling memory before a measurement: it ends where reading leaves no less free, and takes nothing of the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import used_memory

MIB = 1 << 20


def test_it_ends_once_reading_leaves_no_less_memory_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free_mib = iter([100, 96, 92, 91])
    monkeypatch.setattr(used_memory, "STEP_BYTES", 4 * MIB)
    monkeypatch.setattr(used_memory, "HOLES_BYTES", 1 << 30)
    monkeypatch.setattr(used_memory, "free_bytes", lambda: next(free_mib) * MIB)
    path = tmp_path / "out" / "holes"
    assert used_memory.fill(path) == 12 * MIB
    assert next(free_mib, None) is None
    assert path.stat().st_size == 1 << 30
    assert path.stat().st_blocks * 512 < MIB


def test_free_memory_is_what_the_kernel_says() -> None:
    assert 0 < used_memory.free_bytes() < 1 << 50
