"""A server and real links of a spoke through TLS: who is let in, who is not, and what each end says about it."""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import ssl
import time
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange
from common.errors import AuthenticationFailed, HeadraceError, NotAllowed, Overloaded
from common.serving.access import Access, Grant
from common.serving.server import Server
from common.tls import Certificates, TlsFiles
from common.wire.messages import Data, Error, Message, Priority, Read, Subscribe
from spoke.hub_client.addresses import Address
from spoke.hub_client.client import make_hello
from spoke.hub_client.credentials import Credentials
from spoke.hub_client.links import Link
from tests.certificates import Authority, hub_files, issued, make_authority, needs_openssl, shared, spoke_files
from tests.fakes.counting_observer import Counted
from tests.fakes.memory_source import MemorySource
from tests.fakes.wire_client import WireClient

pytestmark = [
    needs_openssl,
    pytest.mark.asyncio(loop_factories=["uvloop"]),
]  # as the daemons run; the first test under both


class Owner:
    """Keeps what a link says."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[tuple[int, Message]] = asyncio.Queue()
        self.ended: asyncio.Future[HeadraceError] = asyncio.get_running_loop().create_future()

    def link_message(self, link: Link, request_id: int, message: Message) -> None:
        self.messages.put_nowait((request_id, message))

    def link_taken(self) -> None: ...

    def link_closed(self, link: Link, error: HeadraceError) -> None:
        self.ended.set_result(error)


@pytest.fixture
async def links() -> AsyncIterator[list[Link]]:
    made: list[Link] = []
    yield made
    for link in made:
        link.close(HeadraceError("the test is over"))
    await asyncio.sleep(0)


@pytest.fixture
def dial(links: list[Link]) -> Any:
    async def dialled(
        server: Server, files: TlsFiles | None, *, identity: str = "spoke-a", name: str = ""
    ) -> tuple[Link, Owner]:
        owner = Owner()
        certificates = Certificates(files, time.time) if files is not None else None
        hello = make_hello("memory", identity, random.randbytes(16), compression=False)
        link = Link("control", hello, owner, time.monotonic, Credentials(certificates, None, name))
        links.append(link)
        await link.open(Address(socket.AF_INET, ("127.0.0.1", server.port)))
        return link, owner

    return dialled


def believes(files: TlsFiles) -> Certificates:
    return Certificates(files, time.time)


async def read_all(link: Link, owner: Owner, version: bytes, size_bytes: int) -> bytes:
    link.send(Read(version, (BlockRange(0, -(-size_bytes // BLOCK_BYTES)),), Priority.DEMAND, 0), link.new_request_id())
    found: dict[int, bytes] = {}
    while True:
        _, message = await owner.messages.get()
        assert isinstance(message, Data), message
        found[message.blocks.first_block] = bytes(message.payload)
        if message.last:
            return b"".join(found[first] for first in sorted(found))


@pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])
async def test_bytes_and_names_come_through(serve: Any, source: MemorySource, dial: Any) -> None:
    content = random.Random(3).randbytes(9_000_001)
    source.put(b"f", content)
    version = source.version(b"f")
    server = await serve(certificates=believes(hub_files()))
    link, owner = await dial(server, spoke_files())
    link.send(Subscribe(b"", 0))
    assert (await owner.messages.get())[1].entries[0][0] == b"f"
    await owner.messages.get()  # the first heartbeat
    assert await read_all(link, owner, version, len(content)) == content
    assert [view.identity for view in server.spokes()] == ["spoke-a"]
    await link.goodbye("enough")


@pytest.mark.parametrize("identity", ["spoke-a", "somebody-else"])
async def test_an_identity_is_what_the_certificate_says(serve: Any, dial: Any, identity: str) -> None:
    server = await serve(certificates=believes(hub_files()))
    await dial(server, issued("common", "DNS:spoke-a,URI:spiffe://x/spoke"), identity=identity)
    assert [view.identity for view in server.spokes()] == ["spoke-a" if identity == "spoke-a" else "spiffe://x/spoke"]


@cache
def another() -> Authority:
    """A CA that nobody here believes."""
    return make_authority(shared().directory / "another")


def spokes_refused() -> list[Any]:
    foreign = lambda: another().issue("spoke-a", "DNS:spoke-a")  # noqa: E731
    return [
        pytest.param(
            lambda: shared().issue("spoke-a", "DNS:spoke-a", not_after="20210101000000Z"), "expired", id="expired"
        ),
        pytest.param(lambda: foreign()._replace(ca=shared().cert), "does not lead to the CA", id="foreign"),
        pytest.param(
            lambda: shared().self_signed("spoke-a", "DNS:spoke-a"), "does not lead to the CA", id="self-signed"
        ),
        pytest.param(
            lambda: shared().issue("spoke-a", "DNS:spoke-a", not_before="20980101000000Z"), "bad", id="not yet valid"
        ),
    ]


@pytest.mark.parametrize(("files", "said"), spokes_refused())
async def test_a_spoke_that_is_refused_hears_why(
    serve: Any, observer: Counted, dial: Any, files: Any, said: str
) -> None:
    server = await serve(certificates=believes(hub_files()))
    with pytest.raises(AuthenticationFailed, match=f"refused this end: .*{said}"):
        await dial(server, files())
    assert server.spokes() == []
    assert observer.codes == ["authentication"]


def hubs_refused() -> list[Any]:
    local = "DNS:localhost,IP:127.0.0.1"
    foreign = lambda: another().issue("hub", local)  # noqa: E731
    return [
        pytest.param(
            lambda: shared().issue("hub", local, not_after="20210101000000Z"), "has expired; renew", id="expired"
        ),
        pytest.param(
            lambda: foreign()._replace(ca=shared().cert), "must lead to a certificate in the file", id="foreign"
        ),
        pytest.param(lambda: shared().self_signed("hub", local), "self.signed.*must lead to", id="self-signed"),
        pytest.param(lambda: issued("hub", "DNS:other.example"), "mismatch.*--tls-name", id="wrong name"),
        pytest.param(lambda: issued("127.0.0.1"), "mismatch.*--tls-name", id="only a common name"),
    ]


@pytest.mark.parametrize(("files", "said"), hubs_refused())
async def test_a_hub_that_is_refused_is_told_apart(
    serve: Any, observer: Counted, dial: Any, files: Any, said: str
) -> None:
    server = await serve(certificates=believes(files()))
    with pytest.raises(AuthenticationFailed, match=f"certificate of the hub at 127.0.0.1 is refused: .*{said}"):
        await dial(server, spoke_files())
    async with asyncio.timeout(5):
        while not observer.codes:
            await asyncio.sleep(0.005)
    assert observer.codes == ["authentication"]


async def test_a_hub_may_have_another_name_than_its_address(serve: Any, dial: Any) -> None:
    server = await serve(certificates=believes(issued("hub", "DNS:hub.example")))
    link, _ = await dial(server, spoke_files(), name="hub.example")
    assert link.is_open


async def test_a_spoke_without_tls_is_told_that_the_hub_wants_it(serve: Any, observer: Counted, dial: Any) -> None:
    server = await serve(certificates=believes(hub_files()))
    with pytest.raises(AuthenticationFailed, match="this hub speaks TLS only: mount with --tls-cert"):
        await dial(server, None)
    assert observer.codes == ["authentication"]


async def test_a_spoke_with_tls_is_told_that_the_hub_has_none(serve: Any, dial: Any) -> None:
    server = await serve()
    with pytest.raises(AuthenticationFailed, match="does not speak TLS: give both ends certificates"):
        await dial(server, spoke_files())


async def test_nothing_older_than_tls_1_3(serve: Any) -> None:
    server = await serve(certificates=believes(hub_files()))
    files = spoke_files()
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.cert, files.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
        await asyncio.open_connection("127.0.0.1", server.port, ssl=context)


async def test_a_spoke_without_certificate_is_refused(serve: Any, observer: Counted) -> None:
    server = await serve(certificates=believes(hub_files()))
    context = ssl.create_default_context(cafile=shared().cert)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"):
        await reader.read()
    writer.transport.abort()
    assert observer.codes == ["authentication"]


async def test_new_files_are_used_by_new_connections_and_the_old_ones_go_on(
    serve: Any, source: MemorySource, dial: Any, tmp_path: Path
) -> None:
    source.put(b"f", b"bytes")
    version = source.version(b"f")
    now = TlsFiles(tmp_path / "cert", tmp_path / "key", tmp_path / "ca")

    def put(files: TlsFiles) -> None:
        for there, new in zip(now, files, strict=True):
            fresh = there.with_suffix(".new")
            shutil.copy(new, fresh)
            fresh.rename(there)

    put(hub_files())
    certificates = believes(now)
    server = await serve(certificates=certificates)
    link, owner = await dial(server, spoke_files())
    before_s = certificates.expires_s
    other = make_authority(tmp_path / "other")
    renewed = other.issue("hub", "IP:127.0.0.1", not_after="20980101000000Z")
    put(renewed)
    with pytest.raises(AuthenticationFailed):
        await dial(server, spoke_files())
    theirs = other.issue("spoke-a", "DNS:spoke-a")
    await dial(server, theirs)
    assert certificates.expires_s < before_s
    assert await read_all(link, owner, version, 5) == b"bytes"

    now.cert.write_text("not a certificate")
    await dial(server, theirs)
    assert certificates.reloads_total == 1


async def test_the_table_of_identities(serve: Any, source: MemorySource, dial: Any) -> None:
    access = Access({"spoke-a": Grant(datasets=("mem*",)), "spoke-b": Grant(datasets=("other",)), "x*": Grant()})
    server = await serve(certificates=believes(hub_files()), access=access)
    await dial(server, spoke_files("spoke-a"))
    with pytest.raises(NotAllowed, match="'spoke-b' may not read dataset 'memory' here; allowed: other"):
        await dial(server, spoke_files("spoke-b"), identity="spoke-a")
    with pytest.raises(NotAllowed, match="'nobody' may read nothing here"):
        await dial(server, spoke_files("nobody"))


async def test_who_is_revoked_is_shut_out_at_once(serve: Any, dial: Any) -> None:
    table = {"spoke-a": Grant(), "spoke-b": Grant(rate_bytes_per_s=1e6)}
    server = await serve(certificates=believes(hub_files()), access=Access(table))
    _, first = await dial(server, spoke_files("spoke-a"))
    kept, _ = await dial(server, spoke_files("spoke-b"))
    server.set_access(Access({"spoke-a": Grant(datasets=()), "spoke-b": Grant(rate_bytes_per_s=2e6)}))
    async with asyncio.timeout(5):
        assert isinstance(await first.ended, NotAllowed)
    assert kept.is_open
    server.set_access(Access({"spoke-c": Grant()}))
    async with asyncio.timeout(5):
        while server.connections:
            await asyncio.sleep(0.005)


async def test_a_certificate_that_expires_ends_its_connections(serve: Any, dial: Any) -> None:
    now_s = [time.time()]
    server = await serve(certificates=believes(hub_files()), wall_time_s=lambda: now_s[0])
    _, owner = await dial(server, spoke_files())
    now_s[0] += 100 * 366 * 24 * 3600
    async with asyncio.timeout(5):
        assert isinstance(await owner.ended, AuthenticationFailed)


async def test_limits_of_an_identity(serve: Any, source: MemorySource, dial: Any) -> None:
    source.put(b"f", b"bytes")
    version = source.version(b"f")
    access = Access({"spoke-a": Grant(connections=2, requests=1), "spoke-b": Grant()})
    server = await serve(certificates=believes(hub_files()), access=access)
    link, owner = await dial(server, spoke_files("spoke-a"))
    await dial(server, spoke_files("spoke-a"))
    with pytest.raises(Overloaded, match="has 2 connections"):
        await dial(server, spoke_files("spoke-a"))
    await dial(server, spoke_files("spoke-b"))
    source.gate = asyncio.Event()
    for request_id in (1, 2):
        link.send(Read(version, (BlockRange(0, 1),), Priority.DEMAND, 0), request_id)
    request_id, refused = await owner.messages.get()
    assert request_id == 2
    assert isinstance(refused, Error)
    assert refused.code == "overloaded"
    source.gate.set()
    assert isinstance((await owner.messages.get())[1], Data)


async def test_who_never_ends_the_handshake_makes_room_for_others(
    serve: Any, dial: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS_HALF_OPEN_MAX", 8)
    server = await serve(certificates=believes(hub_files()))
    silent = [WireClient(server.port) for _ in range(20)]
    for client in silent:
        await client.dial()
    async with asyncio.timeout(5):
        while server.connections > 8:
            await asyncio.sleep(0.005)
    link, _ = await dial(server, spoke_files())
    assert link.is_open
    for client in silent:
        await client.close()
