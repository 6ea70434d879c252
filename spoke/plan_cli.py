"""``headrace-spoke plan MOUNTPOINT …``: declare what will be read, list the plans a spoke follows, drop one.

``plan MOUNTPOINT --recipe NAME …`` is ``plan MOUNTPOINT recipe NAME …`` written shorter, ``plan MOUNTPOINT`` alone is
``plan MOUNTPOINT list``.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast

import typer
from typer.core import TyperGroup

from common import limits
from common.errors import HeadraceError, UsageError
from common.terminal import exit_codes
from spoke import hints
from spoke.asking import Mountpoint, ask
from spoke.fuse.mountpoint import locate
from spoke.plan_file import LINE_MAX_BYTES, PlannedRange, read_plan_file
from spoke.plan_message import Kind, encode_short
from spoke.recipes import cli as recipes_cli

_NO_ROOM_ERRNO = 28  # ENOSPC, as PLAN.md says it
_LEFT_OUT_ERRNOS = (2, 34)  # ENOENT, ERANGE
_RECIPE = "--recipe"


class PlanGroup(TyperGroup):
    """Takes ``--recipe NAME`` after the mountpoint for the command ``recipe NAME``, with all that follows."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for position, word in enumerate(args):
            if word == _RECIPE or word.startswith(_RECIPE + "="):
                named = args[position + 1 : position + 2] if word == _RECIPE else [word.partition("=")[2]]
                rest = args[position + 1 + (word == _RECIPE) :]
                # The mountpoint comes before, or right after the name; options of the recipe may stand on either side.
                mountpoint, before = args[: min(position, 1)], args[min(position, 1) : position]
                if not mountpoint and rest and not rest[0].startswith("-"):
                    mountpoint, rest = rest[:1], rest[1:]
                if not mountpoint:
                    ctx.fail(f"no mountpoint before {_RECIPE}: plan MOUNTPOINT {' '.join([_RECIPE, *named])} …")
                args = [*mountpoint, "recipe", *named, *before, *rest]
                break
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=PlanGroup, help="Say what will be read, so that it is fetched ahead and in time.", no_args_is_help=True
)


@app.callback(invoke_without_command=True)
def at_mountpoint(
    context: typer.Context,
    mountpoint: Mountpoint,
) -> None:
    context.obj = mountpoint
    if context.invoked_subcommand is None:
        list_plans(context)


@app.command()
@exit_codes
def declare(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="Lines PATH OFFSET LENGTH, or JSON objects of them; - reads stdin.")],
    name: Annotated[
        str | None, typer.Option(help="The plan's name; one of this name is replaced. [default: FILE's]")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Stay, and say the rest as there is room for it, until all is said.")
    ] = False,
) -> None:
    """Declare reads in the order in which a job will make them."""
    mountpoint = cast(Path, context.obj)
    plan = _SocketPlan(mountpoint, name or ("stdin" if file == "-" else Path(file).name))
    with _opened(file) as lines:
        ranges = read_plan_file(iter(lambda: lines.readline(LINE_MAX_BYTES + 1), b""))
        said = plan.declare(ranges, follow=follow)
    if not said and plan.refusal is None:
        raise UsageError(f"{file}: no line of it names a read")
    kept = said - plan.left_out_reads
    if kept:
        typer.echo(f"{_reads(kept)} declared as {plan.name}")
    for note in plan.notes:
        typer.echo(note, err=True)
    if plan.left_out_reads:
        typer.echo(f"{plan.left_out_reads} of {_reads(said)} left out", err=True)
    if plan.refusal is not None:
        rest = "; --follow says the rest as they are read" if plan.refused_for_room else ""
        raise HeadraceError(f"declared {_reads(kept)}, and no more: {plan.refusal}{rest}")
    if not kept:
        raise HeadraceError(f"{file}: no read of it was declared")


