"""Shares of spokes by configuration: a spoke's identity to its weight. Pure.

An identity is what a spoke says of itself (its host name, unless it was given another); on a wire without authentication a
weight is an arrangement among friends, not a protection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase

from common.errors import UsageError

WEIGHT_MIN, WEIGHT_MAX = 0.01, 100.0
"""A lighter one would wait a hundred turns for an extent; a heavier one would hold a turn for 100 MiB. Refuse."""


class Weights:
    """``table``: an identity, or a pattern like ``gpu-*``, to its weight. The identity itself wins, then the first pattern."""

    def __init__(self, table: Mapping[str, float] | None = None) -> None:
        """Raises UsageError for a weight that cannot be."""
        self.table = dict(table or {})
        for identity, weight in self.table.items():
            if (
                isinstance(weight, bool)
                or not isinstance(weight, (int, float))
                or not WEIGHT_MIN <= weight <= WEIGHT_MAX
            ):
                raise UsageError(
                    f"weight of {identity!r}: {weight!r} is not a number from {WEIGHT_MIN:g} to {WEIGHT_MAX:g}; 1 is usual"
                )

    def of(self, identity: str) -> float:
        """1 where nothing is said."""
        exact = self.table.get(identity)
        if exact is not None:
            return exact
        return next((weight for pattern, weight in self.table.items() if fnmatchcase(identity, pattern)), 1.0)

    def __str__(self) -> str:
        return ", ".join(f"{identity}={weight:g}" for identity, weight in self.table.items()) or "all 1"


def parse_weights(value: object) -> Weights:
    """A table (TOML), ``IDENTITY=WEIGHT`` strings (flags), or several with commas (environment). Raises UsageError."""
    if isinstance(value, Mapping):
        return Weights(value)
    values = value if isinstance(value, (list, tuple)) else [value]
    table: dict[str, float] = {}
    for text in (part.strip() for item in values for part in str(item).split(",")):
        identity, equals, weight = text.rpartition("=")
        try:
            number = float(weight)
        except ValueError:
            number = float("nan")
        if not equals or not identity:
            raise UsageError(f"{text!r} is not IDENTITY=WEIGHT, for example gpu-7=2 or batch-*=0.5")
        if identity in table:
            raise UsageError(f"the weight of {identity!r} is given twice")
        if math.isnan(number):
            raise UsageError(f"{text!r}: {weight!r} is not a number; write for example {identity}=2")
        table[identity] = number
    return Weights(table)
