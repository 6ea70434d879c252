"""The command ``headrace-spoke``: flags to settings, requests to the running spoke, errors to exit codes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from common import __version__
from common.completion import add_completion
from common.terminal import EXIT_FAILED, exit_codes, open_standard_files, warn
from spoke import cache_cli, estimate_cli, explain_cli, look_cli, plan_cli, purge_cli, verify_cli, warm_cli
from spoke.asking import Mountpoint, untouched_path
from spoke.asking import ask as _ask
from spoke.places import runtime_dir

app = typer.Typer(
    help="Show a far dataset as local files: cache it on this host's disk, fetch it ahead of the readers.",
    no_args_is_help=True,
)
app.add_typer(plan_cli.app, name="plan")
app.add_typer(cache_cli.app, name="cache")


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"headrace-spoke {__version__}")
        raise typer.Exit


@app.command()
@exit_codes
def mount(
    mountpoint: Mountpoint,
    hub: Annotated[str | None, typer.Option(help="HOST:PORT of the hub.")] = None,
    dataset: Annotated[str | None, typer.Option(help="The dataset's name at the hub.")] = None,
    cache_dir: Annotated[Path | None, typer.Option(help="Directory for cached blocks, best on local NVMe.")] = None,
    cache_size: Annotated[
        str | None, typer.Option(help="The most it may hold, for example 100GiB. [default: its share of the disk]")
    ] = None,
    cache_share: Annotated[
        str | None,
        typer.Option(
            help="Without --cache-size: its part of the disk, where several datasets share one. [default: 80%]"
        ),
    ] = None,
    cache_free_floor: Annotated[
        str | None, typer.Option(help="Never leave that disk with less. [default: 1GiB]")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(help="HOST:PORT for /metrics, /healthz and /status. [default: 127.0.0.1:9421]")
    ] = None,
    read_timeout: Annotated[
        str | None,
        typer.Option(help="A read that waits longer for the hub gets EIO; 0 waits for ever. [default: 300s]"),
    ] = None,
    connect_timeout: Annotated[
        str | None, typer.Option(help="How long to wait for a hub when no names are on disk. [default: 10s]")
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="The most memory it takes for itself, at least 128MiB. [default: 512MiB, or half its cgroup's]"
        ),
    ] = None,
    scrub_rate: Annotated[
        str | None,
        typer.Option(help="Compare what is cached with its digests again at this rate, 0: never. [default: 8MiB/s]"),
    ] = None,
    links: Annotated[
        int | None, typer.Option(help="Bulk connections to the hub, 0: as many as the path wants. [default: 0]")
    ] = None,
    identity: Annotated[str | None, typer.Option(help="This spoke's name for the hub. [default: host name]")] = None,
    prefetch: Annotated[bool | None, typer.Option("--prefetch/--no-prefetch", help="Fetch ahead of readers.")] = None,
    learn: Annotated[
        bool | None, typer.Option("--learn/--no-learn", help="Remember in which order files are read, and follow it.")
    ] = None,
    learn_memory: Annotated[
        str | None, typer.Option(help="The most that remembering may take. [default: 128MiB]")
    ] = None,
    share_orders: Annotated[
        bool | None,
        typer.Option(
            "--share-orders/--no-share-orders",
            help="Tell other spokes what was learned, through the hub, and follow theirs.",
        ),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Write down every open, READ and close in this new file, for bench.replay.")
    ] = None,
    compression: Annotated[
        bool | None, typer.Option("--compression/--no-compression", help="Take compressed data from the hub.")
    ] = None,
    revision: Annotated[
        int | None, typer.Option(help="Stay at this revision of the hub's catalog; its changes are not shown.")
    ] = None,
    snapshot: Annotated[
        str | None, typer.Option(help="Stay at the tree that this name stands for (headrace-hub snapshot create).")
    ] = None,
    consistency: Annotated[
        str | None,
        typer.Option(
            help="lease: the hub tells of changes; strict: each open asks it, one round trip. [default: lease]"
        ),
    ] = None,
    passthrough: Annotated[
        bool | None, typer.Option("--passthrough/--no-passthrough", help="Let the kernel read whole files by itself.")
    ] = None,
    read_ahead: Annotated[
        str | None, typer.Option(help="The kernel's readahead in KiB, or auto: by what is read. [default: auto]")
    ] = None,
    allow_other: Annotated[
        bool | None, typer.Option("--allow-other/--no-allow-other", help="Other users may read.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="PEM certificate of this spoke: speak TLS 1.3 with a hub that shows one too.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM, readable by nobody else.")] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="PEM CA certificates that the hub's must lead to.")] = None,
    tls_name: Annotated[
        str | None, typer.Option(help="The name the hub's certificate must have. [default: the host of --hub]")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="The token that this spoke and the hub share; for closed networks.")
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option(
            help="Erase what is cached of files the hub has no more, or of a dataset it no longer gives, after so long; 0: "
            "when room is needed. [default: 24h]"
        ),
    ] = None,
    uid: Annotated[int | None, typer.Option(help="Owner shown for all files. [default: yours]")] = None,
    gid: Annotated[int | None, typer.Option(help="Group shown for all files. [default: yours]")] = None,
    umask: Annotated[str | None, typer.Option(help="Permission bits taken away, octal. [default: 022]")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="auto, console or json.")] = None,
    log_file: Annotated[
        Path | None, typer.Option(help="With --background: where the log goes. [default: beside the control socket]")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file; environment and flags win over it.")] = None,
    background: Annotated[
        bool, typer.Option("--background", help="Return once the mount answers, or fail with the reason.")
    ] = False,
) -> None:
    """Mount a dataset and serve it until SIGTERM or umount.

    Every setting can also stand in the TOML file of --config or in the environment as HEADRACE_NAME; a flag wins over the environment,
    the environment over the file, and status shows where each came from. Exit codes: 0 done, 1 failed, 2 wrong use or configuration.

    \b
    Examples:
      headrace-spoke mount /mnt/c4 --hub 10.0.1.5:7420 --dataset c4 --cache-dir /nvme/headrace --cache-size 500GiB --background
      headrace-spoke mount /mnt/c4 --config /etc/headrace/spoke.toml
    """
    flags: dict[str, Any] = {
        "hub": hub,
        "dataset": dataset,
        "cache_dir": cache_dir,
        "cache_size": cache_size,
        "cache_share": cache_share,
        "cache_free_floor": cache_free_floor,
        "metrics": metrics,
        "read_timeout": read_timeout,
        "connect_timeout": connect_timeout,
        "memory_limit": memory_limit,
        "scrub_rate": scrub_rate,
        "links": links,
        "identity": identity,
        "prefetch": prefetch,
        "learn": learn,
        "learn_memory": learn_memory,
        "share_orders": share_orders,
        "record": record,
        "compression": compression,
        "revision": revision,
        "snapshot": snapshot,
        "consistency": consistency,
        "passthrough": passthrough,
        "read_ahead": read_ahead,
        "allow_other": allow_other,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_ca": tls_ca,
        "tls_name": tls_name,
        "token_file": token_file,
        "retention": retention,
        "uid": uid,
        "gid": gid,
        "umask": umask,
        "log_level": log_level,
        "log_format": log_format,
    }
    # Imported here: settings, logs and daemons take most of a second, which commands that only ask need not wait for.
    from common.config import load
    from common.log import configure
    from spoke.config import SpokeSettings

    loaded = load(SpokeSettings, file=config, environ=os.environ, flags=flags)
    warn(loaded.warnings)
    from spoke.launch import mount_in_background, mount_in_foreground

    if background:
        mount_in_background(mountpoint, loaded, log_file, typer.echo)
    else:
        configure(loaded.settings.log_level, loaded.settings.log_format)
        mount_in_foreground(mountpoint, loaded)


@app.command()
@exit_codes
def umount(
    mountpoint: Mountpoint,
    force: Annotated[
        bool, typer.Option("--force", help="Also if the spoke does not answer; blocked readers get EIO.")
    ] = False,
) -> None:
    """Stop the spoke of a mountpoint and unmount it.

    A mount in use is left alone, and the processes that hold it are named (exit code 1). --force ends it all the same: blocked readers get
    EIO, open files become useless, and what is cached stays for the next mount.

    \b
    Example:
      headrace-spoke umount /mnt/c4
    """
    from spoke.launch import unmount

    unmount(mountpoint, force=force, say=typer.echo)


@app.command()
@exit_codes
def upgrade(mountpoint: Mountpoint) -> None:
    """Start a new worker with the code and settings on disk and let it take the mount over; open files and mappings go on.

    Readers see a pause of some tenths of a second. If the new worker cannot serve, the old one goes on, and the reason is told (exit 1).

    \b
    Example:
      pip install headrace-0.2.0-py3-none-any.whl && headrace-spoke upgrade /mnt/c4
    """
    from spoke.asking import ask_supervisor

    typer.echo(ask_supervisor(mountpoint, "upgrade")["said"])


@app.command()
@exit_codes
def status(
    mountpoint: Mountpoint, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """What a running spoke sees: phase, hub, names, cache, reads, who waited for what, training steps, prefetch, settings.

    --json prints the same as the file .headrace/status in the mount and /status on the metrics port; its schema is
    spoke/status.schema.json. Sizes are bytes, times seconds. Exit code 2 when no spoke serves the mountpoint.

    \b
    Examples:
      headrace-spoke status /mnt/c4
      headrace-spoke status /mnt/c4 --json | jq .stalls.said
    """
    facts = _ask(mountpoint, "status")
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    from spoke.status import render

    typer.echo(render(facts))


app.command()(look_cli.top)
app.command()(explain_cli.explain)
app.command()(look_cli.bugreport)
app.command()(warm_cli.warm)
app.command()(warm_cli.pin)
app.command()(warm_cli.unpin)
app.command()(purge_cli.purge)
app.command()(verify_cli.verify)
app.command()(estimate_cli.estimate)
add_completion(app, "headrace-spoke")


@app.command()
@exit_codes
def doctor(
    mountpoint: Annotated[
        Path | None,
        typer.Argument(
            help="A mount; without one give what it would use.",
            parser=untouched_path,
            show_default=False,
        ),
    ] = None,
    hub: Annotated[str | None, typer.Option(help="HOST:PORT of the hub. [default: the mount's]")] = None,
    dataset: Annotated[str | None, typer.Option(help="The dataset's name there. [default: the mount's]")] = None,
    cache_dir: Annotated[Path | None, typer.Option(help="The cache directory. [default: the mount's]")] = None,
    rtt: Annotated[
        str | None, typer.Option(help="Round trip to judge by, for example 60ms. [default: measured]")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="The link, for example 10gbit. [default: the mount's best, at least 1gbit]")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="What to show the hub, as for mount. [default: the mount's]")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key.")] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="CA certificates that the hub's must lead to.")] = None,
    tls_name: Annotated[
        str | None, typer.Option(help="The name the hub's certificate must have. [default: the host of --hub]")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="The token to prove. [default: the mount's]")] = None,
    config: Annotated[
        Path | None, typer.Option(help="The mount's TOML file: hub, dataset, cache and what to show the hub.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show in full what is fine as well.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at kernel, TCP limits, cache disk, mount and hub: what each costs on this path, and how to mend it.

    Works with the spoke dead, the hub dead or the mount stuck, in less than ten seconds. Exit 1 if something is a problem. The hub is
    shown what the mount shows it: from these flags, the running mount, the environment (HEADRACE_...) or --config.

    \b
    Examples:
      headrace-spoke doctor /mnt/c4
      headrace-spoke doctor --config /etc/headrace/c4.toml --rate 10gbit
    """
    from common import runtime
    from common.log import configure
    from common.units import parse_duration, parse_rate
    from spoke.doctor import report
    from spoke.doctor.examine import Asked, examine
    from spoke.doctor.findings import Level

    configure("critical", "console")  # what it has to say is a finding
    asked = Asked(
        mountpoint,
        hub,
        dataset,
        cache_dir,
        parse_duration(rtt) if rtt is not None else None,
        parse_rate(rate) if rate is not None else None,
        {"tls_cert": tls_cert, "tls_key": tls_key, "tls_ca": tls_ca, "tls_name": tls_name, "token_file": token_file},
        os.environ,
        config,
    )
    began_s = runtime.now_s()
    facts, findings = examine(asked, runtime_dir(), runtime.now_s)
    if as_json:
        typer.echo(json.dumps(report.as_json(facts, findings, runtime.now_s() - began_s), indent=1))
    else:
        report.show(facts, findings, everything=everything)
    if report.worst(findings) is Level.PROBLEM:
        raise typer.Exit(EXIT_FAILED)


@app.command()
@exit_codes
def accept(
    mountpoint: Mountpoint,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be lost.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask, at a terminal either.")] = False,
) -> None:
    """Believe the loss of names that a suspicious hub announced; shows first what is lost, and asks at a terminal.

    A hub that suddenly announces the loss of most names (an unmounted disk looks like that) is not believed: the mount keeps the
    old tree, and status says SUSPICIOUS. If the files are really gone, accept it.

    \b
    Example:
      headrace-spoke accept /mnt/c4
    """
    loss = _ask(mountpoint, "loss")
    if loss["suspicious"] is None:
        typer.echo("the hub is not suspicious; nothing to accept")
        return
    from spoke.status import render_loss

    typer.echo(render_loss(loss))
    if dry_run:
        return
    if sys.stdin.isatty() and not yes:
        typer.confirm("Is this loss real?", abort=True)
    seen = {"revision": loss["revision"], "catalog_id": loss["catalog_id"]}
    typer.echo(_ask(mountpoint, "accept", seen)["said"])


def main() -> None:
    """Entry point of the command."""
    open_standard_files()
    app()


if __name__ == "__main__":
    main()
