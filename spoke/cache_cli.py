"""``headrace-spoke cache …``: what is on the cache disk, and what shall stay there or go."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from common import limits
from common.errors import HeadraceError, UsageError
from common.terminal import exit_codes, printable
from common.units import format_size
from spoke import purge_cli, verify_cli, warm_cli
from spoke.asked_fields import CacheSort
from spoke.asking import Mountpoint, ask
from spoke.fuse.mountpoint import locate
from spoke.selection import below

app = typer.Typer(
    help="What of the dataset is on this host's cache disk: list it, sum it up, keep it, check it, take it out.",
    no_args_is_help=True,
)
Paths = Annotated[list[str] | None, typer.Argument(help="Files or directories below the mount. [default: all]")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; sizes in bytes.")]

_TIMEOUT_S = 60.0


@app.command("ls")
@exit_codes
def list_files(
    mountpoint: Mountpoint,
    paths: Paths = None,
    sort: Annotated[CacheSort, typer.Option(help="By path, by bytes cached, or by size.")] = CacheSort.PATH,
    most: Annotated[
        int, typer.Option(min=1, max=limits.CACHE_LIST_MOST, help="Rows shown at most.")
    ] = limits.CACHE_LIST_MAX,
    everything: Annotated[bool, typer.Option("--all", help="Also files of which nothing is cached.")] = False,
    as_json: AsJson = False,
) -> None:
    """List cached files: state, share cached, size, path.

    States: verified (whole, every block checked since the spoke started), whole, partial, unchecked (not asked for since the
    start: its share is a guess from the disk's account), absent. A P before the path: pinned, or open and read by the kernel itself.

    \b
    Example:
      headrace-spoke cache ls /mnt/c4 train/ --sort cached --most 20
    """
    request = {"paths": _hex(mountpoint, paths or [""]), "sort": sort.value, "most": most, "everything": everything}
    facts = ask(mountpoint, "cache-list", request, timeout_s=_TIMEOUT_S)
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    for row in facts["rows"]:
        share = 100 * row["cached_bytes"] / row["size_bytes"] if row["size_bytes"] else 100.0
        typer.echo(
            f"{row['state']:9} {share:5.1f} %  {format_size(row['size_bytes']):>10}  {'P' if row['pinned'] else ' '} "
            f"{printable(row['path'])}"
        )
    more = facts["files"] - len(facts["rows"])
    typer.echo(
        f"{facts['files']} files, {format_size(facts['cached_bytes'])} cached" + (f"; {more} not shown" if more else "")
    )


@app.command("du")
@exit_codes
def disk_use(
    mountpoint: Mountpoint,
    path: Annotated[str, typer.Argument(help="A directory below the mount. [default: its root]")] = "",
    as_json: AsJson = False,
) -> None:
    """Sum up what is cached of each entry of a directory, the largest first, and of the whole cache.

    \b
    Example:
      headrace-spoke cache du /mnt/c4 train
    """
    facts = ask(mountpoint, "cache-sizes", {"path": _hex(mountpoint, [path])[0]}, timeout_s=_TIMEOUT_S)
    typer.echo(json.dumps(facts, indent=1) if as_json else render_sizes(facts))


@app.command("evict")
@exit_codes
def evict(mountpoint: Mountpoint, paths: Annotated[list[str], typer.Argument(help="Files or directories; . is all.")]) -> None:  # fmt: skip
    """Take what is cached of files out; the next read fetches it again.

    Pinned files and files that the kernel reads by itself right now stay, are named, and make the exit code 1. Pages that the kernel
    itself holds in memory stay there until it needs the room.

    \b
    Example:
      headrace-spoke cache evict /mnt/c4 train/old-shards
    """
    facts = ask(mountpoint, "cache-evict", {"paths": _hex(mountpoint, paths)}, timeout_s=_TIMEOUT_S)
    typer.echo(f"{facts['files']} files taken out, {format_size(facts['freed_bytes'])} freed")
    if facts["kept_files"]:
        kept = ", ".join(map(printable, facts["kept"])) + (", …" if facts["kept_files"] > len(facts["kept"]) else "")
        raise HeadraceError(
            f"{facts['kept_files']} files stay, pinned or open and read by the kernel itself: {kept}; "
            f"unpin them (headrace-spoke unpin {mountpoint} PATH) or close them first"
        )


app.command("pin")(warm_cli.pin)
app.command("unpin")(warm_cli.unpin)
app.command("purge")(purge_cli.purge)
app.command("verify")(verify_cli.verify)


def render_sizes(facts: Mapping[str, Any]) -> str:
    """For people."""
    total, cache = facts["total"], facts["cache"]
    rows = [*facts["rows"], {**total, "path": "in all"}]
    lines = [
        f"{format_size(row['disk_bytes']):>10} on disk, {format_size(row['cached_bytes']):>10} of {format_size(row['size_bytes']):>10}"
        f"  {row['cached_files']}/{row['files']} files  {printable(row['path'])}"
        for row in rows
    ]
    outdated = (
        f", {cache['outdated_files']} of them no name has any more (the first to go)" if cache["outdated_files"] else ""
    )
    lines.append(
        f"the cache holds {format_size(cache['used_bytes'])} of {format_size(cache['capacity_bytes'])} in "
        f"{cache['files']} file versions{outdated}"
    )
    return "\n".join(lines)


def _hex(mountpoint: Path, paths: Sequence[str]) -> list[str]:
    root = locate(mountpoint)
    if not paths:
        raise UsageError("name files or directories below the mount; . is all of it")
    return [os.fsencode(below(root, path)).hex() for path in paths]
