"""Commands that ask the running spoke of a mountpoint: where it listens, and why nobody does if nobody does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from common.errors import HeadraceError
from common.limits import STOP_ANSWER_TIMEOUT_S, UPGRADE_ANSWER_S
from spoke import control
from spoke.completion import complete_mountpoint
from spoke.fuse.mountpoint import Answer, ask_mount, locate, mounts_at, process_state, read_owner, served_elsewhere
from spoke.places import runtime_dir


def untouched_path(typed: str) -> Path:
    """A path as it was typed. Typer's own calls stat() on it, which hangs for as long as the spoke of a mountpoint does."""
    return Path(typed)


def mountpoint_argument(told: str) -> Any:
    """Typer's, of a mountpoint: not touched, completed from the mounts there are. ``told``: its help."""
    return typer.Argument(help=told, parser=untouched_path, show_default=False, autocompletion=complete_mountpoint)


Mountpoint = Annotated[Path, mountpoint_argument("Where the dataset is mounted.")]
"""The argument of every command."""


def ask(mountpoint: Path, command: str, request: Mapping[str, Any] | None = None, *, timeout_s: float = 5.0) -> Any:
    """The result of one command. Raises what the spoke answered, or NotMounted with the reason."""
    path = locate(mountpoint)
    with explained(path):
        return control.ask_once(
            control.socket_path(runtime_dir(), path), {"command": command, **(request or {})}, timeout_s=timeout_s
        )


def ask_supervisor(mountpoint: Path, command: str) -> Any:
    """The same of the process that keeps the mount, which answers also while no worker serves it."""
    path = locate(mountpoint)
    with explained(path):
        return control.ask_once(
            control.supervisor_socket_path(runtime_dir(), path), {"command": command}, timeout_s=UPGRADE_ANSWER_S
        )


def _supervisor_state(path: str) -> Any:
    """None: nobody answers."""
    try:
        return control.ask_once(
            control.supervisor_socket_path(runtime_dir(), path), {"command": "state"}, timeout_s=STOP_ANSWER_TIMEOUT_S
        )
    except HeadraceError:
        return None


def _between_workers(path: str) -> str | None:
    """What the supervisor says when no worker answers; None: there is none either."""
    state = _supervisor_state(path)
    if state is None:
        return None
    return (
        f"no worker serves {path} just now: the last one ended ({state['last_failure'] or state['last_end'] or 'starting'}), "
        f"the supervisor (process {state['supervisor_pid']}) starts the next; readers wait. Ask again in a moment"
    )


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Say why nobody listens or answers: a spoke that is stuck, one that died, another user's, or no mountpoint at all."""
    try:
        yield
    except control.Silent as error:
        owner = read_owner(runtime_dir(), path)
        state = _supervisor_state(path)
        pid = state["worker_pid"] if state else owner.pid if owner is not None else None
        who = f"{path} (process {pid}, {process_state(pid)})" if pid is not None else path
        raise control.Silent(
            f"{who}: {error}; headrace-spoke doctor {path} looks at it, headrace-spoke umount --force {path} takes it away"
        ) from None
    except control.NotMounted as error:
        said = _between_workers(path)
        if said is not None:
            raise control.NotMounted(said) from None
        mounts = mounts_at(path)
        if not mounts or not mounts[-1].is_ours:
            raise control.NotMounted(f"{path}: {error}") from None
        elsewhere = served_elsewhere(path, runtime_dir())
        if elsewhere is not None:
            there = elsewhere.mountpoint
            raise control.NotMounted(
                f"{path} shows the mount of {there}, bound or moved from there: give {there}"
            ) from None
        if ask_mount(path) is Answer.DISCONNECTED:
            raise control.NotMounted(
                f"the spoke of {path} has died; mount it again, or take it away with: headrace-spoke umount {path}"
            ) from None
        owner = read_owner(runtime_dir(), path)
        if owner is not None and owner.is_alive():
            raise control.Silent(
                f"no worker serves {path}, and its supervisor (process {owner.pid}, {process_state(owner.pid)}) does not answer; "
                f"headrace-spoke umount --force {path} takes it away"
            ) from None
        raise control.NotMounted(f"the spoke of {path} runs as another user") from None
