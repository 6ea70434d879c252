"""One spoke: makes the rooms, ties them together, starts them in order and ends them in the reverse one.

Arrows: hub → client → follower → tree → mount (names); mount → reads → cache or fetcher → client → hub (bytes); reads
and arrivals → ahead → fetcher (prefetch). Nothing here decides anything about data.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

from prometheus_client import CollectorRegistry

from common import limits, runtime
from common.blocks import BlockRange
from common.cgroup import memory_limit
from common.config import Loaded
from common.entries import Entry
from common.errors import CacheDirectoryError, HeadraceError, HubUnreachable, UsageError
from common.log import get_logger
from common.metrics import HttpPages, TableCollector
from common.runtime import cancel_and_wait
from common.units import parse_address
from spoke import control
from spoke.ahead import Ahead
from spoke.answers import Answers
from spoke.cache.scrub import NOTE_NAME, Scrub
from spoke.cache.store import Store
from spoke.cache_files import CacheFiles
from spoke.config import SpokeSettings
from spoke.confirming import Confirming
from spoke.facts import Facts
from spoke.fetcher import Fetcher
from spoke.fuse.attributes import Ownership
from spoke.fuse.device import Device, MountOptions
from spoke.fuse.operations import Operations
from spoke.fuse.virtual import VirtualFile
from spoke.housekeeping import Housekeeping
from spoke.hub_client.client import HubClient, make_hello
from spoke.hub_client.credentials import Credentials
from spoke.insight.watch import Insight
from spoke.last_job import LastJob
from spoke.left_warms import LeftWarms
from spoke.long_waits import LongWaits
from spoke.memory import Level, MemoryBudget, choose_limit
from spoke.memory_watch import MemoryWatch
from spoke.mending import Mending
from spoke.metrics import METRICS, Counts
from spoke.namespace.follower import Follower
from spoke.namespace.journal import Journal
from spoke.namespace.pin import Pin, is_at, remember
from spoke.namespace.replica import Feed, Replica
from spoke.namespace.siblings import Siblings
from spoke.namespace.suspicion import Suspicion
from spoke.namespace.suspicion_record import kept
from spoke.namespace.tree import FIRST_SERIAL, Invalidation
from spoke.orders.exchange import OrderExchange
from spoke.orders.learner import Learner, is_foreign_file, is_learned_file, own_name_prefix
from spoke.orders.shelf import OrderShelf
from spoke.page import spoke_page
from spoke.pins import Pins
from spoke.places import made_runtime_dir, runtime_dir
from spoke.plans import Plans
from spoke.prefetch.chains import FileFacts, NextFile
from spoke.prefetch.planner import Planner
from spoke.prefetch.readahead import DEFAULT_KIB
from spoke.prefetch.scorecard import Scorecard
from spoke.prefetch.succession import OrderRecorder
from spoke.reads import Handle, Reads
from spoke.recorder import Recorder, Recording
from spoke.retention import Retention
from spoke.shared_port import SharedPort
from spoke.verify import Verifying
from spoke.warming import Warming
from spoke.worker import Handed, SupervisorLine, give_up_mount

log = get_logger(__name__)


class NoHubYet(UsageError):
    """A first start, with no names on disk, and no hub answers: nothing could be shown."""


class Spoke:
    """Use ``await Spoke.start(…)``, ``await spoke.wait(stop)``, ``await spoke.close()``."""

    insight: Insight

    def __init__(
        self,
        mountpoint: str,
        loaded: Loaded[SpokeSettings],
        store: Store,
        journal: Journal,
        handed: Handed | None = None,
        line: SupervisorLine | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Builds; nothing runs yet."""
        self.handed, self.line = handed, line
        settings = loaded.settings
        clock, dice = runtime.now_s, Random()
        self.mountpoint, self.loaded = mountpoint, loaded
        self.started_s = runtime.now_s()
        self.counts = Counts()
        self.memory_limit = choose_limit(settings.memory_limit, loaded.sources["memory_limit"], memory_limit())
        self.memory = MemoryBudget(self.memory_limit.limit_bytes)
        self.store = store
        self.journal = journal
        self.tree = journal.tree
        self.pin = pin_of(settings)
        self.replica = Replica(
            self.tree,
            self.pin,
            pin_reached=self.pin is not None
            and is_at(journal.directory, self.pin, self.tree.catalog_id, self.tree.revision),
            suspicious=kept(journal.directory, clock()),
        )
        self.follower = Follower(self.replica, journal, self._names_changed, clock)
        self.credentials = credentials or Credentials()
        host, port = parse_address(settings.hub)
        self.client = HubClient(
            host,
            port,
            make_hello(
                settings.dataset,
                settings.identity,
                os.urandom(16),
                compression=settings.compression,
                share_orders=shares_orders(settings),
            ),
            bulk_links=settings.links,
            follower=self.follower,
            clock=clock,
            dice=dice,
            credentials=self.credentials,
        )
        self.siblings = Siblings(self.tree)
        self._look_ahead(settings)
        self.fetcher = Fetcher(self.client, store, self.ahead, clock, dice, self.memory)
        self.fetcher.on_behind = store.behind
        store.on_well = self.fetcher.disk_is_well
        self.ahead.attach(self.fetcher, self.client)
        self.ahead.foresee = store.foresee
        self.insight = Insight(self, self.fetcher.history, clock)
        store.on_gone = self._blocks_gone
        self.recorder = Recorder(settings.record, clock) if settings.record is not None else None
        observer = self.ahead if self.recorder is None else Recording(self.recorder, self.ahead)
        self.long_waits = LongWaits(clock, self.client.links.in_words)
        self.confirming = Confirming(
            self.tree, self.replica, self.client, self.follower, self.long_waits, settings.read_timeout or None
        )
        self.reads = Reads(
            store,
            self.fetcher,
            observer,
            clock,
            read_timeout_s=settings.read_timeout,
            long_waits=self.long_waits,
            waits=self.insight,
        )
        self.reads.names_in_doubt = lambda: str(self.suspicious) if self.suspicious is not None else ""
        self.memory_watch = MemoryWatch(
            self.memory_limit,
            self.memory,
            self.tree,
            store,
            self.fetcher,
            self.reads,
            self.ahead,
            self.plans,
            self.order_exchange,
        )
        self.reads.on_short_of_memory = self.memory_watch.give_back
        self._watch_over_blocks(settings)
        self.pins = Pins(
            settings.cache_dir / "pins" / f"{quote(settings.dataset, safe='')}.json", self.tree, store, clock
        )
        self.retention = Retention(
            settings.cache_dir / "retention.json", store, settings.retention, runtime.wall_time_s
        )
        self.warming = Warming(
            mountpoint,
            self.tree,
            store,
            self.fetcher,
            self.pins,
            clock,
            order=self.ahead.order,
            link_rate=lambda: self.client.links.carried_bytes_per_s,
            is_linked=lambda: self.client.links.connected,
            last_job=self.last_job if settings.learn else None,
            left=LeftWarms(settings.cache_dir / f"warms-{quote(settings.dataset, safe='')}.json"),
        )
        self.cache_files = CacheFiles(self.tree, store, self.fetcher.recent)
        self.device: Device | None = None
        self.operations: Operations[Handle] | None = None
        self.facts = Facts(self)
        self.shared_port = self._open_pages()
        self._stop = asyncio.Event()
        answers = Answers(self, self._stop.set)
        self.control = control.ControlServer(
            control.socket_path(runtime_dir(), mountpoint),
            {**answers.commands(), "figures": self.shared_port.figures, "live": self.shared_port.live},
        )
        self._upkeep: list[asyncio.Task[None]] = []

    def _open_pages(self) -> SharedPort:
        """The figures and pages, at a port that other spokes of this host may share."""
        registry = CollectorRegistry()
        registry.register(TableCollector(METRICS, self))
        page = spoke_page(self.status, self.insight.page)
        shared = SharedPort(runtime_dir(), self.mountpoint, registry, self.status, page.facts)
        self.pages = HttpPages(registry, self.facts.health, self.status, page, shared)
        return shared

    def _look_ahead(self, settings: SpokeSettings) -> None:
        """Who foresees reads: the planner, its hands, the orders it follows, and who learns them."""
        clock = runtime.now_s
        store = self.store
        self.order_recorder = OrderRecorder(settings.learn_memory) if settings.prefetch and settings.learn else None
        self.planner = (
            _planner(self._next_file, store.usage().capacity_bytes, self.order_recorder) if settings.prefetch else None
        )
        self.scorecard = self.planner.scorecard if self.planner is not None else Scorecard()
        self.ahead = Ahead(self.planner, self.counts, clock, settings.read_ahead_kib)
        self.plans = Plans(
            self.tree,
            self.ahead if self.planner is not None else None,
            clock,
            lambda message, task_id: self.insight.marks(message, task_id),  # noqa: PLW0108 it comes later
        )
        self.order_shelf = OrderShelf(
            (settings.cache_dir / "orders").absolute(),
            self.ahead if settings.prefetch else None,
            pass_over=lambda path: (
                (not settings.learn and is_learned_file(path)) or (not settings.share_orders and is_foreign_file(path))
            ),
        )
        self.learner = Learner(self.order_recorder, self.order_shelf, self.ahead, settings.dataset)
        self.last_job = LastJob(
            settings.cache_dir / "orders" / f"last-job-{quote(settings.dataset, safe='')}.json",
            settings.learn_memory,
            clock,
        )
        self.ahead.last_job = self.last_job if settings.learn else None
        self.order_exchange = self.learner.others = OrderExchange(
            self.client.orders,
            self.order_shelf,
            self.ahead,
            self.tree,
            dataset=settings.dataset,
            hub=settings.hub,
            own_prefix=own_name_prefix(settings.dataset),
            is_waited_for=lambda: self.reads.waiting > 0,
            is_short_of_memory=lambda: self.memory.level >= Level.DROP_IDLE,
            clock=clock,
            enabled=shares_orders(settings),
        )

    def _watch_over_blocks(self, settings: SpokeSettings) -> None:
        """Who looks at cached blocks again, and who mends those that are bad."""
        self.scrub = Scrub(
            self.store, settings.cache_dir / NOTE_NAME, settings.scrub_rate, runtime.now_s, runtime.wall_time_s
        )
        self.mending = Mending(self.tree, self.store, self.fetcher, str(settings.cache_dir))
        self.store.on_bad = self.mending.found
        self.store.on_doubt = lambda version, _size_bytes: self.scrub.suspect(version)
        self.fetcher.complain = self.mending.on_wire
        self.verifying = Verifying(self.tree, self.store, self.fetcher, self.mending, runtime.now_s)

    # --- life --------------------------------------------------------------------------------------------

    @classmethod
    async def start(
        cls,
        mountpoint: str,
        loaded: Loaded[SpokeSettings],
        handed: Handed | None = None,
        line: SupervisorLine | None = None,
    ) -> Spoke:
        """Cache, names, hub, mount: in this order, so that nothing is shown that cannot be served.

        ``handed``, ``line``: from the supervisor of this process, if it has one. Raises UsageError (cache directory, mountpoint,
        unknown dataset) or HeadraceError with the reason.
        """
        settings = loaded.settings
        if handed is not None:
            handed.check(mountpoint, settings.dataset)
        first_serial = handed.first_serial if handed is not None else FIRST_SERIAL
        # A mount that is there serves what is cached, also while its files are being renewed.
        may_wait = handed is not None and handed.goes_on
        credentials = credentials_of(settings, may_wait=may_wait)
        store = await asyncio.to_thread(
            Store.open,
            settings.cache_dir,
            settings.cache_size or _share_of_the_disk(settings.cache_dir, settings.cache_share),
            settings.cache_free_floor,
            limits.CACHE_FREE_FLOOR_INODES,
            Random(),
            clock=runtime.now_s,
        )
        try:
            journal = await Journal.open(settings.cache_dir / "names" / quote(settings.dataset, safe=""), first_serial)
        except OSError as error:
            await store.close()
            raise CacheDirectoryError(f"the names in {settings.cache_dir} cannot be kept: {error.strerror}") from error
        spoke = cls(mountpoint, loaded, store, journal, handed, line, credentials)
        try:
            await spoke._start()
        except BaseException:
            await spoke.close(keep_mount=handed is not None and handed.goes_on)
            raise
        return spoke

    async def _start(self) -> None:
        if self.suspicious is not None:
            log.error("hub suspicious since before this start: the old names are kept", seen=str(self.suspicious))
        await self.journal.__aenter__()
        self.follower.start()
        self.fetcher.start()
        self.client.start()
        self.scrub.start()
        await self._get_names()
        await self.pins.load()
        await self.retention.load()
        runtime.settle_memory()
        self.memory_watch.share()
        self._upkeep.append(asyncio.create_task(self.memory_watch.watch(), name="memory watch"))
        if self.recorder is not None:
            self.recorder.open(go_on=self.handed is not None and self.handed.goes_on)
        await self.order_shelf.start()
        await self.learner.start()
        await self.last_job.load()
        await self.order_exchange.start()
        await self._mount()
        await self.warming.resume()
        await self.control.start()
        await self.shared_port.start(self.pages, *self._metrics_address())
        self._upkeep.append(asyncio.create_task(Housekeeping(self).run(), name="housekeeping"))
        self._upkeep.append(asyncio.create_task(self._take_samples(), name="samples"))

    async def _get_names(self) -> None:
        """Names from the hub if it answers; those on disk if it does not and there are some."""
        connect_timeout_s = self.loaded.settings.connect_timeout
        if not self.replica.usable:
            try:
                await self.client.links.first_contact(connect_timeout_s)
            except HubUnreachable as error:
                raise NoHubYet(f"{error}; no names are on disk yet, so there is nothing to show") from None
            await self.follower.usable(connect_timeout_s)
            await self._note_pin()
            return
        if self.replica.pin_reached:
            return  # nothing that the hub could say would change the names
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(connect_timeout_s, limits.FRESH_NAMES_WAIT_S)):
                await self.follower.until(lambda: self.replica.feed is Feed.FOLLOWING)
        if not self.client.links.connected:
            log.warning("the hub does not answer; serving the names and blocks on disk", revision=self.tree.revision)

    async def _mount(self) -> None:
        settings = self.loaded.settings
        made_runtime_dir()
        options = MountOptions(
            allow_other=settings.allow_other,
            passthrough=settings.passthrough,
            cache_dir=settings.cache_dir,
            # Less than the default needs no right to write sysfs: the kernel is told when it connects.
            max_readahead_bytes=min(settings.read_ahead_kib or DEFAULT_KIB, DEFAULT_KIB) * 1024,
        )
        handed = self.handed
        if handed is not None and handed.ledger is not None and handed.device_fd is not None:
            device = self.device = Device.take_over(handed.device_fd, handed.ledger, runtime_dir(), options)
        else:
            device = self.device = await Device.mount(
                Path(self.mountpoint), settings.dataset, runtime_dir(), options, outlives_us=self.line is not None
            )
            if self.line is not None and device.ledger is not None:
                self.line.say("mounted", (device.fileno(), device.ledger.fd))
        operations = self.operations = Operations(
            self.tree,
            self.reads,
            device.notifier,
            device.passthrough,
            ownership=Ownership(settings.uid, settings.gid, settings.umask),
            cached_fraction=self._cached_fraction,
            confirm=self.confirming.confirm if settings.consistency == "strict" else None,
            virtual_files={
                b"status": VirtualFile(lambda: _shown(self.status())),
                b"explain": VirtualFile(lambda: _shown(self.insight.recent())),
                b"plan": VirtualFile(lambda: _shown(self.plans.facts()), self.plans.ioctl),
            },
            ledger=device.ledger,
            request_id=lambda: device.request_id,
            waited_s=lambda: device.waited_s,
        )
        self.store.on_whole = operations.became_whole
        self.retention.on_erased = operations.forget_bytes
        terms = await device.serve(operations, handed.ledger.terms if handed is not None and handed.ledger else None)
        if self.line is not None:
            self.line.say("answers")  # whatever ends us from here on, it was no failed start
        if self.line is not None and not terms.resend:
            log.warning(
                "this kernel cannot send requests again (Linux 6.9 or newer can): if the worker dies, reads it had in hand get EIO"
            )
        self.client.between = device.look
        if device.read_ahead is not None:
            self.ahead.read_ahead.mounted(device.read_ahead)

    def _metrics_address(self) -> tuple[str, int]:
        """A port that the system chose stays what it was when the worker is another."""
        host, port = parse_address(self.loaded.settings.metrics)
        before = self.line.facts.get("metrics") if self.line is not None else None
        return parse_address(before) if before and port == 0 else (host, port)

    async def wait(self, *stops: asyncio.Event) -> None:
        """Until one of ``stops`` is set, somebody asked to stop, or the mount is gone. Raises if a task of ours died."""
        assert self.device is not None
        ends = [
            *(asyncio.create_task(stop.wait(), name="stop signal") for stop in stops),
            asyncio.create_task(self._stop.wait(), name="stop command"),
            asyncio.create_task(self.device.wait_ended(), name="mount ended"),
        ]
        workers = [
            task
            for task in (
                *self._upkeep,
                self.follower.task,
                *self.fetcher.tasks,
                self.learner.task,
            )
            if task is not None
        ]
        try:
            done, _ = await asyncio.wait([*ends, *workers], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task in workers:
                    task.result()  # raises what it died of
                    raise HeadraceError(f"the worker {task.get_name()!r} ended by itself")
        finally:
            await cancel_and_wait(*ends)

    async def close(self, keep_mount: bool = False) -> None:
        """Unmount first, so that no reader hangs on a spoke that is half gone; then the rest, in reverse order.

        ``keep_mount``: leave it to the next worker instead; readers wait for that one.
        """
        await cancel_and_wait(*self._upkeep)
        self.store.close_idle_files()  # taking the mount away needs descriptors
        if self.device is not None and keep_mount:
            await self.device.let_go(limits.UPGRADE_DRAIN_S)
        elif self.device is not None:
            await self.device.close()
        elif self.handed is not None:
            give_up_mount(self.handed)
        await self.shared_port.close()
        await self.pages.close()
        self.ahead.settle()
        await self.learner.close()
        await self.last_job.save()
        await self.order_exchange.close(tell=not keep_mount)
        await self.warming.close(forget=not keep_mount)
        await self.scrub.close()
        await self.mending.close()
        await self.fetcher.close()
        await self.client.close(limits.UPGRADE_GOODBYE_S if keep_mount else None)
        await self.follower.close()
        await self.journal.close()
        await self.store.close()
        await self.control.close()
        self.insight.close()
        if self.recorder is not None:
            self.recorder.close()

    async def _take_samples(self) -> None:
        while True:
            self.insight.tick()
            await asyncio.sleep(limits.SAMPLE_INTERVAL_S)

    # --- between the rooms -------------------------------------------------------------------------------

    def _next_file(self, path: bytes) -> FileFacts | None:
        node = self.siblings.after(path)
        return FileFacts(node.path(), node.entry.version, node.entry.size_bytes) if node is not None else None

    def _blocks_gone(self, version: bytes, blocks: BlockRange) -> None:
        self.insight.gone(version, blocks)
        self.ahead.evicted(version, blocks)

    def _names_changed(self, invalidations: Sequence[Invalidation]) -> None:
        for invalidation in invalidations:
            self.siblings.changed(invalidation)
        if self.operations is not None:
            self.operations.changed(invalidations)

    async def _note_pin(self) -> None:
        """What a snapshot's name meant must survive a restart without the hub."""
        if self.pin is None or not self.pin.snapshot:
            return
        where = self.journal.directory, self.pin, self.tree.catalog_id, self.tree.revision
        try:
            await asyncio.to_thread(remember, *where)
        except OSError as error:
            log.error("what the snapshot's name stands for cannot be kept; a restart needs the hub", error=str(error))

    def _cached_fraction(self, entry: Entry) -> float:
        if entry.size_bytes == 0:
            return 1.0
        return self.store.present_bytes(entry.version, entry.size_bytes) / entry.size_bytes

    # --- what it shows -----------------------------------------------------------------------------------

    def staleness_s(self) -> float:
        """Seconds since the hub last vouched for the names; infinite if it never did in this process life."""
        return self.replica.staleness_s(runtime.now_s())

    def certificate_left_s(self) -> float:
        """Until our own expires; not a number without one."""
        certificates = self.credentials.certificates
        return certificates.left_s if certificates is not None else float("nan")

    @property
    def suspicious(self) -> Suspicion | None:
        return self.replica.suspicious

    @property
    def worker_restarts(self) -> int:
        """Workers of this mount that died and were replaced."""
        return int(self.line.facts.get("restarts", 0)) if self.line is not None else 0

    def memory_bytes(self) -> dict[str, int]:
        """What holds memory, by owner."""
        return self.memory_watch.held_bytes()

    def status(self) -> Mapping[str, Any]:
        """The facts behind ``status``; sizes in bytes, times in seconds."""
        return self.facts.status()


def pin_of(settings: SpokeSettings) -> Pin | None:
    """What the settings ask the mount to stay at."""
    if settings.revision is None and not settings.snapshot:
        return None
    return Pin(settings.revision, settings.snapshot)


def shares_orders(settings: SpokeSettings) -> bool:
    """Whether orders are told to other spokes and taken from them."""
    return settings.prefetch and settings.learn and settings.share_orders


def _planner(next_file: NextFile, capacity_bytes: int, recorder: OrderRecorder | None) -> Planner:
    """What is fetched ahead must fit beside what is kept: a small cache would evict it before it is read."""
    return Planner(
        next_file,
        stream_max_bytes=min(limits.PREFETCH_STREAM_MAX_BYTES, capacity_bytes // 8),
        windows_max_bytes=min(limits.PREFETCH_WINDOWS_MAX_BYTES, capacity_bytes // limits.PREFETCH_WINDOWS_CACHE_SHARE),
        declared_max_bytes=min(
            limits.PREFETCH_WINDOWS_MAX_BYTES, int(capacity_bytes * limits.PREFETCH_DECLARED_CACHE_SHARE)
        ),
        throughout_max_bytes=min(
            limits.PREFETCH_THROUGHOUT_MAX_BYTES, capacity_bytes // limits.PREFETCH_THROUGHOUT_CACHE_SHARE
        ),
        recorder=recorder,
    )


def _share_of_the_disk(cache_dir: Path, share: float) -> int:
    """The capacity where none is given; the free-space floor still holds when others fill the disk. Raises CacheDirectoryError."""
    above = next(path for path in (cache_dir, *cache_dir.absolute().parents) if path.exists())
    try:
        return int(shutil.disk_usage(above).total * share)
    except OSError as error:
        raise CacheDirectoryError(f"cache directory {cache_dir}: {error.strerror}") from error


def _shown(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, indent=1).encode() + b"\n"


def credentials_of(settings: SpokeSettings, *, may_wait: bool = False) -> Credentials:
    """What the hub is shown. Raises UsageError for files that cannot be used, unless they ``may_wait``."""
    return Credentials.load(settings.tls, settings.token_file, settings.tls_name, may_wait=may_wait)
