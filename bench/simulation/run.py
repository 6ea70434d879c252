"""One seed from beginning to end: build, break, let it heal, and hold every answer against the model."""

from __future__ import annotations

import asyncio
import errno
import functools
import gc
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.simulation.dataset import Dataset
from bench.simulation.disks import Faults, HubOs, Stamps
from bench.simulation.faults import Breaker
from bench.simulation.hub_host import HubHost
from bench.simulation.loop import Process, SimLoop, Stuck, new_loop
from bench.simulation.model import Broken, State, Troubles, Truth
from bench.simulation.network import Network
from bench.simulation.network import Path as NetworkPath
from bench.simulation.plan import KINDS, Plan, plan_of
from bench.simulation.seams import SCRATCH, simulated
from bench.simulation.spoke_host import Mount, OpenFile, SpokeHost
from bench.simulation.trace import Trace
from common.serving.packing import Compression

CACHE_BYTES = 16 << 20
"""The least a spoke takes."""

ANSWER_GRACE_S = 12.0
"""Beyond the read timeout, for threads that a slow disk holds up."""

HURT_GRACE_S = 25.0
"""Trouble shows for so long: a dead link is noticed after 8 s, dialled again within 2 s, a bypassed disk tried again after 30 s."""

CONVERGE_S = 120.0
STOP_S = 20.0
RUN_S = 1500.0
"""Beyond the plan's own time: then something waits for ever."""


@dataclass(slots=True)
class Outcome:
    """``took_s`` is virtual; ``violations`` empty if all was well; ``words``: the event log."""

    seed: int
    digest: str
    took_s: float
    reads: int
    read_bytes: int
    errors: Counter[str]
    faults: Counter[str]
    violations: list[str]
    words: list[str]
    steps: list[bytes] | None = None


