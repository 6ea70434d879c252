import asyncio
import contextlib
import json
import os
import socket
import stat
import threading
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from common.errors import HeadraceError, UsageError
from spoke.control import ControlError, ControlRefused, ControlServer, NotMounted, Silent, ask, ask_once, socket_path


async def count(request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
    for number in range(request["to"]):
        yield {"number": number}


async def misuse(_request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
    raise UsageError("no such path")
    yield {}


async def crash(_request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
    yield {}
    raise ZeroDivisionError


async def silent(_request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
    await asyncio.Event().wait()
    yield {}


@pytest.fixture
async def server(tmp_path: Path):
    server = ControlServer(tmp_path / "s.sock", {"count": count, "misuse": misuse, "crash": crash, "silent": silent})
    await server.start()
    yield tmp_path / "s.sock"
    await server.close()


async def test_progress_comes_before_the_result(server: Path) -> None:
    answers = await asyncio.to_thread(lambda: list(ask(server, {"command": "count", "to": 3})))
    assert answers == [("progress", {"number": 0}), ("progress", {"number": 1}), ("result", {"number": 2})]


async def test_errors_tell_misuse_from_failure(server: Path) -> None:
    with pytest.raises(ControlRefused, match="no such path"):
        await asyncio.to_thread(ask_once, server, {"command": "misuse"})
    with pytest.raises(ControlError, match="ZeroDivisionError"):
        await asyncio.to_thread(ask_once, server, {"command": "crash"})
    with pytest.raises(ControlRefused, match=r"unknown command 'x'.*count, crash"):
        await asyncio.to_thread(ask_once, server, {"command": "x"})


async def test_silence_is_bounded_and_a_closing_server_does_not_wait_for_it(server: Path) -> None:
    with pytest.raises(HeadraceError, match="did not answer within"):
        await asyncio.to_thread(ask_once, server, {"command": "silent"}, timeout_s=0.2)


async def test_only_the_owner_may_connect(server: Path) -> None:
    assert stat.S_IMODE(os.stat(server).st_mode) == 0o600


async def test_rubbish_ends_the_connection_only(server: Path) -> None:
    overlong = b"x" * (3 << 20)
    for rubbish in (b"\xff\n", b"[]\n", b"[" * 100_000 + b"\n", b"{" * 100 + b"\n", b'{"command": 3}\n', overlong):
        reader, writer = await asyncio.open_unix_connection(os.fspath(server))
        writer.write(rubbish)
        with contextlib.suppress(ConnectionResetError):  # what was not read of an overlong line
            answer = json.loads(await reader.read())
            assert answer["exit"] == 2
            expected = (
                "unknown command 3"
                if b"command" in rubbish
                else "no JSON object"
                if rubbish != overlong
                else "more than"
            )
            assert expected in answer["error"]
        writer.close()
    assert await asyncio.to_thread(ask_once, server, {"command": "count", "to": 1}) == {"number": 0}


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(NotMounted, match="no spoke"):
        ask_once(tmp_path / "none.sock", {"command": "status"})


def test_a_socket_path_fits_however_long_the_mountpoint_is() -> None:
    paths = {socket_path(Path("/run/headrace"), name) for name in ("/mnt/a", "/mnt/b", "/" + "x" * 3000)}
    assert len(paths) == 3
    assert all(len(os.fspath(path)) < 107 for path in paths)


def test_a_spoke_that_drops_the_connection_is_an_error_in_words(tmp_path: Path) -> None:
    """As one without a descriptor left does, or one that is just ending."""
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        answers = ask(
            path, {"command": "status", "padding": "x" * (1 << 22)}
        )  # more than a socket takes before it is read

        def drop() -> None:
            connection, _ = listener.accept()
            connection.recv(1)
            connection.close()

        thread = threading.Thread(target=drop)
        thread.start()
        with pytest.raises(HeadraceError, match="dropped the connection"):
            next(answers)
        thread.join()


def test_who_leaves_before_the_answer_ends_the_command_and_no_more(tmp_path: Path) -> None:
    """As Ctrl-C does to ``headrace-spoke warm``."""
    with capture_logs() as lines:
        uvloop.run(_leave(tmp_path / "s.sock"))
    assert [line for line in lines if line["log_level"] != "debug"] == []


async def _leave(path: Path) -> None:
    said, ended = asyncio.Event(), asyncio.Event()

    async def progress(_request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        try:
            while True:
                yield {"padding": "x" * 65536}
                said.set()
                await asyncio.sleep(0)
        finally:
            ended.set()

    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
    server = ControlServer(path, {"progress": progress})
    await server.start()
    for _ in range(3):
        said.clear()
        ended.clear()
        _, writer = await asyncio.open_unix_connection(os.fspath(path))
        writer.write(b'{"command": "progress"}\n')
        await said.wait()
        writer.transport.abort()
        await asyncio.wait_for(ended.wait(), 5)
        await asyncio.sleep(0)
    await server.close()
    assert failures == []


def test_a_full_queue_is_waited_for_and_then_silence(tmp_path: Path) -> None:
    """As a hundred commands meet that ask a stopped worker."""
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(path))
        listener.listen(0)
        first.connect(str(path))
        with pytest.raises(Silent, match=r"did not answer within 0\.2 s"):
            ask_once(path, {"command": "status"}, timeout_s=0.2)

        def answer() -> None:
            listener.accept()[0].close()
            connection, _ = listener.accept()
            connection.recv(100)
            connection.sendall(b'{"result": 5}\n')
            connection.close()

        thread = threading.Timer(0.1, answer)
        thread.start()
        assert ask_once(path, {"command": "status"}, timeout_s=5) == 5
        thread.join()
