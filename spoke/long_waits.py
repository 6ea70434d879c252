"""What has waited for the hub for long: counted one by one, told to the log once an incident.

An incident begins with the first wait of SLOW_READ_AFTER_S, or the first that the read timeout ended, and is over when what waited
has its bytes and nothing waits long any more. A thousand readers that stand still are one line at its beginning, one with the first
EIO, and one at its end. No I/O but the log, no clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from common import limits
from common.errors import HeadraceError
from common.log import get_logger

log = get_logger(__name__)


class Wait:
    """One read, or one open that asks the hub; made by :meth:`LongWaits.begin`."""

    __slots__ = ("is_long", "offset_bytes", "path", "started_s")

    def __init__(self, path: bytes, offset_bytes: int | None, started_s: float) -> None:
        self.path = path
        self.offset_bytes = offset_bytes
        self.started_s = started_s
        self.is_long = False


class LongWaits:
    """``why``: how it stands with the hub, in a few words, for the log.

    The owner calls ``grew_long`` at the time it is due, ``ended`` always, and ``timed_out`` before it when the wait was in vain.
    """

    def __init__(self, clock: Callable[[], float], why: Callable[[], str] = lambda: "") -> None:
        self._clock = clock
        self.why = why
        self._long: dict[Wait, None] = {}  # in the order they began to be long
        self.long_total = 0
        """Waits that reached SLOW_READ_AFTER_S."""
        self.timeouts_total = 0
        """Waits that the read timeout ended: EIO."""
        self._began_s: float | None = None
        self._failed_s: float | None = None
        self._waits = 0
        self._timeouts = 0
        self._longest_s = 0.0

    @property
    def long_count(self) -> int:
        """What has waited for SLOW_READ_AFTER_S and waits on."""
        return len(self._long)

    def longest_s(self) -> float:
        """Age of the oldest wait that is long; 0 when there is none."""
        now_s = self._clock()
        return now_s - min((wait.started_s for wait in self._long), default=now_s)

    def begin(self, path: bytes, offset_bytes: int | None) -> Wait:
        """``offset_bytes`` None: an open."""
        return Wait(path, offset_bytes, self._clock())

    def grew_long(self, wait: Wait) -> None:
        is_first = self._begin_incident()
        wait.is_long = True
        self._long[wait] = None
        self.long_total += 1
        self._waits += 1
        if is_first:
            log.warning(
                "reads wait for the hub", path=wait.path, offset_bytes=wait.offset_bytes,
                waited_s=limits.SLOW_READ_AFTER_S, hub=self.why(),
            )  # fmt: skip

    def timed_out(self, wait: Wait, error: HeadraceError) -> None:
        """The reader gets EIO."""
        self._begin_incident()
        self.timeouts_total += 1
        self._timeouts += 1
        self._failed_s = self._clock()
        if self._timeouts == 1:
            log.error(
                "a read failed; others that fail like this are counted", path=wait.path, offset_bytes=wait.offset_bytes,
                error=str(error), code=error.wire_code, hub=self.why(),
            )  # fmt: skip
        error.logged = True

    def ended(self, wait: Wait, *, well: bool) -> None:
        """``well``: its bytes came. Else it was given up, killed, or answered with an error."""
        now_s = self._clock()
        if wait.is_long:
            del self._long[wait]
        if self._began_s is None:
            return
        self._longest_s = max(self._longest_s, now_s - wait.started_s)
        if not self._long and (well or self._failed_s is None):
            log.warning(
                "reads go on" if well else "nobody waits for the hub any more", lasted_s=round(now_s - self._began_s, 1),
                waited_long=self._waits, failed=self._timeouts, longest_s=round(self._longest_s, 1),
            )  # fmt: skip
            self._began_s = None

    def _begin_incident(self) -> bool:
        """True for the first of one. An incident whose failures nobody followed up is over after a while."""
        now_s = self._clock()
        is_over = (
            self._failed_s is not None and now_s - self._failed_s > limits.WAIT_INCIDENT_QUIET_S and not self._long
        )
        if self._began_s is not None and not is_over:
            return False
        self._began_s, self._failed_s = now_s, None
        self._waits, self._timeouts, self._longest_s = 0, 0, 0.0
        return True
