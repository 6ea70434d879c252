"""What the supervisor hears and says at its edges: the channel, systemd's list of jobs, stored descriptors, how a process ended."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from common import limits
from spoke.supervisor.channel import Channel
from spoke.supervisor.own_log import OwnLog
from spoke.supervisor.service import FD_NAMES, Service, is_restarting, stored_descriptors
from spoke.supervisor.spec import Spec, make_say
from spoke.supervisor.supervisor import Supervisor
from spoke.supervisor.workers import Worker, how_it_ended


def test_a_message_and_its_descriptors_arrive_whole() -> None:
    one, other = Channel.pair()
    assert other.receive() is None
    read_fd, write_fd = os.pipe()
    assert one.send("start", {"restarts": 3}, [read_fd])
    os.close(read_fd)
    received = other.receive()
    assert received is not None
    message, (fd,) = received
    assert message == {"say": "start", "restarts": 3}
    os.write(write_fd, b"x")
    assert os.read(fd, 1) == b"x"
    assert not os.get_inheritable(fd)
    one._socket.send(b"no JSON")
    assert other.receive() == ({"say": ""}, [])
    one.close()
    with pytest.raises(EOFError):
        other.receive()
    assert not other.send("alive")
    other.close()
    for left in (fd, write_fd):
        os.close(left)


def test_a_sender_is_never_held_by_one_who_does_not_listen() -> None:
    one, other = Channel.pair()
    assert not all(one.send("alive", {"text": "x" * 1000}) for _ in range(10_000))
    one.close()
    other.close()


@pytest.mark.parametrize(
    ("jobs", "restarting"),
    [
        ("41 headrace-spoke@c4.service restart running\n", True),
        ("7 other.service restart waiting\n41 headrace-spoke@c4.service try-restart running\n", True),
        ("41 headrace-spoke@c4.service stop running\n", False),
        ("41 headrace-spoke@c4b.service restart running\n", False),
        ("No jobs running.\n", False),
        ("", False),
    ],
)
def test_a_restart_is_told_from_a_stop(jobs: str, restarting: bool) -> None:
    assert is_restarting(jobs, "headrace-spoke@c4.service") is restarting


def test_only_an_answer_counts_as_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_UNIT", "x.service")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert not Service({"NOTIFY_SOCKET": "/run/x", "FDSTORE": "8"}).restart_is_queued()


def test_descriptors_are_kept_only_where_systemd_says_it_does() -> None:
    assert Service({"NOTIFY_SOCKET": "/run/x", "FDSTORE": "8"}).keeps_descriptors
    for environ in ({"NOTIFY_SOCKET": "/run/x"}, {"FDSTORE": "8"}, {"NOTIFY_SOCKET": "/run/x", "FDSTORE": "1"}):
        assert not Service(dict(environ)).keeps_descriptors


def test_foreign_and_missing_descriptors_are_not_taken() -> None:
    mine = str(os.getpid())
    assert stored_descriptors({}) is None
    assert stored_descriptors({"LISTEN_PID": "1", "LISTEN_FDS": "2", "LISTEN_FDNAMES": ":".join(FD_NAMES)}) is None
    assert stored_descriptors({"LISTEN_PID": mine, "LISTEN_FDS": "2", "LISTEN_FDNAMES": "a:b"}) is None


def test_how_a_process_ended_is_said_in_words() -> None:
    assert how_it_ended(2) == "exit code 2"
    assert how_it_ended(-signal.SIGKILL) == "killed by SIGKILL"
    assert how_it_ended(-64) != ""


def test_lines_look_like_the_worker_s(capsys: pytest.CaptureFixture[str]) -> None:
    make_say(True)("error", "it happened", worker_pid=3, error=None)
    make_say(False)("info", "so did this", worker_pid=4)
    first, second = capsys.readouterr().err.splitlines()
    facts = json.loads(first)
    assert (facts["event"], facts["level"], facts["worker_pid"], "error" in facts) == ("it happened", "error", 3, False)
    assert facts["timestamp"].endswith("Z")
    assert "so did this worker_pid=4" in second


def test_a_log_of_ours_is_kept_short_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_MAX_BYTES", 10)
    path = tmp_path / "a.log"
    with path.open("ab", buffering=0) as log, path.open("ab", buffering=0) as worker:
        own, foreign = OwnLog(str(path), log.fileno()), OwnLog("", log.fileno())
        log.write(b"0123456789")
        own.bound()
        worker.write(b"!")
        foreign.bound()
        assert path.read_bytes() == b"0123456789!"
        own.bound()
        worker.write(b"new")
    assert (path.read_bytes(), (tmp_path / "a.log.1").read_bytes()) == (b"new", b"0123456789!")
    foreign.remove()
    own.remove()
    assert list(tmp_path.iterdir()) == []


def test_who_asked_and_leaves_in_the_moment_of_the_answer_does_not_end_the_mount(tmp_path: Path) -> None:
    """Both are told of by one look at the sockets, and the first of them closes the second's."""
    path = str(tmp_path / "super.sock")
    ours, theirs = Channel.pair()
    first = Worker.start(["sleep", "1000"], 0.0, standby=False)
    spec = Spec("/mnt", ["sleep", "1000"], ["true"], path, first.pid, theirs.detach())
    supervisor = Supervisor(spec, Service({}), make_say(True))
    supervisor._listen()
    assert ours.send("ready", {"line": "it serves"})
    supervisor._turn()
    asking, stopping = (socket.socket(socket.AF_UNIX) for _ in range(2))
    try:
        for client in (asking, stopping):
            client.connect(path)
            supervisor._turn()
        asking.sendall(b'{"command": "upgrade"}\n')
        supervisor._turn()
        assert supervisor._upgrade is not None
        stopping.sendall(b'{"command": ')
        supervisor._turn()
        stopping.sendall(b'"stop"}\n')
        asking.close()
        supervisor._turn()  # who was heard last is heard first: by the stop whoever waits for the upgrade is answered
        assert json.loads(stopping.recv(4096)) == {"result": {"stopping": True}}
        while supervisor._exit is None:
            supervisor._turn()
    finally:
        supervisor._clients.close()
        stopping.close()
        ours.close()
        first.channel.close()
        first.signal(signal.SIGKILL)
