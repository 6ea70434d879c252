"""The Unix socket beside the mount: how the other commands reach a running spoke without touching the mount.

One JSON object a line each way. A request is ``{"command": NAME, …}``; the answer is any number of
``{"progress": …}`` lines and then one ``{"result": …}`` or ``{"error": text, "code": wire code, "exit": 1 or 2}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from common import limits
from common.errors import HeadraceError, UsageError
from common.log import get_logger
from common.terminal import EXIT_FAILED, EXIT_USAGE
from spoke.asked_fields import shown

log = get_logger(__name__)

_QUEUE_LOOK_S = 0.02
_WHOLE_MAX_DIGITS = 40

Command = Callable[[Mapping[str, Any]], AsyncGenerator[Mapping[str, Any], None]]
"""Takes the request, yields progress objects; the last object it yields is the result."""


class ControlError(HeadraceError):
    """What the running spoke answered: it could not do it."""


class ControlRefused(UsageError):
    """What the running spoke answered: it was asked for something that cannot be."""


class Silent(HeadraceError):
    """The running spoke took the question, or not even that, and said nothing in time."""


class Dropped(HeadraceError):
    """The running spoke ended, or let the connection go, before it answered."""


class NotMounted(UsageError):
    """No spoke of ours answers for this mountpoint."""


def socket_path(runtime_dir: Path, mountpoint: str) -> Path:
    """For a resolved mountpoint. Hashed: a Unix socket's path holds 107 bytes (unix(7)), a mountpoint's may be longer."""
    return runtime_dir / f"{hashlib.sha256(os.fsencode(mountpoint)).hexdigest()[:32]}.sock"


def supervisor_socket_path(runtime_dir: Path, mountpoint: str) -> Path:
    """Where the mount's supervisor answers, also between two workers."""
    return socket_path(runtime_dir, mountpoint).with_suffix(".super.sock")


class ControlServer:
    """Answers on ``path`` (mode 0600) with ``commands``; one task a connection, all ended by ``close()``."""

    def __init__(self, path: Path, commands: Mapping[str, Command]) -> None:
        self._path = path
        self._commands = commands
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._path.unlink(missing_ok=True)
        old_umask = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(
                self._serve, os.fspath(self._path), limit=limits.CONTROL_LINE_MAX_BYTES
            )
        finally:
            os.umask(old_umask)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._clients):
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        if self._server is not None:  # else it is that of the spoke that has the mount: we never got so far
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._clients.add(task)
        try:
            await self._answer(reader, writer)
        except ConnectionError as error:
            log.debug("control connection ended", error=str(error))
        finally:
            if task is not None:
                self._clients.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
        except ValueError:
            most = limits.CONTROL_LINE_MAX_BYTES
            await _refuse(writer, f"a request of more than {most} bytes; at most {most}: say it in several")
            return
        try:
            request = json.loads(line or b"{}", parse_int=_whole)
        except (ValueError, RecursionError):  # not JSON, not UTF-8, or nested beyond reason
            request = None
        if not isinstance(request, dict):
            await _refuse(writer, 'a request that is no JSON object in one line; write {"command": NAME, …}')
            return
        name = request.get("command")
        command = self._commands.get(name) if isinstance(name, str) else None
        if command is None:
            await _refuse(
                writer, f"unknown command {shown(name)}; this spoke knows {', '.join(sorted(self._commands))}"
            )
            return
        held: Mapping[str, Any] | None = None
        try:
            async with contextlib.aclosing(command(request)) as answers:
                async for answer in answers:
                    if held is not None:
                        await _send(writer, {"progress": held})
                    held = answer
        except HeadraceError as error:
            exit_code = EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
            await _send(writer, {"error": str(error), "code": error.wire_code, "exit": exit_code})
        except ConnectionError:  # who asked has left; so has the command
            raise
        except Exception as error:
            log.exception("a control command failed", command=name)
            await _send(writer, {"error": f"internal error: {error!r}", "code": "internal", "exit": EXIT_FAILED})
        else:
            await _send(writer, {"result": held})


def _whole(digits: str) -> float:
    """No whole number any more where it has more digits than any field: Python refuses thousands of them."""
    return int(digits) if len(digits) <= _WHOLE_MAX_DIGITS else float(digits)


async def _refuse(writer: asyncio.StreamWriter, text: str) -> None:
    await _send(writer, {"error": text, "code": "usage", "exit": EXIT_USAGE})


async def _send(writer: asyncio.StreamWriter, line: Mapping[str, Any]) -> None:
    if writer.is_closing():  # uvloop's write() raises RuntimeError then
        raise ConnectionResetError("who asked has left")
    writer.write(json.dumps(line).encode() + b"\n")
    await writer.drain()


def ask(path: Path, request: Mapping[str, Any], *, timeout_s: float = 5.0) -> Iterator[tuple[str, Any]]:
    """Send a request and yield ("progress", …) and at last ("result", …).

    ``timeout_s`` bounds the silence between two lines. Raises NotMounted when nobody listens, ControlError or
    ControlRefused for an error answered, Silent when the spoke says nothing.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            _connect(connection, path, timeout_s)
        except (FileNotFoundError, ConnectionRefusedError):
            raise NotMounted("no spoke of this user serves this mountpoint") from None
        except PermissionError:
            raise NotMounted("the spoke of this mountpoint runs as another user") from None
        except BlockingIOError:
            raise Silent(f"the spoke did not answer within {timeout_s:g} s") from None
        except OSError as error:
            raise HeadraceError(f"cannot reach the spoke at {path}: {error}") from None
        try:
            connection.sendall(json.dumps(dict(request)).encode() + b"\n")
        except OSError as error:
            raise _gone(error, timeout_s) from None
        with connection.makefile("rb") as lines:
            while True:
                try:
                    line = lines.readline()
                except OSError as error:
                    raise _gone(error, timeout_s) from None
                if not line:
                    raise Dropped("the spoke closed the connection without an answer")
                answer = json.loads(line)
                if "error" in answer:
                    refused = answer.get("exit") == EXIT_USAGE
                    raise (ControlRefused if refused else ControlError)(answer["error"])
                if "result" in answer:
                    yield "result", answer["result"]
                    return
                yield "progress", answer.get("progress")


def _connect(connection: socket.socket, path: Path, timeout_s: float) -> None:
    """Raises BlockingIOError if the queue of the spoke's socket stays full of those who asked before: connect() with a timeout does not
    wait for that (unix(7))."""
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            return connection.connect(os.fspath(path))
        except BlockingIOError:
            if time.monotonic() >= end_s:
                raise
        time.sleep(_QUEUE_LOOK_S)


def _gone(error: OSError, timeout_s: float) -> HeadraceError:
    """A spoke that ends, or has no descriptor left to accept with, resets the connection."""
    if isinstance(error, TimeoutError):
        return Silent(f"the spoke did not answer within {timeout_s:g} s")
    return Dropped(f"the spoke dropped the connection ({error.strerror}); its log says why")


def ask_once(path: Path, request: Mapping[str, Any], *, timeout_s: float = 5.0) -> Any:
    """The result alone."""
    for kind, value in ask(path, request, timeout_s=timeout_s):
        if kind == "result":
            return value
    raise HeadraceError("the spoke gave no result")
