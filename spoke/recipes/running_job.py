"""What a running job tells of itself: its first environment and its command line, from /proc. Nothing is asked of the job.

Both are as they were when the process started; what a script sets later is not seen. Another user's job shows neither, except to root.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from common import limits
from common.errors import UsageError

_FROM_ENVIRONMENT = {
    "WORLD_SIZE": "world-size",
    "LOCAL_WORLD_SIZE": "local-world-size",
    "WDS_SEED": "wds-seed",
    "PL_GLOBAL_SEED": "seed",
    "LITDATA_ITEM_SHUFFLE_WINDOW": "item-window",
    "LITDATA_POSIX_SHUFFLE_WINDOW": "chunk-window",
    "SLURM_NTASKS": "world-size",
}
"""Environment variables by the option they answer; of two for one option the first counts."""


def job_options(pid: int, *, proc: Path = Path("/proc")) -> Mapping[str, str | list[str]]:
    """Options as a job's command line and environment tell them, by the names they have there. Raises UsageError."""
    environment = dict(_pairs(_read(proc / str(pid) / "environ", pid)))
    found: dict[str, str | list[str]] = {}
    for variable, option in _FROM_ENVIRONMENT.items():
        if variable in environment:
            found.setdefault(option, environment[variable])
    arguments = [os.fsdecode(word) for word in _read(proc / str(pid) / "cmdline", pid).split(b"\0")[:-1]]
    found.update(parse_arguments(arguments))
    return found


def parse_arguments(arguments: Sequence[str]) -> Mapping[str, str | list[str]]:
    """``--name value``, ``--name=value``, ``--name a b c``, ``--name``: words up to the next ``--``. The last of a name counts."""
    found: dict[str, str | list[str]] = {}
    words: list[str] | None = None
    for argument in arguments:
        if argument == "--":
            words = None
        elif argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            words = [value] if equals else []
            found[name.replace("_", "-")] = words
        elif words is not None:
            words.append(argument)
    return found


def _read(path: Path, pid: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limits.RECIPE_PROC_MAX_BYTES + 1)
    except (FileNotFoundError, ProcessLookupError):
        raise UsageError(f"--job {pid}: there is no such process here (a container may have pids of its own)") from None
    except OSError as error:
        raise UsageError(
            f"--job {pid}: {path.name} cannot be read: {error.strerror}; run this as that user or as root"
        ) from None
    if len(data) > limits.RECIPE_PROC_MAX_BYTES:
        raise UsageError(f"--job {pid}: {path.name} is longer than {limits.RECIPE_PROC_MAX_BYTES} bytes")
    return data


def _pairs(data: bytes) -> list[tuple[str, str]]:
    pairs = (os.fsdecode(item).partition("=") for item in data.split(b"\0"))
    return [(name, value) for name, equals, value in pairs if equals]
