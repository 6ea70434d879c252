"""What the link itself takes for the exchange of one cold page: a request of a READ's size, an answer of a page's, over plain TCP.

``python -m bench.wan.echo serve HOST`` at the far end says where it listens; ``… ask HOST:PORT COUNT`` at the near one prints a JSON
list of seconds.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from bench.path import ROOT, Way
from common.errors import HeadraceError
from common.units import format_address, parse_address

REQUEST_BYTES = 54
ANSWER_BYTES = 4141
GAP_S = 0.02
"""Between two exchanges, as between two idle cold pages."""
_READY_TIMEOUT_S = 10.0


def serve(host: str) -> None:
    """Answer one connection after the other, for ever."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        print(f"listening on {format_address(*server.getsockname()[:2])}", flush=True)
        while True:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while connection.recv(REQUEST_BYTES, socket.MSG_WAITALL):
                    connection.sendall(bytes(ANSWER_BYTES))


def ask(address: str, count: int) -> list[float]:
    """Seconds of each exchange. Raises OSError."""
    took_s: list[float] = []
    with socket.create_connection(parse_address(address)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            time.sleep(GAP_S)
            began_s = time.perf_counter()
            connection.sendall(bytes(REQUEST_BYTES))
            if len(connection.recv(ANSWER_BYTES, socket.MSG_WAITALL)) != ANSWER_BYTES:
                raise ConnectionError("the answer was cut short")
            took_s.append(time.perf_counter() - began_s)
    return took_s


def measure(way: Way, spoke_prefix: Sequence[str], count: int) -> list[float]:
    """Seconds of ``count`` exchanges across ``way``. Raises HeadraceError."""
    module = [sys.executable, "-m", "bench.wan.echo"]
    far = subprocess.Popen(
        [*way.hub_prefix, *module, "serve", way.hub_host],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert far.stdout is not None
        readable, _, _ = select.select([far.stdout], [], [], _READY_TIMEOUT_S)
        line = far.stdout.readline() if readable else ""
        if not line.startswith("listening on "):
            raise HeadraceError(f"the far end of the plain exchange did not start; it said {line!r}")
        address = way.open(parse_address(line.removeprefix("listening on ")))
        near = subprocess.run(
            [*spoke_prefix, *module, "ask", address, str(count)],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=_READY_TIMEOUT_S + count * 10,
        )
    except subprocess.TimeoutExpired as late:
        raise HeadraceError(f"the plain exchanges did not end within {late.timeout:g} s") from None
    finally:
        far.kill()
        far.wait()
    if near.returncode:
        raise HeadraceError(f"the plain exchange failed: {near.stderr.strip()[-300:]}")
    return [float(took_s) for took_s in json.loads(near.stdout)]


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        print(json.dumps(ask(sys.argv[2], int(sys.argv[3]))))
