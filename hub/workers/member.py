"""One serving process, seen from the main one: started, restarted after it died, stopped, and ended when it hangs."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from common import limits
from common.errors import HeadraceError
from common.log import get_logger
from common.processes import module_command
from hub.workers import messages as m
from hub.workers.channel import Channel, channel_pair
from hub.workers.restarts import Restarts

log = get_logger(__name__)


class WorkersFailed(HeadraceError):
    """Serving processes end again and again: the hub cannot serve."""


class Owner(Protocol):
    """What a member needs of the pool."""

    def first_word(self) -> m.Start: ...
    def inherited(self) -> Sequence[int]:
        """Descriptors that the process is given besides its channel."""

    def member_up(self, index: int) -> None:
        """It can serve."""

    def member_down(self, index: int) -> None:
        """It is gone, and all its connections; called only after :meth:`member_up`."""

    def member_said(self, index: int, message: m.Message) -> None: ...


class Member:
    """``run`` it as a task; cancel that only after :meth:`stop`."""

    def __init__(self, index: int, owner: Owner, clock: Callable[[], float], dice: Random) -> None:
        self.index = index
        self.restarts = Restarts()
        self.lives = 0
        """Processes begun; two with the same number are the same one."""
        self._owner = owner
        self._clock = clock
        self._dice = dice
        self._process: Process | None = None
        self._channel: Channel | None = None
        self._up = False
        self._ticks_silent = 0
        self._stopping = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def is_up(self) -> bool:
        return self._up

    def send(self, message: m.Message, sock: socket.socket | None = None) -> None:
        """To the process, if there is one. ``sock`` is handed over."""
        if self._channel is not None:
            self._channel.send(message, sock)
        elif sock is not None:
            sock.close()

    async def run(self) -> None:
        """Keep it going. Returns after :meth:`stop`; raises WorkersFailed when it dies too often."""
        while not self._stopping:
            try:
                code = await self._live()
            except OSError as error:
                log.error("cannot start a serving process", worker=self.index, error=str(error))
                code = None
            if self._stopping:
                return
            delay_s = self.restarts.died(self._clock(), self._dice)
            ended = _reason(code)
            if delay_s is None:
                raise WorkersFailed(
                    f"serving process {self.index} ended {limits.WORKER_DEATHS_MAX} times within "
                    f"{limits.WORKER_DEATHS_WINDOW_S:.0f} s, last {ended}; see the log above, or serve with --workers 1"
                )
            log.error("a serving process ended; its spokes dial again", worker=self.index, how=ended, restart_s=delay_s)
            await asyncio.sleep(delay_s)

    async def _live(self) -> int:
        """One life, from start to exit code."""
        ours, theirs = channel_pair()
        command, environment = module_command("hub.workers.process")
        try:
            with theirs:
                self._process = process = await asyncio.create_subprocess_exec(
                    *command,
                    str(theirs.fileno()),
                    str(self.index),
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    env=environment,
                    pass_fds=[theirs.fileno(), *self._owner.inherited()],
                )
        except BaseException:
            ours.close()
            raise
        channel = self._channel = Channel(ours, self._on_message, self._hung_up)
        self._ticks_silent = 0
        self.lives += 1
        channel.send(self._owner.first_word())
        if self._stopping:
            channel.send(m.Stop())
        try:
            return await process.wait()
        finally:
            channel.read_rest()
            channel.close()
            self._process = self._channel = None
            self._down()

    def _on_message(self, message: m.Message, sock: socket.socket | None) -> None:
        assert sock is None, "connections are handed over one way"
        self._ticks_silent = 0
        if isinstance(message, m.Ready):
            self._up = True
            self._owner.member_up(self.index)
        else:
            self._owner.member_said(self.index, message)

    def _hung_up(self) -> None:
        """It is ending, and its exit code will say why; or it takes nothing any more."""
        self._down()
        asyncio.get_running_loop().call_later(limits.CLOSE_GRACE_S, self._kill_life, self.lives)

    def _kill_life(self, life: int) -> None:
        if life == self.lives:
            self.kill()

    def _down(self) -> None:
        if self._up:
            self._up = False
            self._owner.member_down(self.index)

    def tick(self) -> None:
        """Once a WORKER_TICK_S: counted in ticks, so that a main process that stood still itself blames nobody."""
        if self._process is None or self._stopping:
            return
        self._ticks_silent += 1
        allowed_s = limits.WORKER_SILENT_S if self._up else limits.WORKER_START_S
        if self._ticks_silent * limits.WORKER_TICK_S > allowed_s:
            log.error("a serving process is silent; ending it", worker=self.index, silent_s=allowed_s)
            self.kill()

    def kill(self) -> None:
        """It does not answer."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self, running: asyncio.Task[None]) -> None:
        """Have it end in order, or end it after WORKER_STOP_S. ``running``: the task of :meth:`run`."""
        self._stopping = True
        self.send(m.Stop())
        if self._process is None:
            running.cancel()  # between two lives
        _, late = await asyncio.wait([running], timeout=limits.WORKER_STOP_S)
        if late:
            log.error("a serving process did not stop in time; ending it", worker=self.index)
            self.kill()
        await asyncio.gather(running, return_exceptions=True)


def _reason(code: int | None) -> str:
    if code is None:
        return "before it began"
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"
