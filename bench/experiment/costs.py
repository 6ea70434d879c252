"""What a first pass costs by each way of having the data, from what the runs measured and prices given by flags. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.experiment.measures import Phase
from common.units import format_rate


@dataclass(frozen=True)
class Prices:
    """US dollars: for a GB (1e9 bytes) between regions, and for one GPU's hour; ``data_bytes``: the dataset to reckon with."""

    transfer_gb: float
    gpu_hour: float
    gpus: int
    data_bytes: float

    def told(self, rate_bytes_per_s: float) -> str:
        gpus = f"{self.gpus} GPUs at ${self.gpu_hour:g} an hour"
        return f"${self.transfer_gb:g} a GB between regions, {gpus}, {format_rate(rate_bytes_per_s)}"


class Cost(NamedTuple):
    name: str
    transfer: float
    idle: float
    idle_s: float


def cost_of(phases: Sequence[Phase], prices: Prices, rate_bytes_per_s: float) -> list[Cost]:
    """Copy first, and the mount.

    The copy's idle time is what the dataset takes at the rate of the measured copy; the mount's is the time its cold run
    lost, which does not grow with the dataset.
    """
    by_name = {phase.name: phase for phase in phases}
    copy, cold = by_name["copy-first"], by_name["cold"]
    # A short copy is mostly its own start; a long one comes near the rate of the link, and never beyond it.
    copy_rate = min(rate_bytes_per_s, copy.before_bytes / copy.before_s)
    sent_share = cold.wan_bytes / copy.before_bytes
    found = []
    for name, share, idle_s in (
        ("copy first, then local", 1.0, prices.data_bytes / copy_rate),
        ("Headrace, cold", sent_share, max(0.0, cold.lost_s or 0.0)),
    ):
        transfer = share * prices.data_bytes / 1e9 * prices.transfer_gb
        found.append(Cost(name, transfer, idle_s / 3600 * prices.gpus * prices.gpu_hour, idle_s))
    return found


def full_speed_rates(phase: Phase) -> list[float]:
    """Each batch's speed over the local level."""
    level = phase.local_level
    return [phase.epoch.samples / took / level for took in phase.epoch.batch_s]
