"""The command ``verify``: what is cached is read and compared with its digests again, of a mount or of a directory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from common import limits
from common.errors import HeadraceError, UsageError
from common.terminal import EXIT_FAILED, exit_codes, printable
from common.units import format_size, parse_rate
from spoke import control
from spoke.asking import explained, mountpoint_argument
from spoke.fuse.mountpoint import locate
from spoke.places import runtime_dir

_RANGES_SHOWN = 8
Facts = Mapping[str, Any]


@exit_codes
def verify(
    mountpoint: Annotated[
        Path | None, mountpoint_argument("Where the dataset is mounted; not with --cache-dir.")
    ] = None,
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Files or directories below the mount. [default: all that is cached]"),
    ] = None,
    cache_dir: Annotated[
        Path | None, typer.Option(help="Check this cache directory instead; no spoke may be running on it.")
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair/--no-repair",
            help="Fetch bad blocks again (of a directory: take them out, the next mount fetches them). A running spoke "
            "forgets them in any case.",
        ),
    ] = True,
    rate: Annotated[str | None, typer.Option(help="Read no faster, for example 100MB/s. [default: no limit]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Compare what is cached with its digests: exit 0 all is right, 1 bad blocks were found, 2 it was asked wrongly.

    Reads the cache disk at the lowest priority, asks nothing of the mount, and can be broken off at any time.

    \b
    Examples:
      headrace-spoke verify /mnt/c4 train/
      headrace-spoke verify --cache-dir /nvme/headrace --no-repair
    """
    rate_bytes_per_s = _rate(rate)
    with _bar(quiet) as say:
        if cache_dir is not None:
            if mountpoint is not None:
                raise UsageError("give a mountpoint or --cache-dir, not both")
            from spoke.purge import check_unmounted
            from spoke.verify_offline import verify_directory

            check_unmounted(cache_dir, runtime_dir())
            facts = verify_directory(cache_dir, repair=repair, rate_bytes_per_s=rate_bytes_per_s, say=say)
        elif mountpoint is not None:
            facts = _ask(mountpoint, paths or [], repair, rate_bytes_per_s, say)
        else:
            raise UsageError("name a mountpoint, or give --cache-dir")
    typer.echo(json.dumps(facts, indent=1) if as_json else render(facts, repair=repair, offline=cache_dir is not None))
    if facts["bad_blocks"]:
        raise typer.Exit(EXIT_FAILED)


def _ask(
    mountpoint: Path, paths: list[str], repair: bool, rate_bytes_per_s: float | None, say: Callable[[Facts], object]
) -> Facts:
    from spoke.selection import below
    from spoke.warm_cli import request_of

    root = locate(mountpoint)
    request = {
        "paths": [os.fsencode(below(root, path)).hex() for path in paths],
        "repair": repair,
        "rate_bytes_per_s": rate_bytes_per_s,
    }
    # Silent for as long as it waits for the blocks to come again, and for one read of a slow disk.
    timeout_s = limits.VERIFY_REPAIR_TIMEOUT_S + limits.WARM_SILENCE_TIMEOUT_S
    with explained(root):
        socket = control.socket_path(runtime_dir(), root)
        for kind, facts in control.ask(socket, request_of("verify", request), timeout_s=timeout_s):
            if kind == "result":
                outcome: Facts = facts
                return outcome
            say(facts)
    raise HeadraceError("the spoke gave no result")


def render(facts: Facts, *, repair: bool, offline: bool) -> str:
    """The outcome, for people."""
    lines = [
        f"{facts['files_done']} files, {format_size(facts['checked_bytes'])} compared in {facts['duration_s']:.1f} s: "
        + (f"{facts['bad_blocks']} BAD BLOCKS" if facts["bad_blocks"] else "all right")
    ]
    for bad in facts["bad_files"]:
        runs = bad["blocks"]
        shown = ", ".join(str(first) if count == 1 else f"{first}-{first + count - 1}" for first, count in runs[:8])
        name = printable(bad["path"]) if bad["path"] is not None else f"version {bad['version']}, which no name has now"
        lines.append(
            f"  {name}: blocks {shown}{', …' if len(runs) > _RANGES_SHOWN else ''}"
            + (f" ({bad['reason']})" if bad.get("reason") else "")
        )
    if facts["bad_files_not_shown"]:
        lines.append(f"  and {facts['bad_files_not_shown']} more files")
    if facts["bad_blocks"]:
        left = facts["bad_blocks"] - facts["mended_blocks"]
        if not repair:
            lines.append(
                "nothing was changed; without --no-repair they are taken out"
                if offline
                else "the spoke has forgotten them and fetches them when they are read"
            )
        elif offline:
            lines.append(f"{facts['mended_blocks']} of them taken out; the next mount fetches them again")
        else:
            lines.append(
                f"{facts['mended_blocks']} of them fetched again"
                + (f"; {left} are not here now, and are fetched when they are read" if left else "")
            )
        lines.append("if it comes again, look at dmesg and smartctl for the cache disk, and at who else writes there")
    return "\n".join(lines)


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    rate_bytes_per_s = parse_rate(text)
    if not rate_bytes_per_s > 0:
        raise UsageError(f"--rate {text}: it must be above 0, for example 100MB/s")
    return rate_bytes_per_s


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[Facts], object]]:
    """How far it is, on stderr."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as bar:
        task = bar.add_task("verifying", total=None)

        def say(facts: Facts) -> None:
            bar.update(
                task,
                description=f"{facts['files_done']}/{facts['files']} files, {format_size(facts['checked_bytes'])} compared, "
                f"{facts['bad_blocks']} bad blocks",
            )

        yield say
