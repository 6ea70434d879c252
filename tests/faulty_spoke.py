"""``python -m faulty_spoke`` is the command headrace-spoke with a cache disk that fails and waits as the JSON file $DISK_FAULTS says.

``{"pwrite": {"errno": 5}, "open": {"delay_s": 1}}``; a file that is not there: a disk that is well. What waits for the disk
waits a tenth of its time.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from common import limits
from spoke import cli
from spoke.cache import health, shelf, store
from spoke.cache.disk import Disk

CALLS = ("open", "stat", "statvfs", "mkdir", "unlink", "ftruncate", "preadv", "pwrite", "punch_hole")


class FaultyDisk(Disk):
    def __init__(self) -> None:
        self._path = os.environ["DISK_FAULTS"]
        self._seen_ns = 0
        self._faults: dict[str, Any] = {}
        for name in CALLS:
            setattr(self, name, self._faulty(name, getattr(self, name)))

    def _faulty(self, name: str, call: Any) -> Any:
        def faulty(*arguments: Any) -> Any:
            fault = self._now().get(name)
            if fault is not None and not (name == "preadv" and len(arguments) > 3):  # RWF_NOWAIT asks no disk
                time.sleep(fault.get("delay_s", 0))
                if "errno" in fault:
                    raise OSError(fault["errno"], os.strerror(fault["errno"]))
            return call(*arguments)

        return faulty

    def _now(self) -> dict[str, Any]:
        try:
            changed_ns = os.stat(self._path).st_mtime_ns
        except FileNotFoundError:
            return {}
        if changed_ns != self._seen_ns:
            with open(self._path, encoding="utf-8") as file:
                self._faults = json.load(file)
            self._seen_ns = changed_ns
        return self._faults


def main() -> None:
    store.Disk = FaultyDisk  # type: ignore[misc]
    health.CACHE_BYPASS_RETRY_S = 0.5
    health.CACHE_BYPASS_RETRY_MAX_S = 1.0
    limits.HOUSEKEEPING_INTERVAL_S = 0.5
    limits.CACHE_DRAIN_TIMEOUT_S = shelf.CACHE_CLOSE_TIMEOUT_S = 0.5
    cli.main()


if __name__ == "__main__":
    main()
