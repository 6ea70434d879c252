"""The commands ``warm``, ``pin`` and ``unpin``: have files cached ahead of a job, and keep them."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from common import limits, runtime
from common.errors import UsageError
from common.terminal import exit_codes, printable
from common.units import format_size, parse_rate, parse_size
from spoke import control
from spoke.asking import Mountpoint, ask, explained
from spoke.fuse.mountpoint import locate
from spoke.places import runtime_dir

Paths = Annotated[list[str] | None, typer.Argument(help="Files or directories below the mount.")]


@exit_codes
def warm(
    context: typer.Context,
    mountpoint: Mountpoint,
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Files or directories below the mount. [default: all, if nothing else is named]"),
    ] = None,
    plan: Annotated[
        str | None, typer.Option(help="A plan file: lines PATH OFFSET LENGTH, or JSON objects of them; - reads stdin.")
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(help="An order that is followed, by its name in plan list; or an order file, by a path with a /."),
    ] = None,
    last: Annotated[
        bool, typer.Option("--last", help="What the last job read, as the spoke noted it, in parts of 64 KiB.")
    ] = False,
    around: Annotated[
        str,
        typer.Option(
            help="Of a plan or order, fetch so much before and after each read as well; 64KiB if jobs map files."
        ),
    ] = "0",
    rate: Annotated[str | None, typer.Option(help="Fetch no faster, for example 500mbit. [default: no limit]")] = None,
    pin: Annotated[
        bool, typer.Option("--pin", help="And keep the files it names cached, until headrace-spoke unpin.")
    ] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait/--no-wait",
            help="Stay until all is verified (as if not given; given, also wait up to 10 min for a spoke that is not there yet), "
            "or leave it to the spoke.",
        ),
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would do, and whether it fits.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Fetch and verify files ahead of a job; exit 0 only when all that is named is cached and verified.

    Says first what it will fetch, whether it fits and how long it takes. Broken off, it goes on where it was.

    \b
    Examples:
      headrace-spoke warm /mnt/c4 train/ --dry-run
      headrace-spoke warm /mnt/c4 train/ --rate 2gbit --pin
      headrace-spoke warm /mnt/c4 --last --wait
    """
    root = locate(mountpoint)
    given = paths if paths else [] if plan is not None or order is not None or last else [""]
    request: dict[str, Any] = {
        "paths": _hex(root, given),
        "order": os.path.abspath(order) if order is not None and "/" in order else order,
        "last": last,
        "around_bytes": parse_size(around),
        "rate_bytes_per_s": _rate(rate),
        "pin": pin,
        "wait": wait,
        "dry_run": dry_run,
    }
    source = context.get_parameter_source("wait")  # of typer's own click, which is not the one that can be imported
    patient = wait and source is not None and source.name == "COMMANDLINE"
    with _plan_file(plan) as file:
        request["plan"] = file
        _show_patiently(root, request, quiet=quiet, patience_s=limits.WARM_START_WAIT_S if patient else 0.0)


@exit_codes
def pin(mountpoint: Mountpoint, paths: Paths = None) -> None:
    """Keep what is cached of files, now and later, until unpin; without paths, say what is pinned. Fetches nothing: warm --pin does."""
    facts = ask(mountpoint, "pin", {"paths": _hex(locate(mountpoint), paths or [])})
    typer.echo(render(facts))


@exit_codes
def unpin(
    mountpoint: Mountpoint,
    paths: Paths = None,
    everything: Annotated[bool, typer.Option("--all", help="All that is pinned.")] = False,
) -> None:
    """Let pinned files be evicted again."""
    if bool(paths) == everything:
        raise UsageError("name the paths to unpin, or give --all")
    facts = ask(mountpoint, "unpin", {"paths": None if everything else _hex(locate(mountpoint), paths or [])})
    typer.echo(render(facts))


def render(facts: Mapping[str, Any]) -> str:
    """What is pinned, for people."""
    if not facts["path_count"]:
        return "nothing is pinned"
    more = facts["path_count"] - len(facts["paths"])
    lines = [
        f"pinned: {facts['files']} files, {format_size(facts['bytes'])} of at most {format_size(facts['most_bytes'])}",
        *(f"  {printable(path)}" for path in facts["paths"]),
        *([f"  and {more} more"] if more else []),
    ]
    if facts["absent_paths"]:
        lines.append(f"  {facts['absent_paths']} of them are not in the dataset now")
    if facts["left_out_files"]:
        lines.append(
            f"  {facts['left_out_files']} files, {format_size(facts['left_out_bytes'])}, fit no more and are not kept"
        )
    return "\n".join(lines)


