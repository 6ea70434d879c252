"""The process's memory held against its limit while it runs: divides what there is, looks a few times a second, gives back in time,
and says who holds what. The levels and shares are :mod:`spoke.memory`'s.
"""

from __future__ import annotations

import asyncio

from common import limits, runtime
from common.buffers import EXTENT_BUFFERS
from common.log import get_logger
from spoke.ahead import Ahead
from spoke.cache.store import Store
from spoke.fetcher import Fetcher
from spoke.memory import Level, MemoryBudget, MemoryLimit, anonymous_bytes
from spoke.namespace.tree import Tree
from spoke.orders.exchange import OrderExchange
from spoke.plans import Plans
from spoke.reads import Reads

log = get_logger(__name__)


class MemoryWatch:
    """``share`` once the process has settled, then the task ``watch``."""

    def __init__(
        self,
        limit: MemoryLimit,
        budget: MemoryBudget,
        tree: Tree,
        store: Store,
        fetcher: Fetcher,
        reads: Reads,
        ahead: Ahead,
        plans: Plans,
        exchange: OrderExchange,
    ) -> None:
        self._limit, self._budget = limit, budget
        self._tree, self._store, self._fetcher = tree, store, fetcher
        self._reads, self._ahead, self._plans, self._exchange = reads, ahead, plans, exchange

    def _dataset_bytes(self) -> dict[str, int]:
        """What grows with the dataset and not with the work: not under the limit."""
        return {
            "names": self._tree.entry_count * limits.MEMORY_NAME_BYTES,
            "index": self._store.files_known * limits.MEMORY_CACHED_FILE_BYTES,
        }

    def own_bytes(self) -> int:
        """What the limit is on."""
        return max(0, anonymous_bytes() - sum(self._dataset_bytes().values()))

    def share(self) -> None:
        """Divide what the process itself leaves of the limit."""
        memory = self._budget
        memory.settled(self.own_bytes())
        self._fetcher.recent.capacity_bytes = memory.recent_bytes
        EXTENT_BUFFERS.capacity = memory.kept_buffers
        runtime.keep_freed_memory(memory.heap_kept_bytes)
        log.info("memory limit", limit_bytes=self._limit.limit_bytes, origin=self._limit.origin,
                 for_data_bytes=memory.data_bytes)  # fmt: skip

    async def watch(self) -> None:
        """Look at what the process takes, and act before the limit is reached."""
        trimmed_s = float("-inf")
        while True:
            await asyncio.sleep(limits.MEMORY_LOOK_S)
            EXTENT_BUFFERS.shrink()
            before = self._budget.level
            level = self._budget.measured(self.own_bytes())
            if level > Level.EASE and runtime.now_s() - trimmed_s >= limits.MEMORY_TRIM_S:
                trimmed_s = runtime.now_s()
                if level >= Level.DROP_IDLE:
                    self._fetcher.drop_idle()
                runtime.give_back_memory()
                level = self._budget.measured(self.own_bytes())
            if Level.DROP_IDLE in (before, level) and level != before:
                log.info("memory", level=level.name, own_bytes=self.own_bytes(), limit_bytes=self._budget.limit_bytes)
            self._reads.admission.look()
            if level < before:
                self._ahead.look_again()

    def give_back(self) -> None:
        """The kernel had none for us."""
        self._fetcher.drop_idle()
        runtime.give_back_memory()

    def held_bytes(self) -> dict[str, int]:
        """What holds memory, by owner; ``process`` is the rest of what the kernel says: interpreter, bookkeeping, leftovers."""
        fetcher = self._fetcher
        held = {
            **self._dataset_bytes(),
            "flights": fetcher.landed_bytes,
            "readers": self._reads.admission.inside_bytes,
            "recent": fetcher.recent.held_bytes,
            "buffers": EXTENT_BUFFERS.idle_bytes,
            "orders": self._plans.held_steps * limits.MEMORY_STEP_BYTES + self._exchange.held_bytes,
        }
        return {**held, "process": max(0, anonymous_bytes() - sum(held.values()))}
