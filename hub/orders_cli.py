"""``headrace-hub orders list|drop``: the orders that spokes told of, whether the hub is running or not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.errors import UsageError
from common.terminal import exit_codes
from common.units import format_size
from hub.arguments import DatasetName, StateDir, chosen_dataset, local_time

if TYPE_CHECKING:
    from hub.orders.ranks import KeptRow
    from hub.orders.store import OrderStore

app = typer.Typer(help="The orders that spokes learned and told of: what other spokes are given.", no_args_is_help=True)


@app.command("list")
@exit_codes
def list_orders(
    state_dir: StateDir,
    dataset: DatasetName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The orders that are kept, the most useful first: digest, length, who told of it first and when, and who has since."""
    with _opened(state_dir, dataset) as store:
        rows = _ranked(store)
    if as_json:
        typer.echo(json.dumps([_facts(row) for row in rows], indent=1))
        return
    for row in rows:
        typer.echo(_line(row))
    if not rows:
        typer.echo("no orders")


@app.command("drop")
@exit_codes
def drop_orders(
    state_dir: StateDir,
    digests: Annotated[
        list[str] | None,
        typer.Argument(metavar="DIGEST", help="As list shows it, or its beginning.", show_default=False),
    ] = None,
    dataset: DatasetName = None,
    everything: Annotated[bool, typer.Option("--all", help="Every order of the dataset.")] = False,
) -> None:
    """Forget orders, and take them from no spoke again. Spokes that hold one already keep it: headrace-spoke plan … reset.

    A running hub need not be told.
    """
    if everything == bool(digests):
        raise UsageError("say which orders to drop: digests as list shows them, or --all")
    with _opened(state_dir, dataset) as store:
        rows = _ranked(store)
        meant = rows if everything else [_found(rows, digest) for digest in digests or ()]
        store.drop([row.digest for row in meant], time.time())
    for row in meant:
        typer.echo(f"dropped {_line(row)}")
    if not meant:
        typer.echo("no orders")


@contextmanager
def _opened(state_dir: Path, dataset: str | None) -> Iterator[OrderStore]:
    from hub.orders.store import OrderStore, datasets_with_orders, orders_path

    found = datasets_with_orders(state_dir)
    dataset = chosen_dataset(dataset, found, state_dir, "orders")
    if dataset not in found:
        raise UsageError(
            f"no orders of dataset {dataset!r} in {state_dir} (there: {', '.join(found) or 'none'}); has a hub served it from there?"
        )
    store = OrderStore(orders_path(state_dir, dataset))
    try:
        yield store
    finally:
        store.close()


def _ranked(store: OrderStore) -> list[KeptRow]:
    from hub.orders.ranks import most_useful_first

    return most_useful_first(store.rows())


def _found(rows: list[KeptRow], digest: str) -> KeptRow:
    meant = [row for row in rows if row.digest.hex().startswith(digest.lower())]
    if len(meant) != 1:
        raise UsageError(f"{digest!r} is the beginning of {len(meant)} digests here; see headrace-hub orders list")
    return meant[0]


def _facts(row: KeptRow) -> dict[str, object]:
    return {
        "digest": row.digest.hex(),
        "bytes": row.packed_bytes,
        "steps": row.steps,
        "files": row.files,
        "first_s": row.first_s,
        "last_s": row.last_s,
        "teller": row.teller,
        "tellers": row.tellers,
        "followed": row.followed,
        "proven": row.is_proven,
    }


def _line(row: KeptRow) -> str:
    first, last = local_time(row.first_s), local_time(row.last_s)
    return (
        f"{row.digest.hex()[:12]}  {row.steps} steps in {row.files} files, {format_size(row.packed_bytes)}, told by {row.teller} "
        f"{first}, by {row.tellers} in all, last {last}" + (", followed" if row.followed else "")
    )
