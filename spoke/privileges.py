"""What a spoke's worker started as root gives up before it begins: all of root's rights but those that its work needs.

Its supervisor gives up none: it starts the next worker, whose settings may name a path of another user.

It keeps CAP_SYS_ADMIN, to mount, to unmount and to hand whole files to the kernel (passthrough), and the right to pass file modes
only if a path it was given is another user's. A spoke of another user has no rights to give up; it mounts by the set-uid
fusermount3, which a process that may gain nothing any more could not run.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from common.log import get_logger

log = get_logger(__name__)

# linux/capability.h, linux/prctl.h
_DAC_OVERRIDE, _DAC_READ_SEARCH, _FOWNER, _SYS_ADMIN = 1, 2, 3, 21
_LAST_CAPABILITY = 63
_VERSION_3 = 0x20080522
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def drop_unneeded(paths: Iterable[Path]) -> None:
    """Call it before the first thread: rights are a thread's, and new threads have their maker's. ``paths``: what must be reached.

    What the kernel refuses is said in the log, and kept.
    """
    if os.geteuid() != 0:
        return
    kept = {_SYS_ADMIN}
    foreign = [path for path in paths if _is_anothers(path)]
    if foreign:
        kept |= {_DAC_OVERRIDE, _DAC_READ_SEARCH, _FOWNER}
        log.info("keeping root's right to pass file modes, for a path of another user", path=str(foreign[0]))
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(_LAST_CAPABILITY + 1):
        if capability not in kept:
            libc.prctl(
                _PR_CAPBSET_DROP, capability, 0, 0, 0
            )  # EINVAL past the kernel's last; EPERM: it has none to drop
    permitted = _permitted() & sum(1 << capability for capability in kept)
    sets = (_Set * 2)()
    for index in range(2):
        sets[index].effective = sets[index].permitted = permitted >> (32 * index) & 0xFFFFFFFF
    header = _Header(_VERSION_3, 0)
    if libc.capset(ctypes.byref(header), sets):
        log.warning("root's rights could not be given up", error=os.strerror(ctypes.get_errno()))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        log.warning("no_new_privs could not be set", error=os.strerror(ctypes.get_errno()))


def _permitted() -> int:
    with open("/proc/thread-self/status") as lines:
        return next((int(line.split()[1], 16) for line in lines if line.startswith("CapPrm:")), 0)


def _is_anothers(path: Path) -> bool:
    """Whether reaching it, or what will be made there, takes more than being its owner."""
    ours = os.geteuid()
    there = path.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        return there.stat().st_uid != ours or any(
            facts.st_uid != ours and not facts.st_mode & 0o001 for facts in (parent.stat() for parent in there.parents)
        )
    except OSError:
        return True
