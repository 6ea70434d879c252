"""Shared by the tests of whole daemons: where a mount cannot be made, those that need one are skipped with the reason."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pair import Pair, pair_in

from spoke.fuse.mountpoint import fusermount
from spoke.fuse.passthrough import has_admin_capability

DEVICE = "/dev/fuse"


def why_no_mount() -> str:
    """The reason, or an empty string where mounting works."""
    try:
        os.close(os.open(DEVICE, os.O_RDWR))
    except OSError as error:
        return f"{DEVICE} cannot be opened: {error.strerror}"
    if not has_admin_capability() and fusermount() is None:
        return "no right to mount: neither CAP_SYS_ADMIN nor fusermount3"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_no_mount()
    if reason:
        for item in items:
            if item.get_closest_marker("mount") is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Hubs and spokes of one test; afterwards their data and caches go, their logs stay."""
    with pair_in(tmp_path) as made:
        yield made
    for found in sorted(tmp_path.iterdir()):
        if found.suffix == ".log":  # shown with a failure only
            print(f"--- {found.name}\n{found.read_text(errors='backslashreplace')[-4000:]}")
        if found.is_dir() and not os.path.ismount(found):
            shutil.rmtree(found, ignore_errors=True)
