"""Several processes that serve the spokes of one hub, behind one port; stands in the daemon where one server would.

This process listens, reads each connection's HELLO, and hands the connection to one of the others; it alone writes the
catalog and looks at the datasets, and tells the others what moved. It divides the total rate and adds up what they count.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from common import limits
from common.errors import HeadraceError, Overloaded
from common.log import get_logger
from common.runtime import cancel_and_wait
from common.serving.access import Access
from common.serving.orders import OrderDesk
from common.serving.server import SpokeView
from common.serving.weights import Weights
from common.wire.messages import Hello
from hub.counts import Counts
from hub.source import HubSource
from hub.workers import messages as m
from hub.workers.doorman import Doorman
from hub.workers.member import Member
from hub.workers.orders import answer_for
from hub.workers.placement import Placement
from hub.workers.shares import Shares
from hub.workers.tables import Totals, spoke_view

log = get_logger(__name__)


class Pool:
    """``sources``: by dataset, started before :meth:`start`. ``start_words``: what each process is told at first, but for its share.

    ``weights``: a spoke's identity to its share (default 1). ``on_failed`` gets the error with which the hub must end.
    ``orders``: who keeps what spokes learned, here in the main process.
    """

    def __init__(
        self,
        sources: Mapping[str, HubSource],
        processes: int,
        *,
        listen: tuple[str, int],
        clock: Callable[[], float],
        start_words: m.Start,
        on_failed: Callable[[HeadraceError], None],
        on_audit: Callable[[Mapping[str, Any]], None] | None = None,
        orders: OrderDesk | None = None,
    ) -> None:
        self._sources = sources
        self._holding: set[str] = set()
        self._listen = listen
        self._clock = clock
        self._start_words = start_words
        self._weights = Weights(start_words.weights)
        self._on_failed = on_failed
        self._on_audit = on_audit
        self._orders = orders
        self._rate_bytes_per_s = start_words.rate_bytes_per_s
        self._own_counts = Counts()
        self._totals = Totals()
        self._shares = Shares()
        self._given: dict[int, float | None] = {}
        self._placement = Placement(self._shares.waiting_weight)
        self._doorman = Doorman(
            self._give, self._is_full, self._own_counts.refused, reads_hello=not start_words.security["tls"]
        )
        dice = Random()
        self._members = [Member(index, self, clock, dice) for index in range(processes)]
        self._running: dict[Member, asyncio.Task[None]] = {}
        self._all_up = asyncio.Event()
        self._numbers = itertools.count(1)
        self._links: dict[int, tuple[int, bytes]] = {}
        """Connections handed over: which process has it, and whose it is."""
        self._asks: set[asyncio.Task[None]] = set()
        self._ticking: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns once all processes serve and spokes can connect. Raises OSError for the address, WorkersFailed."""
        self._loop = asyncio.get_running_loop()
        await self._doorman.bind(*self._listen)
        for name, source in self._sources.items():
            source.on_moved = self._moved_hook(name)
            source.on_failed = self._failed_hook(name)
        for member in self._members:
            task = self._running[member] = asyncio.create_task(member.run(), name=f"worker {member.index}")
            task.add_done_callback(self._member_ended)
        self._ticking = asyncio.create_task(self._tick(), name="shares of the workers")
        up = asyncio.create_task(self._all_up.wait())
        await asyncio.wait([up, *self._running.values()], return_when=asyncio.FIRST_COMPLETED)
        if not up.done():
            await cancel_and_wait(up)
            next(task for task in self._running.values() if task.done()).result()
        self._doorman.listen()
        log.info("serving", host=self._listen[0], port=self.port, processes=len(self._members))

    @property
    def port(self) -> int:
        """The port that was really bound."""
        return self._doorman.port

    async def close(self) -> None:
        """Stop listening, let every process say GOODBYE and end, within about WORKER_STOP_S."""
        await self._doorman.close()
        for source in self._sources.values():
            source.on_moved = source.on_failed = None
        await asyncio.gather(*(member.stop(task) for member, task in self._running.items()))
        await cancel_and_wait(self._ticking, *self._asks)

    def limit_total(self, rate_bytes_per_s: float | None) -> None:
        """What may leave for all spokes from now on; None: no limit. Nothing is dropped, what is owed stays owed."""
        self._rate_bytes_per_s = rate_bytes_per_s
        self._divide()

    # --- connections ----------------------------------------------------------------------------------------

    def _is_full(self, half_open: int) -> str | None:
        found = len(self._links) + half_open
        return f"{found - 1} connections are open, no more are taken" if found > limits.CONNECTIONS_MAX else None

    def set_access(self, access: Access) -> None:
        """Who may read what from now on; who may no more is shut out."""
        self._start_words = self._start_words._replace(identities=access.plain())
        self._send_all(m.Identities(self._start_words.identities))

    def _give(self, sock: socket.socket, received: bytes, hello: Hello | None) -> None:
        if hello is not None:
            key, weight = hello.spoke_id, self._weights.of(hello.identity)
        else:
            # Inside TLS, which the process speaks that gets it: what comes from one address is together, spokes behind one too.
            key, weight = str(sock.getpeername()[0]).encode(), 1.0
        index = self._placement.place(key, weight)
        if index is None:
            raise Overloaded("no serving process is up; dial again")
        number = next(self._numbers)
        self._links[number] = (index, key)
        self._members[index].send(m.Take(number, received), sock)

    def _link_ended(self, number: int) -> None:
        found = self._links.pop(number, None)
        if found is not None:
            self._placement.left(found[1])

    # --- Owner: what members say ----------------------------------------------------------------------------

    def first_word(self) -> m.Start:
        rate = self._rate_bytes_per_s
        share = rate / len(self._members) * limits.WORKER_IDLE_SHARE if rate is not None else None
        return self._start_words._replace(
            datasets={
                name: (root, self._sources[name].root_fd) for name, (root, _) in self._start_words.datasets.items()
            },
            share_bytes_per_s=share,
        )

    def inherited(self) -> Sequence[int]:
        return [source.root_fd for source in self._sources.values()]

    def member_up(self, index: int) -> None:
        self._shares.joined(index, self._clock())
        self._placement.up(index)
        self._given.pop(index, None)
        self._divide()
        if all(member.is_up for member in self._members):
            self._all_up.set()

    def member_down(self, index: int) -> None:
        self._shares.left(index)
        self._placement.down(index)
        self._totals.ended(index)
        self._links = {number: link for number, link in self._links.items() if link[0] != index}
        self._divide()

    def member_said(self, index: int, message: m.Message) -> None:
        match message:
            case m.Ended():
                self._link_ended(message.number)
            case m.Demand():
                self._shares.heard(index, self._clock(), message.weight, message.held, message.sent_bytes)
            case m.Report():
                self._totals.heard(index, message)
            case m.Audit():
                if self._on_audit is not None:
                    self._on_audit(message.facts)
            case m.Ask():
                task = asyncio.create_task(self._answer(index, message), name="look for a worker")
                self._asks.add(task)
                task.add_done_callback(self._asks.discard)
            case m.OrderAsk():
                task = asyncio.create_task(self._answer_about_orders(index, message), name="orders for a worker")
                self._asks.add(task)
                task.add_done_callback(self._asks.discard)
            case _:
                raise AssertionError(f"{type(message).__name__} is not for the main process")

    def _member_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            known = error if isinstance(error, HeadraceError) else HeadraceError(f"serving processes failed: {error!r}")
            self._on_failed(known)

    # --- the catalog's news, and looks at the disk --------------------------------------------------------------

    async def _answer(self, index: int, ask: m.Ask) -> None:
        source, member = self._sources[ask.dataset], self._members[index]
        life = member.lives
        revision, code, text = 0, "", ""
        try:
            if ask.check:
                revision = await source.check(ask.path)
            else:
                await source.recheck(ask.path)
                revision = source.head_revision
        except HeadraceError as error:
            code, text = error.wire_code, str(error)
        except Exception:
            log.exception("a look at a file failed in an unforeseen way", path=ask.path)
            code, text = HeadraceError.wire_code, "internal error; the hub's log has the details"
        if member.lives == life:  # the next process numbers its own
            member.send(m.Answer(ask.number, revision, code, text))

    async def _answer_about_orders(self, index: int, ask: m.OrderAsk) -> None:
        member = self._members[index]
        life = member.lives
        if self._orders is not None:
            reply = await answer_for(self._orders, ask)
            if member.lives == life:
                member.send(reply)

    def _moved_hook(self, dataset: str) -> Callable[[int, set[bytes] | None], None]:
        def hook(head_revision: int, replaced: set[bytes] | None) -> None:
            few = replaced is not None and len(replaced) <= limits.WORKER_REPLACED_MAX
            self._tell_all(m.Moved(dataset, head_revision, list(replaced) if few and replaced is not None else None))

        return hook

    def _failed_hook(self, dataset: str) -> Callable[[BaseException], None]:
        def hook(error: BaseException) -> None:
            code = error.wire_code if isinstance(error, HeadraceError) else HeadraceError.wire_code
            self._tell_all(m.Failed(dataset, code, str(error)))

        return hook

    def _tell_all(self, message: m.Message) -> None:
        """From any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._send_all, message)

    def _send_all(self, message: m.Message) -> None:
        for member in self._members:
            member.send(message)

    # --- the total rate ---------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(limits.WORKER_TICK_S)
            for member in self._members:
                member.tick()
            self._divide()
            self._tell_of_holding()

    def _tell_of_holding(self) -> None:
        for name, source in self._sources.items():
            held = source.held
            if held is not None or name in self._holding:
                self._send_all(m.Holding(name, *held) if held is not None else m.Holding(name, "", 0.0))
            (self._holding.discard if held is None else self._holding.add)(name)

    def _divide(self) -> None:
        """Those whose share shrinks hear it first."""
        total = self._rate_bytes_per_s
        up = [member.index for member in self._members if member.is_up]
        shares: Mapping[int, float | None] = dict.fromkeys(up) if total is None else self._shares.divide(total)
        changed = [index for index in up if index not in self._given or shares[index] != self._given[index]]
        for index in sorted(changed, key=lambda index: (shares[index] or 0.0) - (self._given.get(index) or 0.0)):
            self._given[index] = shares[index]
            self._members[index].send(m.Share(shares[index]))

    # --- what it shows ----------------------------------------------------------------------------------------

    @property
    def counts(self) -> Counts:
        return self._totals.counts(self._own_counts)

    @property
    def raw_bytes(self) -> int:
        return self._totals.raw_bytes

    @property
    def packed_bytes(self) -> int:
        return self._totals.packed_bytes

    @property
    def connections(self) -> int:
        return len(self._links) + self._doorman.half_open

    def spokes(self) -> list[SpokeView]:
        """Who is linked, as of the processes' last reports."""
        return [spoke_view(table) for _, report in self._totals.reports() for table in report.spokes]

    @property
    def restarts(self) -> int:
        return sum(member.restarts.total for member in self._members)

    def workers(self) -> list[dict[str, Any]]:
        """For ``status``. ``share_bytes_per_s``: of the total rate, None without a limit."""
        return [
            {
                "pid": member.pid,
                "serving": member.is_up,
                "spokes": self._placement.spokes(member.index),
                "connections": sum(index == member.index for index, _ in self._links.values()),
                "share_bytes_per_s": self._given.get(member.index),
                "restarts": member.restarts.total,
            }
            for member in self._members
        ]
