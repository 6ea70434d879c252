"""Settings in layers: default < TOML file < environment (``HEADRACE_…``) < flag.

The highest layer that names a setting wins, and it is remembered which one it was, so that ``status`` can show
where each value came from. Anything that cannot be understood is a UsageError with the value and what is allowed.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from common.errors import UsageError
from common.units import parse_address, parse_duration, parse_rate, parse_size

ENVIRONMENT_PREFIX = "HEADRACE_"

SETTING_NAMES = frozenset(
    {
        *(
            "dataset",
            "listen",
            "metrics",
            "state_dir",
            "rate_limit",
            "rate_limit_zone",
            "weights",
            "workers",
            "rescan_interval",
        ),
        *(
            "compression",
            "log_level",
            "log_format",
            "hub",
            "cache_dir",
            "cache_size",
            "cache_share",
            "cache_free_floor",
            "read_timeout",
        ),
        *("connect_timeout", "links", "identity", "prefetch", "revision", "snapshot", "consistency", "passthrough"),
        *(
            "allow_other",
            "uid",
            "gid",
            "umask",
            "record",
            "read_ahead",
            "memory_limit",
            "learn",
            "learn_memory",
            "share_orders",
            "scrub_rate",
        ),
        *(
            "tls_cert",
            "tls_key",
            "tls_ca",
            "tls_name",
            "token_file",
            "insecure",
            "identities",
            "audit_log",
            "retention",
        ),
    }
)
"""Settings of either daemon: one environment may serve both, and the other's are no mistakes."""

# What Kubernetes sets in every pod for a service named headrace or headrace-hub.
# a spoke in the background tells its starter (spoke/launch), a worker its supervisor (spoke/supervisor)
_BETWEEN_OURSELVES = frozenset({"HEADRACE_READY_FD", "HEADRACE_SUPERVISOR_FD", "HEADRACE_UNIT"})
_SERVICE_LINK = re.compile(r"(.*_)?(SERVICE_(HOST|PORT)(_.*)?|PORT(_\d+_(TCP|UDP)(_.*)?)?)\Z")


def checked(parse: Any) -> Any:
    """A pydantic validator from a parser that raises UsageError."""

    def validator(value: object) -> object:
        try:
            return parse(value)
        except UsageError as error:
            raise ValueError(str(error)) from None
        except (AttributeError, TypeError):  # a TOML file may hold any type
            raise ValueError(f"{value!r} is not understood here; write it as text in quotes") from None

    return BeforeValidator(validator)


def _checked_address(text: str) -> str:
    parse_address(text)
    return text


def parse_dataset_name(text: str) -> str:
    """The name a dataset is served under: one word that can stand in a path, a URL and a metric's label. Raises UsageError."""
    if not text.replace("-", "").replace("_", "").replace(".", "").isalnum() or len(text) > 100:
        raise UsageError(f"dataset name {text!r}: letters, digits, '-', '_' and '.', at most 100")
    return text


SizeBytes = Annotated[int, checked(parse_size)]
RateBytesPerS = Annotated[float, checked(parse_rate)]
DurationS = Annotated[float, checked(parse_duration)]
Address = Annotated[str, checked(_checked_address)]
DatasetName = Annotated[str, checked(parse_dataset_name)]
AbsolutePath = Annotated[Path, AfterValidator(Path.absolute)]
"""As ``status`` shows it to people in other directories; a link in it is left as it is."""


class Settings(BaseModel):
    """Base of each daemon's settings: frozen, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


SettingsT = TypeVar("SettingsT", bound=Settings)


@dataclass(frozen=True)
class Loaded(Generic[SettingsT]):
    """``sources``: setting name to ``default``, ``file``, ``environment`` or ``flag``. ``warnings``: for the one who started it."""

    settings: SettingsT
    sources: dict[str, str]
    warnings: tuple[str, ...] = ()
    file: Path | None = None


def load(
    model: type[SettingsT], *, file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any]
) -> Loaded[SettingsT]:
    """Merge the layers. A flag of None was not given. Raises UsageError."""
    layers = {
        "file": read_toml(file) if file is not None else {},
        "environment": _from_environment(model, environ),
        "flag": {name: value for name, value in flags.items() if value is not None},
    }
    merged: dict[str, Any] = {}
    sources = dict.fromkeys(model.model_fields, "default")
    for layer, values in layers.items():
        for name, value in values.items():
            merged[name] = value
            sources[name] = layer
    try:
        settings = model.model_validate(merged)
    except ValidationError as error:
        raise UsageError(_explain(error, model, sources)) from None
    return Loaded(settings, {name: sources[name] for name in model.model_fields}, _misspelt(model, environ), file)


def _misspelt(model: type[Settings], environ: Mapping[str, str]) -> tuple[str, ...]:
    """One line for each variable that looks like a setting and is none. Not refused: others may set such names as well."""
    known = {ENVIRONMENT_PREFIX + name.upper() for name in (*model.model_fields, *SETTING_NAMES)}
    lines = []
    for name in sorted(environ):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in known | _BETWEEN_OURSELVES or _SERVICE_LINK.match(name):
            continue
        near = difflib.get_close_matches(name, sorted(known), 1, cutoff=0.75)
        hint = f"did you mean {near[0]}?" if near else "no setting has a name like it"
        lines.append(f"{name} is set and means nothing here: {hint}")
    return tuple(lines)


def read_toml(file: Path) -> dict[str, Any]:
    """The settings of a file by their names. Raises UsageError."""
    try:
        table = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the configuration file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the configuration file {file} is not TOML: {error}") from None
    return {name.replace("-", "_"): value for name, value in table.items()}


def _from_environment(model: type[Settings], environ: Mapping[str, str]) -> dict[str, str]:
    found = {name: environ.get(ENVIRONMENT_PREFIX + name.upper()) for name in model.model_fields}
    return {name: value for name, value in found.items() if value}


def _explain(error: ValidationError, model: type[Settings], sources: Mapping[str, str]) -> str:
    lines = []
    for problem in error.errors():
        text = problem["msg"].removeprefix("Value error, ")
        if not problem["loc"]:  # of several that do not go together: it names them itself
            lines.append(text)
            continue
        name = str(problem["loc"][0])
        shown = name.replace("_", "-")
        if problem["type"] == "extra_forbidden":
            allowed = ", ".join(sorted(field.replace("_", "-") for field in model.model_fields))
            lines.append(f"unknown setting {shown!r} (from the {sources.get(name, 'file')}); allowed: {allowed}")
        elif problem["type"] == "missing":
            lines.append(f"{shown} is not set; give it as a flag, {ENVIRONMENT_PREFIX}{name.upper()}, or in the file")
        else:
            if problem["type"] != "value_error":  # pydantic's own do not say what they saw
                text = f"found {problem['input']!r}: {text}"
            lines.append(f"{shown} (from the {sources.get(name, 'default')}): {text}")
    return "; ".join(lines)
