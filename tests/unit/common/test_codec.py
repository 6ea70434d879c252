import contextlib
import random

import pytest
import zstandard

from common.codec import Shrinkage, pack, unpack
from common.errors import CorruptData
from common.limits import PACK_RETRY_EXTENTS, PACK_VERSIONS_MAX
from common.wire.messages import Codec

NOISE = random.Random(1).randbytes(100_000)


@pytest.mark.parametrize("data", [b"", b"x", NOISE, b"token " * 50_000])
def test_what_is_packed_comes_out_again(data: bytes) -> None:
    assert bytes(unpack(Codec.ZSTD, memoryview(pack(memoryview(data))), len(data))) == data


def test_token_ids_shrink_as_expected() -> None:
    dice = random.Random(2)
    words = [dice.paretovariate(1.1) for _ in range(200_000)]
    ids = [min(31_999, int(word)) for word in words]
    assert len(pack(b"".join(token.to_bytes(4, "little") for token in ids))) < 4 * len(ids) * 0.5
    assert len(pack(b"".join(token.to_bytes(2, "little") for token in ids))) < 2 * len(ids) * 0.75


def test_a_bomb_makes_no_more_than_was_announced() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 30))
    assert len(bomb) < 1 << 20
    with pytest.raises(CorruptData, match="1073741824 bytes where 4096"):
        unpack(Codec.ZSTD, bomb, 4096)
    lying = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 24))
    with pytest.raises(CorruptData):
        unpack(Codec.ZSTD, lying, 4096)


@pytest.mark.parametrize("damage", [lambda p: p[:-1], lambda p: p + b"x", lambda p: b"\0" + p[1:], lambda p: b""])
def test_damaged_payloads_are_corrupt_data(damage) -> None:
    with pytest.raises(CorruptData):
        unpack(Codec.ZSTD, damage(pack(NOISE)), len(NOISE))


def test_a_flipped_bit_is_corrupt_or_at_least_of_the_right_length() -> None:
    """zstd has no checksum here: the block digests are what finds it."""
    packed = pack(b"token " * 5000)
    for position in range(len(packed)):
        damaged = bytearray(packed)
        damaged[position] ^= 1 << position % 8
        with contextlib.suppress(CorruptData):
            assert len(unpack(Codec.ZSTD, damaged, 30_000)) == 30_000


def test_a_codec_we_do_not_have() -> None:
    with pytest.raises(CorruptData, match="LZ4"):
        unpack(Codec.LZ4, b"", 0)


def test_what_does_not_shrink_is_passed_over_and_tried_again() -> None:
    shrinkage = Shrinkage()
    assert shrinkage.worth_trying(b"v")
    shrinkage.saw(b"v", 100, 100)
    tries = [shrinkage.worth_trying(b"v") for _ in range(PACK_RETRY_EXTENTS)]
    assert tries == [False] * (PACK_RETRY_EXTENTS - 1) + [True]
    for _ in range(4):
        shrinkage.saw(b"v", 100, 40)
    assert shrinkage.worth_trying(b"v")


def test_memory_of_versions_is_bounded() -> None:
    shrinkage = Shrinkage()
    for number in range(PACK_VERSIONS_MAX + 10):
        shrinkage.saw(number.to_bytes(16, "big"), 100, 100)
    assert shrinkage.worth_trying((0).to_bytes(16, "big")), "forgotten"
    assert not shrinkage.worth_trying((PACK_VERSIONS_MAX + 9).to_bytes(16, "big"))
