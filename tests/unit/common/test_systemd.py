"""What systemd is told, over a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from common import limits
from common.errors import HeadraceError
from common.systemd import ServiceManager, message, socket_address, watchdog_s


class Listener:
    """systemd's end."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(5)

    def next(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n"))

    async def next_in_thread(self) -> dict[str, str]:
        return await asyncio.to_thread(self.next)

    def silent(self) -> bool:
        self.socket.setblocking(False)
        try:
            self.socket.recv(4096)
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(5)
        return False


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    made = Listener(str(tmp_path / "notify"))
    yield made
    made.socket.close()


def environment(listener: Listener, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": listener.socket.getsockname(), "HOME": "/", **more}


def test_a_value_cannot_bring_a_field_of_its_own() -> None:
    assert message(READY=1, STATUS="a\nSTOPPING=1") == b"READY=1\nSTATUS=a STOPPING=1"


@pytest.mark.parametrize(
    ("text", "address"),
    [("/run/systemd/notify", "/run/systemd/notify"), ("@abc", "\0abc"), ("", None), ("@", None), ("vsock:2:99", None)],
)
def test_addresses(text: str, address: str | None) -> None:
    assert socket_address(text) == address


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_may_be_another_process_s(environ: dict[str, str], seconds: float | None) -> None:
    assert watchdog_s(environ, 7) == seconds


async def test_a_life_from_start_to_stop(listener: Listener) -> None:
    environ = environment(listener, WATCHDOG_USEC="90000", WATCHDOG_PID=str(os.getpid()))
    with ServiceManager(environ) as systemd:
        first = await listener.next_in_thread()
        assert first == {"EXTEND_TIMEOUT_USEC": str(int(limits.SERVICE_START_EXTENSION_S * 1e6)), "WATCHDOG": "1"}
        while not listener.silent():
            pass
        systemd.ready("mounted c4 on /mnt")
        assert await listener.next_in_thread() == {"READY": "1", "STATUS": "mounted c4 on /mnt", "WATCHDOG": "1"}
        for _ in range(3):
            assert await listener.next_in_thread() == {"WATCHDOG": "1"}
        systemd.stopping()
        said = await listener.next_in_thread()
        while said == {"WATCHDOG": "1"}:
            said = await listener.next_in_thread()
        assert said == {"STOPPING": "1", "STATUS": "stopping"}
    assert environ == {"HOME": "/"}, "a child would speak for us"


async def test_a_loop_that_hangs_is_silent_and_one_that_is_busy_is_not(listener: Listener) -> None:
    with ServiceManager(environment(listener, WATCHDOG_USEC="150000")) as systemd:
        systemd.ready("on")
        await asyncio.sleep(0)
        while not listener.silent():
            pass
        time.sleep(0.3)  # two watchdog times within one callback
        assert listener.silent()
        end_s = asyncio.get_running_loop().time() + 0.3
        signs = 0
        while asyncio.get_running_loop().time() < end_s:
            sum(range(20_000))  # a core's worth of work, in turns
            signs += not listener.silent()
            await asyncio.sleep(0)
        assert signs >= 3


async def test_a_failed_start_leaves_its_reason(listener: Listener) -> None:
    with pytest.raises(HeadraceError), ServiceManager(environment(listener)):
        raise HeadraceError("no hub\nanswers")
    assert listener.next() == {"STATUS": "failed: no hub answers"}


async def test_without_systemd_nothing_is_sent() -> None:
    with ServiceManager({"WATCHDOG_USEC": "1000"}) as systemd:
        assert not systemd.listens
        assert not systemd.send(READY=1)


async def test_a_listener_that_is_gone_or_does_not_read_holds_nobody(listener: Listener) -> None:
    with ServiceManager(environment(listener)) as systemd:
        for _ in range(10_000):
            if not systemd.send(STATUS="x" * 1000):
                break
        else:
            pytest.fail("the queue never filled")
        listener.socket.close()
        assert not systemd.send(STATUS="x")
