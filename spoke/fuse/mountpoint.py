"""The mountpoint: whether it can be used, what is mounted on it already, and how that is taken away.

A mount whose daemon is gone can hang whoever touches it, so nothing here touches one in the caller's thread: what is
mounted is read from /proc/self/mountinfo, and a call that may hang runs in a daemon thread that is given up after a
time. Who owns a mount is written beside it, in the runtime directory. Stale or live is decided so:

- its recorded owner (pid, start time, boot, pid namespace) runs: live, and it is not touched;
- else it is asked for statfs, which the kernel never answers from a cache. Not connected: stale. An answer: live (another
  worker serves it). No answer: stale if the owner is known to be dead, since then somebody merely holds its descriptor;
  without a record it is refused, because only a person can tell a slow daemon from a dead one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from common.errors import MountpointError
from common.limits import FUSE_ANSWER_TIMEOUT_S, FUSE_UNMOUNT_TIMEOUT_S
from common.log import get_logger
from common.remains import process_letter

log = get_logger(__name__)

FILE_SYSTEM_TYPE = "fuse.headrace"
_CONNECTIONS = Path("/sys/fs/fuse/connections")
_MNT_FORCE, _MNT_DETACH, _UMOUNT_NOFOLLOW = 1, 2, 8
_MAX_STACKED = 16
_MAX_LINKS = 40
_OCTAL = re.compile(rb"\\([0-7]{3})")

T = TypeVar("T")


# --- calls that may hang ---------------------------------------------------------------------------------


def bounded(call: Callable[[], T], timeout_s: float) -> T:
    """``call()`` in a daemon thread; raises TimeoutError after ``timeout_s`` and leaves the thread to itself."""
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 handed to the caller
            errors.append(error)
        done.set()

    threading.Thread(target=run, name="mountpoint-call", daemon=True).start()
    if not done.wait(timeout_s):
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    if errors:
        raise errors[0]
    return results[0]


async def in_thread(call: Callable[[], T]) -> T:
    """``call()`` in a daemon thread of its own: one that hangs must not hold the loop's executor at exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 handed to the caller
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, result, failure)

    threading.Thread(target=run, name="mountpoint-call", daemon=True).start()
    return await future


# --- what is mounted -------------------------------------------------------------------------------------


class MountEntry(NamedTuple):
    """One line of mountinfo. ``minor``: of the mount's device number; for FUSE also the connection's id."""

    path: str
    minor: int
    fs_type: str
    source: str

    @property
    def is_ours(self) -> bool:
        return self.fs_type == FILE_SYSTEM_TYPE


def parse_mountinfo(text: bytes) -> list[MountEntry]:
    """Mounts in the order they were made: of those at one path the last is on top."""
    entries = []
    for line in text.splitlines():
        head, _, tail = line.partition(b" - ")
        fields, tail_fields = head.split(b" "), tail.split(b" ")
        if len(fields) < 6 or len(tail_fields) < 2:
            continue
        entries.append(
            MountEntry(
                _unescape(fields[4]),
                int(fields[2].rpartition(b":")[2]),
                _unescape(tail_fields[0]),
                _unescape(tail_fields[1]),
            )
        )
    return entries


def _unescape(field: bytes) -> str:
    return os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), field))


def mount_above(path: str) -> tuple[str, str] | None:
    """(mountpoint of ours, path below it) of a path, links followed only where it needs them and for a bounded time; or None."""
    ours = {entry.path for entry in parse_mountinfo(Path("/proc/self/mountinfo").read_bytes()) if entry.is_ours}
    ways: tuple[Callable[[str], str], ...] = (os.path.abspath, os.path.realpath)
    for whole_of in ways:
        try:
            whole = bounded(partial(whole_of, path), FUSE_ANSWER_TIMEOUT_S)
        except (TimeoutError, OSError):
            return None
        here = whole
        while here not in ours and here != "/":
            here = os.path.dirname(here)
        if here in ours:
            return here, os.path.relpath(whole, here)
    return None


def mounts_at(path: str) -> list[MountEntry]:
    """What is mounted exactly at a resolved path, the topmost last. Touches no file system but /proc."""
    return [entry for entry in parse_mountinfo(Path("/proc/self/mountinfo").read_bytes()) if entry.path == path]


