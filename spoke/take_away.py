"""``python -m spoke.take_away MOUNTPOINT``: takes our mount off a mountpoint by force. For a supervisor whose worker is gone."""

from __future__ import annotations

import sys

from spoke.fuse import mountpoint
from spoke.places import runtime_dir


def main(path: str) -> int:
    mounts = mountpoint.mounts_at(path)
    gone = not mounts or not mounts[-1].is_ours or mountpoint.detach(path, mounts[-1].minor, force=True)
    if gone:
        mountpoint.record_path(runtime_dir(), path).unlink(missing_ok=True)
    return 0 if gone else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
