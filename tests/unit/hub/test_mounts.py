"""What counts as a mount of Headrace below an export."""

from __future__ import annotations

import os
from pathlib import Path

from hub.mounts import MOUNT_TYPE, is_headrace_mount
from spoke.fuse.mountpoint import FILE_SYSTEM_TYPE

MOUNTINFO = b"""22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
57 22 0:51 / /data/mnt ro,nosuid,nodev,relatime shared:2 master:1 - fuse.headrace c4 ro,user_id=0
58 22 0:52 / /data/with\\040blank rw - fuse.sshfs host:/x rw
broken
59 22 0:53
"""


def test_only_the_device_of_a_headrace_mount(tmp_path: Path) -> None:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_bytes(MOUNTINFO)
    found = [number for number in (50, 51, 52, 53) if is_headrace_mount(os.makedev(0, number), mountinfo)]
    assert found == [51]
    assert not is_headrace_mount(os.makedev(254, 1), mountinfo)
    assert not is_headrace_mount(os.makedev(0, 51), tmp_path / "none")
    assert not is_headrace_mount(tmp_path.stat().st_dev)


def test_the_spoke_mounts_that_type() -> None:
    assert FILE_SYSTEM_TYPE.encode() == MOUNT_TYPE