# --- owners ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that serves a mount, or keeps it for those that do, told apart from a later one with its pid. ``cache_dir``: what it
    serves from, resolved."""

    pid: int
    start_ticks: int
    boot_id: str
    pid_namespace: str
    minor: int
    mountpoint: str
    cache_dir: str = ""

    @classmethod
    def this_process(cls, mountpoint: str, minor: int) -> Owner:
        return cls.of(os.getpid(), mountpoint, minor)

    @classmethod
    def of(cls, pid: int, mountpoint: str, minor: int, cache_dir: str = "") -> Owner:
        return cls(pid, _start_ticks(pid) or 0, _boot_id(), _pid_namespace(), minor, mountpoint, cache_dir)

    def is_alive(self) -> bool | None:
        """None: cannot be told from here (another pid namespace)."""
        if self.boot_id != _boot_id():
            return False
        if self.pid_namespace != _pid_namespace():
            return None
        return _start_ticks(self.pid) == self.start_ticks


def _start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it does not run (a zombie does not)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


_STATES = {"T": "stopped", "t": "stopped by a debugger", "D": "waiting for a disk", "Z": "dead", "X": "dead"}


def process_state(pid: int) -> str:
    """Of a process, in a word or two."""
    letter = process_letter(pid)
    return _STATES.get(letter, "running") if letter else "gone"


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def record_path(runtime_dir: Path, mountpoint: str) -> Path:
    return runtime_dir / f"mount-{hashlib.sha256(os.fsencode(mountpoint)).hexdigest()[:16]}.json"


def write_owner(runtime_dir: Path, owner: Owner) -> None:
    """Record who serves a mount. Raises OSError."""
    runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = record_path(runtime_dir, owner.mountpoint)
    draft = path.with_suffix(f".{owner.pid}.new")
    draft.write_text(json.dumps(asdict(owner)))
    draft.replace(path)


def read_owner(runtime_dir: Path, mountpoint: str) -> Owner | None:
    """The recorded owner; None if there is no (readable) record."""
    try:
        return owner_from(json.loads(record_path(runtime_dir, mountpoint).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def standing_on(cache_dir: Path, runtime_dir: Path) -> str | None:
    """The mountpoint of a mount that is served from ``cache_dir`` now, or by the next worker; blocking, for some seconds at most."""
    wanted = os.path.realpath(cache_dir)
    for owner in _owners(runtime_dir):
        mounts = mounts_at(owner.mountpoint)
        if (
            owner.cache_dir == wanted
            and mounts
            and mounts[-1].minor == owner.minor
            and ask_mount(owner.mountpoint) is not Answer.DISCONNECTED
        ):
            return owner.mountpoint
    return None


def served_elsewhere(path: str, runtime_dir: Path) -> Owner | None:
    """The owner of the mount that ``path`` shows, if that was made at another path: bound from there, or moved."""
    mounts = mounts_at(path)
    if not mounts or not mounts[-1].is_ours:
        return None
    for owner in _owners(runtime_dir):
        if owner.minor == mounts[-1].minor and owner.mountpoint != path and owner.is_alive() is not False:
            return owner
    return None


def _owners(runtime_dir: Path) -> Iterator[Owner]:
    for record in runtime_dir.glob("mount-*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            yield owner_from(json.loads(record.read_text()))


def owner_from(record: object) -> Owner:
    """What a record says. Raises TypeError when it is none."""
    if not isinstance(record, dict):
        raise TypeError("a record is an object")
    return Owner(**record)


def remove_owner(runtime_dir: Path, owner: Owner) -> None:
    """Take the record away, if it still is this owner's."""
    if read_owner(runtime_dir, owner.mountpoint) == owner:
        record_path(runtime_dir, owner.mountpoint).unlink(missing_ok=True)


# --- stale or live ---------------------------------------------------------------------------------------


class Answer(Enum):
    """What a mount said when asked for statfs."""

    SERVED = "served"
    DISCONNECTED = "disconnected"
    SILENT = "silent"


class Verdict(Enum):
    LIVE = "live"
    STALE = "stale"
    UNKNOWN = "unknown"


def judge(owner_alive: bool | None, ask: Callable[[], Answer]) -> Verdict:
    """The rule of the module's docstring. ``owner_alive`` None: no record, or one that says nothing here."""
    if owner_alive:
        return Verdict.LIVE
    answer = ask()
    if answer is Answer.DISCONNECTED:
        return Verdict.STALE
    if answer is Answer.SERVED:
        return Verdict.LIVE
    return Verdict.STALE if owner_alive is False else Verdict.UNKNOWN


def ask_mount(path: str) -> Answer:
    """Ask for statfs, for FUSE_ANSWER_TIMEOUT_S at most."""
    try:
        bounded(lambda: os.statvfs(path), FUSE_ANSWER_TIMEOUT_S)
    except TimeoutError:
        return Answer.SILENT
    except OSError as error:
        return Answer.SERVED if error.errno == errno.EACCES else Answer.DISCONNECTED
    return Answer.SERVED


# --- before mounting -------------------------------------------------------------------------------------


