"""Structured logs: one event name, then facts as key=value; readable on a terminal, JSON for a collector."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal, TextIO, cast

import structlog

LogFormat = Literal["auto", "console", "json"]


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose lines carry ``module=name``."""
    return cast(structlog.stdlib.BoundLogger, structlog.get_logger(module=name))


def _readable_bytes(_logger: Any, _method: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    """Paths are bytes and may not be UTF-8: show them with escapes instead of failing to serialise."""
    for key, value in event.items():
        if isinstance(value, bytes):
            event[key] = value.decode("utf-8", "backslashreplace")
    return event


def configure(level: str = "info", log_format: LogFormat = "auto", stream: TextIO | None = None) -> None:
    """Set up the process's log once, to ``stream`` (default stderr). ``auto``: console on a terminal, else JSON lines."""
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
