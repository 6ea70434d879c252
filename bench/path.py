"""The way between the hub and the spoke on one machine: netem in a network namespace where that works, else the proxy.

A ``Way`` says how the hub is started (a command prefix and a host to listen on) and where the spoke finds it.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from bench import netem
from bench.link import LinkShape
from common.errors import HeadraceError
from common.units import format_address, format_rate, parse_address

ROOT = Path(__file__).resolve().parent.parent
Kind = Literal["auto", "proxy", "netem"]


class Way(Protocol):
    """``hub_prefix``: put in front of the hub's command. ``hub_host``: where the hub listens."""

    @property
    def hub_prefix(self) -> list[str]: ...
    @property
    def hub_host(self) -> str: ...
    @property
    def kind(self) -> str: ...
    def open(self, hub: tuple[str, int]) -> str:
        """The address at which a spoke reaches the hub, or something else that listens beside it, across the link."""
        ...

    def silence(self, *, on: bool) -> None:
        """Let nothing through, in neither direction, and say nothing; off: as before. Raises HeadraceError."""
        ...


@dataclass
class GivenWay:
    """Ends that somebody else has joined: the link is whatever lies between them. ``silencers``: commands for on and off."""

    kind: str
    hub_prefix: list[str]
    hub_host: str
    silencers: tuple[list[str], list[str]] | None = None

    def open(self, hub: tuple[str, int]) -> str:
        return format_address(*hub)

    def silence(self, *, on: bool) -> None:
        if self.silencers is None:
            raise HeadraceError("an outage between given ends needs the commands that begin and end it")
        command = self.silencers[0 if on else 1]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise HeadraceError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")


class _ProxyWay:
    """Starts ``python -m bench.delay_proxy`` in front of the hub, and of whatever else is reached across it (each then has the rate for
    itself); logs and last counters go to ``log``."""

    def __init__(self, shape: LinkShape, log: Path, environ: dict[str, str]) -> None:
        self.kind = "delay proxy"
        self.hub_prefix: list[str] = []
        self.hub_host = "127.0.0.1"
        self._shape, self._log, self._environ = shape, log, environ
        self._processes: list[subprocess.Popen[str]] = []

    def open(self, hub: tuple[str, int]) -> str:
        shape = self._shape
        flags = {
            "--target": format_address(*hub),
            "--rtt": f"{shape.rtt_s}s",
            **({"--rate": f"{shape.rate_bytes_per_s:.0f}B/s"} if math.isfinite(shape.rate_bytes_per_s) else {}),
            "--jitter": f"{shape.jitter_s}s",
            "--queue": f"{shape.queue_s}s",
        }
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "bench.delay_proxy", "--commands"),
                    *(word for pair in flags.items() for word in pair),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=self._environ,
            )
        self._processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("listening on "):
            raise HeadraceError(f"the delay proxy did not start; it ended with exit code {process.wait()}")
        return format_address(*parse_address(line.removeprefix("listening on ")))

    def silence(self, *, on: bool) -> None:
        if not self._processes:
            raise HeadraceError("the delay proxy does not run yet")
        for process in self._processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"blackhole {'on' if on else 'off'}\n")
            process.stdin.flush()
            if "blackhole" not in (answer := process.stdout.readline()):
                raise HeadraceError(f"the delay proxy did not obey; it said {answer!r}")

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)


@contextlib.contextmanager
def make_way(kind: Kind, shape: LinkShape, log: Path, environ: dict[str, str]) -> Iterator[Way]:
    """``auto``: netem if a trial connection across it shows the round trip asked for, else the proxy.

    Raises HeadraceError when ``netem`` is asked for and does not work here, or when only it could lose packets.
    """
    if kind != "proxy":
        with contextlib.ExitStack() as stack:
            try:
                host = stack.enter_context(netem.far_namespace(shape))
                netem.try_out(host, shape)
            except netem.NotHere as error:
                if kind == "netem":
                    raise HeadraceError(f"netem does not work here: {error}") from None
            else:
                silencers = (netem.silence(host, on=True), netem.silence(host, on=False))
                yield GivenWay(f"netem, namespace {host.name}", host.prefix, host.address, silencers)
                return
    if shape.loss:
        raise HeadraceError("the delay proxy loses no packets, and netem is not to be had here or not wanted")
    way = _ProxyWay(shape, log, environ)
    try:
        yield way
    finally:
        way.close()


def describe(shape: LinkShape) -> str:
    return f"{shape.rtt_s * 1000:g} ms round trip, {format_rate(shape.rate_bytes_per_s)}"
