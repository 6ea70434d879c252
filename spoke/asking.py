"""Commands that ask the running spoke of a mountpoint: where it listens, and why nobody does if nobody does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from spoke import control
from spoke.completion import complete_mountpoint
from spoke.fuse.mountpoint import Answer, ask_mount, locate, mounts_at, process_state, read_owner
from spoke.places import runtime_dir


def untouched_path(typed: str) -> Path:
    """A path as it was typed. Typer's own calls stat() on it, which hangs for as long as the spoke of a mountpoint does."""
    return Path(typed)


Mountpoint = Annotated[
    Path,
    typer.Argument(
        help="Where the dataset is mounted.",
        parser=untouched_path,
        show_default=False,
        autocompletion=complete_mountpoint,
    ),
]
"""The argument of every command."""


def ask(mountpoint: Path, command: str, request: Mapping[str, Any] | None = None, *, timeout_s: float = 5.0) -> Any:
    """The result of one command. Raises what the spoke answered, or NotMounted with the reason."""
    path = locate(mountpoint)
    with explained(path):
        return control.ask_once(
            control.socket_path(runtime_dir(), path), {"command": command, **(request or {})}, timeout_s=timeout_s
        )


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Say why nobody listens or answers: a spoke that is stuck, one that died, another user's, or no mountpoint at all."""
    try:
        yield
    except control.Silent as error:
        owner = read_owner(runtime_dir(), path)
        who = f"{path} (process {owner.pid}, {process_state(owner.pid)})" if owner is not None else path
        raise control.Silent(
            f"{who}: {error}; headrace-spoke doctor {path} looks at it, headrace-spoke umount --force {path} takes it away"
        ) from None
    except control.NotMounted as error:
        mounts = mounts_at(path)
        if not mounts or not mounts[-1].is_ours:
            raise control.NotMounted(f"{path}: {error}") from None
        if ask_mount(path) is Answer.DISCONNECTED:
            raise control.NotMounted(
                f"the spoke of {path} has died; mount it again, or take it away with: headrace-spoke umount {path}"
            ) from None
        raise control.NotMounted(f"the spoke of {path} runs as another user") from None
