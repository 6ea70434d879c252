"""Ports for a test that must know one before somebody listens there."""

from __future__ import annotations

import os
import socket
from random import Random

_FROM, _UNTIL = 20_000, 32_000
"""Below those the kernel gives to who asks for any (32,768 and up, ip(7)): between the look and its use nobody gets one by chance."""


def free_ports(count: int) -> list[int]:
    dice, found = Random(os.urandom(8)), set[int]()
    while len(found) < count:
        port = dice.randrange(_FROM, _UNTIL)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.add(port)
    return list(found)