class Run:
    """Use :func:`run_seed`."""

    def __init__(self, plan: Plan, scratch: Path, trace: Trace, loop: SimLoop) -> None:
        self.plan, self.trace, self.loop = plan, trace, loop
        self.truth, self.troubles = Truth(), Troubles()
        self.errors: Counter[str] = Counter()
        self._dice = Random(f"readers {plan.seed}")
        job_dice = Random(f"jobs {plan.seed}")

        def job_s(faults: Faults) -> float:
            return job_dice.expovariate(1 / 0.0004) + faults.slow_s * job_dice.random()

        self.network = Network(loop, Random(f"network {plan.seed}"))
        loop.network = self.network
        stamps = Stamps(loop.wall_time_ns)
        self.hub_faults = Faults()
        self.hub_os = HubOs(stamps, self.hub_faults, Random(f"hub disk {plan.seed}"), trace)
        self.dataset = Dataset(
            str(scratch / "dataset"),
            self.truth,
            stamps,
            Random(f"dataset {plan.seed}"),
            trace,
            loop.time,
            plan.large_bytes,
        )
        self.hub = HubHost(
            loop, self.network, str(scratch / "dataset"), str(scratch / "state"), self.hub_os, lambda: job_s(self.hub_faults),
            Compression(plan.compression), plan.rescan_interval_s,
        )  # fmt: skip
        self.dataset.on_change = self.hub.edited
        settings = {
            "cache_size": CACHE_BYTES,
            "cache_free_floor": 1 << 20,
            "read_timeout": plan.read_timeout_s,
            "links": 2,
            "prefetch": plan.prefetch,
            "consistency": "strict" if plan.strict else "lease",
        }
        self.spokes = [
            SpokeHost(
                f"spoke{number}", loop, self.network, scratch, Random(f"spoke {number} {plan.seed}"), job_s, settings
            )
            for number in range(plan.spokes)
        ]
        for host in self.spokes:
            self.network.paths[host.name] = NetworkPath(
                host.name, delay_s=plan.delay_s, jitter_s=plan.delay_s / 10, rate_bytes_per_s=plan.rate_bytes_per_s
            )
        self.breaker = Breaker(self)
        self._ending = False
        self._age_s = 2.0 + 4 * plan.delay_s
        self._waiting: dict[object, tuple[Process, float, str]] = {}

    async def play(self) -> None:
        plan = self.plan
        self.dataset.fill(plan.files, plan.large_files)
        await self.hub.start()
        for host in self.spokes:
            await host.start()
            self.begin_readers(host)
        watch = asyncio.ensure_future(self._watch())
        edits = asyncio.ensure_future(self._edit())
        try:
            await self.breaker.play(plan.faults, plan.lasts_s)
            edits.cancel()
            await self._heal()
        finally:
            watch.cancel()
            edits.cancel()

    # --- while it goes on ---------------------------------------------------------------------------------------

    async def _edit(self) -> None:
        dice = Random(f"edits {self.plan.seed}")
        while True:
            await asyncio.sleep(dice.expovariate(1 / self.plan.edit_every_s))
            for _ in range(dice.choice([1, 1, 1, 4])):
                self.dataset.edit()

    async def _watch(self) -> None:
        told: set[object] = set()
        while True:
            await asyncio.sleep(1.0)
            now_s = self.loop.time()
            for token, (process, began_s, what) in self._waiting.items():
                late = now_s - began_s > self.plan.read_timeout_s + ANSWER_GRACE_S
                if late and process.alive and token not in told:
                    told.add(token)
                    self.fail(Broken("ends", f"{what} has had no answer for {now_s - began_s:.0f} s"))
            for host in self.spokes:
                if host.up and host.spoke is not None:
                    self._judged(functools.partial(self._check_quota, host))

    def _check_quota(self, host: SpokeHost) -> None:
        assert host.spoke is not None
        usage = host.spoke.store.usage()
        if usage.used_bytes > usage.configured_bytes:
            raise Broken("quota", f"{host.name} uses {usage.used_bytes} of {usage.configured_bytes} bytes")

    def begin_readers(self, host: SpokeHost) -> None:
        """Programs on the spoke's host; they end with its mount."""
        assert host.mount is not None
        for number in range(self.plan.readers):
            dice = Random(self._dice.random())
            host.process.start(self._read_on(host, host.mount, dice), f"reader {number}")

    async def _read_on(self, host: SpokeHost, mount: Mount, dice: Random) -> None:
        while host.mount is mount and not self._ending:
            await asyncio.sleep(dice.expovariate(1 / dice.choice([0.1, 1.0])))
            files = self.truth.files()
            if not files or host.mount is not mount:
                continue
            path = dice.choice(files)
            file = await self._open(host, mount, path)
            if file is None:
                continue
            try:
                for offset_bytes, length_bytes in _places(dice, file.size_bytes):
                    if host.mount is not mount:
                        return
                    await self.read(host, file, offset_bytes, length_bytes)
                    if dice.random() < 0.05:
                        await asyncio.sleep(dice.expovariate(1.0))
            finally:
                if host.mount is mount:
                    await mount.close(file)

    async def _open(self, host: SpokeHost, mount: Mount, path: bytes) -> OpenFile | None:
        token, began_s = object(), self.loop.time()
        self._waiting[token] = host.process, began_s, f"an open of {path!r} on {host.name}"
        try:
            file = await mount.open(path)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, str(error.errno))
            self.errors[f"open: {name}"] += 1
            allowed = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.EISDIR, errno.ELOOP)
            if error.errno == errno.ENOENT and not self._hurt(began_s):
                self._judged(lambda: self.truth.judge_absence(path, began_s, self._age_s))
            if not allowed and not self._hurt(began_s):
                self.fail(Broken("errors", f"{name} for an open of {path!r} on {host.name} while nothing was broken"))
            return None
        finally:
            del self._waiting[token]
        self.trace.step("opened", host.name, path, file.version, file.size_bytes)
        self.dataset.hot.append(path)
        if not self._hurt(began_s):
            self._judged(lambda: self.truth.judge_age(file.version, path, file.size_bytes, began_s, self._age_s))
        return file

    def _hurt(self, began_s: float) -> bool:
        return self.troubles.may_have_hurt(began_s, HURT_GRACE_S)

    async def read(self, host: SpokeHost, file: OpenFile, offset_bytes: int, length_bytes: int) -> bytes | None:
        """One READ, judged; None for an error that may be."""
        self._maybe_edit_under(file.path)
        token, began_s = object(), self.loop.time()
        self._waiting[token] = (
            host.process,
            began_s,
            f"{length_bytes} at {offset_bytes} of {file.path!r} on {host.name}",
        )
        try:
            reading = file.mount.read(file, offset_bytes, length_bytes)
            if not self._ending and self._dice.random() < 0.02:
                data = await asyncio.wait_for(reading, self._dice.expovariate(1 / 0.1))
            else:
                data = await reading
        except TimeoutError:
            self.errors["read: interrupted"] += 1
            return None
        except OSError as error:
            code = error.errno or 0
            self.errors[f"read: {errno.errorcode.get(code, code)}"] += 1
            self.trace.event("read failed", host.name, file.path, offset_bytes, errno.errorcode.get(code, code))
            self._judged(
                lambda: self.truth.judge_error(
                    code, file.version, file.path, file.size_bytes, began_s=began_s, troubles=self.troubles, grace_s=HURT_GRACE_S
                )
            )  # fmt: skip
            return None
        finally:
            del self._waiting[token]
        self.trace.step("read", host.name, file.path, offset_bytes, len(data))
        self._judged(
            lambda: self.truth.read(file.version, file.path, file.size_bytes, offset_bytes, length_bytes, data)
        )
        return data

    def _maybe_edit_under(self, path: bytes) -> None:
        """Somebody edits a file just while somebody else reads it: at random this would be too rare."""
        dice = self._dice
        if self._ending or dice.random() > self.plan.edits_under_reads:
            return
        delay_s = self.plan.delay_s * dice.uniform(0, 3) + dice.expovariate(1 / 0.005)
        self.loop.call_later(delay_s, self._edit_under, path, context=self.network.context)

    def _edit_under(self, path: bytes) -> None:
        if not self._ending and self.truth.current(path) is not None:
            self.dataset.edit_file(path)

    def _judged(self, judge: Callable[[], None]) -> None:
        try:
            judge()
        except Broken as broken:
            self.fail(broken)

    def fail(self, broken: Broken) -> None:
        self.trace.violation(str(broken))

    # --- afterwards ---------------------------------------------------------------------------------------------

    async def _heal(self) -> None:
        """Nothing is broken from here on."""
        await self.breaker.mend_all()
        self._ending = True
        self.trace.event("all mended")
        for host in self.spokes:
            await self._until(lambda host=host: self._difference(host), "converges", CONVERGE_S)  # type: ignore[misc]
            self.trace.event("shows the hub's names", host.name)
        await self._until(self._who_reads, "ends", self.plan.read_timeout_s * 14 + ANSWER_GRACE_S)
        self.troubles.last_s = float("-inf")  # from here on nothing excuses an error
        for host in self.spokes:
            await self._read_all(host)
        await self._until(self._what_is_held, "returns", 60.0)
        for host in self.spokes:
            self._check_disk(host)
        await self._stop()

    async def _until(self, what_is_wrong: Callable[[], str | None], name: str, limit_s: float) -> None:
        began_s = self.loop.time()
        while (wrong := what_is_wrong()) is not None:
            if self.loop.time() - began_s > limit_s:
                raise Broken(name, f"after {limit_s:.0f} s: {wrong}")
            await asyncio.sleep(0.5)

    def _difference(self, host: SpokeHost) -> str | None:
        """How a spoke's tree differs from the directory."""
        if host.spoke is None or not host.up:
            return f"{host.name} is not up"
        expected = self.dataset.tree()
        shown = {}
        for node in host.spoke.tree.walk():
            entry = node.entry
            if node.path():
                shown[node.path()] = (entry.kind.name, entry.mode, entry.size_bytes, entry.mtime_ns, entry.target)
        for path in expected:
            if path not in shown:
                return f"{host.name} does not show {path!r}"
            if shown[path] != expected[path]:
                return f"{host.name} shows {path!r} as {shown[path]}, it is {expected[path]}"
        extra = next((path for path in shown if path not in expected), None)
        return None if extra is None else f"{host.name} shows {extra!r}, which is gone"

    async def _read_all(self, host: SpokeHost) -> None:
        mount = host.mount
        assert mount is not None
        limit_s = self.plan.read_timeout_s + ANSWER_GRACE_S

        async def read_one(path: bytes, state: State) -> None:
            file = await mount.open(path)
            content = b""
            while len(content) < file.size_bytes:
                async with asyncio.timeout(limit_s):
                    data = await self.read(host, file, len(content), 512 * 1024)
                if data is None:
                    return
                content += data
            await mount.close(file)
            if content != state.content:
                raise Broken("converges", f"{host.name} reads {path!r} as another state than {state.number}")

        for path in self.truth.files():
            state = self.truth.current(path)
            assert state is not None
            try:
                await host.process.start(read_one(path, state), "last look")
            except OSError as error:
                raise Broken("converges", f"{host.name} cannot open {path!r}: {error}") from error

    def _who_reads(self) -> str | None:
        """Programs that began while something was broken, and have the rest of a file to read."""
        reading = [
            host.name for host in self.spokes for task in host.process.tasks if task.get_name().startswith("reader")
        ]
        return f"programs read on {reading}" if reading else None

    def _what_is_held(self) -> str | None:
        for host in self.spokes:
            spoke = host.spoke
            assert spoke is not None
            assert host.mount is not None
            held = {
                "reads that wait": spoke.reads.waiting,
                "bytes of readers admitted": spoke.reads.admission.inside_bytes,
                "open handles": spoke.reads.open_handles,
                "open files of the mount": host.mount.operations.open_files,
                "prefetch under way": spoke.fetcher.prefetch_outstanding_bytes,
                "bytes to be written": spoke.fetcher.write_backlog_bytes,
                "requests without a link": len(spoke.client._waiting),
                "requests on links": sum(len(link.requests) for link in spoke.client.links.up),
            }
            for what, count in held.items():
                if count:
                    return f"{host.name}: {what}: {count}"
        server = self.hub.server
        assert server is not None
        for view in server.spokes():
            if view.outstanding_bytes or any(link.open_requests for link in view.links):
                return f"the hub holds requests of {view.identity}: {view}"
        return None

    def _check_disk(self, host: SpokeHost) -> None:
        self._check_quota(host)
        folder = host.cache_dir / "versions"
        taken_bytes = sum(path.stat().st_blocks * 512 for path in folder.glob("*/*"))
        if taken_bytes > CACHE_BYTES:
            raise Broken("quota", f"{host.name} takes {taken_bytes} bytes of its disk, {CACHE_BYTES} were given")

    async def _stop(self) -> None:
        for host in self.spokes:
            await self.ends(host.stop(), host.name, STOP_S)
            if host.process.tasks:
                raise Broken("ends in order", f"{host.name} leaves {[task.get_name() for task in host.process.tasks]}")
            if host.disk is not None and host.disk.open_count():
                raise Broken("ends in order", f"{host.name} leaves {host.disk.open_count()} files open")
        await self.ends(self.hub.stop(), "the hub", STOP_S)
        if self.hub.process.tasks:
            raise Broken("ends in order", f"the hub leaves {[task.get_name() for task in self.hub.process.tasks]}")
        if self.hub_os.open_count():
            raise Broken("ends in order", f"the hub leaves {self.hub_os.open_count()} files open")
        self.trace.event("ended")

    async def ends(self, stopping: Awaitable[None], who: str, limit_s: float) -> None:
        """Somebody was told to stop. Raises Broken."""
        try:
            async with asyncio.timeout(limit_s):
                await stopping
        except TimeoutError:
            raise Broken("ends in order", f"{who} does not end within {limit_s:.0f} s") from None

    def bury(self) -> None:
        """Whatever is left of the processes, while the seams are still there."""
        self.trace.closed = True
        hosts: list[HubHost | SpokeHost] = [self.hub, *self.spokes]
        for host in hosts:
            for process in (*host.buried, host.process):
                process.alive = False
                process.context.run(process.bury)
        for spoke in self.spokes:
            spoke._let_go()
        self.hub_os.die()


