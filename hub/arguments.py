"""What commands on a hub's state directory share: their arguments, which dataset is meant, how a time is shown."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from common.errors import UsageError
from hub.config import default_state_dir

DatasetName = Annotated[
    str | None, typer.Option("--dataset", help="The dataset's name; may be left out when the state directory has one.")
]
StateDir = Annotated[
    Path,
    typer.Option(
        help="Where the hub keeps its catalogs.", envvar="HEADRACE_STATE_DIR", default_factory=default_state_dir
    ),
]


def chosen_dataset(name: str | None, found: Sequence[str], state_dir: Path, what: str) -> str:
    """``name``, or the only one ``found``. ``what`` of them the directory has, for the error. Raises UsageError."""
    if name is not None:
        return name
    if not found:
        raise UsageError(f"{state_dir} has {what} of no dataset; give the --state-dir that the hub is started with")
    if len(found) != 1:
        raise UsageError(f"--dataset is needed: {state_dir} has {what} of {', '.join(found)}")
    return found[0]


def local_time(at_s: float) -> str:
    """``at_s``: seconds since 1970."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
