"""Takes the orders that spokes tell of, and gives them to those that ask: the one authority, in the hub's main process.

A report arrives piece by piece, a few at a time in memory, and is checked whole before it is kept: its form, its digest, and that
most of its steps are in files that the catalogue has. Nothing here is needed to serve a byte of data.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from common import limits
from common.errors import DiskError, HeadraceError, OrderError, Overloaded, StaleVersion
from common.log import get_logger
from common.order_report import Sketch, decode_sketch, sketch, unpack
from common.pacing import Pacer
from common.runtime import cancel_and_wait
from common.serving.orders import OrderAnswer, OrderQuestion, Teller, refusal
from common.wire import messages as m
from common.wire.message_codec import cut_text
from hub.orders.ranks import KeptRow, most_useful_first
from hub.orders.store import OrderStore, orders_path

log = get_logger(__name__)

_REFUSED_KNOWN = 256
_IDENTITIES_PACED = 1024


class Names(Protocol):
    """What must be known of a dataset's names; its source is this."""

    @property
    def head_revision(self) -> int: ...
    async def sizes_of(self, versions: list[bytes]) -> Mapping[bytes, int]:
        """Sizes in bytes of the files that have one of these versions now."""


class _Assembly:
    """A report that is arriving."""

    __slots__ = ("data", "digest", "followed", "heard_s", "total_bytes")

    def __init__(self, digest: bytes, total_bytes: int) -> None:
        self.digest = digest
        self.total_bytes = total_bytes
        self.data = bytearray()
        self.followed = False
        self.heard_s = 0.0


class _Dataset:
    def __init__(self, names: Names) -> None:
        self.names = names
        self.store: OrderStore | None = None
        self.trouble: str | None = None
        self.rows: list[KeptRow] = []
        """As last seen; the command line may have dropped some since."""
        self.looked_s = float("-inf")
        self.looked_revision = -1


