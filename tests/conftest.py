"""Shared by all tests: one deterministic hypothesis profile, no examples database."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import structlog
from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def no_logger_keeps_its_setting() -> Iterator[None]:
    """A command that runs in this process sets up the log, and a logger first used then would keep that for all later tests."""
    configure = structlog.configure

    def uncached(**given: Any) -> None:
        configure(**{**given, "cache_logger_on_first_use": False})

    with mock.patch.object(structlog, "configure", uncached):
        yield


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
