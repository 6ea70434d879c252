"""Writes docs/metrics.md from the two tables of metrics: ``python deploy/prometheus/metrics_page.py > docs/metrics.md``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from common.metrics import Metric  # noqa: E402
from hub.metrics import METRICS as HUB  # noqa: E402
from spoke.metrics import METRICS as SPOKE  # noqa: E402

UNITS = ("bytes_per_second", "bytes", "seconds")

LABEL_VALUES = {
    "source": "cache, wan",
    "result": "hit, late, miss",
    "outcome": "used, wasted; of plan steps and orders: taken, told or kept, or why one was not",
    "origin": "own, hub",
    "place": "cache, wire",
    "owner": "names, index, flights, readers, recent, buffers, orders, process",
    "trouble": "full, inodes, quota, read-only, failing, gone, slow",
    "reason": "a fixed list, in the code",
    "priority": "demand, prefetch",
    "code": "error codes of the wire (common/wire/PROTOCOL.md)",
    "kind": "kinds of names that are not served",
    "dataset": "the hub's datasets, as configured",
    "rank": "ranks of jobs on this host that lost most, 32 at most (`RANK` in their environment, or what `hints.step` says)",
    "spoke": "identities of spokes since the hub started, a bounded number of them (`hub/counts.py`)",
}

HEAD = """\
# Metrics

Made from the tables in the code by `python deploy/prometheus/metrics_page.py > docs/metrics.md`; a test compares.

Both daemons serve `/metrics` in Prometheus' text format on their `--metrics` address: the hub on 127.0.0.1:9420, a spoke on
127.0.0.1:9421. The values are read when somebody scrapes; nothing is counted for the metrics alone. Counters begin at 0 with the
process.

**One port a host, however many mounts.** Spokes of one user that are given the same `--metrics` port share it: the first has it
and serves all of them, each series with the label `mount` (the mountpoint); when it ends, another takes the port within 2 s. There is
nothing to set up.

- A spoke alone on its port shows no `mount`. Once a second one shared it the label stays until the spoke's process is another.
- The others are asked side by side, for a second at most. One that hangs, or whose spoke died and left its mount, is shown as
  `headrace_spoke_answering{mount="…"} 0` and by nothing else (alert `HeadraceMountSilent`); the scrape does not wait for it.
- `/status?mount=/mnt/c4` and the page `/?mount=/mnt/c4` show another mount at the port; without it they show that of the spoke
  that has it. `/healthz` speaks of that one alone.
- `status` says under `metrics` where the figures of a mount are to be had. A port that another program has, or another user's
  spoke, is logged as an error and tried again every 2 s; the mount goes on without.
- A spoke with a port of its own serves itself alone; port 0 is always one of its own. At most 64 mounts are shown at one port.

A scraper, rules with tests, and a dashboard: [deploy/prometheus](../deploy/prometheus).
"""


def unit(name: str) -> str:
    """Of a metric: its name ends with it; what has none counts things, or is 0 or 1."""
    return next((found.replace("_per_", "/") for found in UNITS if name.endswith(f"_{found}")), "")


def table(metrics: Sequence[Metric[Any]]) -> list[str]:
    lines = ["| name | type | unit | labels | meaning |", "|---|---|---|---|---|"]
    for metric in metrics:
        name = metric.name + ("_total" if metric.kind == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        meaning = metric.meaning.replace("|", "\\|")
        lines.append(f"| `{name}` | {metric.kind} | {unit(metric.name)} | {labels} | {meaning} |")
    return lines


def page() -> str:
    lines = [HEAD, "## Hub", "", *table(HUB), "", "## Spoke", "", *table(SPOKE), "", "## Labels", ""]
    lines += [
        "No label's values grow with files, reads or time. Where spokes share a port, `mount` is beside them.",
        "",
        "| label | values |",
        "|---|---|",
    ]
    every: tuple[Metric[Any], ...] = (*HUB, *SPOKE)
    used = sorted({label for metric in every for label in metric.labels})
    lines += [f"| `{label}` | {LABEL_VALUES[label]} |" for label in used]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
