"""Which extents travel compressed: where it pays on their path (:mod:`common.serving.packing_choice`), and where they shrink.

Owns the threads that pack, what packing costs, and what it makes of each version. When more waits for the threads than
they do in a moment and the connection has nothing else to send, raw bytes go out at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum

from common import codec, limits, runtime
from common.serving.egress import Link, Packed
from common.serving.packing_choice import PackingCost
from common.serving.source import Extent
from common.wire.messages import Codec


class Compression(Enum):
    """``auto``: where it pays; ``on``: whatever shrinks; ``off``: nothing."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class Packer:
    """The server's ``pack``. ``close`` ends its threads; ``raw_bytes`` and ``packed_bytes`` count what it was given and gave.

    ``cpu_s``: the calling thread's CPU time, in seconds.
    """

    def __init__(
        self,
        compression: Compression,
        threads: int = limits.PACK_THREADS,
        cpu_s: Callable[[], float] = runtime.thread_cpu_s,
    ) -> None:
        self._compression = compression
        self._shrinkage = codec.Shrinkage()
        self._threads = ThreadPoolExecutor(threads, "pack") if compression is not Compression.OFF else None
        self._cpu_s = cpu_s
        self._packing_bytes = 0
        self._timed_extents = 0
        self.cost = PackingCost(cores=min(threads, len(os.sched_getaffinity(0))))
        self.raw_bytes = 0
        self.packed_bytes = 0

    @property
    def codecs(self) -> Sequence[Codec]:
        """What to agree to in WELCOME."""
        return (Codec.RAW,) if self._compression is Compression.OFF else codec.SUPPORTED

    async def close(self) -> None:
        if self._threads is not None:
            await asyncio.to_thread(self._threads.shutdown)

    async def pack(self, version: bytes, extent: Extent, link: Link) -> Packed:
        """The extent as it shall travel on ``link``."""
        packed = Packed(extent, Codec.RAW, extent.data)
        size_bytes = len(extent.data)
        if self._wants(version, extent, link):
            here = size_bytes <= limits.PACK_HERE_BYTES
            payload = self._pack_here(version, extent.data) if here else await self._pack_in_thread(version, extent)
            if len(payload) < size_bytes * limits.PACK_WORTH_RATIO:
                packed = Packed(extent, Codec.ZSTD, payload)
        self.raw_bytes += size_bytes
        self.packed_bytes += len(packed.payload)
        if link.packing is not None:
            link.packing.prepared(size_bytes, len(packed.payload), self.cost)
        return packed

    def _wants(self, version: bytes, extent: Extent, link: Link) -> bool:
        size_bytes = len(extent.data)
        if self._threads is None or Codec.ZSTD not in link.codecs or size_bytes < limits.PACK_MIN_BYTES:
            return False
        ratio = self._shrinkage.ratio(version)
        if self._compression is Compression.AUTO:
            choice = link.packing
            if choice is not None and not choice.wants(size_bytes, ratio):
                return False
            busy = self._packing_bytes >= limits.PACK_QUEUE_BYTES
            if busy and link.waiting_bytes < limits.PACK_WHEN_WAITING_BYTES:
                return False
        if ratio is None and size_bytes > limits.PACK_HERE_BYTES:
            # A file's first extents come in a burst: were they told by what a thread makes of the first, those that shrink would
            # go raw meanwhile, or those that do not would wait, and later ones overtake them.
            self._pack_here(version, extent.data[: limits.PACK_HERE_BYTES])
        return self._shrinkage.worth_trying(version)

    def _pack_here(self, version: bytes, data: bytes | bytearray | memoryview) -> bytes:
        payload = codec.pack(data)
        self._shrinkage.saw(version, len(data), len(payload))
        return payload

    async def _pack_in_thread(self, version: bytes, extent: Extent) -> bytes:
        size_bytes = len(extent.data)
        self._packing_bytes += size_bytes
        try:
            payload, cpu_s = await asyncio.get_running_loop().run_in_executor(self._threads, self._timed, extent.data)
        finally:
            self._packing_bytes -= size_bytes
        self._timed_extents = min(self._timed_extents + 1, limits.PACK_COST_EXTENTS)
        known = self.cost.s_per_byte
        self.cost = replace(self.cost, s_per_byte=known + (cpu_s / size_bytes - known) / self._timed_extents)
        self._shrinkage.saw(version, size_bytes, len(payload))
        return payload

    def _timed(self, data: bytes | bytearray | memoryview) -> tuple[bytes, float]:
        from_s = self._cpu_s()
        return codec.pack(data), self._cpu_s() - from_s
