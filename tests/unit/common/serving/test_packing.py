"""Which extents travel compressed: a decision from what waits, what shrinks, and what the two ends agreed on."""

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from common.blocks import BlockRange, count_blocks
from common.codec import unpack
from common.digest import block_digests
from common.limits import PACK_HERE_BYTES, PACK_MIN_BYTES, PACK_QUEUE_BYTES, PACK_WHEN_WAITING_BYTES
from common.serving.packing import Compression, Packer
from common.serving.packing_choice import Mode, PackingChoice
from common.serving.source import Extent
from common.wire.messages import Codec

TEXT = b"the quick brown fox " * 5000
NOISE = random.Random(1).randbytes(100_000)
BOTH = (Codec.RAW, Codec.ZSTD)


@dataclass
class Link:
    """As much of a connection as the packer looks at."""

    codecs: tuple[Codec, ...] = BOTH
    waiting_bytes: int = 0
    packing: PackingChoice | None = None
    link_id: int = 1
    refused: list[object] = field(default_factory=list)


def extent(data: bytes) -> Extent:
    return Extent(BlockRange(0, count_blocks(len(data))), data, block_digests(b"v" * 16, 0, data))


async def packed_with(compression: Compression, data: bytes, link: Link, version: bytes = b"v" * 16):
    packer = Packer(compression)
    try:
        return await packer.pack(version, extent(data), link)
    finally:
        await packer.close()


@pytest.mark.parametrize("compression", [Compression.AUTO, Compression.ON])
async def test_what_shrinks_travels_packed_and_comes_out_the_same(compression: Compression) -> None:
    packed = await packed_with(compression, TEXT, Link(waiting_bytes=PACK_WHEN_WAITING_BYTES))
    assert packed.codec is Codec.ZSTD
    assert len(packed.payload) < len(TEXT) / 10
    assert unpack(packed.codec, packed.payload, len(TEXT)) == TEXT


@pytest.mark.parametrize(
    ("compression", "data", "codecs"),
    [
        (Compression.OFF, TEXT, BOTH),
        (Compression.ON, TEXT, (Codec.RAW,)),
        (Compression.ON, NOISE, BOTH),
        (Compression.ON, TEXT[: PACK_MIN_BYTES - 1], BOTH),
    ],
)
async def test_what_travels_raw(compression: Compression, data: bytes, codecs: tuple[Codec, ...]) -> None:
    packed = await packed_with(compression, data, Link(codecs, waiting_bytes=PACK_WHEN_WAITING_BYTES))
    assert (packed.codec, packed.payload) == (Codec.RAW, data)


async def test_a_hub_told_not_to_compress_agrees_to_raw_only() -> None:
    packers = {compression: Packer(compression) for compression in Compression}
    assert packers[Compression.OFF].codecs == (Codec.RAW,)
    assert packers[Compression.AUTO].codecs == BOTH
    for packer in packers.values():
        await packer.close()


async def test_a_link_that_takes_all_at_once_gets_raw_bytes_while_much_waits_to_be_packed() -> None:
    packer = Packer(Compression.AUTO)
    big = TEXT * 20
    try:
        hungry, waiting = Link(), Link(waiting_bytes=PACK_WHEN_WAITING_BYTES)
        for link, count_packed in ((hungry, -(-PACK_QUEUE_BYTES // len(big))), (waiting, 20)):
            together = await asyncio.gather(*(packer.pack(b"v" * 16, extent(big), link) for _ in range(20)))
            assert sum(packed.codec is Codec.ZSTD for packed in together) == count_packed
    finally:
        await packer.close()


async def test_what_its_path_says_is_done_and_told_to_it() -> None:
    """1 ms of CPU for each look at the clock: 10 ns a byte."""
    ticks = iter(n * 1e-3 for n in range(1000))
    packer = Packer(Compression.AUTO, threads=1, cpu_s=lambda: next(ticks))
    far, near = (Link(packing=PackingChoice(far=far)) for far in (True, False))
    assert near.packing is not None
    near.packing.raw_bytes_per_s = 300e6
    try:
        assert (await packer.pack(b"v" * 16, extent(TEXT), far)).codec is Codec.ZSTD
        assert (await packer.pack(b"v" * 16, extent(TEXT), near)).codec is Codec.RAW
        assert near.packing.cost.s_per_byte == pytest.approx(1e-3 / len(TEXT))
        assert near.packing.mode is Mode.RAW
        forced = Packer(Compression.ON)
        assert (await forced.pack(b"v" * 16, extent(TEXT), near)).codec is Codec.ZSTD
        await forced.close()
    finally:
        await packer.close()


async def test_noise_is_given_up_and_counted() -> None:
    packer = Packer(Compression.ON)
    try:
        for _ in range(10):
            await packer.pack(b"n" * 16, extent(NOISE), Link())
        await packer.pack(b"t" * 16, extent(TEXT), Link())
        assert packer.raw_bytes == 10 * len(NOISE) + len(TEXT)
        assert 10 * len(NOISE) < packer.packed_bytes < 10 * len(NOISE) + len(TEXT) / 10
    finally:
        await packer.close()


async def test_a_burst_of_a_new_file_is_told_by_its_first_bytes_whatever_came_before() -> None:
    """All its extents are asked for before its first is packed: 4 MB of token ids crossed raw behind noise."""
    packer = Packer(Compression.AUTO)
    link = Link(packing=PackingChoice(far=True))
    try:
        for _ in range(2):
            noise = await asyncio.gather(*(packer.pack(b"noise", extent(NOISE), link) for _ in range(8)))
            assert [packed.codec for packed in noise] == [Codec.RAW] * 8
            text = await asyncio.gather(*(packer.pack(b"text", extent(TEXT), link) for _ in range(8)))
            assert [packed.codec for packed in text] == [Codec.ZSTD] * 8
    finally:
        await packer.close()


async def test_what_does_not_shrink_and_what_is_short_is_ready_in_the_order_asked() -> None:
    """Noise in threads was overtaken by noise that was known not to be worth it: what a reader waited for left last."""
    packer = Packer(Compression.AUTO)
    link = Link(packing=PackingChoice(far=True))
    ready: list[int] = []

    async def pack(number: int, version: bytes, data: bytes) -> None:
        await packer.pack(version, extent(data), link)
        ready.append(number)

    try:
        extents = [(b"noise", NOISE)] * 4 + [(b"text", TEXT[: PACK_HERE_BYTES // 2])] * 4
        await asyncio.gather(*(pack(number, *each) for number, each in enumerate(extents)))
    finally:
        await packer.close()
    assert ready == list(range(8))
