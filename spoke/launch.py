"""Starting and ending a spoke from the command line: in the foreground, in the background, and ``umount``."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from common import limits
from common.config import Loaded
from common.errors import CacheDirectoryError, HeadraceError, UsageError
from common.processes import module_command
from common.terminal import EXIT_USAGE, exit_code
from spoke import control
from spoke.config import SpokeSettings
from spoke.fuse import mountpoint as mountpoints
from spoke.fuse.ledger import Ledger, LedgerUnusable
from spoke.places import made_runtime_dir, runtime_dir
from spoke.runtime_files import bound_log, sweep
from spoke.supervisor.channel import Channel
from spoke.supervisor.service import stored_descriptors
from spoke.supervisor.workers import CHANNEL_VARIABLE

READY_FD_VARIABLE = "HEADRACE_READY_FD"
"""Where a background spoke reports: one JSON line, ``{"ready": text}`` or ``{"error": text, "exit": code}``."""


class StartFailed(HeadraceError):
    """The background spoke did not come up."""


class StartRefused(UsageError):
    """As StartFailed, for a reason the one who started it can mend."""


def mount_in_foreground(mountpoint: Path, loaded: Loaded[SpokeSettings]) -> None:
    """Mount and serve until SIGTERM, SIGINT or umount. This process becomes the supervisor, and a fork of it the first worker,
    which so need not import everything again. In a process that a supervisor started: be the next worker."""
    channel_fd = os.environ.pop(CHANNEL_VARIABLE, None)
    if channel_fd is not None:
        _work(mountpoints.locate(mountpoint), loaded, Channel.from_fd(int(channel_fd)))
        return
    ready_fd = int(os.environ.pop(READY_FD_VARIABLE, "-1"))
    try:
        stored = stored_descriptors(os.environ)
        path = mountpoints.locate(mountpoint)
        if stored is None or not _is_mount_of(stored, path):
            stored = None
            path = mountpoints.prepare(mountpoint, runtime_dir())
        _check_apart(path, loaded.settings.cache_dir)
        sweep(made_runtime_dir(), time.time())
    except HeadraceError as error:
        if ready_fd >= 0:
            _report(ready_fd, {"error": str(error), "exit": exit_code(error)})
        raise
    ours, theirs = Channel.pair()
    sys.stdout.flush()
    sys.stderr.flush()
    worker_pid = os.fork()
    if worker_pid:
        theirs.close()
        _supervise(path, loaded, ours.detach(), worker_pid, ready_fd, stored or [-1, -1])
    ours.close()
    for fd in (ready_fd, *(stored or ())):
        if fd >= 0:
            os.close(fd)
    os.setpgid(0, 0)  # Ctrl-C is the supervisor's, which has us end in order
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "FDSTORE"):
        os.environ.pop(name, None)
    _work(path, loaded, theirs)


def _work(path: str, loaded: Loaded[SpokeSettings], channel: Channel) -> None:
    from spoke.serve import run_spoke

    run_spoke(path, loaded, channel)


def _supervise(
    path: str, loaded: Loaded[SpokeSettings], channel_fd: int, worker_pid: int, ready_fd: int, stored: Sequence[int]
) -> NoReturn:
    command, environment = module_command("spoke.cli")
    settings = loaded.settings
    spec = {
        "mountpoint": path,
        "command": [*command, *(argument for argument in sys.argv[1:] if argument != "--background")],
        "take_away": [*module_command("spoke.take_away")[0], path],
        "control_path": os.fspath(control.supervisor_socket_path(runtime_dir(), path)),
        "worker_pid": worker_pid,
        "channel_fd": channel_fd,
        "ready_fd": ready_fd,
        "log_path": _own_log(path),
        "device_fd": stored[0],
        "ledger_fd": stored[1],
        "log_json": settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty()),
        "hangup_stops": _has_terminal(),
        "hangup_ignored": ready_fd < 0 and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN,
    }
    spec_fd = os.memfd_create("headrace-supervisor", 0)
    os.write(spec_fd, json.dumps(spec).encode())
    os.lseek(spec_fd, 0, os.SEEK_SET)
    for fd in (channel_fd, ready_fd, *stored):
        if fd >= 0:
            os.set_inheritable(fd, True)
    # The command's own words go along: ps and doctor see what was asked for.
    supervisor = [*module_command("spoke.supervisor")[0], str(spec_fd), *sys.argv[1:]]
    try:
        os.execve(supervisor[0], supervisor, environment)
    except OSError as error:
        os.kill(worker_pid, signal.SIGKILL)
        raise HeadraceError(f"the supervisor cannot be started: {error}") from error


def _log_path(path: str) -> Path:
    """Of a background spoke, unless its user names another."""
    return control.socket_path(runtime_dir(), path).with_suffix(".log")


def _own_log(path: str) -> str:
    """That one, if it is our stderr; else nothing."""
    log = _log_path(path)
    try:
        return str(log) if os.path.samestat(os.fstat(2), log.stat()) else ""
    except OSError:
        return ""


def _is_mount_of(stored: Sequence[int], path: str) -> bool:
    """What systemd kept is the mount that stands at ``path``; else it is let go, which ends it."""
    with contextlib.suppress(LedgerUnusable, OSError):
        identity = Ledger.adopt(stored[1]).identity()
        mounts = mountpoints.mounts_at(path)
        if identity.get("mountpoint") == path and mounts and mounts[-1].minor == identity.get("minor"):
            return True
    for fd in stored:
        os.close(fd)
    return False


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _report(ready_fd: int, line: dict[str, object]) -> None:
    with contextlib.suppress(OSError), os.fdopen(ready_fd, "w") as pipe:
        pipe.write(json.dumps(line) + "\n")


def _check_apart(mountpoint: str, cache_dir: Path) -> None:
    """The mount would hide a cache below it, and the spoke would wait for itself. Raises CacheDirectoryError."""
    cache = os.path.realpath(cache_dir)
    if os.path.commonpath([mountpoint, cache]) in (mountpoint, cache):
        raise CacheDirectoryError(
            f"cache directory {cache} and mountpoint {mountpoint} lie in each other; put one elsewhere"
        )


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def mount_in_background(
    mountpoint: Path, loaded: Loaded[SpokeSettings], log_file: Path | None, say: Callable[[str], object]
) -> None:
    """Start this same command again, detached; return once its mount answers. Raises with its reason otherwise."""
    path = mountpoints.prepare(mountpoint, runtime_dir())
    _check_apart(path, loaded.settings.cache_dir)
    sweep(made_runtime_dir(), time.time())
    log_path = log_file or _log_path(path)
    if log_file is None:
        bound_log(log_path)  # one of the user's own choice is the user's to rotate
    command, environment = module_command("spoke.cli")
    command += [argument for argument in sys.argv[1:] if argument != "--background"]
    try:
        opened = log_path.open("ab")
    except OSError as error:
        raise UsageError(f"log file {log_path}: {error.strerror}; give one that can be written (--log-file)") from error
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd, "r") as reports, opened as log:
        # It has no terminal that could hang up, and a stray SIGHUP must not take the mount from under a job.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # As timeout(1) sends: a mount that nobody was told of must not come about later.
        signal.signal(signal.SIGTERM, _leave)
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[write_fd],
            env={**environment, READY_FD_VARIABLE: str(write_fd)},
        )
        os.close(write_fd)
        try:
            line = reports.readline()
        except (KeyboardInterrupt, SystemExit):
            child.send_signal(signal.SIGTERM)
            raise
    if not line:
        code = child.wait()
        raise StartFailed(f"the spoke ended with exit code {code} before its mount answered; its log is {log_path}")
    report = json.loads(line)
    if "error" in report:
        child.wait()
        raise (StartRefused if report["exit"] == EXIT_USAGE else StartFailed)(report["error"])
    say(f"{report['ready']}; log: {log_path}")


def unmount(mountpoint: Path, *, force: bool, say: Callable[[str], object]) -> None:
    """Stop the spoke and take its mount away. Without ``force`` a mount in use is left alone, and its users are named."""
    path = mountpoints.locate(mountpoint)
    mounts = mountpoints.mounts_at(path)
    if not mounts or not mounts[-1].is_ours:
        raise UsageError(f"{path} is not a mount of Headrace{_mounted_elsewhere(path)}")
    minor = mounts[-1].minor
    elsewhere = mountpoints.served_elsewhere(path, runtime_dir())
    if elsewhere is not None and any(entry.minor == minor for entry in mountpoints.mounts_at(elsewhere.mountpoint)):
        there = elsewhere.mountpoint
        raise UsageError(
            f"{path} shows the mount of {there}: headrace-spoke umount {there} ends that, umount {path} takes this view of it away"
        )
    if not force:
        try:
            # A process that faults on a stuck mapping can hold the lock which looking at its mappings needs.
            holders = mountpoints.bounded(lambda: list(_holders(path)), limits.HOLDERS_TIMEOUT_S)
        except TimeoutError:
            raise HeadraceError(
                f"{path}: who uses it cannot be found out, a process hangs; --force does not ask"
            ) from None
        if holders:
            raise HeadraceError(f"{path} is in use by {', '.join(holders)}; end them, or give --force")
    owner = elsewhere or mountpoints.read_owner(runtime_dir(), path)
    asked = elsewhere.mountpoint if elsewhere is not None else path  # a mount that was moved is asked by its first path
    try:
        control.ask_once(
            control.socket_path(runtime_dir(), asked), {"command": "stop"}, timeout_s=limits.STOP_ANSWER_TIMEOUT_S
        )
    except HeadraceError as error:
        if isinstance(error, control.NotMounted) and owner is not None and _stop_supervisor(asked):
            _wait_for_end(owner.pid)
        elif not force and owner is not None and owner.is_alive():
            raise HeadraceError(
                f"the spoke of {path} (process {owner.pid}) does not answer: {error}; --force ends it"
            ) from None
    else:
        if owner is not None:
            _wait_for_end(owner.pid)
    if any(entry.minor == minor for entry in mountpoints.mounts_at(path)) and not mountpoints.detach(
        path, minor, force=True
    ):
        raise HeadraceError(f"{path} could not be unmounted; see the log, or as root: umount -l {path}")
    if force and owner is not None and owner.is_alive():
        _kill_with_workers(owner.pid)
    say(f"unmounted {path}")


def _mounted_elsewhere(path: str) -> str:
    """What can be done about a mount that only another mount namespace shows, as that of a container does."""
    owner = mountpoints.read_owner(runtime_dir(), path)
    if owner is None or not owner.is_alive():
        return ""
    return (
        f" here: process {owner.pid} serves it in another mount namespace; "
        f"nsenter -t {owner.pid} -m headrace-spoke umount {path}, or end that process with SIGTERM"
    )


def _kill_with_workers(pid: int) -> None:
    """A worker that is stopped or stuck would not notice that its supervisor is gone, and keep the cache."""
    workers: list[int] = []
    with contextlib.suppress(OSError):
        workers = [int(worker) for worker in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    for one in (pid, *workers):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def _stop_supervisor(path: str) -> bool:
    """Between two workers: nobody else answers then."""
    try:
        control.ask_once(
            control.supervisor_socket_path(runtime_dir(), path),
            {"command": "stop"},
            timeout_s=limits.STOP_ANSWER_TIMEOUT_S,
        )
    except HeadraceError:
        return False
    return True


def _wait_for_end(pid: int) -> None:
    """Until the process has ended, for a bounded time."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    try:
        select.select([process], [], [], limits.STOP_TIMEOUT_S)
    finally:
        os.close(process)


def _holders(path: str) -> Iterator[str]:
    """Processes with a working directory, open file or mapping below ``path``, as far as this user may look.

    Reads links and maps in /proc only: the mount is not touched.
    """
    below = path + os.sep
    for entry in os.listdir("/proc"):
        if (
            entry.isdigit()
            and int(entry) != os.getpid()
            and any(used == path or used.startswith(below) for used in _paths_used(entry))
        ):
            with contextlib.suppress(OSError):
                yield f"{entry} ({Path('/proc', entry, 'comm').read_text('utf-8', 'backslashreplace').strip()})"


def _paths_used(pid: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield os.readlink(f"/proc/{pid}/cwd")
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{fd}")
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) == 6:
                yield fields[5]
