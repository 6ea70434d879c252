"""Where the simulation takes the place of the real world, name by name. Nothing in hub, spoke or common knows of it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import common.log
import common.runtime
import common.serving.packing
import hub.catalog
import hub.catalog_view
import hub.export
import hub.reader
import hub.scan
import hub.source
import spoke.cache.open_files
import spoke.daemon
import spoke.hub_client.addresses
import spoke.hub_client.client
import spoke.insight.processes
import spoke.memory_watch
import spoke.namespace.follower
import spoke.namespace.journal
from bench.simulation.disks import HubOs
from bench.simulation.hub_host import SimWatcher
from bench.simulation.loop import PROCESS, SimExecutor, SimLoop
from bench.simulation.trace import Trace

POOLS = (
    common.serving.packing,
    hub.catalog,
    hub.catalog_view,
    hub.reader,
    spoke.cache.open_files,
    spoke.hub_client.client,
    spoke.insight.processes,
)
"""Modules that make threads for blocking work."""

COLLECTED = (spoke.namespace.follower, spoke.namespace.journal)
"""Modules that hold the garbage collector back while they build trees."""


class _NoCollector:
    """A process of its own freezes what it loaded; here another run comes after this one."""

    def __getattr__(self, _name: str) -> Callable[..., bool]:
        return lambda *_: False


class _Threads:
    """Stands for the ``threading`` module where a thread is made for one call (name service): it is made at once."""

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)

    class Thread:
        def __init__(self, target: Callable[[], None], **_: Any) -> None:
            self._target = target

        def start(self) -> None:
            self._target()


class _LateClock:
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()


def _logger(trace: Trace) -> Callable[[Any, str], Callable[..., None]]:
    """Log lines become words of the event log; one with a traceback is an error that nobody foresaw."""

    def attribute(logger: Any, method: str) -> Callable[..., None]:
        def say(event: str, **facts: object) -> None:
            process = PROCESS.get()
            who = process.name if process is not None else "-"
            if method in {"exception", "critical"} or facts.get("exc_info"):
                import traceback

                trace.violation(f"[quiet] {who}: {event} {facts}: {traceback.format_exc(limit=-6)}")
            elif method not in {"debug"}:
                trace.say(f"{who} {method}: {event} " + " ".join(f"{name}={value!r}" for name, value in facts.items()))

        return say

    return attribute


@contextlib.contextmanager
def simulated(loop: SimLoop, hub_os: HubOs, dice: Random, trace: Trace) -> Iterator[None]:
    """Within it, what is built and run of Headrace lives in the simulation."""
    with contextlib.ExitStack() as stack:

        def put(where: Any, name: str, what: Any) -> None:
            stack.enter_context(mock.patch.object(where, name, what))

        for module in POOLS:
            put(module, "ThreadPoolExecutor", SimExecutor)
        for module in COLLECTED:
            put(module, "gc", _NoCollector())
        for module in (hub.export, hub.reader, hub.scan):
            put(module, "os", hub_os)
        put(hub.source, "Watcher", SimWatcher)
        put(common.runtime, "now_s", loop.time)
        put(common.runtime, "wall_time_s", loop.wall_time_s)
        put(common.runtime, "settle_memory", lambda: None)
        put(common.runtime, "give_back_memory", lambda: None)
        put(common.runtime, "keep_freed_memory", lambda _bytes: None)
        put(spoke.memory_watch, "anonymous_bytes", lambda: 64 << 20)
        put(spoke.cache.open_files, "time", _LateClock(loop))
        put(spoke.daemon, "Random", lambda: Random(dice.random()))
        put(spoke.daemon, "memory_limit", lambda: None)
        put(spoke.hub_client.addresses, "threading", _Threads())
        put(os, "urandom", dice.randbytes)
        put(common.log._LateLogger, "__getattr__", _logger(trace))
        yield


SCRATCH = Path("/dev/shm")
"""Files of a run: memory, where there is such a place. It also gives files the same sizes on disk on every machine."""
