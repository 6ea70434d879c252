"""An asyncio event loop without a world: time passes only when nothing is left to do, threads' work runs in the loop's own thread.

Everything that runs belongs to a :class:`Process` (a context variable says which). A process that is killed runs no further
step: neither ``finally`` nor ``except``, as after kill -9. What a thread was about to do to a disk may still be done, by dice.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import heapq
import itertools
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from random import Random
from typing import Any, cast

from bench.simulation.trace import Trace

STEPS_AT_ONE_MOMENT_MAX = 300_000
"""Of the event loop while no time passes: beyond it something spins."""

POOL_WORKERS = 32
"""Of the loop's own pool, as asyncio's on a large machine."""


class Process:
    """What a host runs. ``job_s``: how long a piece of work takes in a thread, half before its effect and half after."""

    def __init__(self, name: str, loop: SimLoop, job_s: Callable[[], float]) -> None:
        self.name = name
        self.alive = True
        self._stopped: deque[asyncio.Handle] | None = None
        self.job_s = job_s
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self._pools: dict[object, _Pool] = {}
        self._loop = loop
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run a coroutine as part of this process."""
        return self._loop.create_task(work, name=name, context=self.context.copy())

    def kill(self, dice: Random) -> None:
        """No step of it runs any more."""
        for pool in self._pools.values():
            pool.die(dice)
        self.alive = False

    def stand_still(self) -> None:
        """As by SIGSTOP: what is due waits, until ``go_on``."""
        if self._stopped is None:
            self._stopped = deque()

    def go_on(self) -> None:
        stopped, self._stopped = self._stopped, None
        self._loop.go_on_with(stopped or ())

    def keep_back(self, handle: asyncio.Handle) -> bool:
        """Whether it stands still, and has this to do later."""
        if self._stopped is None:
            return False
        self._stopped.append(handle)
        return True

    def pool(self, executor: object) -> _Pool:
        found = self._pools.get(executor)
        if found is None:
            workers = getattr(executor, "max_workers", POOL_WORKERS)
            found = self._pools[executor] = _Pool(self, self._loop, workers)
        return found

    def bury(self) -> None:
        """After the run: end what a kill left in the middle, where it can do no harm any more."""
        while self.tasks:  # what ends may begin another
            task, _ = self.tasks.popitem()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            work: Any = task.get_coro()
            for _ in range(20):
                try:
                    work.close()
                    break
                except BaseException:  # noqa: BLE001 -- it awaits while it ends: once more
                    continue


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class _Job:
    """A piece of work for a thread: ``effect`` when a worker takes it up, ``answer`` when it is known to have ended."""

    def __init__(self, work: Callable[[], Any], taken: Callable[[], bool], answer: Callable[[Any, Any], None]) -> None:
        self.work, self.taken, self.answer = work, taken, answer
        self.done = False

    def run(self) -> None:
        if self.done:
            return
        self.done = True
        result, error = None, None
        try:
            result = self.work()
        except BaseException as caught:  # noqa: BLE001 -- for whoever awaits it
            error = caught
        self.result = result, error


class _Pool:
    def __init__(self, process: Process, loop: SimLoop, workers: int) -> None:
        self._process, self._loop, self._free = process, loop, workers
        self._queue: deque[_Job] = deque()
        self._running: dict[_Job, None] = {}

    def add(self, job: _Job) -> None:
        self._queue.append(job)
        self._take()

    def _take(self) -> None:
        while self._free and self._queue:
            job = self._queue.popleft()
            self._free -= 1
            self._running[job] = None
            self._loop.call_later(self._process.job_s() / 2, self._run, job)

    def _run(self, job: _Job) -> None:
        if job not in self._running:
            return  # the pool was shut down meanwhile
        if not job.taken():  # withdrawn while it waited
            self._end(job)
            return
        job.run()
        self._loop.call_later(self._process.job_s() / 2, self._answer, job)

    def _answer(self, job: _Job) -> None:
        if job in self._running:
            self._end(job)
            job.answer(*job.result)

    def _end(self, job: _Job) -> None:
        del self._running[job]
        self._free += 1
        self._take()

    def finish(self, *, cancel: bool) -> None:
        """Whoever shuts the pool down waits for it: what runs is done now, what is queued too or never."""
        queued = list(self._queue)
        self._queue.clear()
        for job in [*self._running, *([] if cancel else queued)]:
            if job.done or job.taken():
                job.run()
                job.answer(*job.result)
        for job in queued if cancel else ():
            job.answer(None, concurrent.futures.CancelledError())
        self._running.clear()

    def die(self, dice: Random) -> None:
        """The process is killed: of the system calls that its threads were about to make some are made."""
        for job in self._running:
            if not job.done and dice.random() < 0.5 and job.taken():
                with contextlib.suppress(BaseException):
                    job.run()
        self._running.clear()
        self._queue.clear()


