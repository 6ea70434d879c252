"""``python -m bench.compare NAME=DIR NAME=DIR …``: the same reads on directories that hold the same files; CSV and a picture.

Mount each system yourself, freshly and with empty caches, on the same dataset (``--prepare DIR`` writes one): the first
pass over each is the cold one. Then passes that take turns (A B C A B C …) are the warm ones; their median counts. Nothing
is installed, mounted or dropped here, so what is warm is whatever the system keeps, the kernel's page cache included.
Exit codes: 0 done, 1 a directory gave other bytes or names than the first, 2 wrong use.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.compare.work import SCALES, UNITS, Outcome, choose, kinds, prepare, sizes_below
from bench.path import ROOT
from common.errors import HeadraceError, UsageError
from common.terminal import EXIT_FAILED, EXIT_USAGE
from common.units import parse_size


class Row(NamedTuple):
    system: str
    work: str
    temperature: str
    speed: float
    unit: str
    seconds: float


def measure(systems: dict[str, Path], most_bytes: int, most_files: int, reads: int, rounds: int) -> list[Row]:
    """All work on all systems. Raises HeadraceError when one has other names, sizes or bytes than the first."""
    sizes = {name: sizes_below(directory) for name, directory in systems.items()}
    first = next(iter(systems))
    for name, held in sizes.items():
        if held != sizes[first]:
            different = sorted(set(held.items()) ^ set(sizes[first].items()))[:3]
            raise HeadraceError(f"{name} and {first} do not hold the same files; for example {different}")
    todo = kinds(choose(sizes[first], most_bytes, most_files), sizes[first], most_bytes, reads)
    rows = []
    for work, run in todo.items():
        outcomes: dict[str, list[Outcome]] = {name: [] for name in systems}
        for _ in range(1 + rounds):
            for name, directory in systems.items():
                outcomes[name].append(run(directory))
        if len({outcome.checksum for found in outcomes.values() for outcome in found}) != 1:
            raise HeadraceError(f"{work}: the directories did not all give the same bytes")
        for name, found in outcomes.items():
            for temperature, some in (("cold", found[:1]), ("warm", found[1:])):
                speed = statistics.median(one.amount / one.seconds for one in some) / SCALES[work]
                rows.append(
                    Row(name, work, temperature, speed, UNITS[work], statistics.median(one.seconds for one in some))
                )
    return rows


def write_csv(rows: Sequence[Row], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows(rows)


def draw(rows: Sequence[Row], path: Path) -> bool:
    """A panel a kind of work, cold and warm bars for each system; False where matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    works, systems = list(dict.fromkeys(row.work for row in rows)), list(dict.fromkeys(row.system for row in rows))
    figure, panels = plt.subplots(2, 2, figsize=(9.6, 2.6 + 0.55 * len(systems)), dpi=150, layout="constrained")
    for work, axes in zip(works, panels.flat, strict=True):
        for shift, temperature, colour in ((-0.2, "cold", "#1f6f8b"), (0.2, "warm", "#e07a1f")):
            found = {row.system: row.speed for row in rows if (row.work, row.temperature) == (work, temperature)}
            bars = axes.barh([place + shift for place in range(len(systems))], [found[name] for name in systems], 0.36,
                             color=colour, label=temperature)  # fmt: skip
            axes.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
        axes.set_yticks(range(len(systems)), systems)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlim(left=min(row.speed for row in rows if row.work == work) / 10)  # a bar has a length of its own
        axes.set_xlim(right=3 * max(row.speed for row in rows if row.work == work))
        axes.tick_params(axis="x", which="both", labelbottom=False)
        axes.set_title(f"{work}, {UNITS[work]} (log scale)", loc="left", fontsize=10)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    figure.savefig(path)
    plt.close(figure)
    return True


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("systems", nargs="*", metavar="NAME=DIR", help="a name for the table, and a mounted directory")
    parser.add_argument("--prepare", type=Path, metavar="DIR", help="write a dataset to serve, and end")
    parser.add_argument("--bytes", type=parse_size, default=256 << 20, help="most to read in order (default 256MiB)")
    parser.add_argument("--files", type=int, default=1000, help="most small files to read (default 1,000)")
    parser.add_argument("--reads", type=int, default=300, help="single pages read at random (default 300)")
    parser.add_argument("--rounds", type=int, default=3, help="warm passes (default 3)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/out/compare", help="where CSV and picture go")
    arguments = parser.parse_args(argv)
    if min(arguments.bytes, arguments.files, arguments.reads, arguments.rounds) < 1:
        raise UsageError("--bytes, --files, --reads and --rounds must be 1 or more")
    named = [text.partition("=") for text in arguments.systems]
    if wrong := [text for text, (name, _, path) in zip(arguments.systems, named, strict=True) if not name or not path]:
        raise UsageError(f"{wrong[0]!r} is not NAME=DIR, for example nfs=/mnt/nfs")
    arguments.systems = {name: Path(path) for name, _, path in named}
    if len(arguments.systems) != len(named):
        raise UsageError("two directories have the same name")
    if missing := [str(path) for path in arguments.systems.values() if not path.is_dir()]:
        raise UsageError(f"{missing[0]} is not a directory")
    if arguments.prepare is None and not arguments.systems:
        raise UsageError("name at least one directory, for example headrace=/mnt/c4 nfs=/mnt/nfs")
    if arguments.prepare is not None and arguments.prepare.exists():
        raise UsageError(f"--prepare {arguments.prepare}: it is there already")
    return arguments


def main() -> int:
    console = Console(highlight=False, soft_wrap=True)
    try:
        arguments = parse()
        if arguments.prepare is not None:
            prepare(arguments.prepare, arguments.bytes // 2, arguments.files)
            console.print(f"wrote {arguments.prepare}; serve it by each system, mount it, and name the mounts")
            return 0
        arguments.out.mkdir(parents=True, exist_ok=True)
        rows = measure(arguments.systems, arguments.bytes, arguments.files, arguments.reads, arguments.rounds)
    except UsageError as error:
        console.print(f"[red]error:[/] {escape(str(error))}")
        return EXIT_USAGE
    except (HeadraceError, OSError) as error:
        console.print(f"[red]failed:[/] {escape(str(error))}")
        return EXIT_FAILED
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("work", "system", "cold", "warm", "unit"):
        table.add_column(name, justify="right" if name in ("cold", "warm") else "left")
    for cold, warm in zip(rows[0::2], rows[1::2], strict=True):
        table.add_row(cold.work, cold.system, f"{cold.speed:,.1f}", f"{warm.speed:,.1f}", cold.unit)
    console.print(table)
    write_csv(rows, arguments.out / "compare.csv")
    written = [arguments.out / "compare.csv"]
    if draw(rows, arguments.out / "compare.png"):
        written.append(arguments.out / "compare.png")
    for path in written:
        console.print(f"  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
