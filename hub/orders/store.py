"""The orders of one dataset on disk, `<state dir>/<dataset>.orders` beside its catalogue: an SQLite file of its own.

Each call is one transaction, so that the command line may look and drop while a hub runs. What is in it can be told again: a
file that is damaged is moved aside, and a power cut may lose what came last.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

from common import limits
from common.errors import DiskError, OrderError, OrderTooNew
from common.log import get_logger
from common.order_report import Sketch, decode_sketch, encode_sketch, is_same
from hub.orders.ranks import KeptRow, to_drop

log = get_logger(__name__)

APPLICATION_ID = 0x4852_4F52  # "HROR"
SCHEMA_VERSION = 1
SUFFIX = ".orders"
_BUSY_TIMEOUT_S = 10.0

_SCHEMA = f"""
CREATE TABLE orders (
    number INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, packed_bytes INTEGER NOT NULL, steps INTEGER NOT NULL,
    files INTEGER NOT NULL, first_s REAL NOT NULL, last_s REAL NOT NULL, teller TEXT NOT NULL, followed INTEGER NOT NULL,
    sketch BLOB NOT NULL, packed BLOB NOT NULL
);
CREATE TABLE tellers (digest BLOB NOT NULL, teller TEXT NOT NULL, PRIMARY KEY (digest, teller)) WITHOUT ROWID;
CREATE TABLE same (digest BLOB PRIMARY KEY, kept_as BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE dropped (digest BLOB PRIMARY KEY, sketch BLOB NOT NULL, at_s REAL NOT NULL) WITHOUT ROWID;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""

Taken = Literal["kept", "same", "dropped"]


def orders_path(state_dir: str | os.PathLike[str], dataset: str) -> Path:
    return Path(state_dir) / f"{quote(dataset, safe='')}{SUFFIX}"


def datasets_with_orders(state_dir: Path) -> list[str]:
    return sorted(unquote(path.name.removesuffix(SUFFIX)) for path in state_dir.glob(f"*{SUFFIX}"))


class _Damaged(Exception):
    """Not one of ours, or not whole."""


class OrderStore:
    """Blocks; any thread, one at a time. Raises DiskError when the database fails, OrderTooNew for one of a later release."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = threading.Lock()
        try:
            self._database = self._open()
        except _Damaged as error:
            kept_as = path.with_name(path.name + ".broken")
            log.error("kept orders unusable, moved aside", path=str(path), reason=str(error), kept_as=str(kept_as))
            try:
                for suffix in ("-wal", "-shm", ""):
                    with contextlib.suppress(FileNotFoundError):
                        os.replace(f"{path}{suffix}", f"{kept_as}{suffix}")
                self._database = self._open()
            except (_Damaged, OSError) as again:
                raise DiskError(f"the orders of spokes cannot be kept in {path}: {again}") from None

    def _open(self) -> sqlite3.Connection:
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            database = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, timeout=_BUSY_TIMEOUT_S
            )
        except OSError as error:
            raise DiskError(f"the orders of spokes cannot be kept in {self._path}: {error.strerror}") from None
        try:
            database.execute("PRAGMA auto_vacuum = FULL")  # holds for a file that is made now
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA cache_size = -4096")
            database.execute("BEGIN IMMEDIATE")
            found = (_pragma(database, "application_id"), _pragma(database, "user_version"))
            if found == (0, 0) and not database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    database.execute(statement)
                found = (APPLICATION_ID, SCHEMA_VERSION)
            database.execute("COMMIT")
            if found[0] == APPLICATION_ID and found[1] > SCHEMA_VERSION:
                raise OrderTooNew(
                    f"{self._path} is of a later release (schema {found[1]}; this one reads {SCHEMA_VERSION}): serve with that, "
                    "or move the file away"
                )
            if found != (APPLICATION_ID, SCHEMA_VERSION):
                raise _Damaged(f"application {found[0]:#x} schema {found[1]}")
            verdict = database.execute("PRAGMA quick_check(1)").fetchone()[0]
            if verdict != "ok":
                raise _Damaged(str(verdict))
        except sqlite3.OperationalError as error:
            database.close()
            raise DiskError(f"the orders of spokes cannot be kept in {self._path}: {error}") from None
        except sqlite3.DatabaseError as error:
            database.close()
            raise _Damaged(str(error)) from None
        except BaseException:
            database.close()
            raise
        return database

    def close(self) -> None:
        with self._guard:
            self._database.close()

    @contextlib.contextmanager
    def _transaction(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        with self._guard:
            database = self._database
            try:
                database.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                try:
                    yield database
                    database.execute("COMMIT")
                except BaseException:
                    if database.in_transaction:
                        database.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise DiskError(f"{self._path}: {error}") from None

    # --- what is kept -------------------------------------------------------------------------------------

    def rows(self) -> list[KeptRow]:
        with self._transaction(write=False) as database:
            return _rows(database)

    def read(self, digest: bytes, offset_bytes: int, most_bytes: int) -> tuple[int, bytes]:
        """(bytes of all, some from ``offset_bytes`` on). Raises OrderError when it is not kept."""
        with self._transaction(write=False) as database:
            found = database.execute("SELECT number, packed_bytes FROM orders WHERE digest = ?", (digest,)).fetchone()
            if found is None:
                raise OrderError("the hub does not keep this order any more")
            number, total_bytes = found
            with database.blobopen("orders", "packed", number, readonly=True) as blob:
                blob.seek(min(offset_bytes, total_bytes))
                return total_bytes, blob.read(most_bytes)

    # --- what is told -------------------------------------------------------------------------------------

    def tell(self, digest: bytes, teller: str, followed: bool, now_s: float) -> bool:
        """Somebody has an order: True if it is kept already, which is now noted, or was dropped by an operator."""
        with self._transaction() as database:
            if database.execute("SELECT 1 FROM dropped WHERE digest = ?", (digest,)).fetchone() is not None:
                return True
            found = database.execute("SELECT kept_as FROM same WHERE digest = ?", (digest,)).fetchone()
            return _note(database, found[0] if found is not None else digest, teller, followed, now_s)

    def take(
        self,
        digest: bytes,
        packed: bytes | bytearray,
        files: int,
        sketch: Sketch,
        teller: str,
        followed: bool,
        now_s: float,
    ) -> Taken:
        """Keep an order, unless it says the same as one that is kept (which is noted) or was dropped; what is too much goes."""
        with self._transaction() as database:
            packed_sketch = encode_sketch(sketch)
            for (other,) in database.execute("SELECT sketch FROM dropped").fetchall():
                if is_same(sketch, _sketch(other)):
                    _note_dropped(database, [(digest, packed_sketch, now_s)])
                    return "dropped"
            for row in _rows(database):
                if row.digest == digest or is_same(sketch, _sketch(row.sketch)):
                    _note(database, row.digest, teller, followed, now_s)
                    _note_same(database, digest, row.digest)
                    return "same"
            database.execute(
                "INSERT INTO orders (digest, packed_bytes, steps, files, first_s, last_s, teller, followed, sketch, packed)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (digest, len(packed), sketch.steps, files, now_s, now_s, teller, followed, packed_sketch, packed),
            )  # fmt: skip
            database.execute("INSERT INTO tellers VALUES (?, ?)", (digest, teller))
            _forget(database, (row.digest for row in to_drop(_rows(database))))
            return "kept"

    def forget(self, digests: Sequence[bytes]) -> None:
        """They mean nothing any more; told again they are taken again."""
        with self._transaction() as database:
            _forget(database, digests)

    def drop(self, digests: Sequence[bytes], now_s: float) -> None:
        """They are not wanted, and are not taken again when somebody tells of them."""
        with self._transaction() as database:
            _note_dropped(
                database, [(row.digest, row.sketch, now_s) for row in _rows(database) if row.digest in digests]
            )
            _forget(database, digests)


def _pragma(database: sqlite3.Connection, name: str) -> int:
    found: int = database.execute(f"PRAGMA {name}").fetchone()[0]
    return found


def _rows(database: sqlite3.Connection) -> list[KeptRow]:
    found = database.execute(
        "SELECT o.digest, packed_bytes, steps, files, first_s, last_s, o.teller, COUNT(t.teller), followed, sketch"
        " FROM orders o LEFT JOIN tellers t ON t.digest = o.digest GROUP BY o.number ORDER BY o.number"
    )
    return [KeptRow(*(*row[:8], bool(row[8]), row[9])) for row in found]


def _note(database: sqlite3.Connection, digest: bytes, teller: str, followed: bool, now_s: float) -> bool:
    noted = database.execute(
        "UPDATE orders SET last_s = MAX(last_s, ?), followed = followed OR ? WHERE digest = ?",
        (now_s, followed, digest),
    )
    if not noted.rowcount:
        return False
    (count,) = database.execute("SELECT COUNT(*) FROM tellers WHERE digest = ?", (digest,)).fetchone()
    if count < limits.ORDER_TELLERS_COUNTED:
        database.execute("INSERT OR IGNORE INTO tellers VALUES (?, ?)", (digest, teller))
    return True


def _note_same(database: sqlite3.Connection, digest: bytes, kept_as: bytes) -> None:
    """Whoever tells of it again need not send it again."""
    (count,) = database.execute("SELECT COUNT(*) FROM same WHERE kept_as = ?", (kept_as,)).fetchone()
    if digest != kept_as and count < limits.ORDER_TELLERS_COUNTED:
        database.execute("INSERT OR REPLACE INTO same VALUES (?, ?)", (digest, kept_as))


def _note_dropped(database: sqlite3.Connection, rows: Iterable[tuple[bytes, bytes, float]]) -> None:
    database.executemany("INSERT OR REPLACE INTO dropped VALUES (?, ?, ?)", rows)
    database.execute(
        "DELETE FROM dropped WHERE digest NOT IN (SELECT digest FROM dropped ORDER BY at_s DESC LIMIT ?)",
        (limits.ORDERS_DROPPED_KNOWN,),
    )


def _forget(database: sqlite3.Connection, digests: Iterable[bytes]) -> None:
    for digest in digests:
        database.execute("DELETE FROM orders WHERE digest = ?", (digest,))
        database.execute("DELETE FROM tellers WHERE digest = ?", (digest,))
        database.execute("DELETE FROM same WHERE kept_as = ?", (digest,))


def _sketch(packed: bytes) -> Sketch:
    try:
        return decode_sketch(packed)
    except ValueError:
        return Sketch(1, ())  # the same as none
