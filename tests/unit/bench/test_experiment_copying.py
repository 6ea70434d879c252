"""Copy first: what arrives, and what happens when the sender ends early."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.experiment import copying
from common.errors import HeadraceError


@contextlib.contextmanager
def sender(serve: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """Serves one connection; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            connection, _ = server.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        yield server.getsockname()[:2]
        thread.join()


def test_all_files_arrive(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "a").mkdir(parents=True)
    (here / "a" / "long").write_bytes(bytes(range(256)) * 12_000)
    (here / "empty").write_bytes(b"")
    with sender(lambda connection: copying.send(connection, here)) as address:
        seen, done_bytes = copying.receive(address, there)
    assert done_bytes == 256 * 12_000 == seen[-1][1]
    assert (there / "a" / "long").read_bytes() == (here / "a" / "long").read_bytes()
    assert (there / "empty").read_bytes() == b""


def test_a_sender_that_ends_early_is_told(tmp_path: Path) -> None:
    with (
        sender(lambda connection: connection.sendall(b'[["x", 10]]\nabc')) as address,
        pytest.raises(HeadraceError, match="7 bytes before the end of x"),
    ):
        copying.receive(address, tmp_path)
