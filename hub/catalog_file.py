"""The catalog's database file: opened, judged sound or moved aside, its errors translated."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from common.errors import DiskError, UsageError
from common.log import get_logger
from hub import catalog_tables
from hub.catalog_tables import ForeignCatalog

log = get_logger(__name__)

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR})


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's errors become DiskError."""
    try:
        yield
    except sqlite3.Error as error:
        advice = "see that its disk has room and is sound"
        if _is_damage(error):
            advice = "restart the hub, which moves it aside and makes a fresh one"
        raise DiskError(f"the catalog {path} failed: {error}; {advice}") from error


def open_or_replace(path: Path) -> sqlite3.Connection:
    """A sound catalog at ``path``: what stands there, or a fresh one in its place. Raises UsageError."""
    try:
        return _open_sound(path)
    except ForeignCatalog as error:
        kept_as = _move_aside(path)
        log.error("catalog unusable, moved aside; a fresh one is made", reason=str(error), kept_as=str(kept_as))
        return _open_sound(path)


def _open_sound(path: Path) -> sqlite3.Connection:
    """Raises ForeignCatalog when the file is damaged or not ours, UsageError when it cannot be opened."""
    try:
        # SQLite would create it readable for all; its journal files take over this mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        is_new = path.stat().st_size == 0
        database = catalog_tables.connect(path)
    except OSError as error:
        raise UsageError(f"cannot open the catalog {path}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise _judged(path, error) from error
    try:
        if is_new:
            catalog_tables.create(database)
        catalog_tables.migrate(database)
        catalog_tables.inspect(database)
    except sqlite3.Error as error:
        database.close()
        raise _judged(path, error) from error
    except BaseException:
        database.close()
        raise
    return database


def _is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _judged(path: Path, error: sqlite3.Error) -> Exception:
    if _is_damage(error):
        return ForeignCatalog(str(error))
    return UsageError(f"cannot open the catalog {path}: {error}")


def _move_aside(path: Path) -> Path:
    number = 1
    while path.with_name(f"{path.name}.broken-{number}").exists():
        number += 1
    kept_as = path.with_name(f"{path.name}.broken-{number}")
    for suffix in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{kept_as}{suffix}")
    return kept_as
