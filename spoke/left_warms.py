"""Warms that were left to the spoke (``warm --no-wait``), on disk beside the cache until they end: the next worker goes on with them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import limits
from common.durable import replace_file
from common.log import get_logger

log = get_logger(__name__)
_FORMAT = 1

Request = Mapping[str, Any]


class LeftWarms:
    """Requests by number. Nothing here raises for the disk: what cannot be kept ends with its worker, and is said."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[int, tuple[Request, int]] = {}
        self._numbers = 0
        self._loaded = False
        self._lock = asyncio.Lock()

    async def load(self) -> Sequence[tuple[int, Request]]:
        """What workers before this one did not end, but for what several of them tried already."""
        self._loaded = True
        try:
            found = json.loads(await asyncio.to_thread(self._path.read_text, "ascii"))
            known = (
                [(dict(warm["request"]), int(warm["begun"])) for warm in found["warms"]]
                if found["format"] == _FORMAT
                else []
            )
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.error("warms that were left to the spoke are lost", path=str(self._path), error=str(error))
            return []
        for request, begun in known:
            if begun < limits.WARM_TRIES:
                self._keep(request, begun + 1)
            else:
                log.error("a warm is given up: every worker that had it ended", request=request, workers=begun)
        await self._write()
        return [(number, request) for number, (request, _) in self._kept.items()]

    async def add(self, request: Request) -> int:
        """Keep it until ``done`` with the number returned."""
        number = self._keep(request, 1)
        await self._write()
        return number

    def _keep(self, request: Request, begun: int) -> int:
        self._numbers += 1
        self._kept[self._numbers] = request, begun
        return self._numbers

    async def done(self, number: int) -> None:
        if self._kept.pop(number, None) is not None:
            await self._write()

    async def forget(self) -> None:
        """All of them: whoever takes the mount away does not want them any more. A start that failed takes nothing away."""
        if self._loaded:
            self._kept.clear()
            await self._write()

    async def _write(self) -> None:
        async with self._lock:
            warms = [{"request": request, "begun": begun} for request, begun in self._kept.values()]
            try:
                if warms:
                    text = json.dumps({"format": _FORMAT, "warms": warms})
                    await asyncio.to_thread(replace_file, self._path, text)
                else:
                    await asyncio.to_thread(self._path.unlink, missing_ok=True)
            except OSError as error:
                log.warning(
                    "a warm that is left to the spoke will not outlive its worker",
                    path=str(self._path),
                    error=str(error),
                )
