"""The log of a background spoke in the runtime directory, which often is memory: kept short while it grows, gone after an end in order."""

from __future__ import annotations

import contextlib
import os

from common import limits


class OwnLog:
    """``path`` empty: the log is somebody else's to tend. ``fd``: where it is open, for appending, here and in the workers."""

    def __init__(self, path: str, fd: int = 2) -> None:
        self._path = path
        self._fd = fd

    def bound(self) -> None:
        """One over LOG_MAX_BYTES is copied to ``….log.1`` and begins anew, since others write to it as well."""
        with contextlib.suppress(OSError):
            if self._path and os.fstat(self._fd).st_size > limits.LOG_MAX_BYTES:
                try:
                    with open(self._path, "rb") as log, open(f"{self._path}.1", "wb") as aside:
                        while os.sendfile(aside.fileno(), log.fileno(), None, limits.LOG_MAX_BYTES):
                            pass
                finally:
                    os.ftruncate(self._fd, 0)

    def remove(self) -> None:
        for path in (self._path, f"{self._path}.1") if self._path else ():
            with contextlib.suppress(OSError):
                os.unlink(path)
