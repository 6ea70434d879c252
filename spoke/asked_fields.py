"""What a request on the control socket may say, field by field. Pure: a handler sees only what fits.

A field that is null is one that was not given; one that is not known here is passed over, as a later command may say more.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from common.errors import UsageError
from common.limits import CACHE_LIST_MOST, FILE_MAX_BYTES

_SHOWN_CHARS = 60
_TEXT_MAX_BYTES = 64 * 1024
_RATE_MAX_BYTES_PER_S = 1 << 50


class CacheSort(StrEnum):
    PATH = "path"
    CACHED = "cached"
    SIZE = "size"


class Field(NamedTuple):
    allowed: str
    fits: Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    try:
        return isinstance(value, str) and len(os.fsencode(value)) <= _TEXT_MAX_BYTES and "\0" not in value
    except UnicodeEncodeError:  # half of a surrogate pair, and none that stands for a byte
        return False


def _is_hex(value: Any) -> bool:
    try:
        return isinstance(value, str) and bytes.fromhex(value) is not None
    except ValueError:
        return False


def _is_whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _whole(least: int, most: int) -> Field:
    return Field(f"a whole number from {least} to {most}", lambda value: _is_whole(value, least, most))


def _is_rate(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 1 <= value <= _RATE_MAX_BYTES_PER_S


_FLAG = Field("true or false", lambda value: type(value) is bool)
_TEXT = Field(f"text of at most {_TEXT_MAX_BYTES} bytes", _is_text)
_HEX = Field("hexadecimal digits", _is_hex)
_PATHS = Field(
    "a list of paths, each in hexadecimal digits", lambda value: isinstance(value, list) and all(map(_is_hex, value))
)
_RATE = Field(f"a number of bytes per second from 1 to {_RATE_MAX_BYTES_PER_S}", _is_rate)

FIELDS: Mapping[str, Mapping[str, Field]] = {
    "explain": {"path": _TEXT},
    "cache-list": {
        "paths": _PATHS,
        "sort": Field(f"one of {', '.join(CacheSort)}", lambda value: value in list(CacheSort)),
        "most": _whole(1, CACHE_LIST_MOST),
        "everything": _FLAG,
    },
    "cache-sizes": {"path": _HEX},
    "cache-evict": {"paths": _PATHS},
    "warm": {
        "paths": _PATHS,
        "plan": _TEXT,
        "order": _TEXT,
        "last": _FLAG,
        "around_bytes": _whole(0, FILE_MAX_BYTES),
        "rate_bytes_per_s": _RATE,
        "pin": _FLAG,
        "wait": _FLAG,
        "dry_run": _FLAG,
    },
    "verify": {"paths": _PATHS, "repair": _FLAG, "rate_bytes_per_s": _RATE},
    "pin": {"paths": _PATHS},
    "unpin": {"paths": _PATHS},
    "accept": {"revision": _whole(0, (1 << 63) - 1), "catalog_id": _HEX},
    "purge": {"paths": _PATHS, "all": _FLAG, "dry_run": _FLAG},
    "plan": {"message": _HEX},
    "order-load": {"path": _TEXT},
    "order-drop": {"name": _TEXT},
}
_NEEDED = {"plan": "message", "order-load": "path", "order-drop": "name"}


def checked(command: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request without what is null. Raises UsageError that names the field, what it was and what it may be."""
    fields = FIELDS.get(command, {})
    given = {name: value for name, value in request.items() if value is not None}
    needed = _NEEDED.get(command)
    if needed is not None and needed not in given:
        raise UsageError(f"{command} without {needed!r}, which must be {fields[needed].allowed}")
    for name, value in given.items():
        if name in fields and not fields[name].fits(value):
            raise UsageError(f"{command}: {name!r} is {shown(value)}; it must be {fields[name].allowed}")
    return given


def shown(value: object) -> str:
    """Short, however much or deep it is."""
    if isinstance(value, list):
        bad = next((item for item in value if not isinstance(item, str)), None)
        bad = next((item for item in value if not _is_hex(item)), None) if bad is None else bad
        inner = "a list" if isinstance(bad, list) else shown(bad)
        return f"a list of {len(value)}" + (f", of which one is {inner}" if value else "")
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, bool):
        return str(value).lower()
    text = ascii(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
