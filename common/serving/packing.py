"""Which extents travel compressed: where bytes would have to wait for the link anyway, and where they shrink.

The sign that the link is the bottleneck is local: something already waits for this connection's socket. When nothing
waits, and others are being packed or read, the CPU is what is short, and raw bytes go out at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum

from common import codec, limits
from common.serving.egress import Link, Packed
from common.serving.source import Extent
from common.wire.messages import Codec


class Compression(Enum):
    """``auto``: where it pays; ``on``: whatever shrinks; ``off``: nothing."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class Packer:
    """The server's ``pack``. ``close`` ends its threads; ``raw_bytes`` and ``packed_bytes`` count what it was given and gave."""

    def __init__(self, compression: Compression, threads: int = limits.PACK_THREADS) -> None:
        self._compression = compression
        self._shrinkage = codec.Shrinkage()
        self._threads = ThreadPoolExecutor(threads, "pack") if compression is not Compression.OFF else None
        self._packing = 0
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
        if self._wants(version, extent, link):
            payload = await self._pack_in_thread(extent)
            self._shrinkage.saw(version, len(extent.data), len(payload))
            if len(payload) < len(extent.data) * limits.PACK_WORTH_RATIO:
                packed = Packed(extent, Codec.ZSTD, payload)
        self.raw_bytes += len(extent.data)
        self.packed_bytes += len(packed.payload)
        return packed

    def _wants(self, version: bytes, extent: Extent, link: Link) -> bool:
        if self._threads is None or Codec.ZSTD not in link.codecs or len(extent.data) < limits.PACK_MIN_BYTES:
            return False
        if self._compression is Compression.AUTO and not self._link_is_short(link):
            return False
        return self._shrinkage.worth_trying(version)

    def _link_is_short(self, link: Link) -> bool:
        return link.waiting_bytes >= limits.PACK_WHEN_WAITING_BYTES or self._packing == 0

    async def _pack_in_thread(self, extent: Extent) -> bytes:
        self._packing += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, codec.pack, extent.data)
        finally:
            self._packing -= 1
