"""The end of a mount that nobody can serve any more: whoever waits gets EIO, and then the connection ends."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable

from common.limits import REFUSING_S
from spoke.fuse import kernel
from spoke.fuse.ledger import Ledger, LedgerUnusable

_EIO = 5


def refuse_pending(device_fd: int, ledger_fd: int) -> int:
    """Answer with EIO what the dead worker left, what waits, and what comes within REFUSING_S. Returns how many answers went out."""
    refused = 0
    left_in_hand: Iterable[int] = ()
    try:
        ledger = Ledger.adopt(ledger_fd)
        left_in_hand = ledger.left_in_hand()
    except (LedgerUnusable, OSError):
        pass
    try:
        os.write(device_fd, kernel.notify_resend())
    except OSError:  # an old kernel: then the ledger knows what is in hand
        for unique in left_in_hand:
            refused += _refuse(device_fd, unique)
    os.set_blocking(device_fd, False)
    end_s = time.monotonic() + REFUSING_S
    while (left_s := end_s - time.monotonic()) > 0:
        readable, _, _ = select.select([device_fd], [], [], left_s)
        if not readable:
            break
        try:
            request = os.read(device_fd, kernel.REQUEST_BUFFER_BYTES)
        except (BlockingIOError, InterruptedError):
            continue
        except OSError:  # the connection is gone
            break
        _, opcode, unique, *_ = kernel.IN_HEADER.unpack_from(request)
        if opcode not in kernel.NO_REPLY:
            refused += _refuse(device_fd, unique)
    return refused


def _refuse(device_fd: int, unique: int) -> int:
    try:
        os.write(device_fd, kernel.OUT_HEADER.pack(kernel.OUT_HEADER_BYTES, -_EIO, unique))
    except OSError:
        return 0
    return 1
