import os

import pytest
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from common.blocks import BLOCK_BYTES, EXTENT_BYTES
from common.buffers import EXTENT_BUFFERS
from common.digest import DIGEST_BYTES, block_digests, first_mismatch

VERSION, OTHER_VERSION = b"v" * 16, b"w" * 16
DATA = os.urandom(3 * BLOCK_BYTES + 5)


def test_known_values_stay_as_they_are() -> None:
    """The digest is part of the wire and of the cache format: a change of it is a change of both."""
    assert block_digests(b"\0" * 16, 0, b"").hex() == ""
    assert block_digests(b"\0" * 16, 0, b"x" * BLOCK_BYTES).hex() == GOLDEN[0]
    assert block_digests(b"\0" * 16, 7, b"short").hex() == GOLDEN[1]


GOLDEN = ("94d2c2c25265805c", "9d1a6fcbb6b1de51")


def test_intact_data_match_and_the_last_short_block_counts() -> None:
    digests = block_digests(VERSION, 5, DATA)
    assert len(digests) == 4 * DIGEST_BYTES
    assert first_mismatch(VERSION, 5, DATA, digests) is None


@pytest.mark.parametrize("position", [0, BLOCK_BYTES, 3 * BLOCK_BYTES + 4])
def test_one_flipped_bit_is_found_in_its_block(position: int) -> None:
    digests = block_digests(VERSION, 5, DATA)
    damaged = bytearray(DATA)
    damaged[position] ^= 1
    assert first_mismatch(VERSION, 5, damaged, digests) == 5 + position // BLOCK_BYTES


def test_a_neighbours_block_an_older_version_and_a_missing_digest_do_not_pass() -> None:
    digests = block_digests(VERSION, 5, DATA)
    swapped = DATA[BLOCK_BYTES : 2 * BLOCK_BYTES] + DATA[:BLOCK_BYTES] + DATA[2 * BLOCK_BYTES :]
    assert first_mismatch(VERSION, 5, swapped, digests) == 5
    assert first_mismatch(OTHER_VERSION, 5, DATA, digests) == 5
    assert first_mismatch(VERSION, 6, DATA, digests) == 6
    assert first_mismatch(VERSION, 5, DATA, digests[:-DIGEST_BYTES]) == 8
    same_everywhere = b"\0" * (2 * BLOCK_BYTES)
    first, second = (block_digests(VERSION, block, same_everywhere[:BLOCK_BYTES]) for block in (0, 1))
    assert first != second, "equal bytes at two places must have two digests"


@pytest.mark.parametrize("size_bytes", [0, 1, BLOCK_BYTES, 40 * BLOCK_BYTES + 1, EXTENT_BYTES, 2 * EXTENT_BYTES + 5000])
@pytest.mark.parametrize("first_block", [0, 5, 256, (1 << 40) - 7])
def test_many_at_once_are_what_the_definition_says_of_each(size_bytes: int, first_block: int) -> None:
    data = os.urandom(size_bytes)
    one_by_one = [
        block_digests(VERSION, first_block + position // BLOCK_BYTES, data[position : position + BLOCK_BYTES])
        for position in range(0, size_bytes, BLOCK_BYTES)
    ]
    assert block_digests(VERSION, first_block, data) == b"".join(one_by_one)
    seed = xxh3_64_intdigest(VERSION) ^ (first_block * 0x9E3779B97F4A7C15 % 2**64)
    assert one_by_one[:1] == [xxh3_64_digest(data[:BLOCK_BYTES], seed)[::-1]][: len(one_by_one)]


def test_a_kept_buffer_has_the_digests_of_its_bytes() -> None:
    buffer = EXTENT_BUFFERS.take()
    buffer[:] = os.urandom(EXTENT_BYTES)
    assert block_digests(VERSION, 256, buffer) == block_digests(VERSION, 256, bytes(buffer))
