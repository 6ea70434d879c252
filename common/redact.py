"""Taking secrets out of what leaves a host in a bug report. Pure; errs on the side of taking out too much."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

LEFT_OUT = "(left out)"

_SECRET_NAME = re.compile(
    r"token|secret|passw|passphrase|credential|private|bearer|cookie|api.?key|auth(?!ors?([-_.]|$))|(^|[-_.])key([-_.]|$)",
    re.I,
)
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?(-----END \1-----|\Z)", re.S)
_IN_TEXT = (  # each bounded in what it looks back on, so that a long line costs no more than many short ones
    re.compile(r"(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"()\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"),
    re.compile(r"(://[^/\s:@]{0,128}:)[^/\s@]{1,256}(?=@)"),
    re.compile(
        r"(?i)((?:token|secret|passw|passphrase|credential|api[-_]?key|private[-_]?key|authorization)[\w.-]{0,64}"
        r"""["']?[ \t]{0,8}[:=][ \t]{0,8}["']?)(?!\(left out\))[^\s"',;}\]]+"""
    ),
)
_SHORTEST_SECRET = 4


def is_secret_name(name: str) -> bool:
    """A setting or field of this name may hold a secret."""
    return _SECRET_NAME.search(name) is not None


def without_secrets(value: Any, secrets: Collection[str] = ()) -> Any:
    """JSON-like values again; what stands under a secret's name is left out, and texts are scrubbed."""
    if isinstance(value, Mapping):
        return {
            name: _blank(inner) if is_secret_name(str(name)) else without_secrets(inner, secrets)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [without_secrets(inner, secrets) for inner in value]
    return scrubbed(value, secrets) if isinstance(value, str) else value


def _blank(value: Any) -> Any:
    """Whether it was set stays visible; of a setting, also where it came from."""
    if value in (None, "", False, True):
        return value
    if isinstance(value, Mapping) and set(value) == {"value", "source"}:
        return {"value": _blank(value["value"]), "source": value["source"]}
    return LEFT_OUT


def scrubbed(text: str, secrets: Collection[str] = ()) -> str:
    """``secrets``: texts that must not be in it, wherever they stand. Keys, tokens and passwords are found by their looks as well."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, LEFT_OUT)
    text = _PEM.sub(lambda found: f"-----{found[1]} {LEFT_OUT}-----", text)
    for pattern in _IN_TEXT:
        text = pattern.sub(lambda found: f"{found[1]}{LEFT_OUT}", text)
    return text
