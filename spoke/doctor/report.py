"""Findings for people (rich, worst first, what is fine in one line) and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from common import __version__
from common.units import format_rate
from spoke.doctor.facts import Facts
from spoke.doctor.findings import Finding, Level
from spoke.doctor.path_checks import milliseconds

_STYLES = {Level.PROBLEM: "bold red", Level.WARNING: "yellow", Level.NOTE: "cyan", Level.OK: "green"}
_PLAIN_WIDTH = 120
"""Where nobody reads along on a terminal."""


def as_json(facts: Facts, findings: Sequence[Finding], took_s: float) -> dict[str, Any]:
    """Levels by their lower-case names; sizes in bytes, times in seconds, rates in bytes per second."""
    path = facts.path
    return {
        "version": __version__,
        "mountpoint": facts.mount.path if facts.mount is not None else None,
        "hub": facts.hub.address or None,
        "path": {
            "rtt_s": path.rtt_s,
            "rtt_source": path.rtt_source.name.lower() if path.rtt_s is not None else None,
            "rate_bytes_per_s": path.rate_bytes_per_s,
            "rate_source": path.rate_source.name.lower(),
        },
        "took_s": took_s,
        "worst": worst(findings).name.lower(),
        "findings": [
            {
                "check": finding.check,
                "level": finding.level.name.lower(),
                "seen": finding.seen,
                "cost": finding.cost,
                "mend": finding.mend,
                "figures": dict(finding.figures),
            }
            for finding in findings
        ],
    }


def worst(findings: Sequence[Finding]) -> Level:
    return max((finding.level for finding in findings), default=Level.OK)


def show(facts: Facts, findings: Sequence[Finding], *, everything: bool) -> None:
    """Print to stdout. ``everything``: also what is fine, in full."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    console.print(_headline(facts), style="bold", markup=False)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    fine = [finding for finding in findings if finding.level is Level.OK]
    for finding in findings if everything else [found for found in findings if found not in fine]:
        table.add_row(Text(finding.level.name.lower(), _STYLES[finding.level]), finding.check, _text_of(finding))
    if table.row_count:
        console.print(table)
    if fine and not everything:
        names = list(dict.fromkeys(finding.check for finding in fine))
        console.print(Text.assemble(("ok", _STYLES[Level.OK]), "  ", ", ".join(names)))


def _headline(facts: Facts) -> str:
    path, hub = facts.path, facts.hub.address
    rtt = f"{milliseconds(path.rtt_s)} ({path.rtt_source.value})" if path.rtt_s is not None else "round trip not known"
    where = " ".join(part for part in (facts.mount.path if facts.mount else "", f"hub {hub}" if hub else "") if part)
    return f"{where or 'this host'}: {rtt}, {format_rate(path.rate_bytes_per_s)} ({path.rate_source.value})"


def _text_of(finding: Finding) -> Text:
    text = Text(finding.seen)
    if finding.cost:
        text.append(f"\ncost: {finding.cost}")
    if finding.mend:
        text.append("\n→ ", "bold").append(finding.mend, "bold")
    return text