class SimExecutor:
    """A ThreadPoolExecutor whose threads are the loop's own. ``at_once``: whoever submits waits for the result with a blocking call."""

    def __init__(
        self,
        max_workers: int = POOL_WORKERS,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
    ) -> None:
        self.max_workers = max_workers
        self.at_once = thread_name_prefix.startswith("catalog-write")
        self.down = False

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        if self.down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def answer(result: Any, error: BaseException | None) -> None:
            if isinstance(error, concurrent.futures.CancelledError):
                future.cancel()
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        job = _Job(lambda: work(*args, **kwargs), future.set_running_or_notify_cancel, answer)
        process = PROCESS.get()
        if self.at_once or process is None:
            job.taken()
            job.run()
            job.answer(*job.result)
        else:
            process.pool(self).add(job)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.down = True
        process = PROCESS.get()
        if wait and process is not None:
            process.pool(self).finish(cancel=cancel_futures)


class Stuck(Exception):
    """Nothing is left that could ever happen, and the run has not ended; or no time passes any more."""


class SimLoop(asyncio.AbstractEventLoop):
    """``network``, set by its maker, makes connections. Errors that nobody took are violations in the trace."""

    network: Any

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._now_s = 1000.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._thread = threading.get_ident()
        self._running = False
        self.steps_total = 0
        self.ends_s = float("inf")
        """Beyond it the run is stuck."""
        self.jobs_total = 0

    # --- time ---------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now_s

    def wall_time_s(self) -> float:
        """2026-01-01 is when every run begins."""
        return 1_767_225_600.0 + self._now_s

    def wall_time_ns(self) -> int:
        return 1_767_225_600_000_000_000 + round(self._now_s * 1e9)

    # --- what is to be done -------------------------------------------------------------------------------

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        assert threading.get_ident() == self._thread, "a thread of its own called into a simulation of one thread"
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        process = context.get(PROCESS) if context is not None else PROCESS.get()
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(lambda done: process.tasks.pop(done, None))
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        process = PROCESS.get()
        assert process is not None, "threads belong to a process"
        if executor is not None and executor.down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = self.create_future()
        self.jobs_total += 1

        def answer(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if isinstance(error, concurrent.futures.CancelledError):
                future.cancel()
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        process.pool(executor).add(_Job(lambda: func(*args), lambda: not future.cancelled(), answer))
        return future

    # --- running ------------------------------------------------------------------------------------------

    def run_until_complete(self, future: Any) -> Any:
        """Raises Stuck, or what ``future`` raised."""
        asyncio._set_running_loop(self)
        self._running = True
        try:
            main = asyncio.ensure_future(future, loop=self)
            while not main.done():
                self._advance()
                self._work()
            return main.result()
        finally:
            self._running = False
            asyncio._set_running_loop(None)

    def _advance(self) -> None:
        """To the next moment in which something is to be done."""
        if self._ready:
            return
        timers = self._timers
        while timers:
            when, _, handle = heapq.heappop(timers)
            if handle._cancelled or not _is_alive(handle):
                continue
            self._now_s = max(self._now_s, when)
            if self._now_s > self.ends_s:
                raise Stuck("the run does not end: something is waited for that never happens")
            self.trace.now_s = self._now_s
            self._ready.append(handle)
            while timers and timers[0][0] <= self._now_s:
                self._ready.append(heapq.heappop(timers)[2])
            return
        raise Stuck("nothing is left that could ever happen")

    def _work(self) -> None:
        steps = 0
        while self._ready:
            handle = self._ready.popleft()
            if handle._cancelled or not _is_alive(handle):
                continue
            process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            if process is not None and process.keep_back(handle):
                continue
            handle._run()
            steps += 1
            if steps > STEPS_AT_ONE_MOMENT_MAX:
                raise Stuck(f"something spins: {steps} steps and no time passes, the last was {handle!r}")
        self.steps_total += steps

    def go_on_with(self, handles: Iterable[asyncio.Handle]) -> None:
        """What a process that stood still had to do."""
        self._ready.extend(handles)

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """There is no such mode."""

    async def shutdown_asyncgens(self) -> None:
        """None is kept."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        where = "".join(traceback.format_exception(error)[-4:]) if error is not None else ""
        self.trace.violation(f"nobody took an error: {context.get('message')} {error!r} {where}".strip())

    default_exception_handler = call_exception_handler

    # --- connections --------------------------------------------------------------------------------------

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **_options: Any) -> Any:  # type: ignore[override]
        return await self.network.connect(factory, host, port)

    async def create_server(self, factory: Any, host: Any = None, port: Any = None, **_options: Any) -> Any:  # type: ignore[override]
        return self.network.listen(factory, host, port)


def new_loop(trace: Trace) -> SimLoop:
    made: Any = SimLoop  # not all that a loop can do is asked of it
    return cast(SimLoop, made(trace))


def _is_alive(handle: asyncio.Handle) -> bool:
    process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
    return process is None or process.alive
