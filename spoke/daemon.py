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
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

from prometheus_client import CollectorRegistry

from common import __version__, limits, runtime
from common.blocks import BlockRange
from common.buffers import EXTENT_BUFFERS
from common.cgroup import memory_limit
from common.config import Loaded
from common.entries import Entry
from common.errors import CacheDirectoryError, HeadraceError, HubUnreachable, UsageError
from common.log import get_logger
from common.metrics import HttpPages, TableCollector
from common.runtime import cancel_and_wait
from common.systemd import ServiceManager
from common.units import format_address, parse_address
from spoke import control
from spoke.ahead import Ahead
from spoke.cache.scrub import NOTE_NAME, Scrub
from spoke.cache.store import Store
from spoke.cache_files import CacheFiles
from spoke.config import SpokeSettings
from spoke.fetcher import Fetcher
from spoke.fuse.attributes import Ownership
from spoke.fuse.device import Device, MountOptions
from spoke.fuse.operations import Operations
from spoke.fuse.virtual import VirtualFile
from spoke.hub_client.checks import Position
from spoke.hub_client.client import HubClient, make_hello
from spoke.insight.watch import Insight
from spoke.long_waits import LongWaits
from spoke.memory import Level, MemoryBudget, anonymous_bytes, choose_limit
from spoke.mending import Mending
from spoke.metrics import METRICS, Counts
from spoke.namespace.follower import Follower
from spoke.namespace.journal import Journal
from spoke.namespace.pin import Pin, is_at, remember
from spoke.namespace.replica import Feed, Replica
from spoke.namespace.siblings import Siblings
from spoke.namespace.suspicion import Losses, Suspicion
from spoke.namespace.suspicion_record import kept
from spoke.namespace.tree import Invalidation
from spoke.orders.shelf import OrderShelf
from spoke.page import spoke_page
from spoke.pins import Pins
from spoke.places import runtime_dir
from spoke.plans import Plans
from spoke.prefetch.chains import FileFacts, NextFile
from spoke.prefetch.planner import Planner
from spoke.prefetch.readahead import DEFAULT_KIB
from spoke.prefetch.scorecard import Scorecard
from spoke.reads import Handle, Reads
from spoke.recorder import Recorder, Recording
from spoke.verify import Verifying
from spoke.warming import Warming

log = get_logger(__name__)


class NoHubYet(UsageError):
    """A first start, with no names on disk, and no hub answers: nothing could be shown."""


