"""``headrace-spoke explain``: is it here, and if a read of it was slow, why."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from common.errors import UsageError
from common.terminal import exit_codes, printable
from common.units import format_size
from spoke.asking import ask
from spoke.fuse.mountpoint import locate, mount_above


@exit_codes
def explain(
    mountpoint: Annotated[
        str, typer.Argument(help="Where the dataset is mounted; or PATH[:OFFSET] inside the mount alone.")
    ],
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH[:OFFSET]",
            help="A file below the mount, and a place in it: a byte, or 3GiB.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say whether a file, or a place in it, is cached, and why reads of it were slow.

    Causes: never fetched before; evicted, when and for which file; prefetch came late; a queue for a connection; the round trip;
    a retry; a busy link. Known are the reads that waited last (512) and the last decisions on 32 GiB of the data
    (a restart forgets them). Without PATH: the last slow reads of all files.

    \b
    Examples:
      headrace-spoke explain /mnt/c4 train/shard-17.tar
      headrace-spoke explain /mnt/c4 train/shard-17.tar:3GiB
      headrace-spoke explain /mnt/c4/train/shard-17.tar:1048576
      headrace-spoke explain /mnt/c4 --json | jq '.slow_reads[0].causes'
    """
    root, below = _places(mountpoint, path)
    facts = ask(Path(root), "explain", {"path": below} if below is not None else {})
    typer.echo(json.dumps(facts, indent=1) if as_json else render(facts))


def _places(mountpoint: str, path: str | None) -> tuple[str, str | None]:
    """(mountpoint, path below it or None). A path inside the mount may stand alone."""
    if path is None:
        found = mount_above(mountpoint)
        if found is None:
            raise UsageError(
                f"{mountpoint} is on no Headrace mount of this host; give MOUNTPOINT, or a path inside one"
            )
        return found[0], None if found[1] == "." else found[1]
    root = locate(Path(mountpoint))
    if os.path.isabs(path):
        if os.path.commonpath([path, root]) != root:
            raise UsageError(f"{path} is not below {root}")
        path = os.path.relpath(path, root)
    return root, os.path.normpath(path)


def render(facts: Mapping[str, Any]) -> str:
    """For people."""
    if "path" not in facts:
        lines = [*facts["said"]] or ["no reader lost 10 ms or more to the hub in the last ten minutes"]
        for slow in facts["slow_reads"]:
            lines.append(
                f"  {slow['ended_ago_s']:6.1f} s ago  {slow['waited_s'] * 1000:8.1f} ms  {printable(slow['path'])}:{slow['offset_bytes']}  "
                f"{', '.join(slow['causes'])}"
            )
        return "\n".join(lines)
    from spoke.insight.watch import verdict

    place = f":{facts['offset_bytes']}" if facts["offset_bytes"] is not None else ""
    lines = [
        f"{printable(facts['path'])}{place}: {verdict(facts)}",
        f"  file       {format_size(facts['cached_bytes'])} of {format_size(facts['size_bytes'])} cached, {facts['state']}",
    ]
    for number, order in enumerate(facts["orders"]):
        soon = f", read in {order['steps_until']} steps" if order["steps_until"] is not None else ""
        origin = f", {order['origin']}" if order["origin"] else ""
        lines.append(
            f"  {'foretold by' if not number else '           '} {order['name']} ({order['reason']}, {order['state']}{origin}{soon})"
        )
    if facts["last_job_bytes"]:
        lines.append(f"  last job   read {format_size(facts['last_job_bytes'])} of it")
    if facts["slow_reads"]:
        shown = facts["slow_reads"]
        worst = max(shown, key=lambda slow: slow["waited_s"])
        lines.append(
            f"  slow reads {facts['slow_reads_known']} known; the latest, at {shown[0]['offset_bytes']}, {shown[0]['said']}"
        )
        if worst is not shown[0]:
            lines.append(f"             the longest, at {worst['offset_bytes']}, {worst['said']}")
    else:
        lines.append("  slow reads none known")
    for number, note in enumerate(facts["history"][-8:]):
        extent = "" if place else f"MiB {note['extent']}: "
        lines.append(f"  {'history' if not number else '       '}    {extent}{note['said']}")
    return "\n".join(lines)
