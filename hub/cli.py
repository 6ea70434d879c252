"""The command ``headrace-hub``: flags to settings, errors to exit codes (0 done, 1 failed, 2 usage)."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common import __version__
from common.completion import add_completion
from common.config import load
from common.errors import HeadraceError, UsageError
from common.log import configure
from common.terminal import exit_codes, open_standard_files, warn
from common.units import format_rate, format_size
from hub import orders_cli
from hub.arguments import DatasetName, StateDir, chosen_dataset, local_time
from hub.config import DEFAULT_METRICS_PORT, HubSettings

if TYPE_CHECKING:
    from hub.snapshots import NamedSnapshot

app = typer.Typer(
    help="Serve tokenized datasets beside the data to spokes far away.", no_args_is_help=True, add_completion=True
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"headrace-hub {__version__}")
        raise typer.Exit


@app.command()
@exit_codes
def serve(
    dataset: Annotated[list[str] | None, typer.Option(help="NAME=DIR to serve; may be given several times.")] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT for spokes. Port 0 takes a free one.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where the catalog is kept.")] = None,
    metrics: Annotated[str | None, typer.Option(help="HOST:PORT for /metrics, /healthz and /status.")] = None,
    rate_limit: Annotated[
        str | None,
        typer.Option(
            help="Total over all spokes, for example 10gbit, or by the hour: 2gbit@mon-fri 08:00-20:00,10gbit."
        ),
    ] = None,
    rate_limit_zone: Annotated[
        str | None,
        typer.Option(help="Whose hours these are: local, UTC, or a name like Europe/Berlin. [default: local]"),
    ] = None,
    weights: Annotated[
        list[str] | None, typer.Option(help="IDENTITY=WEIGHT: a spoke's share against others; * matches any text.")
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="PEM certificate of this hub: speak TLS 1.3 only, with spokes that show one too."),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM, readable by nobody else.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="PEM CA certificates that spokes' certificates must lead to.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="Ask spokes for the token in this file; for closed networks.")
    ] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Listen beyond this host with neither TLS nor token.")
    ] = None,
    audit_log: Annotated[
        str | None, typer.Option(help="File for who opened what, in JSON lines; - puts them with the log.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that serve, for more cores; a spoke stays in one. [default: 1]")
    ] = None,
    rescan_interval: Annotated[
        str | None, typer.Option(help="Full rescan every so often (300s); 0 trusts inotify alone.")
    ] = None,
    compression: Annotated[str | None, typer.Option(help="auto (where it pays), on or off. [default: auto]")] = None,
    share_orders: Annotated[
        bool | None,
        typer.Option(
            "--share-orders/--no-share-orders", help="Keep the orders that spokes learned, and tell other spokes."
        ),
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="auto, console or json.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file; environment and flags win over it.")] = None,
) -> None:
    """Serve datasets until SIGTERM. Prints one line on stdout once it listens.

    Every setting can also stand in the TOML file of --config or in the environment as HEADRACE_NAME; a flag wins over the environment, the
    environment over the file. Beyond this host it listens only with certificates, a token, or --insecure. Exit codes: 0 done, 1 failed, 2
    wrong use or configuration.

    \b
    Examples:
      headrace-hub serve --dataset c4=/data/c4
      headrace-hub serve --dataset c4=/data/c4 --listen 10.0.1.5:7420 --tls-cert hub.pem --tls-key hub.key --tls-ca ca.pem
      headrace-hub serve --config /etc/headrace/hub.toml
    """
    flags: dict[str, Any] = {
        "dataset": dataset or None,
        "listen": listen,
        "state_dir": state_dir,
        "metrics": metrics,
        "rate_limit": rate_limit,
        "rate_limit_zone": rate_limit_zone,
        "weights": weights or None,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_ca": tls_ca,
        "token_file": token_file,
        "insecure": insecure,
        "audit_log": audit_log,
        "workers": workers,
        "rescan_interval": rescan_interval,
        "compression": compression,
        "share_orders": share_orders,
        "log_level": log_level,
        "log_format": log_format,
    }
    loaded = load(HubSettings, file=config, environ=os.environ, flags=flags)
    warn(loaded.warnings)
    configure(loaded.settings.log_level, loaded.settings.log_format)
    from hub.daemon import run_hub

    run_hub(loaded, on_ready=typer.echo)


@app.command()
@exit_codes
def status(
    metrics: Annotated[
        str, typer.Option(help="The hub's metrics address.", envvar="HEADRACE_METRICS")
    ] = f"127.0.0.1:{DEFAULT_METRICS_PORT}",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Datasets, revisions and the spokes that are linked.

    --json prints the same as /status on the metrics port; its schema is hub/status.schema.json. Sizes are bytes, times seconds.
    The same as a page: http://127.0.0.1:9420/. Exit code 1 when no hub answers.

    \b
    Examples:
      headrace-hub status
      headrace-hub status --json | jq '.spokes[] | {identity, rate_bytes_per_s}'
    """
    try:
        with urllib.request.urlopen(f"http://{metrics}/status", timeout=5) as response:
            facts = json.load(response)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise HeadraceError(f"no hub answers at {metrics}: {getattr(error, 'reason', error)}") from None
    if not isinstance(facts, dict) or "listen" not in facts:
        raise UsageError(f"what answers at {metrics} is not a hub; give the hub's --metrics address")
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    typer.echo(f"hub {facts['version']} on {facts['listen']}, up {facts['uptime_s']:.0f} s")
    for name, dataset in facts["datasets"].items():
        typer.echo(
            f"  {name}: {dataset['directory']}  {dataset['entries']} names, revision {dataset['revision']}"
            + (f"  HELD: {dataset['held']}" if dataset["held"] else "")
        )
        left_out = [f"{count} {kind}" for kind, count in dataset["skipped"].items()]
        if left_out:
            typer.echo(f"    not served: {', '.join(left_out)}")
        if dataset["unreadable"]:
            typer.echo(f"    unreadable, kept as they were known: {dataset['unreadable']}; the log names them")
        orders = dataset["orders"]
        if orders is not None and (orders["kept"] or orders["trouble"]):
            typer.echo(
                f"    {orders['kept']} orders that spokes learned, {format_size(orders['bytes'])}"
                + (f"; {orders['trouble']}" if orders["trouble"] else "")
            )
    for spoke in facts["spokes"]:
        typer.echo(
            f"  spoke {spoke['identity']} {spoke['address']}  {spoke['dataset']}  {spoke['connections']} connections, "
            f"weight {spoke['weight']:g}, {format_rate(spoke['rate_bytes_per_s'])}, {format_size(spoke['sent_bytes'])} sent"
        )
    for worker in facts["workers"]:
        state = f"process {worker['pid']}" if worker["serving"] else "starting"
        share = worker["share_bytes_per_s"]
        typer.echo(
            f"  {state}: {worker['spokes']} spokes, {worker['connections']} connections"
            + (f", {format_rate(share)} of the total" if share else "")
        )
    limit = facts["rate_limit"]
    until = f" until {limit['until']}; rules: {limit['rules']}" if limit["until"] else ""
    typer.echo(f"  rate limit: {limit['limit']}{until}")
    chosen = [
        f"{name}={_shown(setting['value'])} ({setting['source']})"
        for name, setting in facts["settings"].items()
        if setting["source"] != "default"
    ]
    typer.echo(f"  settings: {', '.join(chosen) or 'all default'}")


