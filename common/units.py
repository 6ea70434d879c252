"""Sizes, rates and durations as people write them, and back.

Sizes: bytes, with SI (``GB`` = 10^9) or binary (``GiB`` = 2^30) units. Rates: bits with ``bit`` units (``10gbit``),
or bytes with ``B/s`` units (``100MB/s``). Durations: ``300s``, ``5m``, ``250ms``; a bare number is seconds.
Every parser raises :class:`~common.errors.UsageError` that says what was seen and what is allowed.
"""

from __future__ import annotations

import math
import re

from common.errors import UsageError

_NUMBER_AND_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z/]*)\s*\Z")
_SI = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_SIZES = {
    **{f"{prefix}b": factor for prefix, factor in _SI.items()},
    "": 1,
    **{f"{prefix}ib": 1 << (10 * power) for power, prefix in enumerate("kmgtp", start=1)},
}
_RATES = {
    **{f"{prefix}bit": factor / 8 for prefix, factor in _SI.items()},
    **{f"{prefix}bit/s": factor / 8 for prefix, factor in _SI.items()},
    **{f"{size}/s": float(factor) for size, factor in _SIZES.items() if size},
}
_DURATIONS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _parse(text: str, units: dict[str, float] | dict[str, int], what: str, example: str) -> float:
    match = _NUMBER_AND_UNIT.match(text)
    factor = units.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(f"{text!r} is not a {what}; write it like {example}")
    value = float(match[1]) * factor
    if not math.isfinite(value) or value >= 2**63:
        raise UsageError(f"{text!r} is too large for a {what}; the most is 2^63 - 1")
    return value


def parse_size(text: str | int) -> int:
    """``"100GiB"`` → bytes. An int is taken as bytes."""
    if isinstance(text, bool) or (isinstance(text, int) and text < 0):
        raise UsageError(f"{text!r} is not a size; write it like 100GiB, 512MB or 4096")
    return text if isinstance(text, int) else int(_parse(text, _SIZES, "size", "100GiB, 512MB or 4096"))


def parse_rate(text: str | float) -> float:
    """``"10gbit"`` → bytes per second. A number is taken as bytes per second."""
    if isinstance(text, str):
        return _parse(text, _RATES, "rate", "10gbit, 500mbit or 100MB/s")
    if isinstance(text, bool) or not math.isfinite(text) or text < 0:
        raise UsageError(f"{text!r} is not a rate; write it like 10gbit, 500mbit or 100MB/s")
    return float(text)


def parse_duration(text: str | float) -> float:
    """``"300s"`` → seconds. A number is taken as seconds."""
    if isinstance(text, str):
        return _parse(text, _DURATIONS, "duration", "300s, 5m or 250ms")
    if isinstance(text, bool) or not math.isfinite(text) or text < 0:
        raise UsageError(f"{text!r} is not a duration; write it like 300s, 5m or 250ms")
    return float(text)


def parse_address(text: str, default_port: int | None = None) -> tuple[str, int]:
    """``"HOST:PORT"`` or ``"[V6]:PORT"`` → (host, port). Port 0 asks the kernel for a free one."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^:\[\]\s]+))(?::(\d{1,5}))?", text.strip())
    port = int(match[3]) if match and match[3] else default_port
    if match is None or port is None or port > 65535:
        raise UsageError(f"{text!r} is not an address; write it like HOST:7420 or [::1]:7420")
    return match[1] or match[2], port


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def format_size(size_bytes: float) -> str:
    """Bytes with a binary unit and three significant digits: ``1.50 GiB``."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} PiB"


def format_rate(rate_bytes_per_s: float) -> str:
    """Bytes per second as bits per second, as links are named: ``1.25 Gbit/s``."""
    value = rate_bytes_per_s * 8
    for unit in ("bit/s", "kbit/s", "Mbit/s"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} Gbit/s"
