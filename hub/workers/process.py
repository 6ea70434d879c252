"""A serving process: takes the connections that the main process hands over, and serves them to their end.

It ends when the main process says so, in order, or at once when the main process is gone. Signals that a terminal or a
service manager sends to all processes of the hub are the main process's to act on.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import limits, runtime
from common.errors import HeadraceError, from_wire
from common.log import bind, configure, get_logger
from common.processes import die_with_parent
from common.serving.access import parse_access
from common.serving.packing import Compression, Packer
from common.serving.scheduler import ReadAhead
from common.serving.server import Server
from common.serving.source import Held
from common.serving.weights import Weights
from common.tls import Certificates, TlsFiles
from common.token import TokenFile
from hub.audit import AuditTrail
from hub.counts import Counts
from hub.workers import messages as m
from hub.workers.channel import Channel
from hub.workers.orders import DeskOfWorker
from hub.workers.source import WorkerSource
from hub.workers.tables import counts_table, spoke_table

log = get_logger("hub.workers.process")  # it runs as __main__


class Worker:
    """``run`` until the main process says stop."""

    def __init__(self, sock: socket.socket) -> None:
        self._channel = Channel(sock, self._on_message, _die)
        self._started: asyncio.Future[m.Start] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._sources: dict[str, WorkerSource] = {}
        self._opened = False
        self._missed: list[m.Moved | m.Failed] = []
        """What came while the catalogs were being opened."""
        self._identities: Mapping[str, Any] | None = None
        """Newer than what it was started with."""
        self._counts = Counts()
        self._server: Server | None = None
        self._packer: Packer | None = None
        self._ask_numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[int]] = {}
        self._desk = DeskOfWorker(self._channel.send)
        self._ask_slots = asyncio.Semaphore(limits.WORKER_ASKS_MAX)
        self._taking: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        start = await self._started
        configure(start.log_level, start.log_format)  # type: ignore[arg-type]
        self._sources = {
            name: WorkerSource(name, root, root_fd, os.fsdecode(start.state_dir), self._ask)
            for name, (root, root_fd) in start.datasets.items()
        }
        for source in self._sources.values():
            await asyncio.to_thread(source.open)
        self._opened = True
        for missed in self._missed:
            self._on_message(missed, None)
        packer = self._packer = Packer(Compression(start.compression))
        trail = self._trail(start)
        server = self._server = Server(
            self._sources,
            listen=None,
            clock=runtime.now_s,
            total_rate_bytes_per_s=start.rate_bytes_per_s,
            weights=Weights(start.weights),
            observer=self._counts,
            codecs=packer.codecs,
            pack=packer.pack,
            read_ahead=_read_ahead(start.processes),
            access=parse_access(start.identities),
            certificates=_certificates(start.security["tls"]),
            token=TokenFile(Path(os.fsdecode(start.security["token"]))) if start.security["token"] else None,
            auditor=trail,
            orders=self._desk if start.orders else None,
        )
        if self._identities is not None:
            server.set_access(parse_access(self._identities))
        server.limit_total(start.share_bytes_per_s)
        await server.start()
        self._channel.send(m.Ready())
        telling = asyncio.create_task(self._tell(server, packer), name="telling the main process")
        await self._stop.wait()
        await runtime.cancel_and_wait(telling)
        await server.close()
        await packer.close()
        if trail is not None:
            await trail.close()
        for source in self._sources.values():
            await source.close()
        await asyncio.gather(*self._taking, return_exceptions=True)
        self._channel.send(self._report(server, packer))
        await self._channel.drained()
        log.info("stopped")

    def _trail(self, start: m.Start) -> AuditTrail | None:
        if not start.security["audit"]:
            return None
        emit = lambda facts: self._channel.send(m.Audit(facts))  # noqa: E731
        return AuditTrail(emit, self._sources, runtime.now_s, runtime.wall_time_s)

    # --- from the main process --------------------------------------------------------------------------------

    def _on_message(self, message: m.Message, sock: socket.socket | None) -> None:
        match message:
            case m.Start():
                self._started.set_result(message)
            case m.Take():
                task = asyncio.create_task(self._take(message, sock), name="taken connection")
                self._taking.add(task)
                task.add_done_callback(self._taking.discard)
            case m.Moved() | m.Failed() if not self._opened:
                self._missed.append(message)
            case m.Holding() if not self._opened:
                pass  # it is said again
            case m.Moved():
                replaced = set(message.replaced) if message.replaced is not None else None
                self._sources[message.dataset].moved_on(message.head_revision, replaced)
            case m.Holding():
                held = Held(message.reason, message.for_s) if message.reason else None
                self._sources[message.dataset].held = held
            case m.Failed():
                self._sources[message.dataset].fail(from_wire(message.code, message.text))
            case m.Share():
                if self._server is not None:
                    self._server.limit_total(message.rate_bytes_per_s)
            case m.Identities():
                self._identities = message.table
                if self._server is not None:
                    self._server.set_access(parse_access(message.table))
            case m.Answer():
                self._answered(message)
            case m.OrderReply():
                self._desk.answered(message)
            case m.Stop():
                self._stop.set()
            case _:
                raise AssertionError(f"{type(message).__name__} is not for a serving process")

    async def _take(self, take: m.Take, sock: socket.socket | None) -> None:
        try:
            if sock is not None and self._server is not None:
                session = await self._server.adopt(sock, take.received)
                await session.wait_closed()
        except OSError as error:
            log.info("a connection ended while it was handed over", error=str(error))
        finally:
            self._channel.send(m.Ended(take.number))

    # --- to the main process ----------------------------------------------------------------------------------

    async def _ask(self, dataset: str, path: bytes, check: bool) -> int:
        async with self._ask_slots:
            number = next(self._ask_numbers)
            future = self._asked[number] = asyncio.get_running_loop().create_future()
            self._channel.send(m.Ask(number, dataset, path, check))
            try:
                revision: int = await future
                return revision
            finally:
                del self._asked[number]

    def _answered(self, answer: m.Answer) -> None:
        future = self._asked.get(answer.number)
        if future is None or future.done():
            return  # whoever asked is gone
        if answer.code:
            future.set_exception(from_wire(answer.code, answer.text))
        else:
            future.set_result(answer.revision)

    async def _tell(self, server: Server, packer: Packer) -> None:
        """What waits here, several times a second; what was counted and who is linked, less often."""
        for ticks in itertools.count():
            now_s = runtime.now_s()
            scheduler = server.egress.scheduler
            sent_bytes = sum(self._counts.sent_bytes.values())
            self._channel.send(m.Demand(scheduler.waiting_weight(), scheduler.take_total_held(now_s), sent_bytes))
            if ticks % round(limits.WORKER_REPORT_S / limits.WORKER_TICK_S) == 0:
                self._channel.send(self._report(server, packer))
            await asyncio.sleep(limits.WORKER_TICK_S)

    def _report(self, server: Server, packer: Packer) -> m.Report:
        return m.Report(
            counts_table(self._counts),
            packer.raw_bytes,
            packer.packed_bytes,
            server.connections,
            [spoke_table(view) for view in server.spokes()],
        )


def _certificates(paths: Sequence[bytes] | None) -> Certificates | None:
    if paths is None:
        return None
    return Certificates(TlsFiles(*(Path(os.fsdecode(path)) for path in paths)), runtime.wall_time_s)


def _read_ahead(processes: int) -> ReadAhead:
    """Together the processes hold no more than one alone would."""
    whole = ReadAhead()
    return ReadAhead(
        reading_bytes=max(whole.link_bytes, whole.reading_bytes // processes),
        total_bytes=max(whole.link_bytes, whole.total_bytes // processes),
    )


def _die() -> None:
    """The main process is gone: there is nobody to serve for, and another hub may be starting."""
    os._exit(1)


async def _serve(sock: socket.socket) -> None:
    try:
        await Worker(sock).run()
    except HeadraceError as error:
        log.error("a serving process cannot go on", error=str(error))
        raise SystemExit(1) from None


def main() -> None:
    """``python -m hub.workers.process DESCRIPTOR INDEX``: of the channel to the main process, and which of several this is."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()
    bind(worker=int(sys.argv[2]))
    runtime.run(_serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
