"""A network namespace at the end of a long link, made with the kernel's own netem (root, iproute2, sch_netem).

Many kernels in containers have no netem; ``far_namespace`` and ``try_out`` then raise NotHere, and callers take the
delay proxy. The two ends use 198.18.0.0/15, the range set aside for benchmarks (RFC 2544), inside the namespaces only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.link import LinkShape

_ECHO = (
    "import socket, sys\n"
    "server = socket.create_server((sys.argv[1], 0))\n"
    "print(server.getsockname()[1], flush=True)\n"
    "server.settimeout(20)\n"
    "peer = server.accept()[0]\n"
    "while data := peer.recv(4096): peer.sendall(data)\n"
)


class NotHere(Exception):
    """This machine cannot do it; the message says what was missing."""


@dataclass(frozen=True)
class FarHost:
    """``prefix``: runs a command in the namespace (its mounts stay shared, unlike with ``ip netns exec``)."""

    name: str
    address: str
    prefix: list[str]


def commands(name: str, number: int, shape: LinkShape) -> tuple[FarHost, list[list[str]]]:
    """What to run to make the namespace ``name``; ``number`` (0..16383) picks its /30 network."""
    base = number * 4
    near, far = (f"198.{18 + (base + end) // 65536}.{(base + end) // 256 % 256}.{(base + end) % 256}" for end in (1, 2))
    inside = ["nsenter", f"--net=/run/netns/{name}"]
    near_device, far_device = f"{name}n", f"{name}f"
    # The limit counts packets; as many as the link holds must fit, or netem drops them.
    held_packets = int(shape.rate_bytes_per_s * (shape.rtt_s + shape.queue_s) / 1000) + 1000
    qdisc = ["netem", "limit", str(held_packets), "delay", f"{shape.one_way_delay_s * 1e6:.0f}us"]
    if shape.jitter_s:
        qdisc.append(f"{shape.jitter_s * 1e6 / 2:.0f}us")
    if shape.loss:
        qdisc += ["loss", f"{shape.loss * 100:g}%"]
    qdisc += ["rate", f"{shape.rate_bytes_per_s * 8:.0f}bit"]
    return FarHost(name, far, inside), [
        ["ip", "netns", "add", name],
        ["ip", "link", "add", "name", near_device, "type", "veth", "peer", "name", far_device],
        ["ip", "link", "set", far_device, "netns", name],
        ["ip", "address", "add", f"{near}/30", "dev", near_device],
        ["ip", "link", "set", near_device, "up"],
        [*inside, "ip", "address", "add", f"{far}/30", "dev", far_device],
        [*inside, "ip", "link", "set", "lo", "up"],
        [*inside, "ip", "link", "set", far_device, "up"],
        ["tc", "qdisc", "add", "dev", near_device, "root", *qdisc],
        [*inside, "tc", "qdisc", "add", "dev", far_device, "root", *qdisc],
    ]


def silence(host: FarHost, *, on: bool) -> list[str]:
    """What to run so that nothing crosses the link, without a word to either end; and so that it does again."""
    return [*host.prefix, "ip", "link", "set", f"{host.name}f", "down" if on else "up"]


@contextlib.contextmanager
def far_namespace(shape: LinkShape) -> Iterator[FarHost]:
    """Makes it, and removes it at the end. Raises NotHere."""
    if os.geteuid() != 0:
        raise NotHere("it needs root")
    if missing := [tool for tool in ("ip", "tc", "nsenter") if shutil.which(tool) is None]:
        raise NotHere(f"{', '.join(missing)} not installed (iproute2, util-linux)")
    name = f"hr{os.getpid()}"[:14]
    host, steps = commands(name, os.getpid() % 16384, shape)
    try:
        for step in steps:
            done = subprocess.run(step, check=False, capture_output=True, text=True)
            if done.returncode:
                raise NotHere(f"{' '.join(step)}: {done.stderr.strip()}")
        yield host
    finally:
        # The namespace takes its end of the pair with it, and that the other one.
        for step in (["ip", "netns", "delete", name], ["ip", "link", "delete", f"{name}n"]):
            subprocess.run(step, check=False, capture_output=True)


def try_out(host: FarHost, shape: LinkShape) -> None:
    """One echo across the link must take about the round trip asked for. Raises NotHere."""
    with subprocess.Popen(
        [*host.prefix, sys.executable, "-c", _ECHO, host.address], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as echo:
        try:
            assert echo.stdout is not None
            port = int(echo.stdout.readline() or 0)
            with socket.create_connection((host.address, port), timeout=5 + 3 * shape.rtt_s) as connection:
                started_s = time.monotonic()
                connection.sendall(b"?")
                if connection.recv(1) != b"?":
                    raise NotHere("a trial connection broke")
                seen_s = time.monotonic() - started_s
        except OSError as error:
            raise NotHere(f"a trial connection failed: {error}") from None
        finally:
            echo.kill()
    if not shape.rtt_s * 0.9 <= seen_s <= shape.rtt_s * 1.5 + 0.05:
        raise NotHere(f"a trial round trip took {seen_s * 1000:.0f} ms instead of {shape.rtt_s * 1000:.0f} ms")