def _show_patiently(root: str, request: Mapping[str, Any], *, quiet: bool, patience_s: float) -> None:
    """Also while a spoke starts, or one takes the place of another: then asked anew, it goes on where it was."""
    while True:
        asked_s = runtime.now_s()
        try:
            with explained(root):
                _show(control.socket_path(runtime_dir(), root), request, quiet=quiet)
            return
        except (control.NotMounted, control.Dropped) as error:
            if not patience_s:
                raise
            typer.echo(f"waiting up to {patience_s:.0f} s for the spoke: {error}", err=True)
            give_up_s = runtime.now_s() + patience_s
            # Worth asking again once somebody listens; one that drops what it is asked at once is not asked in a loop.
            time.sleep(limits.PROGRESS_INTERVAL_S if runtime.now_s() - asked_s > 1.0 else 1.0)
            while not _listens(root):
                if runtime.now_s() >= give_up_s:
                    raise
                time.sleep(limits.PROGRESS_INTERVAL_S)


def _listens(root: str) -> bool:
    try:
        control.ask_once(control.socket_path(runtime_dir(), root), {"command": "plans"})
    except (control.NotMounted, control.Dropped, control.Silent):
        return False
    return True


def _show(socket: Path, request: Mapping[str, Any], *, quiet: bool) -> None:
    """Ask the running spoke, say what it will do, draw a progress bar on stderr; raises what it answered."""
    # Drawing takes a fifth of a second to import, which pin and unpin need not wait for.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from spoke.warm import FetchSpeed, in_words, rate_in_words

    speed_column = TextColumn("{task.fields[speed]}")
    columns = (BarColumn(), DownloadColumn(binary_units=True), speed_column, TimeRemainingColumn())
    described = TextColumn("{task.description}")
    speed = FetchSpeed()
    began_s, is_rate_unsaid, drawn = runtime.now_s(), False, False
    with contextlib.ExitStack() as drawing:
        bar = Progress(described, *columns, console=Console(stderr=True), disable=quiet)
        task = bar.add_task("warming", total=None, speed="")
        for kind, facts in control.ask(socket, request_of("warm", request), timeout_s=limits.WARM_SILENCE_TIMEOUT_S):
            if kind == "progress" and "estimate" in facts:
                note = f" ({facts['note']})" if facts.get("note") else ""
                typer.echo(in_words(facts["estimate"]) + note)
                is_rate_unsaid = facts["estimate"]["duration_s"] is None
                continue
            if kind == "progress" and not drawn:
                drawn = True
                drawing.enter_context(bar)
            if is_rate_unsaid and limits.RATE_SPAN_MIN_BYTES <= facts.get("fetched_bytes", 0) < facts["total_bytes"]:
                took_s = runtime.now_s() - began_s
                if took_s >= 5 * limits.RATE_SPAN_S:
                    is_rate_unsaid = False
                    typer.echo(rate_in_words(facts, took_s))
            if "files_done" in facts:
                bar.update(
                    task,
                    total=facts["total_bytes"],
                    completed=facts["verified_bytes"],
                    speed=speed.in_words(facts["fetched_bytes"], runtime.now_s()),
                    description=f"{facts['files_done']}/{facts['files']} files",
                )
            if kind == "result":
                typer.echo(_outcome(facts))


def request_of(command: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """As a line of the control socket. Raises UsageError for one that is too long."""
    named = {"command": command, **request}
    paths = request.get("paths") or []
    length_bytes = sum(len(path) + 4 for path in paths)
    if length_bytes > limits.CONTROL_LINE_MAX_BYTES // 2:
        raise UsageError(f"{len(paths)} paths are too many for one command: name the directories above them")
    return named


def _outcome(facts: Mapping[str, Any]) -> str:
    if facts.get("dry_run"):
        return "it fits; nothing was fetched"
    if facts.get("background"):
        return (
            "begun; headrace-spoke status shows how far it is, and the same command without --no-wait waits for its end"
        )
    return f"{facts['files']} files, {facts['total_bytes']} bytes cached and verified, {facts['fetched_bytes']} of them fetched now"


def _hex(root: str, paths: Sequence[str]) -> list[str]:
    from spoke.selection import below

    return [os.fsencode(below(root, path)).hex() for path in paths]


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    rate_bytes_per_s = parse_rate(text)
    if not rate_bytes_per_s > 0:
        raise UsageError(f"--rate {text}: it must be above 0, for example 500mbit")
    return rate_bytes_per_s


@contextmanager
def _plan_file(plan: str | None) -> Iterator[str | None]:
    """The spoke reads it, so it gets a name: what comes on stdin is put into a file for as long as the command lives."""
    if plan != "-":
        yield None if plan is None else os.path.abspath(plan)
        return
    with tempfile.NamedTemporaryFile(prefix="headrace-plan-") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        yield file.name
