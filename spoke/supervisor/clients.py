"""The supervisor's control socket: one JSON line each way, as on the worker's (spoke/control.py)."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
from collections.abc import Callable
from typing import Any

from common.limits import SUPERVISOR_CLIENTS_MAX

_LINE_MAX_BYTES = 4096


class Clients:
    """``on_request(client, command)`` is called for each request; it, or somebody later, calls ``answer``."""

    def __init__(
        self,
        path: str,
        selector: selectors.BaseSelector,
        on_request: Callable[[socket.socket, str], None],
    ) -> None:
        self._path = path
        self._selector = selector
        self._on_request = on_request
        self._listener: socket.socket | None = None
        self._lines: dict[socket.socket, bytearray] = {}

    def listen(self) -> None:
        """Once the mount is ours: until then the path may be another's. Raises OSError."""
        if self._listener is not None:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        old_umask = os.umask(0o177)
        try:
            listener.bind(self._path)
            listener.listen(SUPERVISOR_CLIENTS_MAX)
        except OSError:
            listener.close()
            raise
        finally:
            os.umask(old_umask)
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def answer(self, client: socket.socket, answer: dict[str, Any]) -> None:
        """Also to one that is gone."""
        with contextlib.suppress(OSError):
            client.sendall(json.dumps(answer).encode() + b"\n")
        self._close(client)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        if len(self._lines) >= SUPERVISOR_CLIENTS_MAX:
            client.close()
            return
        client.setblocking(False)
        self._lines[client] = bytearray()
        self._selector.register(client, selectors.EVENT_READ, lambda: self._read(client))

    def _read(self, client: socket.socket) -> None:
        try:
            data = client.recv(_LINE_MAX_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        line = self._lines[client]
        line += data
        if len(line) > _LINE_MAX_BYTES:
            self.answer(client, refusal(f"a request of more than {_LINE_MAX_BYTES} bytes"))
            return
        if not data:
            self._close(client)
            return
        if not line.endswith(b"\n"):
            return
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):  # not JSON, not UTF-8, or nested beyond reason
            request = None
        line.clear()
        command = request.get("command") if isinstance(request, dict) else None
        if not isinstance(command, str):
            self.answer(client, refusal('a request that is no JSON object with a command; write {"command": NAME}'))
            return
        self._on_request(client, command)

    def _close(self, client: socket.socket) -> None:
        if self._lines.pop(client, None) is not None:
            self._selector.unregister(client)
            client.close()


def refusal(text: str) -> dict[str, Any]:
    """What a request that cannot be understood is answered."""
    return {"error": text, "code": "usage", "exit": 2}
