"""The table of identities while the hub runs: read again from the configuration file when that changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from common import limits
from common.config import read_toml
from common.errors import UsageError
from common.log import get_logger
from common.serving.access import Access, parse_access

log = get_logger(__name__)


class IdentitiesFile:
    """``apply`` gets each new table. One that cannot be used leaves the last one in force, with a line in the log."""

    def __init__(self, file: Path, access: Access, apply: Callable[[Access], None]) -> None:
        self._file = file
        self._access = access
        self._apply = apply
        self._seen = self._look()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(limits.FILES_LOOK_S)
            self.look()

    def look(self) -> None:
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            table = read_toml(self._file).get("identities")
            if table is None and self._access.table:
                raise UsageError("it has no [identities] any more; to let everybody in, start the hub anew")
            access = parse_access(table or {})
        except UsageError as error:
            log.error("identities were not read anew, the former ones hold", file=str(self._file), reason=str(error))
            return
        if access != self._access:
            self._access = access
            log.info("identities were read anew", file=str(self._file), identities=len(access.table))
            self._apply(access)

    def _look(self) -> tuple[int, int, int] | None:
        try:
            facts = os.stat(self._file)
        except OSError:
            return None
        return facts.st_ino, facts.st_size, facts.st_mtime_ns