def prepare(mountpoint: Path, runtime_dir: Path) -> str:
    """The resolved path of an empty directory that can be mounted on, stale mounts of ours taken away.

    Blocking, for some seconds at most. Raises MountpointError.
    """
    try:
        path = bounded(lambda: _resolve(mountpoint), FUSE_ANSWER_TIMEOUT_S)
        for _ in range(_MAX_STACKED):
            mounts = mounts_at(path)
            if not mounts or not mounts[-1].is_ours:
                break
            _recover(path, mounts[-1], runtime_dir)
        bounded(lambda: _check_directory(path), FUSE_ANSWER_TIMEOUT_S)
    except TimeoutError as error:
        raise MountpointError(
            f"{mountpoint} does not answer: is it, or a directory above it, a mount that hangs?"
        ) from error
    except OSError as error:
        raise MountpointError(f"{mountpoint}: {error.strerror}") from error
    return path


def locate(mountpoint: Path) -> str:
    """The resolved path of a mountpoint, without touching what is mounted there. Raises MountpointError."""
    try:
        return bounded(lambda: _resolve(mountpoint), FUSE_ANSWER_TIMEOUT_S)
    except (TimeoutError, OSError) as error:
        raise MountpointError(f"{mountpoint}: {error}") from error


def _resolve(mountpoint: Path) -> str:
    path = os.path.abspath(mountpoint)
    for _ in range(_MAX_LINKS):
        parent, name = os.path.split(path)
        path = os.path.join(os.path.realpath(parent), name) if name else path
        if mounts_at(path) or not os.path.islink(path):
            return path
        path = os.path.abspath(os.path.join(os.path.dirname(path), os.readlink(path)))
    raise MountpointError(f"{mountpoint}: too many symbolic links")


def _recover(path: str, mount: MountEntry, runtime_dir: Path) -> None:
    owner = read_owner(runtime_dir, path)
    if owner is not None and owner.minor != mount.minor:
        owner = None  # of an earlier mount here
    verdict = judge(None if owner is None else owner.is_alive(), lambda: ask_mount(path))
    if verdict is Verdict.LIVE:
        by = f" by process {owner.pid}" if owner is not None else ""
        raise MountpointError(
            f"{path} is already mounted ({mount.source}){by}; unmount it with: headrace-spoke umount {path}"
        )
    if verdict is Verdict.UNKNOWN:
        raise MountpointError(
            f"{path} is already mounted ({mount.source}) and does not answer; if its daemon is gone: umount -l {path}"
        )
    log.warning("taking away a stale mount", mountpoint=path, source=mount.source)
    detach(path, mount.minor, force=True)
    record_path(runtime_dir, path).unlink(missing_ok=True)


def _check_directory(path: str) -> None:
    try:
        status = os.stat(path)
    except FileNotFoundError as error:
        raise MountpointError(f"{path} does not exist; create it: mkdir -p {path}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise MountpointError(f"{path} is not a directory")
    with os.scandir(path) as found:
        first = next(found, None)
    if first is not None:
        raise MountpointError(f"{path} is not empty (it holds {first.name!r}); mount on an empty directory")


# --- taking a mount away ---------------------------------------------------------------------------------


def detach(path: str, minor: int, force: bool = False) -> bool:
    """Take our mount of connection ``minor`` off ``path``; open files keep it alive until they are closed.

    ``force`` also ends the connection: whoever waits for an answer gets an error. True if the mount is gone. Blocking, bounded.
    """
    mounts = mounts_at(path)
    if not mounts or mounts[-1].minor != minor or not mounts[-1].is_ours:
        # Gone already, or something else is on top of it, which is not ours to take away.
        return all(entry.minor != minor for entry in mounts)
    if force:
        abort(minor)
    flags = _MNT_DETACH | _UMOUNT_NOFOLLOW | (_MNT_FORCE if force else 0)
    try:
        bounded(lambda: _umount(path, flags), FUSE_UNMOUNT_TIMEOUT_S)
    except (OSError, TimeoutError, subprocess.SubprocessError) as error:
        log.warning("could not unmount", mountpoint=path, error=str(error))
    return all(entry.minor != minor for entry in mounts_at(path))


def _umount(path: str, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(path), flags) == 0:
        return
    code = ctypes.get_errno()
    if code == errno.EINVAL:  # no longer a mountpoint
        return
    helper = fusermount()
    if code != errno.EPERM or helper is None:
        raise OSError(code, os.strerror(code), path)
    subprocess.run(
        [helper, "-u", "-z", "-q", "--", path],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=FUSE_UNMOUNT_TIMEOUT_S,
    )


def fusermount() -> str | None:
    """The set-uid helper that mounts for those who may not."""
    return shutil.which("fusermount3") or shutil.which("fusermount")


def abort(minor: int) -> bool:
    """End a connection: every request in it fails. False where the control file system is not mounted or not ours to use."""
    try:
        (_CONNECTIONS / str(minor) / "abort").write_bytes(b"1")
    except OSError:
        return False
    return True
