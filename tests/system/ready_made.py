"""Starts our daemons and commands without reading their code each time: a process that has imported a module forks itself for each start.

What runs is a process of its own all the same. Imports are most of what a start costs (0.5 s to 0.8 s of CPU time), and hundreds of
tests start two or three processes. Where the start itself is in question, use subprocess.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).resolve().parent.parent.parent
_USES = {
    "hub.cli": ("hub.daemon", "hub.snapshots", "aiohttp.web"),
    "spoke.cli": ("spoke.launch", "spoke.serve", "spoke.status", "spoke.warm", "rich.progress", "aiohttp.web"),
}
"""What these modules import only once they are asked to do something."""
_REQUEST_MAX_BYTES = 200_000


class Started:
    """What the tests use of a subprocess.Popen."""

    def __init__(self, template: _Template, pid: int, arguments: Sequence[str], stdout: IO[bytes] | None) -> None:
        self._template = template
        self._pidfd = os.pidfd_open(pid)
        self.pid = pid
        self.args = [sys.executable, "-m", template.module, *arguments]
        self.stdout = stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and (status := self._template.asked({"reap": self.pid})) is not None:
            self.returncode = os.waitstatus_to_exitcode(status)
            os.close(self._pidfd)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._pidfd], [], [], timeout)[0]:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Template:
    def __init__(self, module: str) -> None:
        self.module = module
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:  # it ends when our end is closed, by us or by our end
            subprocess.Popen(
                [sys.executable, "-m", "tests.system.ready_made", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=_ROOT,
            ).returncode = 0  # nobody waits for it

    def start(
        self, arguments: Sequence[str], stdin: int, stdout: int, stderr: int, directory: Path | None = None
    ) -> int:
        request = {
            "arguments": list(arguments),
            "directory": str(directory or os.getcwd()),
            "environment": dict(os.environ),
            "hangup_ignored": signal.getsignal(signal.SIGHUP) is signal.SIG_IGN,
        }
        return self.asked(request, [stdin, stdout, stderr])

    def asked(self, request: dict[str, Any], fds: Sequence[int] = ()) -> Any:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(fds))
            answer = self._socket.recv(_REQUEST_MAX_BYTES)
        assert answer, f"the process that starts {self.module} has ended"
        return json.loads(answer)


@functools.cache
def _template(module: str) -> _Template:
    return _Template(module)


def start(module: str, *arguments: str, stderr: IO[bytes]) -> Started:
    """``python -m module arguments…`` with a pipe for its stdout."""
    read_fd, write_fd = os.pipe()
    with open(os.devnull, "rb") as nothing:
        pid = _template(module).start(arguments, nothing.fileno(), write_fd, stderr.fileno())
    os.close(write_fd)
    return Started(_template(module), pid, arguments, os.fdopen(read_fd, "rb"))


def run(
    module: str, *arguments: str, timeout_s: float = 60.0, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """One of the commands, to its end."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull, "rb") as nothing:
        template = _template(module)
        pid = template.start(arguments, nothing.fileno(), out.fileno(), err.fileno(), cwd)
        started = Started(template, pid, arguments, None)
        try:
            code = started.wait(timeout_s)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
            raise
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(started.args, code, out.read().decode(), err.read().decode())


def _serve(module: str, fd: int) -> None:
    """The template's main; in what it forks, the module's."""
    main = importlib.import_module(module).main
    for used in _USES.get(module, ()):
        importlib.import_module(used)
    assert len(os.listdir("/proc/self/task")) == 1, "threads are not forked"
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=fd) as asking:
        while True:
            message, fds, _, _ = socket.recv_fds(asking, _REQUEST_MAX_BYTES, 3)
            if not message:
                return
            request = json.loads(message)
            if "reap" in request:
                pid, status = os.waitpid(request["reap"], os.WNOHANG)
                asking.send(json.dumps(status if pid else None).encode())
                continue
            pid = os.fork()
            if not pid:
                break
            for given in fds:
                os.close(given)
            asking.send(json.dumps(pid).encode())
    for number, given in enumerate(fds):
        os.dup2(given, number)
        os.close(given)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGHUP, signal.SIG_IGN if request["hangup_ignored"] else signal.SIG_DFL)
    sys.argv = [str(sys.modules[module].__file__), *request["arguments"]]
    main()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
