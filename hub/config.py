"""The hub's settings: names, defaults, and what is allowed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from common import limits
from common.config import Address, DurationS, checked, parse_dataset_name
from common.errors import UsageError
from common.serving.access import Access, parse_access
from common.serving.packing import Compression
from common.serving.weights import Weights, parse_weights
from common.tls_settings import TlsSettings
from hub.timetable import Timetable, parse_timetable, parse_zone

DEFAULT_PORT = 7420
DEFAULT_METRICS_PORT = 9420


def _check_name(name: str) -> None:
    try:
        parse_dataset_name(name)
    except UsageError as error:
        raise ValueError(str(error)) from None


def default_state_dir() -> Path:
    """/var/lib/headrace-hub as root, else below the user's state directory (XDG base directory specification)."""
    if os.geteuid() == 0:
        return Path("/var/lib/headrace-hub")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "headrace-hub"


class HubSettings(TlsSettings):
    """``rate_limit``: over all spokes, by the hour (:mod:`hub.timetable`), in the time of ``rate_limit_zone``: ``local``, ``UTC`` or
    a name like Europe/Berlin. ``weights``: a spoke's identity to its share (:mod:`common.serving.weights`).
    ``rescan_interval``: seconds, 0 = inotify only.
    ``workers``: processes that serve, 1 = this one alone.
    ``insecure``: listen anywhere with neither certificates nor token. ``identities``: who may read what (:mod:`common.serving.access`).
    ``audit_log``: a file for who opened what, ``-``: with the log.
    ``share_orders``: keep the orders that spokes learned, and give them to others (:mod:`hub.orders`).
    ``compression``: ``auto`` (where the link is the bottleneck and it shrinks), ``on`` (whatever shrinks) or ``off``.
    """

    dataset: dict[str, Path]
    listen: Address = f"127.0.0.1:{DEFAULT_PORT}"
    metrics: Address = f"127.0.0.1:{DEFAULT_METRICS_PORT}"
    state_dir: Path = Field(default_factory=default_state_dir)
    rate_limit: Annotated[Timetable, checked(parse_timetable)] = Timetable(())
    rate_limit_zone: str = "local"
    weights: Annotated[Weights, checked(parse_weights)] = Weights()
    insecure: bool = False
    identities: Annotated[Access, checked(parse_access)] = Access()
    audit_log: str = ""
    workers: int = Field(default=1, ge=1, le=limits.WORKERS_MAX)
    rescan_interval: DurationS = 300.0
    compression: Compression = Compression.AUTO
    share_orders: bool = True
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "console", "json"] = "auto"

    @field_validator("rate_limit_zone")
    @classmethod
    def _zone(cls, value: str) -> str:
        try:
            parse_zone(value)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("dataset", mode="before")
    @classmethod
    def _datasets(cls, value: Any) -> dict[str, Path]:
        """A table (file), ``NAME=DIR`` strings (flags), or ``NAME=DIR,NAME=DIR`` (environment)."""
        if isinstance(value, str):
            value = value.split(",")
        elif not isinstance(value, dict | list | tuple):
            value = [value]
        pairs = value.items() if isinstance(value, dict) else [tuple(str(item).split("=", 1)) for item in value]
        datasets: dict[str, Path] = {}
        for pair in pairs:
            if len(pair) != 2 or not pair[0] or not str(pair[1]):
                raise ValueError(f"{'='.join(map(str, pair))!r} is not NAME=DIR, for example c4=/data/c4")
            name, directory = str(pair[0]), Path(str(pair[1]))
            _check_name(name)
            if name in datasets:
                raise ValueError(f"dataset {name!r} is given twice: {datasets[name]} and {directory}")
            datasets[name] = directory.absolute()
        if not datasets:
            raise ValueError("no dataset; give at least one NAME=DIR")
        return datasets
