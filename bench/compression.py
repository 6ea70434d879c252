"""What compression saves on the wire and costs in time: ``python -m bench.compression``.

Token files of real text (uint32 and uint16 ids) and noise, each read cold and in order by fresh mounts that take turns: one that
takes compressed data and one that does not, against the same hub. Default: loopback, where compression can only lose; with
``--rtt`` and ``--rate`` over a long link, where it should pay. Ratios are medians over the pairs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from bench.demo import corpus
from bench.flags import add_link_flags, positive
from bench.lab import Lab, in_lab, ready
from bench.link import LinkShape
from bench.path import ROOT, GivenWay, Way, make_way
from bench.read_path import DATASET, read_in_order
from common.terminal import EXIT_USAGE
from common.units import parse_size

TEXT_BYTES = 4 << 20
"""Of text that is tokenized; its ids are repeated with other documents' order until a file is full."""


def write_files(directory: Path, size_bytes: int) -> list[str]:
    """``u32.bin``, ``u16.bin``, ``noise.bin`` of about this size each; their names."""
    texts = corpus.collect(corpus.default_directories(), TEXT_BYTES)
    documents = [np.asarray(tokens) for tokens in corpus.encode(corpus.train(texts), texts, lambda _count: None)]
    dice = np.random.default_rng(1)
    for name, kind in (("u32.bin", np.dtype("<u4")), ("u16.bin", np.dtype("<u2"))):
        with (directory / name).open("wb") as file:
            while file.tell() < size_bytes:
                for number in dice.permutation(len(documents)):
                    file.write(documents[number].astype(kind).tobytes())
            file.truncate(size_bytes)
    with (directory / "noise.bin").open("wb") as file:
        for start in range(0, size_bytes, 1 << 20):
            file.write(os.urandom(min(1 << 20, size_bytes - start)))
    return ["u32.bin", "u16.bin", "noise.bin"]


def cold_read(lab: Lab, name: str, file: str, size_bytes: int, *flags: str) -> tuple[float, float]:
    """Bytes per second, and bytes on the wire over bytes read."""
    spoke = lab.mount(DATASET, name, "--cache-size", format(size_bytes * 2, "d"), *flags)
    before = int(spoke.status()["hub"]["received_bytes"])
    bytes_per_s = read_in_order(spoke.mountpoint / file)
    crossed = int(spoke.status()["hub"]["received_bytes"]) - before
    lab.unmount(spoke)
    return bytes_per_s, crossed / size_bytes


def measure(lab: Lab, way: Way, arguments: argparse.Namespace, say: Callable[[str], object]) -> dict[str, Any]:
    data = lab.directory / "data"
    data.mkdir()
    say("tokenizing")
    names = write_files(data, arguments.size)
    lab.start_hub_at(way, DATASET, data)
    found: dict[str, Any] = {}
    cold_read(
        lab, "first", "noise.bin", arguments.size
    )  # warms the machine's memory and the interpreter's, and does not count
    for name in names:
        say(f"{name}: {arguments.pairs} pairs")
        auto: list[tuple[float, float]] = []
        off: list[tuple[float, float]] = []
        for number in range(arguments.pairs):
            # Who is first changes from pair to pair: what drifts on the machine falls on both.
            for compressed in (True, False) if number % 2 else (False, True):
                flags = () if compressed else ("--no-compression",)
                mount_name = f"{name}-{number}-{'auto' if compressed else 'off'}"
                (auto if compressed else off).append(cold_read(lab, mount_name, name, arguments.size, *flags))
        ratios = [ours / theirs for (ours, _), (theirs, _) in zip(auto, off, strict=True)]
        found[name] = {
            "auto_bytes_per_s": [rate for rate, _ in auto],
            "off_bytes_per_s": [rate for rate, _ in off],
            "speed_auto_to_off": statistics.median(ratios),
            "wire_to_read": statistics.median(share for _, share in auto),
            "wire_to_read_off": statistics.median(share for _, share in off),
        }
    return {"link": way.kind, "rtt_s": arguments.rtt, "size_bytes": arguments.size, "files": found}


def show(result: dict[str, Any], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=f"cold, in order, over {result['link']}", title_justify="left")
    for name in ("", "on the wire / read", "without", "speed to without", "MB/s", "without"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, found in result["files"].items():
        rates = (statistics.median(found[key]) / 1e6 for key in ("auto_bytes_per_s", "off_bytes_per_s"))
        shares = (found[key] for key in ("wire_to_read", "wire_to_read_off", "speed_auto_to_off"))
        table.add_row(name, *(f"{share:.3f}" for share in shares), *(f"{rate:.0f}" for rate in rates))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compression", description="Compression: bytes and time.")
    add_link_flags(parser)
    parser.set_defaults(rtt=0.0)
    parser.add_argument("--size", type=parse_size, default=128 << 20, help="of each file (default 128MiB)")
    parser.add_argument("--pairs", type=positive, default=5, metavar="N", help="of reads of each file (default 5)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out", help="where the JSON goes")
    console = Console(highlight=False, soft_wrap=True)
    arguments = ready(console, parser.parse_args)
    if arguments is None:
        return EXIT_USAGE

    def work(lab: Lab) -> None:
        with contextlib.ExitStack() as stack:
            way: Way = GivenWay("loopback", [], "127.0.0.1")
            if arguments.rtt:
                shape = LinkShape(arguments.rtt, arguments.rate)
                way = stack.enter_context(make_way(arguments.link, shape, lab.directory / "proxy.log", lab.environ))
            result = measure(lab, way, arguments, lambda line: console.print(f"  {line}"))
        (arguments.out / "compression.json").write_text(json.dumps(result, indent=1) + "\n")
        show(result, console)

    return in_lab(console, work, keep=False)


if __name__ == "__main__":
    sys.exit(main())
