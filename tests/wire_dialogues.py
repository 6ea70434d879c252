"""Two ends of the wire in memory, for tests: a greeted pair, bytes carried across, and an honest hub's byte stream."""

from __future__ import annotations

import random

from common.blocks import BLOCK_BYTES, BlockRange, split_at_extents
from common.digest import DIGEST_BYTES
from common.entries import Change, Entry, Kind
from common.wire.connection import Connection, Event, Role
from common.wire.messages import (
    Changes,
    Codec,
    Data,
    Error,
    Fetch,
    Goodbye,
    Heartbeat,
    Hello,
    Kept,
    KeptOrder,
    Orders,
    Piece,
    Ping,
    Priority,
    Read,
    Report,
    Reported,
    SnapshotPage,
    Stats,
    Subscribe,
    Welcome,
)

CATALOG = bytes(range(16))
VERSION = bytes(range(16, 32))
HELLO = Hello((1,), "corpus", "spoke-7", b"s" * 16, (Codec.RAW, Codec.ZSTD))
WELCOME = Welcome(1, "corpus", CATALOG, 7, 2000, (Codec.RAW, Codec.ZSTD))


def drain(connection: Connection) -> bytes:
    return b"".join(connection.data_to_send())


def carry(source: Connection, target: Connection) -> list[Event]:
    return target.receive_data(drain(source))


def greeted() -> tuple[Connection, Connection]:
    """A spoke and a hub, both READY."""
    spoke, hub = Connection(Role.SPOKE), Connection(Role.HUB)
    spoke.send(HELLO)
    carry(spoke, hub)
    hub.send(WELCOME)
    carry(hub, spoke)
    return spoke, hub


def data(blocks: BlockRange, last: bool, raw_bytes: int | None = None) -> Data:
    size_bytes = blocks.block_count * BLOCK_BYTES if raw_bytes is None else raw_bytes
    seed = blocks.first_block.to_bytes(8, "little")
    return Data(
        blocks,
        Codec.RAW,
        size_bytes,
        seed * (blocks.block_count * DIGEST_BYTES // 8),
        last,
        (seed * (size_bytes // 8 + 1))[:size_bytes],
    )


def read(*ranges: tuple[int, int]) -> Read:
    return Read(VERSION, tuple(BlockRange(*pair) for pair in ranges), Priority.DEMAND, 0)


def asking_spoke() -> tuple[Connection, bytes]:
    """A spoke that has asked for much, and what it wrote after HELLO."""
    spoke = Connection(Role.SPOKE)
    spoke.send(HELLO)
    hello = drain(spoke)
    spoke.receive_data(welcome_bytes())
    spoke.send(Subscribe(CATALOG, 3))
    for request_id, ranges in ((1, ((0, 3),)), (2, ((250, 20),)), (3, ((5, 1), (9, 1)))):
        spoke.send(read(*ranges), request_id)
    spoke.send(Ping(99))
    spoke.send(Stats({"hit_ratio": 0.5}))
    spoke.send(Report(5, CATALOG, 400, 0, True, bytes(300)))
    spoke.send(Orders(6))
    spoke.send(Fetch(7, CATALOG, 100))
    return spoke, hello + drain(spoke)


def welcome_bytes() -> bytes:
    hub = Connection(Role.HUB)
    spoke = Connection(Role.SPOKE)
    spoke.send(HELLO)
    carry(spoke, hub)
    hub.send(WELCOME)
    return drain(hub)


def answering_hub() -> bytes:
    """What an honest hub writes after WELCOME to ``asking_spoke``; ends with GOODBYE."""
    _, asked = asking_spoke()
    hub = Connection(Role.HUB)
    cut = len(hello_bytes())
    hub.receive_data(asked[:cut])
    hub.send(WELCOME)
    hub.data_to_send()
    hub.receive_data(asked[cut:])
    entries = tuple(
        (f"d/{number:03d}".encode(), Entry(Kind.FILE, 0o644, number, number, VERSION)) for number in range(40)
    )
    hub.send(SnapshotPage(CATALOG, 5, 40, True, entries))
    hub.send(data(BlockRange(0, 3), True, 2 * BLOCK_BYTES + 17), 1)
    hub.send(Changes(CATALOG, 5, 7, (Change(6, b"d/new", entries[0][1]), Change(7, b"d/000", None))))
    for blocks in split_at_extents(BlockRange(250, 20)):
        hub.send(data(blocks, blocks.first_block != 250), 2)
    hub.send(data(BlockRange(9, 1), False), 3)
    hub.send(Error("stale", "the file changed", False), 3)
    hub.send(Heartbeat(CATALOG, 7))
    hub.send(Reported(5, 300))
    hub.send(Kept(6, (KeptOrder(CATALOG, 400, 64, "gpu-1", True), KeptOrder(VERSION, 9, 70, "gpu-2", False))))
    hub.send(Piece(7, 100, 400, bytes(300)))
    hub.send(Goodbye("restart"))
    return drain(hub)


def hello_bytes() -> bytes:
    spoke = Connection(Role.SPOKE)
    spoke.send(HELLO)
    return drain(spoke)


def mutate(data_bytes: bytes, dice: random.Random) -> bytes:
    """One to four edits: a byte changed, a run deleted, repeated or inserted, the end cut off."""
    edited = bytearray(data_bytes)
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(len(edited) + 1)
        length = dice.choice((1, 1, 2, 4, 16, 300))
        match dice.randrange(6):
            case 0 | 1 if place < len(edited):
                edited[place] = dice.randrange(256)
            case 2:
                del edited[place : place + length]
            case 3:
                edited[place:place] = dice.randbytes(length)
            case 4:
                edited[place:place] = edited[max(0, place - length) : place]
            case _:
                edited[place : place + 4] = dice.choice(
                    (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\0", b"\xdd\0\0\1")
                )
    return bytes(edited)
