"""Facts of a mount: from mountinfo, its owner's record, its spoke's control socket, and one statfs that may hang.

The mounted directory is touched by that statfs alone, in a thread that is given up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import HeadraceError
from common.limits import DOCTOR_ASK_TIMEOUT_S
from spoke import control
from spoke.doctor.facts import MountFacts
from spoke.doctor.probe_host import read_int
from spoke.fuse.mountpoint import Answer, bounded, mounts_at, read_owner

_BDI = Path("sys/class/bdi")
_ASKED_FOR = (
    *("--hub", "--dataset", "--cache-dir", "--config", "--identity"),
    *("--tls-cert", "--tls-key", "--tls-ca", "--tls-name", "--token-file"),
)
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "hub": ("address", "connected", "error", "rtt_s", "rate_bytes_per_s"),
    "names": ("entries", "suspicious"),
    "cache": ("directory", "used_bytes", "capacity_bytes", "files", "corrupt_blocks"),
    "data_path": ("passthrough", "reason", "passthrough_opens", "open_files"),
    "settings": ("links", "passthrough", "cache_free_floor"),
}
"""What the checks look at in a status, beside ``pid``, ``dataset`` and ``notes``."""


def owner_pid(runtime_dir: Path, path: str) -> int | None:
    """The process that serves the mount, if its record says so and it runs."""
    owner = read_owner(runtime_dir, path)
    return owner.pid if owner is not None and owner.is_alive() else None


def read_ahead_kb(minor: int, root: Path = Path("/")) -> int | None:
    """Of the mount's backing device: FUSE has no block device, so its major number is 0."""
    return read_int(root / _BDI / f"0:{minor}" / "read_ahead_kb")


def ask_status(runtime_dir: Path, path: str) -> tuple[Mapping[str, Any] | None, str]:
    """The spoke's status, or None and why there is none."""
    socket_path = control.socket_path(runtime_dir, path)
    try:
        status = bounded(
            lambda: control.ask_once(socket_path, {"command": "status"}, timeout_s=DOCTOR_ASK_TIMEOUT_S),
            DOCTOR_ASK_TIMEOUT_S,
        )
    except TimeoutError:
        return None, f"its control socket did not answer within {DOCTOR_ASK_TIMEOUT_S:g} s"
    except (HeadraceError, OSError, ValueError) as error:
        return None, str(error)
    if not is_understood(status):
        return None, "its status is that of another version of Headrace; mount again after an upgrade"
    return status, ""


def is_understood(status: Any) -> bool:
    """It has all that the checks look at: the spoke may be older or newer than this command."""
    return (
        isinstance(status, dict)
        and {"pid", "dataset", "notes"} <= status.keys()
        and all(
            isinstance(status.get(part), dict) and status[part].keys() >= set(names) for part, names in _NEEDED.items()
        )
    )


def mount_facts(
    path: str, runtime_dir: Path, answer: Answer | None, status: Mapping[str, Any] | None, said: str
) -> MountFacts:
    """Put together. ``answer``: to statfs; ``said``: why there is no status."""
    mounts = mounts_at(path)
    ours = bool(mounts) and mounts[-1].is_ours
    return MountFacts(
        path=path,
        is_mounted=ours,
        answer=answer,
        owner_pid=status["pid"] if status is not None else owner_pid(runtime_dir, path),
        control_error=said,
        read_ahead_kb=read_ahead_kb(mounts[-1].minor) if ours else None,
        status=status,
    )


def started_with(pid: int, root: Path = Path("/")) -> dict[str, str]:
    """``--hub``, ``--config`` and the like as a spoke that gives no status was started with, as far as its command line says."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        words = (root / f"proc/{pid}/cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
        for word, following in zip(words, [*words[1:], ""], strict=True):
            name, equals, value = word.partition("=")
            if name in _ASKED_FOR:
                found[name] = value if equals else following
    return {name: value for name, value in found.items() if value}
