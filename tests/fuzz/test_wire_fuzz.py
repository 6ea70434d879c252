"""Seeded mutation of honest streams: whatever arrives, only ProtocolError escapes, and memory stays bounded."""

from __future__ import annotations

import os
import random
import tracemalloc

import pytest

from common.entries import Change, Entry, Kind
from common.errors import ProtocolError
from common.wire.connection import Connection, Role, State
from common.wire.entry_codec import decode_changes, decode_entries, encode_changes, encode_entries
from common.wire.messages import Subscribe
from tests.wire_dialogues import (
    CATALOG,
    VERSION,
    WELCOME,
    answering_hub,
    asking_spoke,
    drain,
    mutate,
    read,
)

ROUNDS = int(os.environ.get("HEADRACE_FUZZ_ROUNDS", "300"))
PEAK_BYTES_MAX = 4 << 20


def _feed(connection: Connection, stream: bytes, dice: random.Random) -> str:
    """How it ended: ``refused``, ``closed`` or ``open``."""
    try:
        while stream:
            length = dice.choice((1, 7, 100, 5000, 100_000))
            connection.receive_data(stream[:length])
            stream = stream[length:]
    except ProtocolError:
        assert connection.state is State.CLOSED
        assert b"protocol" in drain(connection)
        return "refused"
    return "closed" if connection.state is State.CLOSED else "open"


@pytest.mark.parametrize("seed", range(3))
def test_a_spoke_survives_a_mad_hub(seed: int) -> None:
    dice = random.Random(seed)
    stream = answering_hub()
    ends: set[str] = set()
    for _ in range(ROUNDS):
        spoke, _ = asking_spoke()
        ends.add(_feed(spoke, mutate(stream, dice), dice))
    assert {"refused", "closed"} <= ends


def test_memory_stays_bounded_under_mutation() -> None:
    dice = random.Random(500)
    stream = answering_hub()
    for _ in range(ROUNDS // 10):
        spoke, _ = asking_spoke()
        mutated = mutate(stream, dice)
        tracemalloc.start()
        try:
            _feed(spoke, mutated, dice)
            assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES_MAX
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("seed", range(3))
def test_a_hub_survives_a_mad_spoke(seed: int) -> None:
    dice = random.Random(1000 + seed)
    _, asked = asking_spoke()
    hello_bytes = next(length for length in range(len(asked)) if Connection(Role.HUB).receive_data(asked[:length]))
    ends: set[str] = set()
    for number in range(ROUNDS):
        hub = Connection(Role.HUB)
        if number % 5 == 0:
            ends.add(_feed(hub, mutate(asked[:hello_bytes], dice), dice))
            continue
        hub.receive_data(asked[:hello_bytes])
        hub.send(WELCOME)
        hub.data_to_send()
        ends.add(_feed(hub, mutate(asked[hello_bytes:], dice), dice))
    assert {"refused", "open"} <= ends


@pytest.mark.parametrize("seed", range(2))
def test_entry_payloads_decode_or_are_refused(seed: int) -> None:
    dice = random.Random(2000 + seed)
    entries = [(b"d%d/%d" % (number // 7, number), dice.choice((_FILE, _LINK, _DIRECTORY))) for number in range(60)]
    page = encode_entries(entries)
    log = encode_changes([Change(number, path, entry) for number, (path, entry) in enumerate(entries, 1)])
    passed = 0
    for _ in range(ROUNDS):
        for payload, decode, encode in ((page, decode_entries, encode_entries), (log, decode_changes, encode_changes)):
            try:
                found = decode(mutate(payload, dice))
            except ProtocolError:
                continue
            passed += 1
            assert decode(encode(found)) == found  # type: ignore[operator]  # what passes is valid
    assert passed > 0


_FILE = Entry(Kind.FILE, 0o644, 5, 6, VERSION)
_LINK = Entry(Kind.SYMLINK, 0o777, 5, 6, b"", b"target")
_DIRECTORY = Entry(Kind.DIRECTORY, 0o755, 5, 6)


def test_noise_from_the_first_byte() -> None:
    dice = random.Random(3000)
    for _ in range(ROUNDS):
        for role in Role:
            _feed(Connection(role), dice.randbytes(dice.randrange(200)), dice)


def test_frames_of_a_stream_shuffled() -> None:
    """Whole frames out of order: the table of moves is what stands in the way, not the parser."""
    dice = random.Random(4000)
    stream = answering_hub()
    frames: list[bytes] = []
    while stream:
        length = 16 + int.from_bytes(stream[:4], "little")
        frames.append(stream[:length])
        stream = stream[length:]
    for _ in range(ROUNDS // 2):
        spoke, _ = asking_spoke()
        for request_id in range(4, 8):
            spoke.send(read((0, 1)), request_id)
        if dice.random() < 0.5:
            spoke.send(Subscribe(CATALOG, 1))
        spoke.data_to_send()
        _feed(spoke, b"".join(dice.choices(frames, k=8)), dice)
