"""The command ``estimate``: what a job would wait, move and pay, before anything is rented."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from common.terminal import exit_codes
from common.units import format_rate, parse_duration, parse_rate, parse_size
from spoke.estimate import Estimate, Job, Order, Reads
from spoke.estimate import estimate as estimated
from spoke.insight.stalls import in_time


@exit_codes
def estimate(
    dataset_size: Annotated[str, typer.Option(help="Of all files, for example 2TB.", show_default=False)],
    record_size: Annotated[str, typer.Option(help="What one sample reads, for example 16KiB.", show_default=False)],
    batch: Annotated[int, typer.Option(help="Samples of all hosts together in a step.", show_default=False)],
    step_time: Annotated[
        str, typer.Option(help="Of one step with data at hand, for example 500ms.", show_default=False)
    ],
    rtt: Annotated[str, typer.Option(help="Round trip between the two sides, for example 60ms.", show_default=False)],
    link: Annotated[str, typer.Option(help="What carries the bytes, for example 10gbit.", show_default=False)],
    workers: Annotated[int, typer.Option(help="Loader processes of all hosts together.")] = 4,
    epochs: Annotated[int, typer.Option(help="How often all of it is read.")] = 1,
    hosts: Annotated[int, typer.Option(help="GPU hosts, each with a spoke and a cache.")] = 1,
    cache_size: Annotated[str | None, typer.Option(help="Of each host. [default: all of the dataset]")] = None,
    order: Annotated[
        Order, typer.Option(help="How samples follow each other; declared: shuffled and told to the spoke.")
    ] = Order.SEQUENTIAL,
    reads: Annotated[
        Reads, typer.Option(help="A host reads the same part each epoch, or comes to read all.")
    ] = Reads.PART,
    files: Annotated[int, typer.Option(help="Files of the dataset.")] = 1000,
    compression: Annotated[float, typer.Option(help="Raw bytes for one on the wire; uint32 tokens: 2.5.")] = 1.0,
    price_per_gb: Annotated[float, typer.Option(help="For a GB (10^9 bytes) that crosses the link.")] = 0.02,
    host_price: Annotated[float, typer.Option(help="For an hour of all hosts together.")] = 0.0,
    wait: Annotated[
        str | None, typer.Option(help="Until there is capacity beside the data, for example 72h.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: bytes, seconds, bytes per second.")] = False,
) -> None:
    """Time to first batch, stall, bytes over the link and money, three ways: cached remote, copy first, wait for capacity.

    Arithmetic on what you give it; nothing is asked of any host. docs/planning.md says what is in it, what is not, and how it compared
    with a measured run. Money is in the unit of the prices.

    \b
    Example:
      headrace-spoke estimate --dataset-size 2TB --record-size 16KiB --batch 2048 --step-time 1s --rtt 60ms --link 10gbit \\
          --hosts 4 --workers 32 --epochs 3 --cache-size 1TB --host-price 160 --wait 72h
    """
    dataset_bytes = parse_size(dataset_size)
    job = Job(
        dataset_bytes=dataset_bytes,
        record_bytes=parse_size(record_size),
        batch=batch,
        step_s=parse_duration(step_time),
        rtt_s=parse_duration(rtt),
        link_bytes_per_s=parse_rate(link),
        cache_bytes=parse_size(cache_size) if cache_size is not None else dataset_bytes,
        epochs=epochs,
        hosts=hosts,
        workers=workers,
        order=order,
        reads=reads,
        files=files,
        compression=compression,
        price_per_gb=price_per_gb,
        host_price_per_h=host_price,
        wait_s=parse_duration(wait) if wait is not None else None,
    )
    made = estimated(job)
    typer.echo(json.dumps(asdict(made), indent=1) if as_json else render(job, made))


def render(job: Job, made: Estimate) -> str:
    """For people."""
    enough = made.carried_bytes_per_s >= made.needed_bytes_per_s
    lines = [
        f"the steps take {format_rate(made.needed_bytes_per_s)}, the link brings {format_rate(made.carried_bytes_per_s)}: "
        + (
            "enough"
            if enough
            else f"{made.needed_bytes_per_s / made.carried_bytes_per_s:.2g} times too little while the cache is cold"
        ),
        f"{made.steps:,} steps an epoch, {in_time(made.compute_s)} of compute in {job.epochs} epoch{'s' if job.epochs > 1 else ''}",
        "",
        f"{'':18}{'first batch':>13}{'stall':>12}{'in all':>14}{'over the link':>15}{'transfer':>11}{'hosts wait':>12}",
    ]
    lines += [
        f"{way.name:18}{in_time(way.first_batch_s):>13}{in_time(way.stall_s):>12}{in_time(way.total_s):>14}"
        f"{_gb(way.wan_bytes):>15}{way.transfer_money:>11,.2f}{way.waiting_money:>12,.2f}"
        for way in made.ways
    ]
    stalls = [f"epoch {number}: {in_time(stall_s)}" for number, stall_s in enumerate(made.epoch_stalls_s[:8], start=1)]
    more = ", …" if len(made.epoch_stalls_s) > len(stalls) else ""
    lines += ["", f"stall of the cached way by epoch: {', '.join(stalls)}{more}"]
    if job.order is Order.SHUFFLED and made.epoch_stalls_s[0] > 0:
        lines.append(
            f"a shuffled order that nobody told waits a round trip for each of {job.workers} loader processes: declare it "
            "(plan, recipe, spoke.hints) and ask again with --order declared"
        )
    return "\n".join(lines)


def _gb(count_bytes: float) -> str:
    """As links are paid for: 10^9 bytes."""
    return f"{count_bytes / 1e9:,.1f} GB"
