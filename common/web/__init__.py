"""Pages for people on a daemon's HTTP port: one HTML answer each, nothing from elsewhere, made of a template and what all share.

No build step: style.css and page.js of this folder are put into the template as it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_STYLE, _SCRIPT = "/* style.css */", "/* page.js */"


@dataclass(frozen=True, slots=True)
class Page:
    """``html`` is served at ``/``, ``facts`` as JSON at ``/live``: bounded in size, without secrets, finite numbers only."""

    html: str
    facts: Callable[[], Mapping[str, Any]]


def assemble(package: str, name: str) -> str:
    """The template ``web/NAME`` of a package, with the shared style and script in it."""
    here = resources.files("common.web")
    template = resources.files(package).joinpath("web", name).read_text("utf-8")
    style, script = (here.joinpath(file).read_text("utf-8") for file in ("style.css", "page.js"))
    assert _STYLE in template, f"{name} has a place for the style"
    assert _SCRIPT in template, f"{name} has a place for the script"
    return template.replace(_STYLE, style).replace(_SCRIPT, script)
