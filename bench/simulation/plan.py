"""What a seed means: how many spokes, what is in the dataset, which faults come when. Pure.

Each seed draws which kinds of faults it knows at all, so that some runs have one kind in plenty and a few have none:
faults that hide one another in every run would be found in none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

LINK = (
    "link silent", "link unreachable", "link reset", "link half closed", "link corrupts", "link slow", "link jitters", "link in crumbs",
)  # fmt: skip
HUB = (
    "hub killed",
    "hub lost power",
    "hub restarted",
    "hub disk fails",
    "hub disk short",
    "hub disk slow",
    "hub stands still",
)
SPOKE = (
    "spoke killed", "spoke lost power", "spoke restarted", "cache disk fails to read", "cache disk fails to write", "cache disk full",
    "cache disk short", "cache disk slow", "cache damaged: data", "cache damaged: index", "cache damaged: cut", "cache damaged: rot",
    "spoke stands still",
)  # fmt: skip
KINDS = (*LINK, *HUB, *SPOKE)


@dataclass(frozen=True, slots=True)
class Fault:
    """``spoke``: which one's, where it is one's."""

    at_s: float
    kind: str
    lasts_s: float
    spoke: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Times in seconds from the beginning. ``large_files`` of some ``large_bytes`` make more than a cache holds in some runs.

    ``edits_under_reads``: so many of the reads have their file edited under them."""

    seed: int
    spokes: int
    readers: int
    files: int
    large_files: int
    large_bytes: int
    read_timeout_s: float
    rescan_interval_s: float
    compression: str
    prefetch: bool
    strict: bool
    delay_s: float
    rate_bytes_per_s: float
    edit_every_s: float
    edits_under_reads: float
    lasts_s: float
    kinds: tuple[str, ...]
    faults: tuple[Fault, ...]


def plan_of(seed: int, only: Sequence[str] | None = None) -> Plan:
    """``only``: the kinds of faults to draw from, all of them in each run."""
    dice = Random(f"plan {seed}")
    spokes = dice.choice([1, 2, 2, 3, 4])
    lasts_s = dice.choice([8.0, 15.0, 15.0, 30.0]) * dice.uniform(0.7, 1.3)
    kinds = tuple(kind for kind in KINDS if dice.random() < dice.choice([0.1, 0.3]))
    if dice.random() < 0.08:
        kinds = ()
    if only is not None:
        kinds = tuple(only)
    every_s = dice.choice([1.0, 3.0, 6.0])
    faults: list[Fault] = []
    at_s = dice.expovariate(1 / every_s)
    while kinds and at_s < lasts_s:
        lasting_s = min(dice.expovariate(1 / dice.choice([0.5, 3.0, 8.0])), 25.0)
        faults.append(Fault(at_s, dice.choice(kinds), lasting_s, dice.randrange(spokes)))
        at_s += dice.expovariate(1 / every_s)
    pressure = dice.random() < 0.25
    return Plan(
        seed,
        spokes,
        readers=dice.randint(1, 3),
        files=dice.randint(2, 20),
        large_files=dice.randint(4, 6) if pressure else 0,
        large_bytes=5 << 20 if pressure else 2 << 20,
        read_timeout_s=dice.choice([6.0, 15.0]),
        rescan_interval_s=dice.choice([0.0, 5.0, 300.0]),
        compression=dice.choice(["auto", "on", "off"]),
        prefetch=dice.random() < 0.7,
        strict=dice.random() < 0.15,
        delay_s=dice.choice([0.0005, 0.015, 0.03, 0.15, 0.45]),
        rate_bytes_per_s=dice.choice([3e6, 2e7, 1e9]),
        edit_every_s=dice.choice([0.3, 2.0, 10.0]),
        edits_under_reads=dice.choice([0.0, 0.05, 0.3]),
        lasts_s=lasts_s,
        kinds=kinds,
        faults=tuple(faults),
    )
