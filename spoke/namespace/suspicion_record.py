"""That the hub is suspicious, noted beside the names: a restart must not forget it."""

from __future__ import annotations

import json
from pathlib import Path

from common.durable import replace_file
from spoke.namespace.suspicion import Suspicion

RECORD_NAME = "suspicious.json"
_KEPT = ("entries", "lost_entries", "revision", "lost_before")


def keep(directory: Path, suspicion: Suspicion | None) -> None:
    """Note it, or with None that it is so no more. Raises OSError."""
    path = directory / RECORD_NAME
    if suspicion is None:
        path.unlink(missing_ok=True)
        return
    record = {**{name: getattr(suspicion, name) for name in _KEPT}, "catalog_id": suspicion.catalog_id.hex()}
    replace_file(path, json.dumps(record) + "\n")


def kept(directory: Path, now_s: float) -> Suspicion | None:
    """What was noted. A record that cannot be read still says that there was a suspicion, if not of what."""
    try:
        record = json.loads((directory / RECORD_NAME).read_text())
        numbers = {name: int(record[name]) for name in _KEPT}
        return Suspicion(catalog_id=bytes.fromhex(record["catalog_id"]), since_s=now_s, **numbers)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        return Suspicion(0, 0, 0, b"", now_s)
