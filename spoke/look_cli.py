"""The commands that look: ``top`` (live), ``bugreport`` (all of it in one file)."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from common.errors import HeadraceError, UsageError
from common.terminal import exit_codes
from common.units import format_size, parse_duration
from spoke.asking import Mountpoint, ask

_SHORTEST_S, _LONGEST_S = 0.1, 3600.0
_PLAIN_WIDTH = 120
"""Where nobody reads along on a terminal."""


@exit_codes
def top(
    mountpoint: Mountpoint,
    interval: Annotated[str, typer.Option(help="Between two looks, for example 500ms.")] = "1s",
    once: Annotated[bool, typer.Option("--once", help="One look over one interval, then end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line for each look.")] = False,
) -> None:
    """Show live what a mount does: phase, rates, hit rate, and who waits for what. Ctrl-C ends it.

    "lost" counts each second once in which at least one reader waited for the hub, "stall" sums over readers. Who is known by rank
    (RANK in the process's environment, or as said to spoke.hints.step()), process, cgroup or pod, and file. Jobs that mark their
    steps show step time, the share of it they waited for data by their own clock, and the share a reader of theirs stalled at this
    mount; "reads in time" is the whole mount's.

    \b
    Examples:
      headrace-spoke top /mnt/c4
      headrace-spoke top /mnt/c4 --once --json | jq '.stalls.recent.who[0]'
    """
    interval_s = parse_duration(interval)
    if not _SHORTEST_S <= interval_s <= _LONGEST_S:
        raise UsageError(f"--interval {interval}: from {_SHORTEST_S:g} s to {_LONGEST_S:g} s")
    from rich.console import Console
    from rich.live import Live

    from spoke.top import draw, frame_facts

    def look(before: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        time.sleep(interval_s)
        after = ask(mountpoint, "status")
        return after, frame_facts(before, after)

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    known = ask(mountpoint, "status")
    try:
        if as_json or once or not console.is_terminal:
            while True:
                known, facts = look(known)
                if as_json:
                    typer.echo(json.dumps(facts))
                else:
                    console.print(draw(facts))
                if once:
                    return
        with Live(draw(frame_facts(known, known)), console=console, screen=True, auto_refresh=False) as live:
            while True:
                known, facts = look(known)
                live.update(draw(facts), refresh=True)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:  # | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@exit_codes
def bugreport(
    mountpoint: Mountpoint,
    output: Annotated[
        Path | None,
        typer.Option(help="The file to write. [default: headrace-HOST-TIME.tar.gz here]", show_default=False),
    ] = None,
) -> None:
    """Gather what helps to find a fault into one tar.gz: status, settings and where each came from, log, kernel, doctor.

    Works with the spoke dead or silent, in some 20 s. Secrets are left out: values of settings and variables whose names speak of
    tokens, keys or passwords, what files named by them hold, and keys by their looks. Paths, host names and addresses are in it: read it
    before you pass it on.

    \b
    Example:
      headrace-spoke bugreport /mnt/c4 --output /tmp/stall.tar.gz
    """
    from spoke.bugreport import gather, pack
    from spoke.fuse.mountpoint import locate, mounts_at, read_owner
    from spoke.places import runtime_dir

    path = locate(mountpoint)
    if not any(entry.is_ours for entry in mounts_at(path)) and read_owner(runtime_dir(), path) is None:
        raise UsageError(
            f"{path} is not a mount of Headrace, nor was lately; headrace-spoke doctor looks at a host without one"
        )
    now_s = time.time()
    name = f"headrace-{socket.gethostname()}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now_s))}.tar.gz"
    target = output if output is not None else Path(name)
    if not target.name:
        raise HeadraceError(f"{target} is no file name")
    pack(gather(mountpoint, os.environ), target, now_s)
    typer.echo(f"{target}: {format_size(target.stat().st_size)}; read it before you pass it on")
