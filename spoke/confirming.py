"""Strict consistency: before a file is opened, the hub is asked, and the names are waited for until they are as new as its answer."""

from __future__ import annotations

import asyncio

from common import limits
from common.errors import HubUnreachable
from spoke.hub_client.checks import Position
from spoke.hub_client.client import HubClient
from spoke.long_waits import LongWaits
from spoke.namespace.follower import Follower
from spoke.namespace.replica import Replica
from spoke.namespace.tree import Tree


class Confirming:
    """``timeout_s`` None: wait for the hub as long as it takes."""

    def __init__(
        self,
        tree: Tree,
        replica: Replica,
        client: HubClient,
        follower: Follower,
        long_waits: LongWaits,
        timeout_s: float | None,
    ) -> None:
        self._tree, self._replica = tree, replica
        self._client, self._follower = client, follower
        self._long_waits = long_waits
        self._timeout_s = timeout_s

    async def confirm(self, path: bytes) -> None:
        """Return once the names have this path as it is at the hub. Raises HeadraceError, at the latest after the timeout."""
        waits = self._long_waits
        wait = waits.begin(path, None)
        slow = asyncio.get_running_loop().call_later(limits.SLOW_READ_AFTER_S, waits.grew_long, wait)
        well = False
        try:
            async with asyncio.timeout(self._timeout_s):
                position = await self._client.checks.ask(path)
                await self._follower.until(lambda: self._is_at(position) or self._replica.suspicious is not None)
            well = True
        except TimeoutError:
            error = HubUnreachable(f"{path!r}: the hub did not confirm it within {self._timeout_s:g} s")
            waits.timed_out(wait, error)
            raise error from None
        finally:
            slow.cancel()
            waits.ended(wait, well=well)
        if not self._is_at(position):
            raise HubUnreachable(f"{path!r}: the hub's names are not believed: {self._replica.suspicious}")

    def _is_at(self, position: Position) -> bool:
        tree = self._tree
        return tree.epoch % 2 == 0 and tree.catalog_id == position.catalog_id and tree.revision >= position.revision
