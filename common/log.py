"""Structured logs: one event name, then facts as key=value; readable on a terminal, JSON for a collector."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

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


def bind(**facts: object) -> None:
    """Facts that all further lines of this process carry (of tasks begun from here, not of threads)."""
    import structlog

    structlog.contextvars.bind_contextvars(**facts)


def configure(level: str = "info", log_format: LogFormat = "auto", stream: TextIO | None = None) -> None:
    """Set up the process's log once, to ``stream`` (default stderr). ``auto``: console on a terminal, else JSON lines."""
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
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=True,
    )