def _places(dice: Random, size_bytes: int) -> list[tuple[int, int]]:
    """Where one open file is read, as (offset, length): in order, here and there, or all at once."""
    kind = dice.random()
    if kind < 0.4:
        step_bytes = dice.choice([4096, 65536, 131072, 131072])
        start = dice.randrange(size_bytes + 1) // 4096 * 4096 if dice.random() < 0.3 else 0
        return [(at, step_bytes) for at in range(start, size_bytes, step_bytes)][:12]
    if kind < 0.8:
        return [(dice.randrange(size_bytes + 1), dice.choice([1, 100, 4096, 10_000, 262_144])) for _ in range(4)]
    return [(0, 1 << 20)]


def run_seed(seed: int, only: Sequence[str] | None = None, *, keep_steps: bool = False) -> Outcome:
    """Play one seed. Everything it does is a function of the seed, and of ``only`` (see plan_of)."""
    plan = plan_of(seed, only)
    trace = Trace()
    if keep_steps:
        trace.steps = []
    loop = new_loop(trace)
    loop.ends_s = loop.time() + plan.lasts_s + RUN_S
    scratch = Path(tempfile.mkdtemp(prefix="headrace-sim-", dir=SCRATCH if SCRATCH.is_dir() else None))
    began_s = loop.time()
    collecting = gc.isenabled()
    gc.disable()  # what is collected when would decide which finalizer runs when
    old_mask = os.umask(0o022)
    try:
        run = Run(plan, scratch, trace, loop)
        with simulated(loop, run.hub_os, Random(f"names and keys {seed}"), trace):
            try:
                loop.run_until_complete(run.play())
            except (Broken, Stuck) as broken:
                trace.violation(str(broken))
            except Exception as error:  # noqa: BLE001 -- of the daemons, or of this program: told with the seed
                import traceback

                trace.violation(f"[quiet] {error!r}: {''.join(traceback.format_exc(limit=-8))}")
            finally:
                run.bury()
    finally:
        os.umask(old_mask)
        if collecting:
            gc.enable()
        shutil.rmtree(scratch, ignore_errors=True)
    faults = Counter({kind: count for kind, count in trace.counts.items() if kind in KINDS})
    truth, errors = run.truth, run.errors
    return Outcome(
        seed, trace.digest, loop.time() - began_s, truth.reads, truth.bytes, errors, faults, trace.violations, list(trace.words),
        trace.steps,
    )  # fmt: skip