class Spoke:
    """Use :func:`run_spoke`, or ``await Spoke.start(…)``, ``await spoke.wait(stop)``, ``await spoke.close()``."""

    insight: Insight

    def __init__(self, mountpoint: str, loaded: Loaded[SpokeSettings], store: Store, journal: Journal) -> None:
        """Builds; nothing runs yet."""
        settings = loaded.settings
        clock, dice = runtime.now_s, Random()
        self.mountpoint = mountpoint
        self.loaded = loaded
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
        if self.suspicious is not None:
            log.error("hub suspicious since before this start: the old names are kept", seen=str(self.suspicious))
        self.follower = Follower(self.replica, journal, self._names_changed, clock)
        host, port = parse_address(settings.hub)
        self.client = HubClient(
            host,
            port,
            make_hello(settings.dataset, settings.identity, os.urandom(16), compression=settings.compression),
            bulk_links=settings.links,
            follower=self.follower,
            clock=clock,
            dice=dice,
        )
        self.siblings = Siblings(self.tree)
        self.planner = _planner(self._next_file, store.usage().capacity_bytes) if settings.prefetch else None
        self.scorecard = self.planner.scorecard if self.planner is not None else Scorecard()
        self.ahead = Ahead(self.planner, self.counts, clock, settings.read_ahead_kib)
        self.plans = Plans(
            self.tree,
            self.ahead if self.planner is not None else None,
            clock,
            lambda message, task_id: self.insight.marks(message, task_id),  # noqa: PLW0108 it comes later
        )
        self.order_shelf = OrderShelf(
            (settings.cache_dir / "orders").absolute(), self.ahead if settings.prefetch else None
        )
        self.fetcher = Fetcher(self.client, store, self.ahead, clock, dice, self.memory)
        self.fetcher.on_behind = store.behind
        store.on_well = self.fetcher.disk_is_well
        self.ahead.attach(self.fetcher, self.client)
        self.ahead.foresee = store.foresee
        self.insight = Insight(self, self.fetcher.history, clock)
        store.on_gone = self._blocks_gone
        self.recorder = Recorder(settings.record, clock) if settings.record is not None else None
        observer = self.ahead if self.recorder is None else Recording(self.recorder, self.ahead)
        self.long_waits = LongWaits(clock, self.client.in_words)
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
        self.reads.on_short_of_memory = self._give_memory_back
        self._watch_over_blocks(settings)
        self.pins = Pins(
            settings.cache_dir / "pins" / f"{quote(settings.dataset, safe='')}.json", self.tree, store, clock
        )
        self.warming = Warming(
            mountpoint,
            self.tree,
            store,
            self.fetcher,
            self.pins,
            clock,
            order=self.ahead.order,
            link_rate=lambda: self.client.rate_bytes_per_s,
        )
        self.cache_files = CacheFiles(self.tree, store, self.fetcher.recent)
        self.device: Device | None = None
        self.operations: Operations[Handle] | None = None
        registry = CollectorRegistry()
        registry.register(TableCollector(METRICS, self))
        self.pages = HttpPages(registry, self.health, self.status, spoke_page(self.status, self.insight.page))
        self.control = control.ControlServer(
            control.socket_path(runtime_dir(), mountpoint),
            self._answers(),
        )
        self._stop = asyncio.Event()
        self._upkeep: list[asyncio.Task[None]] = []

    def _answers(self) -> dict[str, control.Command]:
        """What the commands may ask, by name."""
        return {
            "status": self._answer_status,
            "stop": self._answer_stop,
            "explain": self._answer_explain,
            "cache-list": self._answer_cache_list,
            "cache-sizes": self._answer_cache_sizes,
            "cache-evict": self._answer_cache_evict,
            "warm": self._answer_warm,
            "verify": self.verifying.answer,
            "pin": self._answer_pin,
            "unpin": self._answer_unpin,
            "loss": self._answer_loss,
            "accept": self._answer_accept,
            "plan": self._answer_plan,
            "plans": self._answer_plans,
            "orders": self._answer_orders,
            "order-load": self._answer_order_load,
            "order-drop": self._answer_order_drop,
        }

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
    async def start(cls, mountpoint: str, loaded: Loaded[SpokeSettings]) -> Spoke:
        """Cache, names, hub, mount: in this order, so that nothing is shown that cannot be served.

        Raises UsageError (cache directory, mountpoint, unknown dataset) or HeadraceError with the reason.
        """
        settings = loaded.settings
        store = await asyncio.to_thread(
            Store.open,
            settings.cache_dir,
            settings.cache_size or _four_fifths_of_the_disk(settings.cache_dir),
            settings.cache_free_floor,
            limits.CACHE_FREE_FLOOR_INODES,
            Random(),
            clock=runtime.now_s,
        )
        try:
            journal = await Journal.open(settings.cache_dir / "names" / quote(settings.dataset, safe=""))
        except OSError as error:
            await store.close()
            raise CacheDirectoryError(f"the names in {settings.cache_dir} cannot be kept: {error.strerror}") from error
        spoke = cls(mountpoint, loaded, store, journal)
        try:
            await spoke._start()
        except BaseException:
            await spoke.close()
            raise
        return spoke

    async def _start(self) -> None:
        settings = self.loaded.settings
        await self.journal.__aenter__()
        self.follower.start()
        self.fetcher.start()
        self.client.start()
        self.scrub.start()
        await self._get_names()
        await self.pins.load()
        runtime.settle_memory()
        self._share_memory()
        self._upkeep.append(asyncio.create_task(self._watch_memory(), name="memory watch"))
        if self.recorder is not None:
            self.recorder.open()
        await self.order_shelf.start()
        await self._mount()
        await self.control.start()
        await self.pages.start(*parse_address(settings.metrics))
        self._upkeep.append(asyncio.create_task(self._keep_house(), name="housekeeping"))
        self._upkeep.append(asyncio.create_task(self._take_samples(), name="samples"))

    async def _get_names(self) -> None:
        """Names from the hub if it answers; those on disk if it does not and there are some."""
        connect_timeout_s = self.loaded.settings.connect_timeout
        if not self.replica.usable:
            try:
                await self.client.first_contact(connect_timeout_s)
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
        if not self.client.connected:
            log.warning("the hub does not answer; serving the names and blocks on disk", revision=self.tree.revision)

    async def _mount(self) -> None:
        settings = self.loaded.settings
        runtime_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
        options = MountOptions(
            allow_other=settings.allow_other,
            passthrough=settings.passthrough,
            cache_dir=settings.cache_dir,
            # Less than the default needs no right to write sysfs: the kernel is told when it connects.
            max_readahead_bytes=min(settings.read_ahead_kib or DEFAULT_KIB, DEFAULT_KIB) * 1024,
        )
        device = self.device = await Device.mount(Path(self.mountpoint), settings.dataset, runtime_dir(), options)
        operations = self.operations = Operations(
            self.tree,
            self.reads,
            device.notifier,
            device.passthrough,
            ownership=Ownership(settings.uid, settings.gid, settings.umask),
            cached_fraction=self._cached_fraction,
            confirm=self._confirm if settings.consistency == "strict" else None,
            virtual_files={
                b"status": VirtualFile(lambda: _shown(self.status())),
                b"explain": VirtualFile(lambda: _shown(self.insight.recent())),
                b"plan": VirtualFile(lambda: _shown(self.plans.facts()), self.plans.ioctl),
            },
        )
        self.store.on_whole = operations.became_whole
        await device.serve(operations)
        if device.read_ahead is not None:
            self.ahead.read_ahead.mounted(device.read_ahead)

    async def wait(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set, somebody asked to stop, or the mount is gone. Raises if a worker of ours died."""
        assert self.device is not None
        ends = [
            asyncio.create_task(stop.wait(), name="stop signal"),
            asyncio.create_task(self._stop.wait(), name="stop command"),
            asyncio.create_task(self.device.wait_ended(), name="mount ended"),
        ]
        workers = [
            task
            for task in (
                *self._upkeep,
                self.follower.task,
                *self.fetcher.tasks,
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

    async def close(self) -> None:
        """Unmount first, so that no reader hangs on a spoke that is half gone; then the rest, in reverse order."""
        await cancel_and_wait(*self._upkeep)
        self.store.close_idle_files()  # taking the mount away needs descriptors
        if self.device is not None:
            await self.device.close()
        await self.pages.close()
        await self.warming.close()
        await self.scrub.close()
        await self.mending.close()
        await self.fetcher.close()
        await self.client.close()
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

    async def _keep_house(self) -> None:
        """What is done now and then: tell the hub how we fare, and the cache which versions nobody names any more."""
        fetched_bytes = 0
        served = 0
        while True:
            await asyncio.sleep(limits.HOUSEKEEPING_INTERVAL_S)
            if fetched_bytes != self.counts.fetched_bytes:
                fetched_bytes = self.counts.fetched_bytes
            else:
                self.fetcher.recent.forget()
                if served == self.counts.served:
                    self.fetcher.drop_idle()
                runtime.give_back_memory()
            served = self.counts.served
            usage = self.store.usage()
            self.client.send_stats(
                {
                    "hits": float(self.counts.hits),
                    "late": float(self.counts.late),
                    "misses": float(self.counts.misses),
                    "stall_seconds": self.counts.stall_s,
                    "cache_used_bytes": float(usage.used_bytes),
                    "cache_capacity_bytes": float(usage.capacity_bytes),
                    "rtt_seconds": self.client.rtt_s or 0.0,
                    "revision": float(self.tree.revision),
                    **self.insight.stats(),
                }
            )
            self.plans.tend()
            self.pins.tend()
            if self.tree.epoch % 2 == 0:
                self.store.forget_unreferenced(self.tree.is_live)
            self.mending.tend()
            await self.store.tend()
            if self.recorder is not None:
                self.recorder.flush()

    # --- memory ------------------------------------------------------------------------------------------

    def _dataset_bytes(self) -> dict[str, int]:
        """What grows with the dataset and not with the work: not under the limit."""
        return {
            "names": self.tree.entry_count * limits.MEMORY_NAME_BYTES,
            "index": self.store.files_known * limits.MEMORY_CACHED_FILE_BYTES,
        }

    def _own_bytes(self) -> int:
        """What the limit is on."""
        return max(0, anonymous_bytes() - sum(self._dataset_bytes().values()))

    def _share_memory(self) -> None:
        """Divide what the process itself leaves of the limit."""
        memory = self.memory
        memory.settled(self._own_bytes())
        self.fetcher.recent.capacity_bytes = memory.recent_bytes
        EXTENT_BUFFERS.capacity = memory.kept_buffers
        runtime.keep_freed_memory(memory.heap_kept_bytes)
        log.info("memory limit", limit_bytes=self.memory_limit.limit_bytes, origin=self.memory_limit.origin,
                 for_data_bytes=memory.data_bytes)  # fmt: skip

    async def _watch_memory(self) -> None:
        """Look at what the process takes, and act before the limit is reached."""
        trimmed_s = float("-inf")
        while True:
            await asyncio.sleep(limits.MEMORY_LOOK_S)
            before = self.memory.level
            level = self.memory.measured(self._own_bytes())
            if level > Level.EASE and runtime.now_s() - trimmed_s >= limits.MEMORY_TRIM_S:
                trimmed_s = runtime.now_s()
                if level >= Level.DROP_IDLE:
                    self.fetcher.drop_idle()
                runtime.give_back_memory()
                level = self.memory.measured(self._own_bytes())
            if Level.DROP_IDLE in (before, level) and level != before:
                log.info("memory", level=level.name, own_bytes=self._own_bytes(), limit_bytes=self.memory.limit_bytes)
            self.reads.admission.look()
            if level < before:
                self.ahead.look_again()

    def _give_memory_back(self) -> None:
        """The kernel had none for us."""
        self.fetcher.drop_idle()
        runtime.give_back_memory()

    def memory_bytes(self) -> dict[str, int]:
        """What holds memory, by owner; ``process`` is the rest of what the kernel says: interpreter, bookkeeping, leftovers."""
        fetcher = self.fetcher
        held = {
            **self._dataset_bytes(),
            "flights": fetcher.landed_bytes,
            "readers": self.reads.admission.inside_bytes,
            "recent": fetcher.recent.held_bytes,
            "buffers": EXTENT_BUFFERS.idle_bytes,
            "orders": self.plans.held_steps * limits.MEMORY_STEP_BYTES,
        }
        return {**held, "process": max(0, anonymous_bytes() - sum(held.values()))}

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

    async def _confirm(self, path: bytes) -> None:
        """Return once the names have this path as it is at the hub. Raises HeadraceError, at the latest after the read timeout."""
        timeout_s = self.loaded.settings.read_timeout or None
        wait = self.long_waits.begin(path, None)
        slow = asyncio.get_running_loop().call_later(limits.SLOW_READ_AFTER_S, self.long_waits.grew_long, wait)
        well = False
        try:
            async with asyncio.timeout(timeout_s):
                position = await self.client.checks.ask(path)
                await self.follower.until(lambda: self._is_at(position) or self.suspicious is not None)
            well = True
        except TimeoutError:
            error = HubUnreachable(f"{path!r}: the hub did not confirm it within {timeout_s:g} s")
            self.long_waits.timed_out(wait, error)
            raise error from None
        finally:
            slow.cancel()
            self.long_waits.ended(wait, well=well)
        if not self._is_at(position):
            raise HubUnreachable(f"{path!r}: the hub's names are not believed: {self.suspicious}")

    def _is_at(self, position: Position) -> bool:
        tree = self.tree
        return tree.epoch % 2 == 0 and tree.catalog_id == position.catalog_id and tree.revision >= position.revision

    def _cached_fraction(self, entry: Entry) -> float:
        if entry.size_bytes == 0:
            return 1.0
        return self.store.present_bytes(entry.version, entry.size_bytes) / entry.size_bytes

    # --- what it shows -----------------------------------------------------------------------------------

    def staleness_s(self) -> float:
        """Seconds since the hub last vouched for the names; infinite if it never did in this process life."""
        return self.replica.staleness_s(runtime.now_s())

    @property
    def suspicious(self) -> Suspicion | None:
        return self.replica.suspicious

    def health(self) -> tuple[bool, Mapping[str, Any]]:
        """Healthy while the mount answers; a hub that is away is a fact, not an illness of this daemon."""
        mounted = self.device is not None and self.device.negotiated is not None
        return mounted, {"mounted": mounted, "hub_connected": self.client.connected}

    def status(self) -> Mapping[str, Any]:
        """The facts behind ``status``; sizes in bytes, times in seconds."""
        counts, usage, client = self.counts, self.store.usage(), self.client
        settings = self.loaded.settings
        staleness_s = self.staleness_s()
        passthrough = self.device.passthrough.status() if self.device is not None else None
        notes = list(self.device.notes) if self.device is not None else []
        if usage.bypass is not None:
            notes.append(f"the cache is bypassed: {usage.bypass}")
        elif usage.trouble is not None:
            notes.append(f"the cache disk: {usage.trouble.reason}")
        if self.memory.level >= Level.DROP_IDLE:
            notes.append("memory is short: nothing is fetched ahead; see memory_limit")
        descriptors, most_descriptors = runtime.open_descriptors()
        if self.journal.failure is not None:
            notes.append(f"names are not kept on disk: {self.journal.failure}")
        return {
            "version": __version__,
            "pid": os.getpid(),
            "mountpoint": self.mountpoint,
            "dataset": settings.dataset,
            "uptime_s": runtime.now_s() - self.started_s,
            "metrics": format_address(*self.pages.address) if self.pages.address is not None else None,
            "hub": {
                "address": settings.hub,
                "connected": client.connected,
                "in_words": client.in_words(),
                "error": str(client.last_error) if client.last_error is not None else None,
                "rtt_s": client.rtt_s,
                "rate_bytes_per_s": client.rate_bytes_per_s,
                "received_bytes": client.wire_bytes_total,
                "links": client.links(),
            },
            "names": {
                "revision": self.tree.revision,
                "entries": self.tree.entry_count,
                "file_bytes": self.tree.file_bytes,
                "staleness_s": staleness_s if staleness_s != float("inf") else None,
                "suspicious": str(self.suspicious) if self.suspicious is not None else None,
                "resyncs": self.replica.resyncs_total,
                "pinned": str(self.pin) if self.pin is not None else None,
                "opens_confirmed": self.client.checks.asked_total,
            },
            "cache": {
                "directory": str(settings.cache_dir),
                "used_bytes": usage.used_bytes,
                "capacity_bytes": usage.capacity_bytes,
                "files": usage.files,
                "evicted_bytes": usage.evicted_bytes_total,
                "corrupt_blocks": usage.corrupt_blocks_total,
                "trouble": usage.trouble._asdict() if usage.trouble is not None else None,
                "read_errors": usage.read_errors_total,
                "write_errors": usage.write_errors_total,
                "skipped_bytes": self.fetcher.skipped_bytes_total,
                "scrub": self.scrub.facts(),
                "write_backlog_bytes": self.fetcher.write_backlog_bytes,
            },
            "reads": {
                "opens": counts.opens,
                "hit": counts.hits,
                "late": counts.late,
                "miss": counts.misses,
                "cache_bytes": counts.cache_read_bytes,
                "wan_bytes": counts.wan_read_bytes,
                "stall_s": counts.stall_s,
                "waiting": self.reads.waiting,
                "waiting_long": self.long_waits.long_count,
                "longest_wait_s": self.long_waits.longest_s(),
                "timeouts": self.long_waits.timeouts_total,
                "stale": counts.stale_reads,
            },
            "prefetch": {
                "enabled": self.planner is not None,
                "asked_bytes": counts.prefetch_asked_bytes,
                "used_bytes": self.scorecard.used_bytes,
                "wasted_bytes": self.scorecard.wasted_bytes,
                "outstanding_bytes": self.fetcher.prefetch_outstanding_bytes,
            },
            **self.insight.facts(),
            "memory": {
                "limit_bytes": self.memory_limit.limit_bytes,
                "origin": self.memory_limit.origin,
                "own_bytes": self._own_bytes(),
                "level": self.memory.level.name.lower().replace("_", "-"),
                "for_data_bytes": self.memory.data_bytes,
                "held_bytes": self.memory_bytes(),
                "waiting_reads": self.reads.admission.waiting,
                "waited_reads": self.reads.admission.waited_total,
                "pressed": self.memory.pressed_total,
                "open_descriptors": descriptors,
                "most_descriptors": most_descriptors,
            },
            "pins": self.pins.facts(),
            "warm": self.warming.facts(),
            "plans": self.plans.facts(),
            "orders": self.ahead.orders(),
            "data_path": {
                "passthrough": passthrough.live if passthrough is not None else False,
                "reason": passthrough.reason if passthrough is not None else "not mounted",
                "passthrough_opens": counts.passthrough_opens,
                "open_files": self.reads.open_handles,
                "open_kernel_files": self.reads.lent_handles,
                "read_ahead": self.ahead.read_ahead.facts(),
            },
            "notes": notes,
            "settings": {
                name: {"value": _plain(value), "source": self.loaded.sources[name]}
                for name, value in settings.model_dump().items()
            },
        }

    # --- the control socket ------------------------------------------------------------------------------

    async def _answer_status(self, _request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield self.status()

    async def _answer_stop(self, _request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        self._stop.set()
        yield {"stopping": True}

    async def _answer_explain(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        path = request.get("path")
        yield self.insight.recent() if path is None else await self.insight.explain(str(path))

    async def _answer_cache_list(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield await self.cache_files.list(
            [bytes.fromhex(path) for path in request.get("paths", [""])],
            sort=str(request.get("sort", "path")),
            most=int(request.get("most", limits.CACHE_LIST_MAX)),
            everything=bool(request.get("everything")),
        )

    async def _answer_cache_sizes(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield await self.cache_files.sizes(bytes.fromhex(str(request.get("path", ""))))

    async def _answer_cache_evict(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield await self.cache_files.evict([bytes.fromhex(path) for path in request.get("paths", [])])

    async def _answer_warm(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        async with contextlib.aclosing(self.warming.answer(request)) as progress:
            async for facts in progress:
                yield facts

    async def _answer_pin(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        paths = [bytes.fromhex(path) for path in request.get("paths", [])]
        yield await self.pins.pin(paths) if paths else self.pins.facts()

    async def _answer_unpin(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        paths = request.get("paths")
        yield await self.pins.unpin(None if paths is None else [bytes.fromhex(path) for path in paths])

    async def _answer_plan(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield self.plans.request(request.get("message"))

    async def _answer_plans(self, _request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield self.plans.facts()

    async def _answer_orders(self, _request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield {"directory": str(self.order_shelf.directory), "orders": list(self.order_shelf.facts())}

    async def _answer_order_load(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield await self.order_shelf.load(Path(str(request.get("path"))))

    async def _answer_order_drop(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield {"dropped": await self.order_shelf.drop(str(request.get("name")))}

    async def _answer_loss(self, _request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        suspicion = self.suspicious
        if suspicion is None:
            yield {"suspicious": None}
            return
        self._check_at_hand()
        losses = Losses()
        for _ in self.replica.losses(losses, self.store.present_bytes):
            await asyncio.sleep(0)  # let reads go in between
            self._check_still(suspicion)
        yield {
            "suspicious": str(suspicion),
            "revision": suspicion.revision,
            "catalog_id": suspicion.catalog_id.hex(),
            "files": losses.files,
            "others": losses.others,
            "file_bytes": losses.file_bytes,
            "cached_bytes": losses.cached_bytes,
            "examples": [os.fsdecode(path).encode("utf-8", "backslashreplace").decode() for path in losses.examples],
        }

    async def _answer_accept(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        suspicion = self.suspicious
        if suspicion is None:
            yield {"said": "the hub is not suspicious; nothing to accept"}
            return
        self._check_at_hand()
        seen = request.get("revision"), request.get("catalog_id")
        if seen not in ((None, None), (suspicion.revision, suspicion.catalog_id.hex())):
            raise HeadraceError(f"the hub has said something else meanwhile: {suspicion}; look again")
        self.follower.accept()
        yield {"said": f"accepted: {suspicion}"}

    def _check_at_hand(self) -> None:
        if not self.replica.can_accept:
            raise HeadraceError(
                "the hub is suspicious, but since this spoke started it has not shown its names yet "
                f"({self.client.in_words()}); try again when it has"
            )

    def _check_still(self, suspicion: Suspicion) -> None:
        if self.suspicious is not suspicion:
            raise HeadraceError("the hub has said something else meanwhile; look again")


def pin_of(settings: SpokeSettings) -> Pin | None:
    """What the settings ask the mount to stay at."""
    if settings.revision is None and not settings.snapshot:
        return None
    return Pin(settings.revision, settings.snapshot)


def _planner(next_file: NextFile, capacity_bytes: int) -> Planner:
    """What is fetched ahead must fit beside what is kept: a small cache would evict it before it is read."""
    return Planner(
        next_file,
        stream_max_bytes=min(limits.PREFETCH_STREAM_MAX_BYTES, capacity_bytes // 8),
        windows_max_bytes=min(limits.PREFETCH_WINDOWS_MAX_BYTES, capacity_bytes // limits.PREFETCH_WINDOWS_CACHE_SHARE),
    )


def _four_fifths_of_the_disk(cache_dir: Path) -> int:
    """The default capacity; the free-space floor still holds when others fill the disk. Raises CacheDirectoryError."""
    above = next(path for path in (cache_dir, *cache_dir.absolute().parents) if path.exists())
    try:
        return shutil.disk_usage(above).total * 4 // 5
    except OSError as error:
        raise CacheDirectoryError(f"cache directory {cache_dir}: {error.strerror}") from error


def _shown(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, indent=1).encode() + b"\n"


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def run_spoke(mountpoint: str, loaded: Loaded[SpokeSettings], on_ready: Callable[[str], object]) -> None:
    """Serve one mount until SIGTERM, SIGINT, ``umount`` or a lost mount; ``on_ready`` is told once it answers."""
    if not runtime.run(_serve(mountpoint, loaded, on_ready)):
        runtime.leave_threads_behind()


async def _serve(mountpoint: str, loaded: Loaded[SpokeSettings], on_ready: Callable[[str], object]) -> bool:
    with ServiceManager() as systemd:
        return await _serve_told(mountpoint, loaded, on_ready, systemd)


async def _serve_told(
    mountpoint: str, loaded: Loaded[SpokeSettings], on_ready: Callable[[str], object], systemd: ServiceManager
) -> bool:
    """False: the cache disk still holds a thread."""
    stop = asyncio.Event()
    runtime.stop_on_signals(stop)
    starting = asyncio.create_task(Spoke.start(mountpoint, loaded), name="start")
    stopped = asyncio.create_task(stop.wait(), name="stop signal")
    await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        await cancel_and_wait(starting)
        raise HeadraceError("stopped before the mount was ready")
    await cancel_and_wait(stopped)
    spoke = starting.result()
    try:
        line = f"mounted {loaded.settings.dataset} on {mountpoint}"
        on_ready(line)
        systemd.ready(line)
        log.info("mounted", mountpoint=mountpoint, dataset=loaded.settings.dataset, hub=loaded.settings.hub)
        await spoke.wait(stop)
    finally:
        systemd.stopping()
        await spoke.close()
        log.info("unmounted", mountpoint=mountpoint)
    return spoke.store.is_quiet
