"""The command ``purge``: erase what is cached."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from common.errors import HeadraceError, UsageError
from common.terminal import exit_codes
from common.units import format_size
from spoke import control
from spoke.asking import ask, explained, mountpoint_argument
from spoke.fuse.mountpoint import locate
from spoke.places import runtime_dir

PURGE_TIMEOUT_S = 600.0


@exit_codes
def purge(
    mountpoint: Annotated[Path | None, mountpoint_argument("Of a running spoke.")] = None,
    paths: Annotated[list[str] | None, typer.Argument(help="Files or directories below the mount.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All that is cached, also of files that are no more.")
    ] = False,
    cache_dir: Annotated[
        Path | None, typer.Option(help="Instead of a mount: all that a cache directory holds that no spoke uses.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Erase cached blocks: they are fetched again when they are read. Says how much it was; exit 1 if some files must stay.

    \b
    Examples:
      headrace-spoke purge /mnt/c4 train/old-shards
      headrace-spoke purge --cache-dir /nvme/headrace --yes
    """
    if (mountpoint is None) == (cache_dir is None):
        raise UsageError("give a mountpoint, or --cache-dir of a cache that no spoke uses")
    if cache_dir is not None:
        from spoke import purge as offline

        offline.check_unmounted(cache_dir, runtime_dir())
        _confirm(yes, offline.look(cache_dir), f"and all names in {cache_dir}")
        _say(offline.erase_all(cache_dir))
        return
    assert mountpoint is not None
    root = locate(mountpoint)
    from spoke.selection import below

    request = {"paths": [os.fsencode(below(root, path)).hex() for path in paths or ()], "all": everything}
    _confirm(yes, ask(mountpoint, "purge", {**request, "dry_run": True}), f"of {root}")
    with explained(root):
        done = control.ask_once(
            control.socket_path(runtime_dir(), root), {"command": "purge", **request}, timeout_s=PURGE_TIMEOUT_S
        )
    _say(done)
    if not done.get("kernel_told", True):
        typer.echo("the kernel has not heard of it yet: a read may still be answered from its memory", err=True)
    if done["open"]:
        raise HeadraceError(f"{done['open']} files are open and stay; close them and purge again")


def _confirm(yes: bool, found: dict[str, Any], what: str) -> None:
    if yes:
        return
    seen = f"{found['files']} cached files ({format_size(found['bytes'])}) {what}"
    if not sys.stdin.isatty():
        raise UsageError(f"this erases {seen}: say --yes")
    if not typer.confirm(f"erase {seen}?"):
        raise UsageError("nothing was erased")


def _say(done: dict[str, Any]) -> None:
    typer.echo(f"erased {done['files']} files, {format_size(done['bytes'])}")
