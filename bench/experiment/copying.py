"""Copy first, as people do without a mount: all files of a directory over one TCP connection, then read locally.

``python -m bench.experiment.copying DIR``: listens, says ``listening on HOST:PORT``, and sends each connection the whole
directory: a line of JSON with names and sizes, then the bytes. No compression and no resume: what ``rsync`` does at first sight of files.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from io import BufferedReader
from pathlib import Path

from common.errors import HeadraceError
from common.units import format_address

PIECE_BYTES = 1 << 20


def send(connection: socket.socket, directory: Path) -> None:
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    table = [[str(path.relative_to(directory)), path.stat().st_size] for path in paths]
    connection.sendall(json.dumps(table).encode() + b"\n")
    for path in paths:
        with path.open("rb") as file:
            connection.sendfile(file)


def receive(address: tuple[str, int], directory: Path) -> tuple[list[tuple[float, int]], int]:
    """Fetch all files into ``directory``. Returns ((monotonic time, bytes so far) about each tenth of a second, all bytes).

    Raises HeadraceError when the sender ends early.
    """
    done_bytes = 0
    seen = [(time.monotonic(), 0)]
    buffer = bytearray(PIECE_BYTES)
    with (
        socket.create_connection(address) as connection,
        BufferedReader(socket.SocketIO(connection, "r"), PIECE_BYTES) as stream,
    ):
        for name, size_bytes in json.loads(stream.readline()):
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            left_bytes = size_bytes
            with path.open("wb") as file:
                while left_bytes:
                    count = stream.readinto(memoryview(buffer)[: min(left_bytes, PIECE_BYTES)])
                    if not count:
                        raise HeadraceError(f"the copy ended {left_bytes} bytes before the end of {name}")
                    file.write(memoryview(buffer)[:count])
                    left_bytes -= count
                    done_bytes += count
                    if time.monotonic() - seen[-1][0] > 0.1:
                        seen.append((time.monotonic(), done_bytes))
    seen.append((time.monotonic(), done_bytes))
    return seen, done_bytes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.experiment.copying", description="Send a directory.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--listen", default="127.0.0.1", help="host")
    arguments = parser.parse_args()
    with socket.create_server((arguments.listen, 0)) as server:
        print(f"listening on {format_address(*server.getsockname()[:2])}", flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                send(connection, arguments.directory)


if __name__ == "__main__":
    main()
