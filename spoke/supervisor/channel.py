"""What supervisor and worker say to each other: small JSON objects, descriptors beside them, over one socket pair.

A message is one packet (SOCK_SEQPACKET), so a killed sender leaves none in halves. ``{"say": NAME, …}``, by the worker:
``mounted`` (the device and the ledger beside it), ``answers`` (the kernel is served), ``ready``, ``alive``, ``prepared``,
``stopping``, ``released``; by the supervisor: ``start`` (with the descriptors where there is a mount to go on with), ``release``,
``take-back``, ``end``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

MESSAGE_MAX_BYTES = 64 * 1024
_FDS_MAX = 4

Message = dict[str, Any]


class Channel:
    """One end. Never blocks."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        """Of a descriptor that was inherited; it becomes this object's."""
        os.set_inheritable(fd, False)
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, say: str, facts: Mapping[str, Any] | None = None, fds: Sequence[int] = ()) -> bool:
        """False when the other end is gone, or takes no more for now."""
        data = json.dumps({"say": say, **(facts or {})}).encode()
        try:
            if fds:
                socket.send_fds(self._socket, [data], list(fds))
            else:
                self._socket.send(data)
        except OSError:
            return False
        return True

    def receive(self) -> tuple[Message, list[int]] | None:
        """The next message and its descriptors; None when there is none now. Raises EOFError when the other end is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, MESSAGE_MAX_BYTES, _FDS_MAX)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise EOFError(str(error)) from error
        if not data:
            raise EOFError
        for fd in fds:
            os.set_inheritable(fd, False)
        try:
            message = json.loads(data)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            for fd in fds:
                os.close(fd)
            message, fds = {"say": ""}, []
        return message, fds

    def detach(self) -> int:
        """The bare descriptor, for a process that is to inherit it."""
        return self._socket.detach()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()
