"""Settings of a spoke that exclude each other."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from common.config import load
from common.errors import UsageError
from spoke.config import SpokeSettings
from spoke.daemon import _share_of_the_disk

NEEDED = {"hub": "h:1", "dataset": "d", "cache_dir": Path("/c")}


def settings(**flags: Any) -> SpokeSettings:
    return load(SpokeSettings, file=None, environ={}, flags={**NEEDED, **flags}).settings


def test_a_mount_stays_at_one_tree_or_follows() -> None:
    assert settings().consistency == "lease"
    assert settings(revision=0).revision == 0
    assert settings(snapshot="s").snapshot == "s"
    assert settings(consistency="strict").consistency == "strict"
    assert (settings().memory_limit, settings(memory_limit="1GiB").memory_limit) == (512 << 20, 1 << 30)
    assert (
        settings().cache_share,
        settings(cache_share="40%").cache_share,
        settings(cache_share="100").cache_share,
    ) == (0.8, 0.4, 1)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"revision": 1, "snapshot": "s"}, "exclude each other"),
        ({"revision": 0, "consistency": "strict"}, "give one of them"),
        ({"snapshot": "s", "consistency": "strict"}, "give one of them"),
        ({"revision": -1}, "revision"),
        ({"snapshot": "x" * 65}, "snapshot"),
        ({"consistency": "eventual"}, "consistency"),
        ({"memory_limit": "10MiB"}, r"memory-limit .*10MiB is too little: a spoke needs at least 128 MiB"),
        ({"memory_limit": "much"}, "memory-limit"),
        ({"cache_share": "0%"}, "above 0 and at most 100%"),
        ({"cache_share": "120%"}, "cache-share .*'120%' is not a share of a disk"),
        ({"cache_share": "half"}, "write it like 40%"),
        ({"memory_limit": "0"}, "at least 128 MiB"),
    ],
)
def test_what_cannot_be_together_or_at_all(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        settings(**flags)


def test_a_share_is_of_the_disk_that_the_cache_will_be_on(tmp_path: Path) -> None:
    assert _share_of_the_disk(tmp_path / "not" / "yet", 0.4) == int(shutil.disk_usage(tmp_path).total * 0.4)
