"""Who may read what, and how much of a server each may take: one table, by identity. Pure.

An identity is a name in the certificate of a connection's other end. Without TLS it is what a spoke says of itself: the table
then orders friends and keeps nobody out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from common import limits
from common.config import parse_dataset_name
from common.errors import NotAllowed, UsageError
from common.serving.weights import Weights
from common.units import parse_rate

_ROW = ("datasets", "weight", "rate", "connections", "requests")


@dataclass(frozen=True, slots=True)
class Grant:
    """``datasets``: names or patterns; None: all, empty: none. None elsewhere: nothing is said, the common limits hold.

    ``rate_bytes_per_s``: of all spokes of this identity together. ``connections``, ``requests`` (READs in flight): the same.
    """

    datasets: tuple[str, ...] | None = None
    weight: float | None = None
    rate_bytes_per_s: float | None = None
    connections: int | None = None
    requests: int | None = None

    def allows(self, dataset: str) -> bool:
        return self.datasets is None or any(fnmatchcase(dataset, pattern) for pattern in self.datasets)


@dataclass(frozen=True)
class Access:
    """``table``: an identity, or a pattern like ``gpu-*``, to its grant; the identity itself wins, then the first pattern.

    An empty table lets everybody have everything; else who is in no row has nothing.
    """

    table: Mapping[str, Grant] = field(default_factory=dict)

    def grant(self, names: Sequence[str]) -> tuple[str, Grant]:
        """The name under which the bearer of ``names`` is let in, and what it may. Raises NotAllowed."""
        if not self.table:
            return names[0], Grant()
        for name in names:
            if name in self.table:
                return name, self.table[name]
        for name in names:
            for pattern, grant in self.table.items():
                if fnmatchcase(name, pattern):
                    return name, grant
        raise NotAllowed(
            f"{' / '.join(map(repr, names[:4]))} may read nothing here; the hub's [identities] must name it"
        )

    def admit(self, names: Sequence[str], dataset: str) -> tuple[str, Grant]:
        """As ``grant``; also raises NotAllowed when this dataset is not in it."""
        name, grant = self.grant(names)
        if not grant.allows(dataset):
            allowed = ", ".join(grant.datasets or ()) or "none"
            raise NotAllowed(f"{name!r} may not read dataset {dataset!r} here; allowed: {allowed}")
        return name, grant

    def weight(self, identity: str, grant: Grant, weights: Weights) -> float:
        return grant.weight if grant.weight is not None else weights.of(identity)

    def plain(self) -> dict[str, dict[str, Any]]:
        """What :func:`parse_access` makes it from."""
        return {
            identity: {
                name: value
                for name, value in (
                    ("datasets", list(grant.datasets) if grant.datasets is not None else None),
                    ("weight", grant.weight),
                    ("rate", grant.rate_bytes_per_s),
                    ("connections", grant.connections),
                    ("requests", grant.requests),
                )
                if value is not None
            }
            for identity, grant in self.table.items()
        }

    def __str__(self) -> str:
        return ", ".join(self.table) or "everybody"


def parse_access(value: object) -> Access:
    """Of a table of tables. Raises UsageError that names the row, what was found and what is allowed."""
    if isinstance(value, Access):
        return value
    if not isinstance(value, Mapping):
        raise UsageError('identities are a table in the file: [identities."spoke-a"] with datasets = ["c4"]')
    return Access({str(identity): _grant(str(identity), row) for identity, row in value.items()})


def _grant(identity: str, row: object) -> Grant:
    if not isinstance(row, Mapping):
        raise UsageError(f"identity {identity!r}: {row!r} is no table of {', '.join(_ROW)}")
    unknown = sorted(set(row) - set(_ROW))
    if unknown:
        raise UsageError(f"identity {identity!r}: unknown {', '.join(unknown)}; allowed: {', '.join(_ROW)}")
    datasets, weight, rate = row.get("datasets"), row.get("weight"), row.get("rate")
    if datasets is not None and (
        not isinstance(datasets, (list, tuple)) or not all(isinstance(each, str) for each in datasets)
    ):
        raise UsageError(f"identity {identity!r}: datasets is {datasets!r}, not a list of names")
    for name in datasets or ():
        parse_dataset_name(name.replace("*", "x").replace("?", "x"))
    if weight is not None:
        Weights({identity: weight})
    if rate is not None and (not isinstance(rate, (str, int, float)) or parse_rate(rate) <= 0):
        raise UsageError(
            f"identity {identity!r}: rate is {rate!r}; write it like '1gbit'; to give nothing, datasets = []"
        )
    return Grant(
        tuple(datasets) if datasets is not None else None,
        float(weight) if weight is not None else None,
        parse_rate(rate) if rate is not None else None,
        _count(identity, row, "connections", limits.CONNECTIONS_MAX),
        _count(identity, row, "requests", limits.CONNECTIONS_MAX * limits.REQUESTS_MAX_OUTSTANDING),
    )


def _count(identity: str, row: Mapping[str, object], name: str, most: int) -> int | None:
    value = row.get(name)
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= most:
        raise UsageError(f"identity {identity!r}: {name} is {value!r}, not a number from 1 to {most}")
    return value
