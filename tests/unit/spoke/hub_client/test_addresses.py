"""Name service that hangs, fails, comes back, or knows several addresses."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from common import limits
from common.errors import HubUnreachable
from spoke.hub_client.addresses import Address, Addresses, look_up

ONE = Address(socket.AF_INET, ("192.0.2.1", 7420))
TWO = Address(socket.AF_INET6, ("2001:db8::2", 7420, 0, 0))


class NameService:
    """Answers ``found``; raises it when it is an error; hangs while ``hangs``."""

    def __init__(self) -> None:
        self.found: list[Address] | Exception = [ONE]
        self.asked = 0
        self._goes_on = threading.Event()
        self._goes_on.set()

    def hang(self, on: bool) -> None:
        (self._goes_on.clear if on else self._goes_on.set)()

    def __call__(self, host: str, port: int) -> list[Address]:
        self.asked += 1
        self._goes_on.wait(20)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameService]:
    monkeypatch.setattr(limits, "NAME_TIMEOUT_S", 0.1)
    made = NameService()
    yield made
    made.hang(False)


def addresses(service: NameService) -> Addresses:
    return Addresses("hub.example", 7420, service)


async def test_numbers_and_names_of_this_host() -> None:
    assert await Addresses("127.0.0.1", 7420).find() == Address(socket.AF_INET, ("127.0.0.1", 7420))
    assert look_up("::1", 5)[0].family == socket.AF_INET6


async def test_a_name_service_that_hangs_is_asked_by_one_thread_and_waited_for_a_bounded_time(
    service: NameService,
) -> None:
    service.hang(True)
    found = addresses(service)
    tried = await asyncio.gather(*(found.find() for _ in range(13)), return_exceptions=True)
    assert all(isinstance(error, HubUnreachable) and "no answer within 0.1 s" in str(error) for error in tried)
    assert service.asked == 1
    service.hang(False)
    assert await found.find() == ONE


async def test_where_the_name_led_last_counts_while_name_service_is_gone(service: NameService) -> None:
    found = addresses(service)
    assert await found.find() == ONE
    service.found = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert await found.find() == ONE
    service.found = [TWO]
    async with asyncio.timeout(5):
        while await found.find() != TWO:  # it was known to fail, so its answer is not waited for
            await asyncio.sleep(0.01)
    service.hang(True)
    assert [await found.find() for _ in range(3)] == [TWO] * 3
    hanging = service.asked
    assert await found.find() == TWO
    assert service.asked == hanging


async def test_a_name_that_nobody_knows(service: NameService) -> None:
    service.found = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    with pytest.raises(HubUnreachable, match=r"where 'hub\.example' is: Name or service not known"):
        await addresses(service).find()


async def test_the_next_address_after_one_that_failed(service: NameService) -> None:
    service.found = [ONE, TWO]
    found = addresses(service)
    assert await found.find() == ONE
    for _ in range(5):  # five links that found nobody there
        found.failed(ONE)
    assert await found.find() == TWO
    service.found = [TWO, ONE]
    assert await found.find() == TWO, "an answer in another order changes nothing"
    found.failed(TWO)
    assert await found.find() == ONE
