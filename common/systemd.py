"""What a daemon tells systemd: ready, what it does, that it is alive, that it stops (sd_notify(3)). Nothing where nobody listens.

Alive means that the event loop turns: the sign is sent by a task of that loop, so a callback that never returns stops it,
and a daemon that is merely busy, or waits for a hub or a disk, goes on sending. While it starts, each sign also asks for
more time: a scan of ten million names may take as long as it takes.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import MutableMapping

from common import limits
from common.errors import HeadraceError
from common.log import get_logger

log = get_logger(__name__)


def message(**fields: str | int) -> bytes:
    """``NAME=value`` lines; line ends within a value become spaces, as one would begin another field."""
    return "\n".join(f"{name}={' '.join(str(value).splitlines())}" for name, value in fields.items()).encode()


def socket_address(text: str) -> str | None:
    """Of NOTIFY_SOCKET: a path, or ``@name`` in the abstract namespace. None for what is neither (vsock is not spoken)."""
    if text.startswith("/"):
        return text
    return "\0" + text[1:] if text.startswith("@") and len(text) > 1 else None


def watchdog_s(environ: MutableMapping[str, str], pid: int) -> float | None:
    """Seconds after which systemd takes process ``pid`` for hung; None when it does not watch it."""
    text = environ.get("WATCHDOG_USEC", "")
    if not text.isdecimal() or int(text) == 0 or environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return int(text) / 1e6


class ServiceManager:
    """One daemon's line to systemd. Made once: it takes the variables away, so that no child speaks in our name."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        self._watchdog_s = watchdog_s(environ, os.getpid())
        self._address = socket_address(environ.get("NOTIFY_SOCKET", ""))
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            environ.pop(name, None)
        self._socket: socket.socket | None = None
        if self._address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._starting = True
        self._signs: asyncio.Task[None] | None = None

    @property
    def listens(self) -> bool:
        return self._socket is not None

    def send(self, **fields: str | int) -> bool:
        """False when nothing was sent: nobody listens, or its queue is full (the next sign of life is soon). Never raises."""
        if self._socket is None or self._address is None:
            return False
        try:
            self._socket.sendto(message(**fields), self._address)
        except OSError as error:
            log.debug("systemd was not told", fields=",".join(fields), error=str(error))
            return False
        return True

    def __enter__(self) -> ServiceManager:
        """From within the loop whose turning is the sign of life."""
        if self._socket is not None:
            self._signs = asyncio.create_task(self._keep_telling(), name="signs of life")
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """An error's text goes to ``systemctl status``, not only to the log."""
        if isinstance(error, HeadraceError):
            self.send(STATUS=f"failed: {error}")
        if self._signs is not None:
            self._signs.cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ready(self, status: str) -> None:
        """``status``: one line that ``systemctl status`` shows."""
        self._starting = False
        self.send(READY=1, STATUS=status, WATCHDOG=1)

    def stopping(self) -> None:
        """The signs end with the loop: a stop that takes too long is TimeoutStopSec's to end."""
        self.send(STOPPING=1, STATUS="stopping")

    async def _keep_telling(self) -> None:
        interval_s = limits.SERVICE_SIGN_INTERVAL_S
        if self._watchdog_s is not None:
            interval_s = min(interval_s, self._watchdog_s / 3)  # two may be lost
        while True:
            if self._starting:
                self.send(EXTEND_TIMEOUT_USEC=int(limits.SERVICE_START_EXTENSION_S * 1e6), WATCHDOG=1)
            elif self._watchdog_s is not None:
                self.send(WATCHDOG=1)
            await asyncio.sleep(interval_s)
