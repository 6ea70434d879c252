"""When which fault happens, from a seed. Pure: the same seed and arguments give the same schedule for ever."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CALM_EVERY_S, CALM_S = 60.0, 12.0


@dataclass(frozen=True, slots=True)
class Planned:
    """``start_s`` and ``end_s`` count from the beginning of the run; ``seed`` is for what the fault chooses itself."""

    start_s: float
    end_s: float
    kind: str
    seed: int


@dataclass(frozen=True, slots=True)
class Shape:
    """``uses``: what no other fault may touch meanwhile. ``lasts_s``: least and most."""

    uses: frozenset[str]
    lasts_s: tuple[float, float]


def plan(
    seed: int, shapes: Mapping[str, Shape], length_s: float, *, at_once: int = 3, gap_s: float = 1.5
) -> list[Planned]:
    """Rounds of all kinds, each round in another order; those that use different things overlap, ``at_once`` at most.

    One whole round at least, however short ``length_s`` is. In longer runs a calm of CALM_S comes every CALM_EVERY_S, so that
    everything must have recovered before the next.
    """
    dice = random.Random(seed)
    planned: list[Planned] = []
    free_s: dict[str, float] = {}
    now_s, calm_s = 2.0, CALM_EVERY_S
    first = True
    while first or now_s < length_s:
        for kind in dice.sample(sorted(shapes), len(shapes)):
            shape = shapes[kind]
            lasts_s, kind_seed, gap = (
                dice.uniform(*shape.lasts_s),
                dice.randrange(1 << 30),
                dice.uniform(0.3, 1.0) * gap_s,
            )
            start_s = max(now_s, *(free_s.get(what, 0.0) for what in shape.uses)) if shape.uses else now_s
            while len(busy := [one.end_s for one in planned if one.end_s > start_s]) >= at_once:
                start_s = min(busy)
            if start_s + lasts_s > calm_s:
                start_s = max(start_s, max((one.end_s for one in planned), default=0.0)) + CALM_S
                calm_s = start_s + CALM_EVERY_S
            end_s = start_s + lasts_s
            if not first and end_s > length_s:
                return sorted(planned, key=lambda one: one.start_s)
            planned.append(Planned(start_s, end_s, kind, kind_seed))
            for what in shape.uses:
                free_s[what] = end_s + 0.5
            now_s = start_s + gap
        first = False
    return sorted(planned, key=lambda one: one.start_s)


def kinds_of(text: str, known: Sequence[str]) -> list[str]:
    """``a,b`` to names; raises ValueError with what there is."""
    asked = [part.strip() for part in text.split(",") if part.strip()]
    if unknown := [name for name in asked if name not in known]:
        raise ValueError(f"no fault is called {', '.join(unknown)}; there are {', '.join(known)}")
    if not asked:
        raise ValueError(f"no fault named; there are {', '.join(known)}")
    return asked
