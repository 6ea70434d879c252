"""From what the job and the spoke's scrapes said to figures with their targets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.demo import summary
from bench.demo.summary import difference, hit_rate
from bench.experiment.measures import FETCHED, FULL_SPEED, RECEIVED

GRAIN_BYTES = 128 * 1024
BLOCK_BYTES = 4096


@dataclass(frozen=True)
class Figure:
    """``at_most`` or ``at_least``: what is asked for; neither: it is only shown."""

    load: str
    what: str
    value: float | None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return "" if self.at_most is None else f"<= {self.at_most:g}"

    @property
    def is_met(self) -> bool | None:
        """None: nothing was asked for."""
        if self.at_least is None and self.at_most is None:
            return None
        if self.value is None:
            return False
        low = self.at_least if self.at_least is not None else self.value
        high = self.at_most if self.at_most is not None else self.value
        return low <= self.value <= high


def hits(run: Mapping[str, Any], since: str = "before") -> float | None:
    """Share of the READs since that scrape that waited for nobody."""
    return hit_rate(difference(run[since], run["after"]))


def misses(run: Mapping[str, Any], since: str = "before") -> float:
    """Share of the READs for which nothing had been asked."""
    gained = difference(run[since], run["after"])
    reads = {
        result: gained.get(f'headrace_spoke_reads_total{{result="{result}"}}', 0.0)
        for result in ("hit", "late", "miss")
    }
    return reads["miss"] / max(1.0, sum(reads.values()))


def fetched_bytes(run: Mapping[str, Any]) -> float:
    """From the hub, before compression."""
    return difference(run["before"], run["after"]).get(FETCHED, 0.0)


def behind_link_s(run: dict[str, Any], share: float, batch_bytes: float, rate_bytes_per_s: float) -> float:
    """When this share of the batches was done, less what the link takes for their bytes: where it grows, the link was idle."""
    batches = max(1, int(share * len(run["batch_s"])))
    return float(sum(run["batch_s"][:batches]) - batches * batch_bytes / rate_bytes_per_s)


def received_bytes(run: Mapping[str, Any]) -> float:
    """On the wire."""
    return difference(run["before"], run["after"]).get(RECEIVED, 0.0)


def batches_to_full_speed(batch_s: Sequence[float], local_batch_s: float) -> int | None:
    """After how many batches the ten that follow take no longer than ten local ones, over 0.98; None: never."""
    return summary.batches_to_full_speed(summary.Sweep(1, batch_s, (), ""), 1 / local_batch_s, FULL_SPEED)


def waited_rtts(run: Mapping[str, Any], local: Mapping[str, Any], rtt_s: float) -> float:
    """How much longer the job stood without a batch than with local data, in round trips; the first batch included, from where the
    loader has started its workers, if that is known."""
    return (waited_s(run) - waited_s(local)) / rtt_s


def waited_s(run: Mapping[str, Any]) -> float:
    """Without a batch. Processes take up to two seconds to start, and once more or less than the next time."""
    return float(sum(run["wait_s"])) - float(run.get("order_s", 0.0))


def local_share(run: Mapping[str, Any], local: Mapping[str, Any]) -> float:
    """Local time / time, both from where the loader has started its workers."""
    return float((local["took_s"] - local.get("order_s", 0.0)) / (run["took_s"] - run.get("order_s", 0.0)))


def unique_bytes(reads: Iterable[tuple[int, int, int]], grain_bytes: int) -> int:
    """Bytes of the places of ``grain_bytes`` that READs (file, offset, length) touch, each counted once."""
    touched: set[tuple[int, int]] = set()
    for file, offset_bytes, length_bytes in reads:
        last = (offset_bytes + length_bytes - 1) // grain_bytes
        touched.update((file, place) for place in range(offset_bytes // grain_bytes, last + 1))
    return len(touched) * grain_bytes
