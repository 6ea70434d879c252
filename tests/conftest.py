"""Shared by all tests: one deterministic hypothesis profile, no examples database."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")
