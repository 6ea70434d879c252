"""The token: both ends show that they have it, neither says it, and a release without it is spoken with as before."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import AuthenticationFailed, HeadraceError, UsageError
from common.serving.server import Server
from common.token import TokenFile
from common.wire.messages import TOKEN, Challenge, Message, Proof
from common.wire.moves import Role
from common.wire.proof import is_proof, proof
from spoke.hub_client.addresses import Address
from spoke.hub_client.client import make_hello
from spoke.hub_client.credentials import Credentials
from spoke.hub_client.links import Link
from tests.fakes.wire_client import WireClient

SECRET = "0123456789abcdef" * 4


def token_file(tmp_path: Path, token: str = SECRET, mode: int = 0o600) -> TokenFile:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    path.write_text(token + "\n")
    path.chmod(mode)
    return TokenFile(path)


class Owner:
    def link_message(self, link: Link, request_id: int, message: Message) -> None: ...
    def link_taken(self) -> None: ...

    def link_closed(self, link: Link, error: HeadraceError) -> None: ...


async def dial(server: Server, token: TokenFile | None) -> Link:
    hello = make_hello("memory", "spoke-a", random.randbytes(16))
    link = Link("control", hello, Owner(), time.monotonic, Credentials(None, token))
    try:
        await link.open(Address(socket.AF_INET, ("127.0.0.1", server.port)))
    finally:
        asyncio.get_running_loop().call_later(0.1, link.close, HeadraceError("the test is over"))
    return link


async def test_both_with_the_same(serve: Any, tmp_path: Path) -> None:
    server = await serve(token=token_file(tmp_path))
    assert (await dial(server, token_file(tmp_path))).is_open


async def test_a_hub_that_has_none_is_not_believed(serve: Any, tmp_path: Path) -> None:
    server = await serve()
    with pytest.raises(AuthenticationFailed, match="did not show that it has the token"):
        await dial(server, token_file(tmp_path))


async def test_a_hub_that_has_another_gets_no_proof(serve: Any, tmp_path: Path, observer: Any) -> None:
    server = await serve(token=token_file(tmp_path, "x" * 40))
    with pytest.raises(AuthenticationFailed, match="the hub's token is not this spoke's"):
        await dial(server, token_file(tmp_path))


async def test_a_spoke_without_is_told(serve: Any, tmp_path: Path, observer: Any) -> None:
    server = await serve(token=token_file(tmp_path))
    with pytest.raises(AuthenticationFailed, match="asks for its token"):
        await dial(server, None)
    assert observer.codes == ["authentication"]


async def test_a_spoke_that_cannot_prove_it_is_refused_and_a_proof_serves_once(serve: Any, tmp_path: Path) -> None:
    server = await serve(token=token_file(tmp_path))
    proofs: list[bytes] = []

    async def challenged(nonce: bytes) -> tuple[WireClient, Challenge]:
        client = WireClient(server.port, spoke_id=b"s" * 16)
        client.hello = replace(client.hello, capabilities=(TOKEN,), nonce=nonce)
        await client.dial()
        client.send(client.hello)
        challenge = await client.message()
        assert isinstance(challenge, Challenge)
        assert is_proof(challenge.proof, SECRET.encode(), Role.HUB, client.hello, challenge.nonce)
        return client, challenge

    client, challenge = await challenged(b"n" * 32)
    proofs.append(challenge.proof)  # the hub's own, sent back
    proofs.append(proof(SECRET.encode(), Role.SPOKE, client.hello, challenge.nonce))
    client.send(Proof(proofs[1]))
    await client.message()
    await client.close()
    for stale in (*proofs, bytes(32)):
        client, challenge = await challenged(b"n" * 32)
        client.send(Proof(stale))
        refused = await client.message()
        assert "is not this hub's" in refused.message
        await client.close()


def test_a_proof_holds_for_one_role_one_pair_of_nonces_and_one_hello(tmp_path: Path) -> None:
    hello = replace(make_hello("d", "i", b"s" * 16), capabilities=(TOKEN,), nonce=b"a" * 32)
    nonce = os.urandom(32)
    given = proof(b"t" * 32, Role.HUB, hello, nonce)
    assert is_proof(given, b"t" * 32, Role.HUB, hello, nonce)
    for token, role, other, hub_nonce in (
        (b"u" * 32, Role.HUB, hello, nonce),
        (b"t" * 32, Role.SPOKE, hello, nonce),
        (b"t" * 32, Role.HUB, replace(hello, nonce=b"b" * 32), nonce),
        (b"t" * 32, Role.HUB, replace(hello, identity="j"), nonce),
        (b"t" * 32, Role.HUB, replace(hello, dataset="di", identity=""), nonce),
        (b"t" * 32, Role.HUB, replace(hello, spoke_id=b"t" * 16), nonce),
        (b"t" * 32, Role.HUB, hello, bytes(32)),
    ):
        assert not is_proof(given, token, role, other, hub_nonce)


def test_files_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mode 0644: others may read or change it"):
        token_file(tmp_path, mode=0o644)
    with pytest.raises(UsageError, match=r"holds 5 bytes; 32 to 4096 are allowed.*openssl rand"):
        token_file(tmp_path, "short")
    with pytest.raises(UsageError, match="No such file"):
        TokenFile(tmp_path / "none")
    with pytest.raises(UsageError, match="is not a file"):
        TokenFile(tmp_path)


def test_a_new_token_holds_for_new_connections(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(SECRET)
    token = TokenFile(path)
    path.write_text("n" * 50)
    assert token.current() == b"n" * 50
    path.write_text("short")
    assert token.current() == b"n" * 50
    path.unlink()
    assert token.current() == b"n" * 50
