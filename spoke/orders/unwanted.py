"""Which orders of other spokes are not wanted: those refused for good, kept beside the orders, and those passed over until this
process ends. Both by digest, the oldest forgotten first.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from threading import Lock

from common import limits
from common.durable import replace_file
from common.log import get_logger

log = get_logger(__name__)

_FORMAT = 1


class Unwanted:
    """``path``: where it is kept. A file that cannot be read or written is logged, and costs an order fetched again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._refused: dict[bytes, None] = {}
        self._passed_over: dict[bytes, None] = {}
        self._saving = Lock()
        self.all_listed = False
        """What the hub has when it is asked next is not wanted."""

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._refused or digest in self._passed_over

    @property
    def refused_count(self) -> int:
        return len(self._refused)

    def pass_over(self, digest: bytes) -> None:
        """Until this process ends."""
        self._passed_over[digest] = None
        while len(self._passed_over) > limits.ORDERS_FOREIGN_REFUSED_KNOWN:
            del self._passed_over[next(iter(self._passed_over))]

    async def refuse(self, *digests: bytes) -> None:
        """Also after a restart."""
        for digest in digests:
            self._refused[digest] = None
        while len(self._refused) > limits.ORDERS_FOREIGN_REFUSED_KNOWN:
            del self._refused[next(iter(self._refused))]
        await self.save()

    def forget_passed_over(self) -> None:
        self._passed_over.clear()

    async def load(self) -> None:
        await asyncio.to_thread(self._load)

    async def save(self) -> None:
        await asyncio.to_thread(self._save)

    def _save(self) -> None:
        facts = {
            "format": _FORMAT,
            "refuse_listed": self.all_listed,
            "refused": [digest.hex() for digest in self._refused],
        }
        try:
            with self._saving:
                self._path.parent.mkdir(mode=0o700, exist_ok=True)
                replace_file(self._path, json.dumps(facts))
        except OSError as error:
            log.warning("which orders are not wanted cannot be kept", path=str(self._path), error=str(error))

    def _load(self) -> None:
        try:
            facts = json.loads(self._path.read_text())
            if facts["format"] != _FORMAT:
                return
            refused = [bytes.fromhex(digest) for digest in facts["refused"]]
            self.all_listed = facts["refuse_listed"] is True
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("which orders are not wanted cannot be read", path=str(self._path), error=str(error))
            return
        self._refused = dict.fromkeys(refused[-limits.ORDERS_FOREIGN_REFUSED_KNOWN :])