@app.command("list")
@exit_codes
def list_plans(
    context: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """The plans and orders the spoke follows, and what it left out or refused."""
    facts = ask(context.obj, "plans")
    declared = {f"plan:{plan['name']}" for plan in facts["active"]}
    followed = ask(context.obj, "orders")["orders"]
    facts["orders"] = [order for order in followed if order["name"] not in declared]
    typer.echo(json.dumps(facts, indent=1) if as_json else render(facts))


@app.command()
@exit_codes
def drop(context: typer.Context, name: Annotated[str, typer.Argument(help="As plan list shows it.")]) -> None:
    """Have the spoke forget a plan, an order that a recipe made, or one it learned."""
    if ask(context.obj, "order-drop", {"name": name})["dropped"]:
        typer.echo(f"dropped {name}")
        return
    answer = ask(context.obj, "plan", {"message": encode_short(Kind.DROP, name).hex()})
    if answer["errno"]:
        raise UsageError(answer["text"])
    typer.echo(f"dropped {name}")


@app.command()
@exit_codes
def reset(context: typer.Context) -> None:
    """Have the spoke forget every order it learned from reads or that other spokes told of, and what it is recording.

    What the hub keeps of other spokes' now is not taken again.
    """
    count = ask(context.obj, "learned-reset")["orders"]
    typer.echo(f"forgot {count} learned orders" if count != 1 else "forgot 1 learned order")


app.command("recipe", cls=recipes_cli.RecipeCommand, context_settings=recipes_cli.FREE_OPTIONS)(recipes_cli.recipe)


class _SocketPlan(hints.Telling):
    """A plan told over the control socket. Paths are absolute below the mountpoint, or relative to it."""

    def __init__(self, mountpoint: Path, name: str) -> None:
        super().__init__(name)
        self.notes: list[str] = []
        self.left_out_reads = 0
        self.refusal: str | None = None
        self._refused_errno = 0
        self._mountpoint = mountpoint
        self._root = locate(mountpoint)
        self._first_steps: list[int] = []  # of each read in the message that is about to be sent

    @property
    def name(self) -> str:
        return str(self._wire_name.decode())

    @property
    def refused_for_room(self) -> bool:
        return self._refused_errno == _NO_ROOM_ERRNO

    def declare(self, ranges: Iterator[PlannedRange], *, follow: bool) -> int:
        """Returns how many were taken; ``refusal`` says why not more. Raises UsageError for a line that cannot be."""
        said = 0
        chunk: list[PlannedRange] = []
        ended = False
        while True:
            while len(chunk) < hints.MESSAGE_STEPS and not ended:
                found = next(ranges, None)
                ended = found is None
                if found is not None:
                    chunk.append(found)
            if not chunk:
                return said
            self.refusal = None
            taken = self._say_all(chunk, ended)
            said += taken
            del chunk[:taken]
            if chunk and self.refusal is not None:
                if not (follow and self.refused_for_room):
                    return said
                time.sleep(limits.PROGRESS_INTERVAL_S)

    def _path(self, path: str) -> bytes:
        from spoke.selection import below  # which the other commands need not wait for

        return os.fsencode(below(self._root, path))

    def _columns(self, chunk: Sequence[hints.Place]) -> tuple[list[bytes], list[int], list[int], list[int]]:
        counts = (_step_count(start_bytes, length_bytes) for _, start_bytes, length_bytes in chunk)
        self._first_steps = list(itertools.accumulate(counts, initial=0))[:-1]
        return super()._columns(chunk)

    def _send(self, message: bytes, steps: int) -> bool:
        answer = ask(self._mountpoint, "plan", {"message": message.hex()})
        self._left_out = answer["errno"] if answer["errno"] in _LEFT_OUT_ERRNOS else 0
        if not self._goes_on:  # what follows in a range longer than its file is cut, and no read of its own
            left_out = set(range(steps) if self._left_out else answer.get("left_out_steps", ()))
            self.left_out_reads += len(left_out.intersection(self._first_steps))
        elif self._left_out:
            return True
        if answer["errno"] and not self._left_out:
            self.refusal, self._refused_errno = answer["text"], answer["errno"]
            return False
        if answer["text"] and answer["text"] not in self.notes[-1:]:
            self.notes.append(answer["text"])
        return True


def _step_count(start_bytes: int, length_bytes: int) -> int:
    """Into how many steps a message cuts a read."""
    step_bytes = hints.STEP_MAX_BYTES
    return -(-(start_bytes % step_bytes + length_bytes) // step_bytes) if length_bytes > step_bytes else 1


def _reads(count: int) -> str:
    return f"{count} reads" if count != 1 else "1 read"


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        opened = open(file, "rb")  # noqa: SIM115
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    with opened:
        yield opened


def render(facts: dict[str, Any]) -> str:
    """``plan list`` for people."""
    lines = [
        f"{plan['name']}  {plan['read_steps']} of {plan['kept_steps']} steps read, in {plan['files']} files, "
        f"{plan['state']}, last used {plan['idle_s']:.0f} s ago"
        + (f", left out: {_counts(plan['left_out'])}" if any(plan["left_out"].values()) else "")
        for plan in facts["active"]
    ]
    for order in facts.get("orders", ()):
        places = ", ".join(f"{lane['position']} of {lane['length']}" for lane in order["lanes"])
        origin = f", {order['origin']}" if order.get("origin") else ""
        lines.append(
            f"{order['name']}  by {order['reason']}, {order['state']}" + (f", at {places}" if places else "") + origin
        )
    lines = lines or ["no plans"]
    if facts["refused_messages"]:
        lines.append(f"refused messages: {_counts(facts['refused_messages'])}")
    if facts["last_refusal"] is not None:
        lines.append(f"last refusal, {facts['last_refusal']['ago_s']:.0f} s ago: {facts['last_refusal']['reason']}")
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {why}" for why, count in counts.items() if count)