def _shown(value: object) -> str:
    """A setting's value; of a table (dataset, weights) its pairs."""
    return "+".join(f"{key}={one}" for key, one in value.items()) if isinstance(value, dict) else str(value)


snapshot_app = typer.Typer(help="Name the tree as it is now, so that mounts can stay at it.", no_args_is_help=True)
app.add_typer(snapshot_app, name="snapshot")
app.add_typer(orders_cli.app, name="orders")
add_completion(app, "headrace-hub")
SnapshotName = Annotated[str, typer.Argument(help="Of the snapshot.", show_default=False)]


def _dataset(name: str | None, state_dir: Path) -> str:
    from hub import snapshots

    return chosen_dataset(name, snapshots.datasets_in(state_dir), state_dir, "catalogs")


def _line(snapshot: NamedSnapshot) -> str:
    made = local_time(snapshot.created_s)
    return f"{snapshot.name}  revision {snapshot.revision}, {snapshot.entry_count} names, made {made}"


@snapshot_app.command("create")
@exit_codes
def snapshot_create(name: SnapshotName, state_dir: StateDir, dataset: DatasetName = None) -> None:
    """Name the tree that the hub's catalog holds now, whether the hub is running or not. Copies nothing."""
    from hub import snapshots

    with snapshots.opened(state_dir, _dataset(dataset, state_dir)) as database:
        made = snapshots.create(database, name, time.time())
    typer.echo(_line(made))


@snapshot_app.command("list")
@exit_codes
def snapshot_list(
    state_dir: StateDir,
    dataset: DatasetName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The snapshots of a dataset, oldest first."""
    from hub import snapshots

    with snapshots.opened(state_dir, _dataset(dataset, state_dir), write=False) as database:
        found = snapshots.list_all(database)
    if as_json:
        typer.echo(json.dumps([snapshot._asdict() for snapshot in found], indent=1))
        return
    for snapshot in found:
        typer.echo(_line(snapshot))


@snapshot_app.command("drop")
@exit_codes
def snapshot_drop(name: SnapshotName, state_dir: StateDir, dataset: DatasetName = None) -> None:
    """Forget a snapshot and what only it kept. Mounts that are at it stay so; new ones cannot be."""
    from hub import snapshots

    with snapshots.opened(state_dir, _dataset(dataset, state_dir)) as database:
        dropped = snapshots.drop(database, name)
    typer.echo(f"dropped {_line(dropped)}")


def main() -> None:
    """Entry point of the command."""
    open_standard_files()
    app()


if __name__ == "__main__":
    main()