class OrderDeskOfHub:
    """A :class:`~common.serving.orders.OrderDesk`. ``clock``: monotonic seconds; ``wall_time_s``: seconds since 1970."""

    def __init__(
        self,
        sources: Mapping[str, Names],
        state_dir: Path,
        clock: Callable[[], float],
        wall_time_s: Callable[[], float],
    ) -> None:
        self._datasets = {name: _Dataset(names) for name, names in sources.items()}
        self._state_dir = state_dir
        self._clock = clock
        self._wall_time_s = wall_time_s
        self._assemblies: dict[tuple[str, Teller], _Assembly] = {}
        self._examined_bytes = 0
        self._examining = asyncio.Lock()
        self._pacer = _pacer(limits.ORDER_REPORTS_TOTAL_BURST, limits.ORDER_REPORTS_TOTAL_INTERVAL_S)
        self._pacers: OrderedDict[str, Pacer] = OrderedDict()
        self._refused: OrderedDict[bytes, HeadraceError] = OrderedDict()
        self._looks: set[asyncio.Task[None]] = set()
        self.reports: Counter[str] = Counter(
            dict.fromkeys(("kept", "same", "known", "dropped", "refused", "failed"), 0)
        )
        self.given_total = 0

    async def start(self) -> None:
        """Never raises: a dataset whose orders cannot be kept is served without them, and the log says why."""
        for name, dataset in self._datasets.items():
            try:
                dataset.store = await asyncio.to_thread(OrderStore, orders_path(self._state_dir, name))
                dataset.rows = await asyncio.to_thread(dataset.store.rows)
            except HeadraceError as error:
                dataset.trouble = str(error)
                log.error("orders that spokes learn are not kept", dataset=name, reason=str(error))

    async def close(self) -> None:
        await cancel_and_wait(*self._looks)
        for dataset in self._datasets.values():
            store, dataset.store = dataset.store, None
            if store is not None:
                await asyncio.to_thread(store.close)

    # --- OrderDesk ----------------------------------------------------------------------------------------

    async def answer(self, dataset: str, teller: Teller, question: OrderQuestion) -> OrderAnswer:
        known = self._datasets[dataset]
        try:
            if known.store is None:
                raise DiskError(known.trouble or "the hub stops")
            if isinstance(question, m.Report):
                return await self._report(dataset, known, known.store, teller, question)
            if isinstance(question, m.Orders):
                return await self._list(dataset, known, known.store, question)
            total_bytes, piece = await asyncio.to_thread(
                known.store.read, question.digest, question.offset_bytes, limits.ORDER_PIECE_BYTES
            )
            self.given_total += question.offset_bytes + len(piece) == total_bytes
            offset_bytes = min(question.offset_bytes, total_bytes)
            return m.Piece(question.token, offset_bytes, total_bytes, piece)
        except HeadraceError as error:
            if isinstance(question, m.Report):
                self.reports["failed" if isinstance(error, DiskError) else "refused"] += 1
                self._say_trouble(dataset, known, error)
            return refusal(question, error)

    async def _list(self, dataset: str, known: _Dataset, store: OrderStore, question: m.Orders) -> m.Kept:
        known.rows = await asyncio.to_thread(store.rows)
        self._look_soon(dataset, known, store)
        return m.Kept(
            question.token,
            tuple(
                m.KeptOrder(row.digest, row.packed_bytes, row.steps, row.teller, row.is_proven)
                for row in most_useful_first(known.rows)[: limits.ORDER_KEPT_LISTED]
            ),
        )

    # --- reports ------------------------------------------------------------------------------------------

    async def _report(
        self, dataset: str, known: _Dataset, store: OrderStore, teller: Teller, report: m.Report
    ) -> m.Reported:
        key, now_s = (dataset, teller), self._clock()
        self._forget_idle(now_s)
        assembly = self._assemblies.get(key)
        if assembly is None or (assembly.digest, assembly.total_bytes) != (report.digest, report.total_bytes):
            self._assemblies.pop(key, None)
            name = _label(teller)
            if await asyncio.to_thread(store.tell, report.digest, name, report.followed, self._wall_time_s()):
                self.reports["known"] += 1
                return m.Reported(report.token, report.total_bytes)
            if report.offset_bytes == report.total_bytes:  # only to be noted
                return m.Reported(report.token, report.total_bytes)
            assembly = self._assemblies[key] = self._begin(teller, report, now_s)
        assembly.heard_s = now_s
        assembly.followed |= report.followed
        if report.offset_bytes == len(assembly.data):
            assembly.data += report.payload
        if len(assembly.data) < assembly.total_bytes:
            return m.Reported(report.token, len(assembly.data))
        self._assemblies.pop(key, None)
        self._examined_bytes += assembly.total_bytes
        try:
            await self._take(dataset, known, store, teller, assembly)
        finally:
            self._examined_bytes -= assembly.total_bytes
        return m.Reported(report.token, report.total_bytes)

    def _begin(self, teller: Teller, report: m.Report, now_s: float) -> _Assembly:
        """Raises Overloaded, or why it was refused before."""
        refused = self._refused.get(report.digest)
        if refused is not None:
            raise refused
        arriving_bytes = self._examined_bytes + sum(found.total_bytes for found in self._assemblies.values())
        if arriving_bytes + report.total_bytes > limits.ORDER_ASSEMBLY_MAX_BYTES:
            raise Overloaded(f"{arriving_bytes} bytes of orders are arriving; tell of this one later")
        pacer = self._pacers.pop(teller.identity, None) or _pacer(
            limits.ORDER_REPORTS_BURST, limits.ORDER_REPORTS_INTERVAL_S
        )
        self._pacers[teller.identity] = pacer
        if len(self._pacers) > _IDENTITIES_PACED:
            self._pacers.popitem(last=False)
        if max(pacer.next_send_at(now_s, 1), self._pacer.next_send_at(now_s, 1)) > now_s:
            raise Overloaded(
                f"{teller.identity!r}, or all together, told of too many orders lately; tell of this one later"
            )
        pacer.sent(now_s, 1)
        self._pacer.sent(now_s, 1)
        return _Assembly(report.digest, report.total_bytes)

    async def _take(
        self, dataset: str, known: _Dataset, store: OrderStore, teller: Teller, assembly: _Assembly
    ) -> None:
        """Raises OrderError, StaleVersion, DiskError."""
        async with self._examining:  # one after another: each takes memory and half a second of a core
            try:
                sizes, found = await asyncio.to_thread(_examined, assembly.data, assembly.digest)
            except OrderError as error:
                self._refused[assembly.digest] = error
                if len(self._refused) > _REFUSED_KNOWN:
                    self._refused.popitem(last=False)
                raise
            here = await known.names.sizes_of(list({step.version for step in found.sample}))
            alive = sum(here.get(step.version) == sizes[step.version] for step in found.sample)
            if alive < limits.ORDER_ALIVE_SHARE * len(found.sample):
                raise StaleVersion(
                    f"of {len(found.sample)} of this order's steps {alive} are in files that are here now; at least half must be"
                )
            taken = await asyncio.to_thread(
                store.take,
                assembly.digest,
                assembly.data,
                len(sizes),
                found,
                _label(teller),
                assembly.followed,
                self._wall_time_s(),
            )
            known.rows = await asyncio.to_thread(store.rows)
        known.trouble = None
        self.reports[taken] += 1
        if taken == "kept":
            log.info("an order was told", dataset=dataset, teller=_label(teller), steps=found.steps, files=len(sizes))

    def _forget_idle(self, now_s: float) -> None:
        for key in [
            key for key, assembly in self._assemblies.items() if now_s - assembly.heard_s > limits.ORDER_ASSEMBLY_IDLE_S
        ]:
            del self._assemblies[key]

    def _say_trouble(self, dataset: str, known: _Dataset, error: HeadraceError) -> None:
        """A disk that is full is told once."""
        if isinstance(error, DiskError) and known.store is not None and known.trouble != str(error):
            known.trouble = str(error)
            log.error("an order that a spoke told of cannot be kept", dataset=dataset, reason=str(error))

    # --- whether they still mean something -----------------------------------------------------------------

    def _look_soon(self, dataset: str, known: _Dataset, store: OrderStore) -> None:
        now_s, revision = self._clock(), known.names.head_revision
        if revision == known.looked_revision or now_s - known.looked_s < limits.ORDERS_LOOK_INTERVAL_S:
            return
        known.looked_s, known.looked_revision = now_s, revision
        task = asyncio.create_task(self._look(dataset, known, store), name="look at kept orders")
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)

    async def _look(self, dataset: str, known: _Dataset, store: OrderStore) -> None:
        """Forget the orders most of whose files are gone."""
        gone: list[bytes] = []
        try:
            for row in known.rows:
                try:
                    sample = decode_sketch(row.sketch).sample
                except ValueError:
                    sample = ()
                here = await known.names.sizes_of(list({step.version for step in sample}))
                if sum(step.version in here for step in sample) < limits.ORDER_ALIVE_SHARE * max(1, len(sample)):
                    gone.append(row.digest)
            if gone:
                await asyncio.to_thread(store.forget, gone)
                known.rows = await asyncio.to_thread(store.rows)
                log.info("orders of files that are gone were forgotten", dataset=dataset, orders=len(gone))
        except HeadraceError as error:
            log.warning("kept orders could not be looked at", dataset=dataset, reason=str(error))

    # --- what it shows ------------------------------------------------------------------------------------

    def kept(self) -> Mapping[str, tuple[int, int]]:
        """By dataset: how many orders are kept, and their bytes."""
        return {
            name: (len(dataset.rows), sum(row.packed_bytes for row in dataset.rows))
            for name, dataset in self._datasets.items()
        }

    def facts(self, dataset: str) -> Mapping[str, Any]:
        """For ``status``."""
        known = self._datasets[dataset]
        return {
            "kept": len(known.rows),
            "proven": sum(row.is_proven for row in known.rows),
            "bytes": sum(row.packed_bytes for row in known.rows),
            "trouble": known.trouble,
        }


def _examined(data: bytearray, digest: bytes) -> tuple[Mapping[bytes, int], Sketch]:
    """Sizes by version, and the sketch. Raises OrderError."""
    report = unpack(data, digest)
    if len(report) < limits.LEARN_MIN_STEPS:
        raise OrderError(f"an order of {len(report)} steps; shorter ones than {limits.LEARN_MIN_STEPS} are not kept")
    return {file.version: file.size_bytes for file in report.files}, sketch(report)


def _label(teller: Teller) -> str:
    """Fit for a KEPT, whatever a certificate calls itself."""
    name = teller.identity if teller.identity.isprintable() else ascii(teller.identity)
    return cut_text(name or "?", limits.LABEL_MAX_BYTES)


def _pacer(burst: int, interval_s: float) -> Pacer:
    return Pacer(1 / interval_s, burst)
