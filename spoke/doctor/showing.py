"""What doctor shows the hub: what the mount would, from the same flags, environment and file, or from the mount itself.

In this order: a flag of doctor; what the running mount says it was set to; what a mount that says nothing was started with; doctor's
own environment; its ``--config``.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.config import ENVIRONMENT_PREFIX, read_toml
from common.errors import UsageError
from common.tls import tls_files
from common.units import parse_address
from spoke.hub_client.credentials import Credentials

NAMES = ("hub", "dataset", "cache_dir", "identity", "tls_cert", "tls_key", "tls_ca", "tls_name", "token_file")
"""Settings of a mount that doctor takes over; those from ``tls_cert`` on and ``identity`` say who it is."""


@dataclass(frozen=True, slots=True)
class Showing:
    """``failure``: why the files cannot be used. ``said``: what is shown, for people; empty: nothing."""

    credentials: Credentials = field(default_factory=Credentials)
    identity: str = ""
    failure: str = ""
    said: str = ""

    @property
    def certificate_left_s(self) -> float | None:
        """Until the certificate that is shown expires, below 0 once it has; None without one."""
        certificates = self.credentials.certificates
        return certificates.left_s if certificates is not None else None


def settings_of(
    flags: Mapping[str, Any],
    status: Mapping[str, Any] | None,
    started: Mapping[str, str],
    environ: Mapping[str, str],
    file: Path | None,
) -> dict[str, Any]:
    """The settings of NAMES that are known, each from the first that gives it. Raises UsageError for a file that cannot be read."""
    of_mount = {name: entry["value"] for name, entry in status["settings"].items()} if status is not None else {}
    of_command = {option.removeprefix("--").replace("-", "_"): value for option, value in started.items()}
    of_its_file: Mapping[str, Any] = {}
    if "config" in of_command:
        with contextlib.suppress(UsageError):  # gone, or not ours to read: then it is not known
            of_its_file = read_toml(Path(of_command["config"]))
    of_environment = {name: environ.get(ENVIRONMENT_PREFIX + name.upper()) for name in NAMES}
    of_file = read_toml(file) if file is not None else {}
    known: dict[str, Any] = {}
    for layer in (flags, of_mount, of_command, of_its_file, of_environment, of_file):
        for name in NAMES:
            value = layer.get(name)
            if value not in (None, "") and name not in known:
                known[name] = value
    return known


def showing(settings: Mapping[str, Any]) -> Showing:
    """Reads the files. Raises nothing: what is wrong with them is a finding."""
    identity = str(settings.get("identity") or socket.gethostname())
    path = {
        name: Path(str(settings[name])) if name in settings else None
        for name in ("tls_cert", "tls_key", "tls_ca", "token_file")
    }
    said = [
        *([f"certificate {path['tls_cert']}"] if path["tls_cert"] is not None else []),
        *([f"token {path['token_file']}"] if path["token_file"] is not None else []),
    ]
    try:
        files = tls_files(path["tls_cert"], path["tls_key"], path["tls_ca"])
        hub_name = str(settings.get("tls_name") or parse_address(str(settings["hub"]), 0)[0])
        credentials = Credentials.load(files, path["token_file"], hub_name)
    except UsageError as error:
        return Showing(identity=identity, failure=str(error), said=" and ".join(said))
    return Showing(credentials, identity, said=" and ".join(said))
