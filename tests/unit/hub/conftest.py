from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hub_support import Served


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    return directory


@pytest.fixture
async def served(root: Path, tmp_path: Path) -> AsyncIterator[Served]:
    it = Served(root, tmp_path / "state")
    yield it
    await it.stop()
