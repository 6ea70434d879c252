"""Structured logs: one event name, then facts as key=value; readable on a terminal, JSON for a collector."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from common import limits

if TYPE_CHECKING:
    import structlog

LogFormat = Literal["auto", "console", "json"]


class _LateLogger:
    """Imports structlog (and rich, behind it: 0.3 s) when the first line is logged; most commands log none."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger: structlog.stdlib.BoundLogger | None = None

    def __getattr__(self, method: str) -> Any:
        if self._logger is None:
            import structlog

            self._logger = structlog.get_logger(module=self._name)
        return getattr(self._logger, method)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose lines carry ``module=name``."""
    return cast("structlog.stdlib.BoundLogger", _LateLogger(name))


class SayingLimit:
    """For lines that a stranger can cause: so many a second are said, the others counted."""

    def __init__(self, per_s: int, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._clock = clock
        self._since_s = clock()
        self._said = 0
        self._unsaid = 0

    def may_say(self) -> int | None:
        """How many were left unsaid before this one; None: this one is too."""
        now_s = self._clock()
        if now_s - self._since_s >= 1.0:
            self._since_s, self._said = now_s, 0
        if self._said >= self._per_s:
            self._unsaid += 1
            return None
        self._said += 1
        unsaid, self._unsaid = self._unsaid, 0
        return unsaid


def _readable_bytes(_logger: Any, _method: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    """Paths are bytes and may not be UTF-8: show them with escapes instead of failing to serialise."""
    for key, value in event.items():
        if isinstance(value, bytes):
            event[key] = value.decode("utf-8", "backslashreplace")
    return event


def _printable(_logger: Any, _method: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    """What a file is called, and what a hub says, may move the cursor of a terminal."""
    from common.terminal import printable

    for key, value in event.items():
        if isinstance(value, str):
            event[key] = "\n".join(map(printable, value.split("\n"))) if key == "exception" else printable(value)
    return event


def bind(**facts: object) -> None:
    """Facts that all further lines of this process carry (of tasks begun from here, not of threads)."""
    import structlog

    structlog.contextvars.bind_contextvars(**facts)


_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "exception": 3, "critical": 2}


def is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether what is written to it goes to systemd's journal: JOURNAL_STREAM names its device and inode (systemd.exec(5))."""
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    if not device.isdigit() or not inode.isdigit():
        return False
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return (status.st_dev, status.st_ino) == (int(device), int(inode))


def _with_priority(_logger: Any, method: str, line: Any) -> str:
    """The journal takes ``<4>`` off and keeps it as PRIORITY (sd-daemon(3)), so that ``journalctl -p warning`` finds what it should."""
    prefix = f"<{_PRIORITIES.get(method, 6)}>"
    return "\n".join(prefix + part for part in line.splitlines())


class _OfLibraries(logging.Handler):
    """What asyncio and aiohttp log, as lines like ours, and few of them: what a stranger sends to an open port can cause any number."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._limit = SayingLimit(limits.LIBRARY_LINES_PER_S, time.monotonic)

    def emit(self, record: logging.LogRecord) -> None:
        unsaid = self._limit.may_say()
        if unsaid is not None:
            level = logging.getLevelName(record.levelno).lower()
            log = get_logger(record.name)
            with contextlib.suppress(OSError, ValueError):  # a log that is full or closed is no fault of who said it
                getattr(log, level, log.error)(record.getMessage(), exc_info=record.exc_info, unsaid_before=unsaid)


def configure(level: str = "info", log_format: LogFormat = "auto", stream: TextIO | None = None) -> None:
    """Set up the process's log once, to ``stream`` (default stderr). ``auto``: console on a terminal, else JSON lines.

    Lines that go to systemd's journal begin with their priority.
    """
    import structlog

    target = stream if stream is not None else sys.stderr
    as_json = log_format == "json" or (log_format == "auto" and not target.isatty())
    renderer: Any = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=target.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _readable_bytes,
            *([] if as_json else [_printable]),
            renderer,
            *([_with_priority] if is_journal(target, os.environ) else []),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers = [*(handler for handler in root.handlers if not isinstance(handler, _OfLibraries)), _OfLibraries()]
