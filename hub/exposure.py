"""Where a hub may listen: beyond this host only when it knows who asks, or was told not to care."""

from __future__ import annotations

import ipaddress
import socket

from common.errors import UsageError
from common.units import parse_address
from hub.config import HubSettings


def check_exposure(settings: HubSettings) -> None:
    """Raises UsageError, with the ways out, for an open hub on an address that other hosts can reach."""
    if settings.insecure or settings.tls is not None or settings.token_file is not None:
        return
    host, _ = parse_address(settings.listen)
    if not is_loopback(host):
        raise UsageError(
            f"listen is {settings.listen}, which other hosts can reach, and nothing says who may read: everybody who reaches "
            "the port could. Three ways out: (1) mutual TLS: --tls-cert, --tls-key and --tls-ca, on the spokes too; (2) in a closed "
            "network a shared token: --token-file, on the spokes too; (3) where something else keeps others out: --insecure. "
            "Or listen on 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Whether all that this name or address stands for is this host alone; what cannot be resolved is not."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return False
    addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in found]
    return bool(addresses) and all(
        (getattr(address, "ipv4_mapped", None) or address).is_loopback for address in addresses
    )
