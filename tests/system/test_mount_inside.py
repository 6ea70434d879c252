"""A dataset that contains its own mountpoint is served without it, however often it is scanned."""

from __future__ import annotations

import pytest

from tests.system.pair import Pair, eventually, run

pytestmark = pytest.mark.mount


def test_a_mount_inside_its_own_dataset_does_not_grow(pair: Pair) -> None:
    (pair.data / "sub").mkdir()
    (pair.data / "sub" / "a.bin").write_bytes(b"x" * 5000)
    hub = pair.hub(extra=["--rescan-interval", "200ms"])
    inside = pair.spoke(hub.address, name="data/sub/mnt")
    outside = pair.spoke(hub.address, name="outside", cache="cache2")
    scans = hub.status()["datasets"]["data"]["scans"]
    eventually(lambda: hub.status()["datasets"]["data"]["scans"] >= scans + 3)
    facts = hub.status()["datasets"]["data"]
    assert facts["skipped"] == {"mount of Headrace": 1}
    assert facts["entries"] == 3  # sub, a.bin, and the log beside the mount
    for mountpoint in (inside.mountpoint, outside.mountpoint):
        eventually(
            lambda where=mountpoint: sorted(path.name for path in (where / "sub").iterdir()) == ["a.bin", "mnt.log"]
        )
        assert (mountpoint / "sub" / "a.bin").read_bytes() == b"x" * 5000
    answer = run("hub.cli", "status", "--metrics", hub.metrics)
    assert "    not served: 1 mount of Headrace\n" in answer.stdout
    assert "weight 1, " in answer.stdout
    assert "rate limit: none" in answer.stdout
