"""``python -m spoke.supervisor MOUNTPOINT FD``: started by ``headrace-spoke mount`` in its own place; FD holds the Spec."""

from __future__ import annotations

import sys

from spoke.supervisor.supervisor import run

if __name__ == "__main__":
    sys.exit(run(int(sys.argv[2]), sys.argv))
