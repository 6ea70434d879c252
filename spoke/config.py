"""The spoke's settings: names, defaults, and what is allowed."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from common.config import AbsolutePath, Address, DatasetName, DurationS, SizeBytes, checked
from common.limits import (
    LABEL_MAX_BYTES,
    LEARN_MEMORY_BYTES,
    MEMORY_LIMIT_BYTES,
    MEMORY_LIMIT_MIN_BYTES,
    READAHEAD_MAX_KIB,
    READAHEAD_MIN_KIB,
)
from common.tls_settings import TlsSettings
from common.units import format_address, format_size, parse_address, parse_rate, parse_size

DEFAULT_HUB_PORT = 7420
DEFAULT_METRICS_PORT = 9421


def _hub_address(text: str) -> str:
    return format_address(*parse_address(text, DEFAULT_HUB_PORT))


def _memory_limit(value: object) -> int:
    limit_bytes: int = parse_size(value)  # type: ignore[arg-type]
    if limit_bytes < MEMORY_LIMIT_MIN_BYTES:
        raise ValueError(
            f"{value} is too little: a spoke needs at least {format_size(MEMORY_LIMIT_MIN_BYTES)} beside its names"
        )
    return limit_bytes


def _share(text: str | float) -> float:
    """``40%``, or a number of percent as a TOML file may give it; as a part of 1."""
    try:
        percent = float(text.strip().removesuffix("%") if isinstance(text, str) else text)
    except ValueError:
        percent = float("nan")
    if isinstance(text, bool) or not 0 < percent <= 100:
        raise ValueError(f"{text!r} is not a share of a disk: write it like 40%, above 0 and at most 100%")
    return percent / 100


def _scrub_rate(rate: str | float) -> float:
    """``0`` is off, and needs no unit."""
    return 0.0 if rate == "0" else parse_rate(rate)


def _read_ahead(text: str) -> str:
    if text != "auto" and not (
        text.isascii()
        and text.isdigit()
        and READAHEAD_MIN_KIB <= int(text) <= READAHEAD_MAX_KIB
        and not int(text) % READAHEAD_MIN_KIB
    ):
        raise ValueError(
            f"{text!r} is neither auto nor a number of KiB from {READAHEAD_MIN_KIB} to {READAHEAD_MAX_KIB} in whole pages of "
            f"{READAHEAD_MIN_KIB}"
        )
    return text


class SpokeSettings(TlsSettings):
    """Sizes in bytes, durations in seconds.

    ``cache_size`` 0: ``cache_share`` of the disk it is on. ``cache_free_floor``: never leave the disk with
    less. ``read_timeout`` 0: a read waits for the hub for ever. ``links``: bulk connections beside the control one, 0: as the path wants.
    ``memory_limit``: of the spoke's own memory; where it was not set, half of the control group's limit if that is less.
    ``prefetch`` off: fetch only what is read. ``learn`` off: neither record in which order files are read nor follow what was
    recorded; ``learn_memory``: the most that recording takes. ``share_orders`` off: tell no other spoke what was learned, and
    follow nothing that others learned. ``compression`` off: take raw bytes only.
    ``revision`` or ``snapshot``: show the tree of that one, for ever. ``consistency``: ``lease`` (the hub tells of changes) or
    ``strict`` (it is asked at each open). ``record``: a file to write down every open, READ and close in (TRACE.md).
    ``read_ahead``: the kernel's, in KiB, or ``auto``: chosen by what is read. ``scrub_rate``: bytes/s of the cache compared
    with their digests again, 0: none.
    ``tls_name``: whom the hub's certificate must be for (default: the host of ``hub``).
    ``retention``: what is cached of files that the hub has no more, or of a dataset that it no longer gives, is erased after so long;
    0: when room is needed.
    """

    hub: Annotated[str, checked(_hub_address)]
    dataset: DatasetName
    cache_dir: AbsolutePath
    cache_size: SizeBytes = 0
    cache_share: Annotated[float, checked(_share)] = 0.8
    cache_free_floor: SizeBytes = 1 << 30
    metrics: Address = f"127.0.0.1:{DEFAULT_METRICS_PORT}"
    read_timeout: DurationS = 300.0
    connect_timeout: DurationS = 10.0
    memory_limit: Annotated[int, checked(_memory_limit)] = MEMORY_LIMIT_BYTES
    scrub_rate: Annotated[float, checked(_scrub_rate)] = 8 * 1024 * 1024
    links: Annotated[int, Field(ge=0, le=64)] = 0
    identity: Annotated[str, Field(min_length=1, max_length=200)] = Field(default_factory=socket.gethostname)
    prefetch: bool = True
    learn: bool = True
    learn_memory: Annotated[SizeBytes, Field(ge=1 << 20, le=1 << 36)] = LEARN_MEMORY_BYTES
    share_orders: bool = True
    record: AbsolutePath | None = None
    compression: bool = True
    passthrough: bool = True
    allow_other: bool = True
    uid: Annotated[int, Field(ge=0)] = Field(default_factory=os.getuid)
    gid: Annotated[int, Field(ge=0)] = Field(default_factory=os.getgid)
    revision: Annotated[int, Field(ge=0)] | None = None
    snapshot: Annotated[str, Field(max_length=LABEL_MAX_BYTES)] = ""
    consistency: Literal["lease", "strict"] = "lease"
    read_ahead: Annotated[str, checked(_read_ahead)] = "auto"
    umask: Annotated[int, Field(ge=0, le=0o777)] = 0o022
    tls_name: Annotated[str, Field(max_length=253)] = ""
    retention: DurationS = 86400.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "console", "json"] = "auto"

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.revision is not None and self.snapshot:
            raise ValueError("revision and snapshot exclude each other: give the one to stay at")
        if self.consistency == "strict" and (self.revision is not None or self.snapshot):
            raise ValueError(
                "consistency strict follows the hub, revision and snapshot stay where they are: give one of them"
            )
        return self

    @model_validator(mode="after")
    def _name_of_whom(self) -> Self:
        if self.tls_name and self.tls is None:
            raise ValueError("tls-name says whose certificate the hub must show: it needs tls-cert, tls-key and tls-ca")
        return self

    def paths(self, mountpoint: str) -> list[Path]:
        """All that this spoke reads or writes on this host."""
        named = (self.cache_dir, self.tls_cert, self.tls_key, self.tls_ca, self.token_file, self.record)
        return [Path(mountpoint), *(path for path in named if path is not None)]

    @property
    def read_ahead_kib(self) -> int | None:
        """None: to be chosen."""
        return None if self.read_ahead == "auto" else int(self.read_ahead)

    @field_validator("read_ahead", mode="before")
    @classmethod
    def _number_or_word(cls, value: object) -> object:
        """A TOML file may give a number."""
        return str(value) if type(value) is int else value

    @field_validator("umask", mode="before")
    @classmethod
    def _octal(cls, value: object) -> object:
        """``022`` as people write it is octal."""
        if not isinstance(value, str):
            return value
        try:
            return int(value, 8)
        except ValueError:
            raise ValueError(f"{value!r} is not octal permission bits; write it like 022") from None
