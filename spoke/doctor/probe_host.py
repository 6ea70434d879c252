"""Facts of this host from /proc, /sys and a few harmless calls. ``root`` stands for ``/``, so that tests can bring their own.

What cannot be read is None: a container may hide any of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import os
import re
import resource
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from spoke.doctor.facts import FuseFacts, HostFacts, TcpFacts
from spoke.fuse.mountpoint import fusermount
from spoke.fuse.passthrough import has_admin_capability

_ROOT = Path("/")
_TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", 13)
_UNLIMITED_BYTES = 1 << 60
"""cgroup v1 writes "no limit" as nearly 2^63."""

_CLOCK_LOOKS = 1000


def read_text(path: Path) -> str | None:
    """A small file's text, stripped; None when it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    with contextlib.suppress(TypeError, ValueError):
        return int(read_text(path) or "")
    return None


def _read_triple(path: Path) -> tuple[int, int, int] | None:
    with contextlib.suppress(ValueError):
        least, usual, most = map(int, (read_text(path) or "").split())
        return least, usual, most
    return None


def tcp_facts(root: Path = _ROOT) -> TcpFacts:
    """TCP's sysctl values, and whether a socket may have BBR."""
    ipv4 = root / "proc/sys/net/ipv4"
    return TcpFacts(
        rmem_bytes=_read_triple(ipv4 / "tcp_rmem"),
        wmem_bytes=_read_triple(ipv4 / "tcp_wmem"),
        mem_pages=_read_triple(ipv4 / "tcp_mem"),
        moderate_rcvbuf=read_int(ipv4 / "tcp_moderate_rcvbuf"),
        window_scaling=read_int(ipv4 / "tcp_window_scaling"),
        sack=read_int(ipv4 / "tcp_sack"),
        slow_start_after_idle=read_int(ipv4 / "tcp_slow_start_after_idle"),
        mtu_probing=read_int(ipv4 / "tcp_mtu_probing"),
        congestion_control=read_text(ipv4 / "tcp_congestion_control"),
        available=tuple((read_text(ipv4 / "tcp_available_congestion_control") or "").split()),
        bbr_refused=bbr_refused(),
        default_qdisc=read_text(root / "proc/sys/net/core/default_qdisc"),
        page_bytes=os.sysconf("SC_PAGE_SIZE"),
    )


def bbr_refused() -> str | None:
    """Why a socket of this user may not use BBR; empty when it may. Sends nothing."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, b"bbr")
    except FileNotFoundError:
        return "the module tcp_bbr is not loaded"
    except PermissionError:
        return "only a process with CAP_NET_ADMIN may choose it (tcp_allowed_congestion_control)"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def fuse_facts(root: Path = _ROOT) -> FuseFacts:
    """Whether and how this user may mount."""
    helper = fusermount()
    helper_is_setuid = False
    if helper is not None:
        with contextlib.suppress(OSError):
            found = os.stat(helper)
            helper_is_setuid = bool(found.st_mode & stat.S_ISUID) and found.st_uid == 0
    return FuseFacts(
        device_error=_device_error(root / "dev/fuse"),
        helper=helper,
        helper_is_setuid=helper_is_setuid,
        is_root=os.geteuid() == 0,
        has_admin=has_admin_capability(),
        in_initial_user_namespace=_in_initial_user_namespace(root),
        max_pages_limit=read_int(root / "proc/sys/fs/fuse/max_pages_limit"),
        passthrough_built_in=_passthrough_built_in(root),
    )


def _device_error(device: Path) -> str:
    try:
        if not stat.S_ISCHR(device.stat().st_mode):
            return f"{device} is not a device"
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return f"{device} does not exist: the module fuse is not loaded, or this container was not given it"
    except OSError as error:
        return f"{device} cannot be opened: {error.strerror}"
    return ""


def _in_initial_user_namespace(root: Path) -> bool | None:
    """The initial namespace maps all 2^32 - 1 ids onto themselves (user_namespaces(7))."""
    text = read_text(root / "proc/self/uid_map")
    return None if text is None else text.split() == ["0", "0", "4294967295"]


def _passthrough_built_in(root: Path) -> bool | None:
    release = read_text(root / "proc/sys/kernel/osrelease") or ""
    text: str | None = None
    with contextlib.suppress(OSError, EOFError, gzip.BadGzipFile):
        text = gzip.decompress((root / "proc/config.gz").read_bytes()).decode("ascii", "replace")
    text = text or read_text(root / f"boot/config-{release}")
    if not text or "CONFIG_FUSE_FS=" not in text:
        return None
    return "CONFIG_FUSE_PASSTHROUGH=y" in text


def host_facts(now_s: Callable[[], float], pid: int | None, root: Path = _ROOT) -> HostFacts:
    """Kernel, limits and clock. ``pid``: of the spoke, whose limits count if it runs; ``now_s``: the monotonic clock."""
    process = str(pid) if pid is not None and (root / f"proc/{pid}").exists() else "self"
    release = read_text(root / "proc/sys/kernel/osrelease") or ""
    return HostFacts(
        kernel=kernel_version(release),
        kernel_release=release,
        open_files_max=_open_files_max(root / f"proc/{process}/limits"),
        memory_limit_bytes=_cgroup_limit_bytes(root, root / f"proc/{process}/cgroup"),
        memory_available_bytes=_available_bytes(root),
        in_kubernetes="KUBERNETES_SERVICE_HOST" in os.environ,
        monotonic_went_back=_goes_back(now_s),
        clocksource=read_text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource"),
        clock_synchronised=_clock_synchronised(),
    )


def kernel_version(release: str) -> tuple[int, int] | None:
    """``6.18.44-aws`` → (6, 18)."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else None


def _open_files_max(limits_file: Path) -> int | None:
    for line in (read_text(limits_file) or "").splitlines():
        if line.startswith("Max open files"):
            soft = line.split()[3]
            return int(soft) if soft.isdigit() else None
    soft_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft_limit == resource.RLIM_INFINITY else soft_limit


def _available_bytes(root: Path) -> int | None:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", read_text(root / "proc/meminfo") or "", re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _cgroup_limit_bytes(root: Path, cgroup_file: Path) -> int | None:
    """The lowest limit from the process's cgroup up to the root, version 2 or 1; None: there is none, or it is not to be seen."""
    found: list[int] = []
    for line in (read_text(cgroup_file) or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        folder = base / path.lstrip("/")
        while True:
            limit = read_int(folder / name)
            if limit is not None and limit < _UNLIMITED_BYTES:
                found.append(limit)
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent
    return min(found, default=None)


def _goes_back(now_s: Callable[[], float]) -> bool:
    before_s = now_s()
    for _ in range(_CLOCK_LOOKS):
        later_s = now_s()
        if later_s < before_s:
            return True
        before_s = later_s
    return False


class _Timex(ctypes.Structure):
    """The head of struct timex (adjtimex(2)); the rest is room."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    ]


_STA_UNSYNC = 0x40


def _clock_synchronised() -> bool | None:
    """What the kernel was told by whoever disciplines its clock."""
    state = _Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "adjtimex") or libc.adjtimex(ctypes.byref(state)) < 0:
        return None
    return not state.status & _STA_UNSYNC
