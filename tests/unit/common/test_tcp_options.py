"""What is asked of real sockets: BBR begun anew without losing the connection's state, waking for a whole payload."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from common.tcp import open_window, renew_bbr, wake_at


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        served, _ = server.accept()
    with client, served:
        yield client, served


def control_of(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def test_bbr_is_bbr_after_a_renewal_and_bytes_flow(pair: tuple[socket.socket, socket.socket]) -> None:
    client, served = pair
    try:
        served.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
    except OSError as error:
        pytest.skip(f"no BBR here: {error}")
    served.sendall(b"before")
    renew_bbr(served)
    assert control_of(served) == b"bbr"
    served.sendall(b"after")
    served.shutdown(socket.SHUT_WR)
    with client.makefile("rb") as received:
        assert received.read() == b"beforeafter"


def test_another_control_is_left_alone(pair: tuple[socket.socket, socket.socket]) -> None:
    _, served = pair
    served.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    renew_bbr(served)
    assert control_of(served) == b"reno"


def test_a_socket_that_waits_for_more_is_not_readable_before_and_is_at_the_end(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, served = pair
    wake_at(client, 1000)
    served.sendall(bytes(999))
    assert select.select([client], [], [], 0.2)[0] == []
    served.sendall(bytes(1))
    assert select.select([client], [], [], 10.0)[0] == [client]
    assert client.recv(1000) == bytes(1000)
    served.sendall(b"end")
    assert select.select([client], [], [], 0.2)[0] == []
    served.shutdown(socket.SHUT_WR)
    assert select.select([client], [], [], 10.0)[0] == [client]


def test_an_opened_window_takes_much_at_once_and_every_byte_wakes(pair: tuple[socket.socket, socket.socket]) -> None:
    client, served = pair
    size_bytes = 1024 * 1024
    open_window(client, size_bytes)
    assert client.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= size_bytes
    served.sendall(b"x")
    assert select.select([client], [], [], 10.0)[0] == [client]
