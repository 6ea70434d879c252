"""The proof that an end has the shared token, which itself never crosses the wire. Pure: nonces come in.

A proof is an HMAC-SHA256 under the token over who proves it, both nonces and what HELLO says of the spoke. Each end's
nonce is new, so no proof serves twice; the role in it keeps one end's from passing for the other's.
"""

from __future__ import annotations

import hmac

from common.wire.messages import Hello
from common.wire.moves import Role


def proof(token: bytes, role: Role, hello: Hello, hub_nonce: bytes) -> bytes:
    """32 bytes with which the end of this role answers (PROTOCOL.md, section 6)."""
    fields = (
        role.value.encode(),
        hello.nonce,
        hub_nonce,
        hello.spoke_id,
        hello.dataset.encode(),
        hello.identity.encode(),
    )
    said = b"headrace token v1" + b"".join(len(field).to_bytes(4, "little") + field for field in fields)
    return hmac.digest(token, said, "sha256")


def is_proof(given: bytes, token: bytes, role: Role, hello: Hello, hub_nonce: bytes) -> bool:
    """Whether ``given`` is it; takes the same time for any that is not."""
    return hmac.compare_digest(given, proof(token, role, hello, hub_nonce))
