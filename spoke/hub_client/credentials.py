"""What a spoke shows the hub, and what it wants to be shown: certificates, a shared token, or neither."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from common import runtime
from common.errors import AuthenticationFailed
from common.tls import Certificates, TlsFiles
from common.token import TokenFile
from common.wire.messages import TOKEN, Challenge, Hello, Proof
from common.wire.moves import Role
from common.wire.proof import is_proof, proof
from common.wire.rules import NONCE_BYTES


class Credentials(NamedTuple):
    """``hub_name``: what the hub's certificate must be for; empty: the host that is dialled."""

    certificates: Certificates | None = None
    token: TokenFile | None = None
    hub_name: str = ""

    @classmethod
    def load(
        cls, tls: TlsFiles | None, token_file: Path | None, hub_name: str = "", *, may_wait: bool = False
    ) -> Credentials:
        """Raises UsageError for files that cannot be used, unless they ``may_wait``: then the hub is not dialled before they can."""
        return cls(
            Certificates(tls, runtime.wall_time_s, may_wait=may_wait) if tls is not None else None,
            TokenFile(token_file, may_wait=may_wait) if token_file is not None else None,
            hub_name,
        )

    def greeting(self, hello: Hello) -> Greeting:
        """For one connection, that begins now. Raises AuthenticationFailed: there was no file yet that can be used."""
        if self.certificates is not None:
            self.certificates.client()
        return Greeting(hello, self.token.current() if self.token is not None else None)


class Greeting:
    """One connection's HELLO, and its part in proving the token both ways."""

    def __init__(self, hello: Hello, token: bytes | None) -> None:
        self._token = token
        self._owed = token is not None
        if token is not None:
            hello = replace(hello, capabilities=(*hello.capabilities, TOKEN), nonce=os.urandom(NONCE_BYTES))
        self.hello = hello

    def answer(self, challenge: Challenge) -> Proof:
        """Raises AuthenticationFailed when the hub does not have our token: it gets no proof from us then."""
        assert self._token is not None, "the connection lets no CHALLENGE through that was not offered"
        if not is_proof(challenge.proof, self._token, Role.HUB, self.hello, challenge.nonce):
            raise AuthenticationFailed("the hub's token is not this spoke's: give both the same --token-file")
        self._owed = False
        return Proof(proof(self._token, Role.SPOKE, self.hello, challenge.nonce))

    def welcomed(self) -> None:
        """Raises AuthenticationFailed when the hub has not shown that it has the token."""
        if self._owed:
            raise AuthenticationFailed(
                "the hub did not show that it has the token: start it with --token-file, or leave --token-file out here"
            )
