"""What spokes learned, told to each other through the hub: ours go there, others' come here and are followed like our own.

Tells the hub of each order the learner keeps, once a connection; asks it now and then which there are, fetches those that say
something new about names we have, and writes each as an order file ``foreign-<dataset>-<digest>``. The hub is believed nothing: what
comes is checked whole, and only steps in files that our own names show, at the size they show, are taken. Orders that do not pay, that
turn out to be known, or that somebody dropped here are not fetched again. A link that is lost in the middle costs a round.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from threading import Lock
from typing import Any, Protocol
from urllib.parse import quote

from common import limits
from common.durable import replace_file
from common.errors import (
    DeadlineExceeded,
    DiskError,
    HeadraceError,
    HubUnreachable,
    OrderError,
    Overloaded,
    PeerError,
)
from common.log import get_logger
from common.order_report import PackedReport, Sketch, is_same
from common.runtime import cancel_and_wait
from common.wire.messages import KeptOrder
from spoke.hub_client.order_questions import OrderQuestions
from spoke.namespace.tree import Tree
from spoke.orders import report as reports
from spoke.orders.learner import ENDING, FOREIGN_PREFIX, PROVEN, age_of, is_proven
from spoke.orders.mapped import MappedOrder
from spoke.orders.shelf import OrderShelf
from spoke.prefetch.orders import Order

log = get_logger(__name__)

_FORMAT = 1
_LOOK_S = 0.02
_SAMPLE_FILES = 64
_VAIN_MAX = 3


class Follows(Protocol):
    """Who follows orders."""

    def orders(self) -> Sequence[Mapping[str, Any]]: ...
    def order(self, name: str) -> Order | None: ...


class OrderExchange:
    """Start it after shelf and learner. ``enabled`` False: nothing is told and nothing asked for.

    ``is_waited_for``: a reader waits for the hub now. ``is_short_of_memory``: then nothing is fetched.
    ``own_prefix``: of the names of the learner's orders.
    """

    def __init__(
        self,
        questions: OrderQuestions,
        shelf: OrderShelf,
        follows: Follows,
        tree: Tree,
        *,
        dataset: str,
        hub: str,
        own_prefix: str,
        is_waited_for: Callable[[], bool],
        is_short_of_memory: Callable[[], bool],
        clock: Callable[[], float],
        enabled: bool,
    ) -> None:
        self._questions = questions
        self._shelf = shelf
        self._follows = follows
        self._tree = tree
        self._dataset = dataset
        self._hub = hub
        self._own_prefix = own_prefix
        self._is_waited_for = is_waited_for
        self._is_short_of_memory = is_short_of_memory
        self._clock = clock
        self._enabled = enabled
        self._file_prefix = f"{FOREIGN_PREFIX}{quote(dataset, safe='')}-"
        self._name_prefix = f"foreign:{dataset}:"
        self._state_path = shelf.directory / f"{FOREIGN_PREFIX}{quote(dataset, safe='')}.json"
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._hurry = False
        self._unshelved: dict[str, Path] = {}
        self._own: dict[str, tuple[bytes | None, Sketch | None]] = {}
        """Of our own orders that were prepared: the digest (None: too long to be told) and the sketch."""
        self._told: set[bytes] = set()
        """What the hub has heard of on this connection."""
        self._sent_s: dict[bytes, float] = {}
        self._sketches: dict[str, Sketch] = {}
        self._held: set[str] = set()
        self._refused: dict[bytes, None] = {}
        self._refuse_listed = False
        self._passed_over: dict[bytes, None] = {}
        self._suspects: set[str] = set()
        self._distrusted = 0
        self._waiting = 0
        """Orders that the hub has and for which there was no room."""
        self._saving = Lock()
        self._generation = 0
        self._arriving: tuple[bytes, bytearray] = (b"", bytearray())
        self._retry_s = 0.0
        self._retry_after_s = limits.ORDER_RETRY_S
        self._said = ""
        self.last_error: str | None = None
        self.told: Counter[str] = Counter(dict.fromkeys(("told", "refused", "failed"), 0))
        self.received: Counter[str] = Counter(dict.fromkeys(_OUTCOMES, 0))

    # --- life --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        if not self._enabled:
            return
        await asyncio.to_thread(self._load)
        self._held = set(self.names())
        self._questions.on_linked = self._linked
        self._task = asyncio.create_task(self._run(), name="orders of spokes")

    async def close(self, *, tell: bool) -> None:
        """``tell``: what was learned last, if that is quickly done."""
        if self._task is None:
            return
        self._questions.on_linked = None
        await cancel_and_wait(self._task)
        if self._refused or self._refuse_listed:  # a round that was broken off may not have written it
            await asyncio.to_thread(self._save)
        if tell and self._questions.are_answered:
            self._hurry = True
            self._retry_s = 0.0
            try:
                async with asyncio.timeout(limits.ORDER_STOP_S):
                    await self._tell()
            except (TimeoutError, HeadraceError, OSError) as error:
                log.debug("what was learned last is told after the next start", error=str(error))

    def _linked(self) -> None:
        self._told.clear()
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._questions.ready()
            self._wake.clear()
            try:
                await self._round()
                self.last_error = None
            except (HubUnreachable, DeadlineExceeded) as error:
                self.last_error = str(error)
            except HeadraceError as error:
                self._say(error)
            except Exception as error:
                log.exception("exchanging orders failed in an unforeseen way")
                self.last_error = repr(error)
            try:
                async with asyncio.timeout(limits.ORDERS_ASK_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _say(self, error: HeadraceError) -> None:
        """Once, until it is another."""
        self.last_error = str(error)
        if self._said != self.last_error:
            self._said = self.last_error
            log.warning("orders are not exchanged with other spokes", reason=str(error))

    async def _round(self) -> None:
        await self._tidy()
        await self._tell()
        if self._tree.epoch % 2 == 0:  # else names are being renewed
            await self._get()

    # --- telling -----------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        own = {name: path for name, path in self._shelf.paths.items() if name.startswith(self._own_prefix)}
        own.update(self._unshelved)
        for name in self._own.keys() - own.keys():
            del self._own[name]
        for name, path in own.items():
            packed: PackedReport | None = None
            if name not in self._own:
                packed = await self._prepare(name, path)
            digest = self._own.get(name, (None, None))[0]
            if digest is not None and digest not in self._told and self._clock() >= self._retry_s:
                await self._tell_of(path, digest, packed)
        for name in self.names():
            digest = self._digest_of(name)
            if is_proven(self._shelf.paths[name]) and digest not in self._told:
                await self._questions.note(digest)
                self._told.add(digest)  # not before: a stop may break it off, and says it again

    async def _prepare(self, name: str, path: Path) -> PackedReport | None:
        try:
            packed, found = await asyncio.to_thread(reports.prepare, path)
        except (OrderError, DiskError) as error:
            self._own[name] = (None, None)
            log.debug("an order cannot be told", order=name, error=str(error))
            return None
        self._own[name] = (packed.digest if packed is not None else None, found)
        if packed is None:
            log.info("an order is too long to be told to other spokes", order=name)
        if found is not None:
            await self._drop_same(found)
        return packed

    async def _tell_of(self, path: Path, digest: bytes, packed: PackedReport | None) -> None:
        try:
            if packed is None:
                packed = (await asyncio.to_thread(reports.prepare, path)).packed
            if packed is None or packed.digest != digest:
                return
            await self._send(packed, is_proven(path))
        except (Overloaded, DiskError) as error:  # the hub's disk
            self._retry_s = self._clock() + self._retry_after_s
            self._retry_after_s = min(2 * self._retry_after_s, limits.ORDER_RETRY_MAX_S)
            self.told["failed"] += 1
            self._say(error)
        except (HubUnreachable, DeadlineExceeded):
            raise
        except HeadraceError as error:
            self._told.add(digest)
            self.told["refused"] += 1
            log.info("the hub does not take an order", error=str(error))

    async def _send(self, packed: PackedReport, followed: bool) -> None:
        digest, data = packed
        total_bytes, vain = len(data), 0
        reported = await self._questions.report(digest, total_bytes, 0, followed, b"")
        at = min(reported.offset_bytes, total_bytes)
        sent_s = self._sent_s.get(digest)
        if at < total_bytes and sent_s is not None and self._clock() - sent_s < limits.ORDER_RETELL_S:
            at = total_bytes  # it had it a while ago and let it go: there are better ones
        while at < total_bytes:
            await self._patience(limits.ORDER_REPORT_PATIENCE_S)
            piece = data[at : at + limits.ORDER_PIECE_BYTES]
            reported = await self._questions.report(digest, total_bytes, at, followed, piece)
            vain = vain + 1 if reported.offset_bytes <= at else 0
            if vain > _VAIN_MAX:
                raise PeerError("the hub asks for the same piece of an order again and again")
            at = min(reported.offset_bytes, total_bytes)
            if at == total_bytes:
                self._sent_s[digest] = self._clock()
        self._told.add(digest)
        self._retry_after_s = limits.ORDER_RETRY_S
        self.told["told"] += 1

    async def _patience(self, most_s: float) -> None:
        """Let readers that wait for the hub go first, for so long."""
        until_s = self._clock() + most_s
        while not self._hurry and self._is_waited_for() and self._clock() < until_s:  # noqa: ASYNC110 (readers tell nobody)
            await asyncio.sleep(_LOOK_S)

    # --- getting -----------------------------------------------------------------------------------------

    async def _get(self) -> None:
        generation = self._generation
        kept = await self._questions.kept()
        if self._refuse_listed:
            await self._refuse(*(order.digest for order in kept.orders))
            self._refuse_listed = False
            await asyncio.to_thread(self._save)
            return
        own = {digest for digest, _ in self._own.values() if digest is not None}
        held = {self._digest_of(name) for name in self._held}
        known = (own | held, self._refused, self._passed_over)
        wanted = [order for order in kept.orders if not any(order.digest in digests for digests in known)]
        self._waiting = len(wanted)
        for order in _from_both_ends(wanted):
            if len(self.names()) >= limits.ORDERS_FOREIGN_KEPT - self._distrusted or self._is_short_of_memory():
                return
            if generation != self._generation:  # all was reset meanwhile
                return
            await self._fetch(order, generation)
            self._waiting -= 1

    async def _fetch(self, order: KeptOrder, generation: int) -> None:
        data = self._arriving[1] if self._arriving[0] == order.digest else bytearray()
        self._arriving = (order.digest, data)
        while len(data) < order.total_bytes:
            await self._patience(limits.ORDER_FETCH_PATIENCE_S)
            try:
                piece = await self._questions.fetch(order.digest, len(data))
            except OrderError:  # gone since it was listed
                self._arriving = (b"", bytearray())
                return
            if (piece.offset_bytes, piece.total_bytes) != (len(data), order.total_bytes) or not piece.payload:
                self._arriving = (b"", bytearray())
                raise PeerError("the hub gives another piece of an order than was asked for")
            data += piece.payload
        self._arriving = (b"", bytearray())
        await self._take(order, data, generation)

    async def _take(self, order: KeptOrder, data: bytearray, generation: int) -> None:
        try:
            report, found = await asyncio.to_thread(reports.examine, data, order.digest)
        except OrderError as error:
            self.received["damaged"] += 1
            log.warning("an order that the hub gave is not one", teller=order.teller, error=str(error))
            await self._refuse(order.digest)
            return
        if await self._is_known(found):
            self._pass_over(order.digest)
            self.received["known"] += 1
            return
        live = await self._live(report.files)
        share = await asyncio.to_thread(reports.share_of, report, live)
        if share < limits.ORDER_ALIVE_SHARE:
            self._pass_over(order.digest)
            self.received["elsewhere"] += 1
            return
        name, path = f"{self._name_prefix}{order.digest.hex()}", self._path(order.digest, proven=False)
        origin = f"told by {order.teller} through the hub {self._hub}"
        try:
            await asyncio.to_thread(reports.write, path, name, self._dataset, origin, report, live)
            if generation != self._generation:  # all was reset meanwhile
                await asyncio.to_thread(path.unlink, missing_ok=True)
                return
            await self._shelf.load(path)
        except (HeadraceError, OSError) as error:
            self._pass_over(order.digest)
            self.received["failed"] += 1
            self._say(error if isinstance(error, HeadraceError) else DiskError(f"{path}: {error.strerror}"))
            await asyncio.to_thread(path.unlink, missing_ok=True)
            return
        self._held.add(name)
        self._sketches[name] = found
        self.received["taken"] += 1
        log.info("an order of another spoke is followed", order=name, teller=order.teller, steps=len(report))

    async def _is_known(self, found: Sketch) -> bool:
        """It says the same as an order of ours, or one that is held."""
        if any(own is not None and is_same(own, found) for _, own in self._own.values()):
            return True
        for name in self.names():
            known = await self._sketch_of(name)
            if known is not None and is_same(known, found):
                return True
        return False

    async def _sketch_of(self, name: str) -> Sketch | None:
        order = self._follows.order(name)
        if name not in self._sketches and isinstance(order, MappedOrder):
            self._sketches[name] = await asyncio.to_thread(reports.sketch_of, order)
        return self._sketches.get(name)

    async def _live(self, files: Sequence[Any]) -> bytearray:
        """1 for each file that our names have, in this version and size."""
        tree = self._tree
        live = bytearray(len(files))
        elsewhere: dict[bytes, int] = {}
        for number, file in enumerate(files):
            node = tree.resolve(file.path)
            entry = node.entry if node is not None and node.is_file else None
            if entry is not None and entry.version == file.version:
                live[number] = entry.size_bytes == file.size_bytes
            elif tree.is_live(file.version):
                elsewhere[file.version] = number
            if number % limits.NAME_SEARCH_SLICE == limits.NAME_SEARCH_SLICE - 1:
                await asyncio.sleep(0)
        if not elsewhere:
            return live
        for number, node in enumerate(tree.walk()):  # renamed since
            if node.is_file and (found := elsewhere.get(node.entry.version)) is not None:
                live[found] = node.entry.size_bytes == files[found].size_bytes
            if number % limits.NAME_SEARCH_SLICE == limits.NAME_SEARCH_SLICE - 1:
                epoch, revision = tree.epoch, tree.revision
                await asyncio.sleep(0)
                if (tree.epoch, tree.revision) != (epoch, revision):
                    break  # names changed below us: what was found has to do
        return live

    # --- what is held --------------------------------------------------------------------------------------

    def names(self) -> Collection[str]:
        """Of the orders of other spokes that are followed."""
        return [name for name in self._shelf.paths if name.startswith(self._name_prefix)]

    def _digest_of(self, name: str) -> bytes:
        try:
            return bytes.fromhex(name.removeprefix(self._name_prefix))
        except ValueError:  # somebody named an order of his own so
            return name.encode()

    def _path(self, digest: bytes, *, proven: bool) -> Path:
        return self._shelf.directory / f"{self._file_prefix}{digest.hex()}{PROVEN if proven else ''}{ENDING}"

    async def _tidy(self) -> None:
        """Let go of what does not pay, what names nothing any more, and note what somebody dropped."""
        names = set(self.names())
        for name in sorted(self._held - names):
            self._sketches.pop(name, None)
            await self._refuse(self._digest_of(name))
        self._held = names
        distrusted = {
            facts["name"]
            for facts in self._follows.orders()
            if facts["name"] in names and facts["state"] == "distrusted"
        }
        for name in sorted(distrusted & self._suspects):
            self._distrusted += 1
            self.received["distrusted"] += 1
            log.info("an order of another spoke did not pay and is dropped", order=name)
            await self._let_go(name, refuse=True)
        self._suspects = distrusted
        for name in self.names():
            order = self._follows.order(name)
            if order is not None and not self._means_something(order):
                await self._let_go(name, refuse=False)

    def _means_something(self, order: Order) -> bool:
        """Most of its files are here now, by a sample."""
        files = order.files
        sample = range(0, len(files), max(1, len(files) // _SAMPLE_FILES))
        live = sum(self._tree.is_live(files[number].version) for number in sample)
        return self._tree.epoch % 2 == 1 or live >= limits.ORDER_ALIVE_SHARE * len(sample)

    async def _let_go(self, name: str, *, refuse: bool) -> None:
        digest = self._digest_of(name)
        self._held.discard(name)
        self._sketches.pop(name, None)
        await self._shelf.drop(name)
        if refuse:
            await self._refuse(digest)
        else:
            self._pass_over(digest)

    async def _drop_same(self, found: Sketch) -> None:
        """Our own order says what these say."""
        for name in self.names():
            known = await self._sketch_of(name)
            if known is not None and is_same(known, found):
                await self._let_go(name, refuse=False)
                self.received["outgrown"] += 1

    # --- what the learner tells ------------------------------------------------------------------------------

    def learned(self, name: str, path: Path, *, shelved: bool) -> None:
        """An order was kept. ``shelved``: it is followed from now on; else it only lies there."""
        if not shelved:
            self._unshelved[name] = path
        self._wake.set()

    async def followed(self, name: str) -> None:
        """An epoch was read along this order of another spoke."""
        if name in self._shelf.paths and not is_proven(self._shelf.paths[name]):
            await self._shelf.move(name, self._path(self._digest_of(name), proven=True))
        proven = [known for known in self.names() if known != name and is_proven(self._shelf.paths[known])]
        if self._waiting and len(proven) >= limits.ORDERS_FOREIGN_KEPT // 2:
            await self._let_go(min(proven, key=lambda known: age_of(self._shelf.paths[known])), refuse=False)
        self._wake.set()

    async def outgrown(self, name: str) -> None:
        """It was followed and did not hold to the end: what it has become is an order of ours."""
        self.received["outgrown"] += 1
        await self._let_go(name, refuse=True)

    async def idle(self, names: Collection[str]) -> None:
        """An epoch went by without these: as many others as wait for their room get it."""
        for name in list(names)[: self._waiting]:
            path = self._shelf.paths.get(name)
            if path is not None and not is_proven(path):
                self.received["idle"] += 1
                await self._let_go(name, refuse=False)

    async def reset(self) -> None:
        """What is held was dropped; what the hub has now is not fetched again."""
        self._generation += 1
        self._held.clear()
        self._sketches.clear()
        self._suspects.clear()
        self._own.clear()
        self._unshelved.clear()
        self._passed_over.clear()
        self._arriving = (b"", bytearray())
        if self._enabled:
            self._refuse_listed = True
            await asyncio.to_thread(self._save)
            self._wake.set()

    # --- what is not wanted ----------------------------------------------------------------------------------

    def _pass_over(self, digest: bytes) -> None:
        """Until this process ends."""
        self._passed_over[digest] = None
        while len(self._passed_over) > limits.ORDERS_FOREIGN_REFUSED_KNOWN:
            del self._passed_over[next(iter(self._passed_over))]

    async def _refuse(self, *digests: bytes) -> None:
        """Also after a restart."""
        for digest in digests:
            self._refused[digest] = None
        while len(self._refused) > limits.ORDERS_FOREIGN_REFUSED_KNOWN:
            del self._refused[next(iter(self._refused))]
        await asyncio.to_thread(self._save)

    def _save(self) -> None:
        facts = {
            "format": _FORMAT,
            "refuse_listed": self._refuse_listed,
            "refused": [digest.hex() for digest in self._refused],
        }
        try:
            with self._saving:
                self._state_path.parent.mkdir(mode=0o700, exist_ok=True)
                replace_file(self._state_path, json.dumps(facts))
        except OSError as error:
            log.warning("which orders are not wanted cannot be kept", path=str(self._state_path), error=str(error))

    def _load(self) -> None:
        try:
            facts = json.loads(self._state_path.read_text())
            if facts["format"] != _FORMAT:
                return
            refused = [bytes.fromhex(digest) for digest in facts["refused"]]
            self._refuse_listed = facts["refuse_listed"] is True
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("which orders are not wanted cannot be read", path=str(self._state_path), error=str(error))
            return
        self._refused = dict.fromkeys(refused[-limits.ORDERS_FOREIGN_REFUSED_KNOWN :])

    # --- what it shows ---------------------------------------------------------------------------------------

    def facts(self) -> Mapping[str, Any]:
        """For ``status``."""
        return {
            "enabled": self._enabled,
            "hub_keeps_orders": self._questions.are_answered,
            "held": [
                {
                    "name": name,
                    "origin": order.origin if (order := self._follows.order(name)) is not None else "",
                    "proven": is_proven(path),
                }
                for name, path in self._shelf.paths.items()
                if name.startswith(self._name_prefix)
            ],
            "told": dict(self.told),
            "received": dict(self.received),
            "refused": len(self._refused),
            "last_error": self.last_error,
        }


_OUTCOMES = ("taken", "known", "elsewhere", "damaged", "failed", "distrusted", "outgrown", "idle")


def _from_both_ends(orders: Sequence[KeptOrder]) -> list[KeptOrder]:
    """The proven ones as they come; of the others in turn the newest and the oldest: a job may go on, or begin anew."""
    proven, others = ([order for order in orders if order.proven is wanted] for wanted in (True, False))
    half = (len(others) + 1) // 2
    mixed = [
        order for pair in zip_longest(others[:half], reversed(others[half:])) for order in pair if order is not None
    ]
    return [*proven, *mixed]
