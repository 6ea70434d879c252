"""A TCP proxy that does to a connection what bad networks do: holds, drips, cuts, damages, repeats.

``python -m bench.chaos.proxy --target HOST:PORT --seed N``: prints where it listens, then obeys lines of JSON on stdin, each a
whole :class:`Effects` (absent fields: nothing wrong), and the words ``"reset"`` and ``"freeze"``. What it damages was right when
it arrived: the kernel's checksums do not notice, as with bad memory in a router.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import struct
import sys
from dataclasses import dataclass
from typing import Any, Literal

from common import runtime
from common.units import format_address, parse_address

CHUNK_BYTES = 1 << 16
_HEADER = struct.Struct("<IIHHI")
_DATA, _NAMES = 8, (4, 5)

Part = Literal["header", "map", "data", "names"]


@dataclass(frozen=True, slots=True)
class Effects:
    """``up``: towards the hub. ``flip``: parts of frames in which one bit is changed; ``flip_chance`` a part (header, map) or a chunk of
    payload. ``swallow``: new connections are accepted and led nowhere."""

    hold_up: bool = False
    hold_down: bool = False
    swallow: bool = False
    delay_s: float = 0.0
    rate_bytes_per_s: float = 0.0
    drip: bool = False
    flip: tuple[Part, ...] = ()
    flip_chance: float = 0.0
    garbage_chance: float = 0.0
    duplicate_chance: float = 0.0


class FrameFollower:
    """Which part of a frame each byte of one direction belongs to. Pure."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._left = {"map": 0, "payload": 0}
        self._type = 0

    def parts(self, data: bytes) -> list[tuple[int, int, Part | None]]:
        """(start, end, part) of ``data``, in order; None: payload of another type."""
        found: list[tuple[int, int, Part | None]] = []
        at = 0
        while at < len(data):
            if self._left["map"]:
                count = min(self._left["map"], len(data) - at)
                self._left["map"] -= count
                part: Part | None = "map"
            elif self._left["payload"]:
                count = min(self._left["payload"], len(data) - at)
                self._left["payload"] -= count
                part = "data" if self._type == _DATA else "names" if self._type in _NAMES else None
            else:
                count = min(_HEADER.size - len(self._header), len(data) - at)
                self._header += data[at : at + count]
                part = "header"
                if len(self._header) == _HEADER.size:
                    body, self._left["map"], self._type, _, _ = _HEADER.unpack(self._header)
                    self._left["payload"] = body - self._left["map"]
                    self._header.clear()
            found.append((at, at + count, part))
            at += count
        return found


class ChaosProxy:
    def __init__(self, target: tuple[str, int], seed: int) -> None:
        self._target = target
        self._dice = random.Random(seed)
        self._effects = Effects()
        self._changed = asyncio.Event()
        self._free_s = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._frozen: set[asyncio.StreamWriter] = set()
        self.damaged_total = 0

    def set(self, effects: Effects) -> None:
        self._effects = effects
        self._changed.set()
        self._changed = asyncio.Event()

    def reset(self) -> None:
        """RST at both ends of every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    def freeze(self) -> None:
        """Connections there are carry nothing any more and do not end; new ones work. As where a firewall forgot them."""
        self._frozen = set(self._writers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        other: asyncio.StreamWriter | None = None
        try:
            while self._effects.swallow:
                await self._until_changed()
            other_reader, other = await asyncio.open_connection(*self._target, limit=CHUNK_BYTES)
            self._writers.add(other)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, other, up=True))
                tasks.create_task(self._pump(other_reader, writer, up=False))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for one in (writer, other):
                if one is not None:
                    self._writers.discard(one)
                    self._frozen.discard(one)
                    one.transport.abort()

    async def _until_changed(self) -> None:
        await self._changed.wait()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        follower = FrameFollower()
        while data := await reader.read(CHUNK_BYTES):
            parts = follower.parts(data)
            effects = self._effects
            data = self._damage(data, parts, effects, up)
            if effects.delay_s:
                await asyncio.sleep(effects.delay_s)
            if effects.rate_bytes_per_s:
                now_s = runtime.now_s()
                self._free_s = max(now_s, self._free_s) + len(data) / effects.rate_bytes_per_s
                await asyncio.sleep(self._free_s - now_s)
            while writer in self._frozen or (self._effects.hold_up if up else self._effects.hold_down):
                await self._until_changed()
            while self._effects.drip and data and not up:
                writer.write(data[:1])
                data = data[1:]
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._until_changed()
            writer.write(data)
            await writer.drain()
        writer.close()

    def _damage(self, data: bytes, parts: list[tuple[int, int, Part | None]], effects: Effects, up: bool) -> bytes:
        changed = bytearray(data)
        if effects.flip:
            for low, high, part in parts:
                if part in effects.flip and self._dice.random() < effects.flip_chance:
                    changed[self._dice.randrange(low, high)] ^= 1 << self._dice.randrange(8)
                    self.damaged_total += 1
        if not up and self._dice.random() < effects.garbage_chance:
            changed[0:0] = self._dice.randbytes(self._dice.randint(1, 64))
            self.damaged_total += 1
        if not up and self._dice.random() < effects.duplicate_chance:
            changed += changed[-self._dice.randint(1, len(changed)) :]
            self.damaged_total += 1
        return bytes(changed)


async def _serve(target: tuple[str, int], seed: int) -> None:
    proxy = ChaosProxy(target, seed)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=CHUNK_BYTES)
    print(format_address(*server.sockets[0].getsockname()[:2]), flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        order: Any = json.loads(line)
        if order == "reset":
            proxy.reset()
        elif order == "freeze":
            proxy.freeze()
        else:
            proxy.set(Effects(**{**order, "flip": tuple(order.get("flip", ()))}))
        print(proxy.damaged_total, flush=True)
    server.close()
    proxy.reset()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.chaos.proxy", description="Do to connections what networks do."
    )
    parser.add_argument("--target", required=True, type=parse_address)
    parser.add_argument("--seed", default=0, type=int)
    arguments = parser.parse_args()
    runtime.run(_serve(arguments.target, arguments.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
