"""Reports of orders with bytes changed, cut or added, also under a digest that is right: only an OrderError escapes, memory bounded."""

from __future__ import annotations

import random
import struct
import tracemalloc
from hashlib import sha256

import pytest

from common import codec, limits
from common.errors import OrderError
from common.order_report import DIGEST_BYTES, HEADER_BYTES, pack, sketch, unpack
from tests.property.test_order_report_properties import report_of, shuffled
from tests.wire_dialogues import mutate

GOOD = pack(report_of(shuffled(1, 400)))
FACTS_BYTES = HEADER_BYTES - DIGEST_BYTES
ROUNDS = 300


def read(data: bytes, digest: bytes) -> bool:
    """Whether it was taken."""
    try:
        report = unpack(data, digest)
    except OrderError:
        return False
    assert all(
        offset + length <= report.files[file].size_bytes
        for file, offset, length in zip(report.file_numbers, report.offsets, report.lengths, strict=True)
    )
    sketch(report)
    return True


def signed(facts: bytes, body: bytes) -> tuple[bytes, bytes]:
    """Bytes and digest of what somebody made who knows the format."""
    digest = sha256(facts + body).digest()[:DIGEST_BYTES]
    return facts + digest + codec.pack(body), digest


@pytest.mark.parametrize("seed", range(3))
def test_mutated(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(ROUNDS):
        mutated = mutate(GOOD.data, dice)
        assert read(mutated, GOOD.digest) == (mutated == GOOD.data)


@pytest.mark.parametrize("seed", range(3))
def test_mutated_and_signed(seed: int) -> None:
    dice = random.Random(100 + seed)
    facts = GOOD.data[:FACTS_BYTES]
    body = codec.unpack(codec.Codec.ZSTD, GOOD.data[HEADER_BYTES:], len(raw()))
    taken = sum(read(*signed(facts, mutate(bytes(body), dice)[: len(body)])) for _ in range(ROUNDS))
    assert 0 < taken < ROUNDS
    for _ in range(ROUNDS):
        read(*signed(mutate(facts, dice)[:FACTS_BYTES].ljust(FACTS_BYTES, b"x"), bytes(body)))


def raw() -> bytes:
    import zstandard

    return zstandard.ZstdDecompressor().decompress(GOOD.data[HEADER_BYTES:])


def test_what_it_says_of_its_size_sets_no_memory_aside() -> None:
    bomb = codec.pack(bytes(200 << 20))
    most = struct.pack("<8sIIII", b"HRREPORT", 1, 1, limits.ORDER_REPORT_MAX_STEPS, 10)
    tracemalloc.start()
    try:
        for facts in (most, most[:12] + b"\xff" * 12, GOOD.data[:FACTS_BYTES]):
            assert not read(facts + bytes(16) + bomb, bytes(16))
            assert not read(facts + bytes(16) + b"\0" * 100, bytes(16))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
