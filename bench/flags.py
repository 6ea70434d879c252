"""Flags that several benchmarks have, with one meaning."""

from __future__ import annotations

import argparse

from common.units import parse_duration, parse_rate


def positive(text: str) -> int:
    """For argparse: a whole number above 0."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def add_link_flags(parser: argparse.ArgumentParser) -> None:
    """``rtt`` in seconds, ``rate`` in bytes/s, and what makes the link long."""
    parser.add_argument("--rtt", type=parse_duration, default=0.060, help="round trip (default 60ms)")
    parser.add_argument("--rate", type=parse_rate, default=125e6, help="of the link (default 1gbit)")
    parser.add_argument("--link", choices=("auto", "proxy", "netem"), default="auto", help="what makes it long")
