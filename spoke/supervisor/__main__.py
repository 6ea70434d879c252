"""``python -m spoke.supervisor FD mount …``: ``headrace-spoke mount`` becomes this; FD holds the Spec, the rest is for ps."""

from __future__ import annotations

import sys

from spoke.supervisor.supervisor import run

if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1])))
