"""Who is at the other end of a connection: what it says of itself (HELLO), what it must show for it (the token, a
certificate), and what it gets once it is let in. Decides; what is sent and when is the session's affair.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple

from common.errors import AuthenticationFailed
from common.serving.source import Source
from common.tls import expiry_of, identities_of
from common.wire import messages as m
from common.wire.connection import Role
from common.wire.proof import is_proof, proof
from common.wire.rules import ID_BYTES, NONCE_BYTES


class Admission(NamedTuple):
    """What a spoke gets that was let in. ``hello``: as it is known from here on. ``counts_reads``: each READ needs leave."""

    hello: m.Hello
    source: Source
    weight: float
    counts_reads: bool


class TokenCheck:
    """Of one connection: HELLO, CHALLENGE, PROOF. ``token``: what a spoke must prove to have now; None: nothing."""

    def __init__(self, token: Callable[[], bytes | None]) -> None:
        self._token = token
        self._asked: tuple[m.Hello, bytes, bytes] | None = None  # HELLO, our nonce, the token

    def challenge(self, hello: m.Hello) -> m.Challenge | None:
        """What to ask of who says so; None: it is believed. Raises AuthenticationFailed."""
        token = self._token()
        if token is None:
            return None
        if m.TOKEN not in hello.capabilities:
            raise AuthenticationFailed(
                "this hub asks for its token, and this spoke offers none: mount with --token-file"
            )
        nonce = os.urandom(NONCE_BYTES)
        self._asked = hello, nonce, token
        return m.Challenge(nonce, proof(token, Role.HUB, hello, nonce))

    def proven(self, message: m.Proof) -> m.Hello:
        """The HELLO that this proves. Raises AuthenticationFailed."""
        assert self._asked is not None, "the connection lets no PROOF through without a CHALLENGE"
        hello, nonce, token = self._asked
        self._asked = None
        if not is_proof(message.proof, token, Role.SPOKE, hello, nonce):
            raise AuthenticationFailed("this spoke's token is not this hub's: give both the same --token-file")
        return hello


class Identified(NamedTuple):
    """``names``: what it may call itself, what it does first. ``expires_s``: when its certificate does, in seconds since 1970."""

    hello: m.Hello
    names: Sequence[str]
    expires_s: float


def identified(hello: m.Hello, certificate: Mapping[str, Any] | None) -> Identified:
    """By the certificate, if there is one: what the spoke says of itself is only a choice among its names.

    Its spoke_id then holds among the spokes of its own name alone. Raises AuthenticationFailed.
    """
    if certificate is None:
        return Identified(hello, (hello.identity,), math.inf)
    names = identities_of(certificate)
    if not names:
        raise AuthenticationFailed(
            "the certificate has no name: give it a subjectAltName (DNS or URI), or a common name"
        )
    if hello.identity in names:
        names = (hello.identity, *(name for name in names if name != hello.identity))
    spoke_id = sha256(b"\0".join([names[0].encode(), hello.spoke_id])).digest()[:ID_BYTES]
    return Identified(replace(hello, identity=names[0], spoke_id=spoke_id), names, expiry_of(certificate))
