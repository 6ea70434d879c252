"""Keeps one mount served: holds its descriptors, starts a worker again when one dies, exchanges workers, ends it all in order.

A loop over few things that may happen: a word from a worker, a worker's end, a signal, a request on the control socket, a time that
has come. Nothing here reads the mount or waits for anything else.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from common import limits
from common.remains import is_held_by_fuse
from spoke.supervisor.channel import Channel, Message
from spoke.supervisor.clients import Clients, refusal
from spoke.supervisor.own_log import OwnLog
from spoke.supervisor.refusing import refuse_pending
from spoke.supervisor.restarts import Restarts
from spoke.supervisor.service import Service
from spoke.supervisor.spec import Say, Spec, make_say
from spoke.supervisor.workers import Worker, how_it_ended


@dataclass
class _Upgrade:
    """``old``: the worker that is to go, kept until the new one serves."""

    new: Worker
    old: Worker | None
    asking: list[socket.socket] = field(default_factory=list)
    released: bool = False
    since_s: float = 0.0
    paused_s: float = 0.0


class Supervisor:
    """``run`` returns the exit code."""

    def __init__(self, spec: Spec, service: Service, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self._spec = spec
        self._service = service
        self._say = say
        self._clock = clock
        self._log = OwnLog(spec.log_path)
        self._restarts = Restarts()
        self._upgrades = 0
        self._last_end = ""
        self._last_failure = ""
        self._metrics: str | None = None
        self._was_ready = False
        self._restart_at_s: float | None = None
        self._paused_since_s: float | None = None
        self._stopping = False
        self._stop_at_s: float | None = None
        self._keep_mount = False
        self._exit: int | None = None
        self._device_fds = [spec.device_fd, spec.ledger_fd] if spec.device_fd >= 0 else []
        self._upgrade: _Upgrade | None = None
        self._selector = selectors.DefaultSelector()
        self._wake_fd, self._wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._clients = Clients(spec.control_path, self._selector, self._on_request)
        self._next_sign_s = 0.0
        self._silent_s = min(limits.SUPERVISED_SILENT_S, service.watchdog_s or limits.SUPERVISED_SILENT_S)
        self._silent_s = max(self._silent_s, 3 * limits.SUPERVISED_SIGN_INTERVAL_S)
        self._worker: Worker | None = Worker(spec.worker_pid, Channel.from_fd(spec.channel_fd), clock())
        self._watch(self._worker)
        self._worker.channel.send("start", self._facts(), self._device_fds)

    # --- the loop ----------------------------------------------------------------------------------------

    def run(self) -> int:
        self._catch_signals()
        if self._device_fds:
            self._listen()
        try:
            while self._exit is None:
                self._turn()
        finally:
            self._clients.close()
        assert self._exit is not None
        return self._exit

    def _turn(self) -> None:
        now_s = self._clock()
        for key, _ in self._selector.select(max(0.0, self._next_s(now_s) - now_s)):
            # What was dealt with before it may have closed or changed it.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
            if self._exit is not None:
                return
        self._time_has_come(self._clock())

    def _listen(self) -> None:
        try:
            self._clients.listen()
        except OSError as error:
            self._say("warning", "upgrade only by SIGHUP: no control socket", error=str(error))

    def _catch_signals(self) -> None:
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        caught = [signal.SIGTERM, signal.SIGINT]
        if not self._spec.hangup_ignored:
            caught.append(signal.SIGHUP)
        for number in caught:
            signal.signal(number, lambda *_: None)
        self._selector.register(self._wake_fd, selectors.EVENT_READ, self._on_signals)

    def _on_signals(self) -> None:
        for number in os.read(self._wake_fd, 64):
            if number == signal.SIGHUP and not self._spec.hangup_stops:
                self._begin_upgrade(None)
            elif number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self._begin_stop()

    def _next_s(self, now_s: float) -> float:
        times = [self._next_sign_s if self._service.listens else now_s + 60.0]
        if self._restart_at_s is not None:
            times.append(self._restart_at_s)
        if self._stop_at_s is not None:
            times.append(self._stop_at_s)
        for worker in self._workers():
            times += self._patience_ends_s(worker), worker.look_s
        return min(times)

    def _workers(self) -> list[Worker]:
        found = [self._worker]
        if self._upgrade is not None:
            found += [self._upgrade.new, self._upgrade.old]
        return [worker for worker in dict.fromkeys(found) if worker is not None]

    def _patience_ends_s(self, worker: Worker) -> float:
        if worker.aborted_s is not None:
            return worker.aborted_s + limits.SUPERVISED_ABORT_S
        if worker.standby and not worker.prepared:
            return worker.started_s + limits.UPGRADE_PREPARE_S
        upgrade = self._upgrade
        if upgrade is not None and worker is upgrade.old and worker is self._worker:
            return upgrade.since_s + limits.UPGRADE_RELEASE_S
        if not worker.served and not worker.standby and self._was_ready:
            return worker.began_s + limits.SUPERVISED_START_S
        return worker.alive_s + self._silent_s if worker.served else worker.started_s + 86400.0

    def _time_has_come(self, now_s: float) -> None:
        self._log.bound()
        for worker in self._workers():
            if worker.look_s <= now_s:
                worker.looked_s = now_s
                if is_held_by_fuse(worker.pid):
                    self._left_behind(worker)
                    continue
            if self._patience_ends_s(worker) <= now_s:
                if worker.aborted_s is None and worker.served and not (self._upgrade and self._upgrade.old is worker):
                    self._say("error", "the worker gives no sign of life and is ended", worker_pid=worker.pid)
                    worker.aborted_s = now_s
                    worker.signal(signal.SIGABRT)  # with PYTHONFAULTHANDLER its stacks go to the log
                else:
                    worker.aborted_s = now_s
                    worker.signal(signal.SIGKILL)
        if self._stop_at_s is not None and now_s >= self._stop_at_s:
            self._stop_at_s = None
            for worker in self._workers():
                worker.signal(signal.SIGKILL)
            if self._worker is None:
                self._end_without_worker()
        if self._restart_at_s is not None and now_s >= self._restart_at_s:
            self._restart_at_s = None
            self._start_worker()
        if self._service.listens and now_s >= self._next_sign_s:
            interval_s = limits.SERVICE_SIGN_INTERVAL_S
            if self._service.watchdog_s is not None:
                interval_s = min(interval_s, self._service.watchdog_s / 3)
            self._next_sign_s = now_s + interval_s
            if self._was_ready:
                self._service.tell(WATCHDOG=1)
            else:
                self._service.tell(EXTEND_TIMEOUT_USEC=int(limits.SERVICE_START_EXTENSION_S * 1e6), WATCHDOG=1)

    # --- workers -----------------------------------------------------------------------------------------

    def _watch(self, worker: Worker) -> None:
        self._selector.register(worker.channel, selectors.EVENT_READ, lambda: self._on_word(worker))
        self._selector.register(worker.pidfd, selectors.EVENT_READ, lambda: self._on_end(worker))

    def _facts(self) -> dict[str, Any]:
        return {
            "supervisor_pid": os.getpid(),
            "restarts": self._restarts.total,
            "upgrades": self._upgrades,
            "last_end": self._last_end,
            "metrics": self._metrics,
            "stored": self._service.keeps_descriptors,
        }

    def _start_worker(self) -> None:
        now_s = self._clock()
        try:
            worker = self._worker = Worker.start(self._spec.command, now_s, standby=False)
        except OSError as error:
            self._last_failure = f"the worker cannot be started: {error}"
            self._try_again(now_s, had_served=False)
            return
        self._watch(worker)
        worker.channel.send("start", self._facts(), self._device_fds)

    def _on_word(self, worker: Worker) -> None:
        try:
            self._take_word(worker)
        except EOFError:
            self._selector.unregister(worker.channel)

    def _take_word(self, worker: Worker) -> bool:
        """False when there is none. Raises EOFError."""
        received = worker.channel.receive()
        if received is None:
            return False
        message, fds = received
        worker.alive_s = self._clock()
        match message.get("say"):
            case "mounted" if len(fds) == 2 and not self._device_fds:
                self._device_fds, fds = fds, []
                self._listen()
                self._service.store(self._device_fds)
            case "answers":
                worker.answered = True
                self._restarts.served()
            case "ready":
                self._is_ready(worker, message)
            case "prepared":
                worker.prepared = True
                self._new_is_prepared(worker)
            case "released":
                self._old_has_released(worker)
            case "failed":
                worker.failure = str(message.get("error"))
                worker.exit_code = int(message.get("exit", 1))
            case "stopping" if not self._stopping:
                self._service.tell(STOPPING=1, STATUS="stopping")
        for fd in fds:
            os.close(fd)
        return True

    def _is_ready(self, worker: Worker, message: Message) -> None:
        worker.served = worker.answered = True
        self._restarts.served()
        self._metrics = message.get("metrics") or self._metrics
        line = str(message.get("line"))
        upgrade = self._upgrade
        if upgrade is not None and worker is upgrade.new:
            self._finish_upgrade(upgrade, worker)
        elif upgrade is not None and worker is upgrade.old:
            self._upgrade = None  # it has the mount again
        if not self._was_ready:
            self._was_ready = True
            self._report({"ready": line}, line)
            self._service.tell(READY=1, STATUS=line, WATCHDOG=1, MAINPID=os.getpid())
        if self._paused_since_s is not None:
            paused_s = self._clock() - self._paused_since_s
            self._paused_since_s = None
            self._say("info", "the mount is served again", worker_pid=worker.pid, paused_s=round(paused_s, 3))
            self._service.tell(STATUS=line)

    def _on_end(self, worker: Worker) -> None:
        with contextlib.suppress(EOFError):
            while self._take_word(worker):  # what it said before it ended
                pass
        self._retire(worker)
        self._ended(worker, self._reap_retired(worker))

    def _left_behind(self, worker: Worker) -> None:
        """It was killed, and what the kernel still holds of it ends when the next worker answers."""
        self._say(
            "warning", "the kernel holds a thread of the dead worker until the next one answers", worker_pid=worker.pid
        )
        self._retire(worker)
        self._ended(worker, -signal.SIGKILL)

    def _ended(self, worker: Worker, code: int) -> None:
        upgrade = self._upgrade
        if upgrade is not None and worker is upgrade.new:
            self._new_has_failed(upgrade, worker, code)
        elif upgrade is not None and worker is upgrade.old:
            self._old_is_gone(upgrade, code)
        elif worker is self._worker:
            self._worker = None
            self._serving_ended(worker, code)

    def _serving_ended(self, worker: Worker, code: int) -> None:
        if code == 0:
            # It was asked to end, or the mount was taken away: an end in order.
            if not self._keep_mount:
                self._service.forget_stored()
            if not self._last_end:  # nobody will ask what happened
                self._log.remove()
            self._exit = 0
            return
        if not self._was_ready and self._spec.device_fd < 0:  # nobody uses the mount yet
            if worker.failure:
                self._report({"error": worker.failure, "exit": worker.exit_code}, "")
                self._service.tell(STATUS=f"failed: {worker.failure}")
            elif code < 0:
                self._say("error", "the worker was killed before the mount was ready", end=how_it_ended(code))
            self._service.forget_stored()
            self._exit = code if code > 0 else 1
            return
        if self._stopping:
            self._end_without_worker()
            return
        self._last_end = how_it_ended(code)
        self._last_failure = worker.failure or self._last_end
        now_s = self._clock()
        if self._paused_since_s is None:
            self._paused_since_s = now_s
        self._say(
            "error", "the worker died; readers wait for the next", worker_pid=worker.pid, end=self._last_end,
            error=worker.failure or None, served_s=round(now_s - worker.started_s, 1),
        )  # fmt: skip
        self._try_again(now_s, had_served=worker.answered)

    def _try_again(self, now_s: float, *, had_served: bool) -> None:
        if self._paused_since_s is None:
            self._paused_since_s = now_s
        delay_s = self._restarts.died(now_s, had_served)
        if delay_s is None:
            self._give_up()
        else:
            self._restart_at_s = now_s + delay_s

    # --- the end -----------------------------------------------------------------------------------------

    def _begin_stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._service.tell(STOPPING=1, STATUS="stopping")
        self._keep_mount = self._service.restart_is_queued()
        self._stop_at_s = self._clock() + limits.SUPERVISED_STOP_S
        self._restart_at_s = None
        if self._upgrade is not None:
            self._answer_upgrade("the spoke was told to stop")
            for worker in (self._upgrade.new, self._upgrade.old):
                if worker is not None and worker is not self._worker:
                    worker.signal(signal.SIGKILL)
        worker = self._worker
        if worker is None:
            self._end_without_worker()
        elif self._keep_mount and worker.served:
            worker.channel.send("release")
        else:
            worker.signal(signal.SIGTERM)

    def _end_without_worker(self) -> None:
        if self._keep_mount and self._device_fds:
            self._say("info", "the mount stays for the supervisor that systemd starts now")
            self._exit = 0
            return
        self._refuse_all()
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(self._spec.take_away, timeout=limits.STOP_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)
        self._exit = 0

    def _give_up(self) -> None:
        refused = self._refuse_all()
        text = (
            f"the mount of {self._spec.mountpoint} is given up: {self._restarts.why()}; the last: {self._last_failure}. "
            f"{refused} waiting requests got EIO, and readers see 'not connected' from now on. "
            "Mend what the log shows, then mount again; the cache stays"
        )
        self._say("critical", text)
        self._service.tell(STATUS=f"failed: {text}")
        self._answer_upgrade(text)
        self._exit = 1

    def _refuse_all(self) -> int:
        """Pending requests get EIO; with the last descriptor the connection ends."""
        self._service.forget_stored()
        if not self._device_fds:
            return 0
        refused = refuse_pending(*self._device_fds)
        for fd in self._device_fds:
            os.close(fd)
        self._device_fds = []
        return refused

    def _report(self, facts: dict[str, Any], line: str) -> None:
        """To whoever started us in the background; else a line on stdout."""
        if self._spec.ready_fd < 0:
            if line:
                with contextlib.suppress(OSError):
                    sys.stdout.buffer.write(os.fsencode(line) + b"\n")  # a path may be no text
                    sys.stdout.flush()
            return
        with contextlib.suppress(OSError), os.fdopen(self._spec.ready_fd, "w") as pipe:
            pipe.write(json.dumps(facts) + "\n")
        self._spec.ready_fd = -1

    # --- upgrades ----------------------------------------------------------------------------------------

    def _begin_upgrade(self, asking: socket.socket | None) -> None:
        if self._upgrade is not None:
            if asking is not None:
                self._upgrade.asking.append(asking)
            return
        now_s = self._clock()
        reason = ""
        if self._worker is None or not self._worker.served or self._stopping:
            reason = "no worker serves the mount just now; the next one that starts has the new code anyhow"
        else:
            try:
                new = Worker.start(self._spec.command, now_s, standby=True)
            except OSError as error:
                reason = f"the new worker cannot be started: {error}"
        if reason:
            self._say("error", "no upgrade", reason=reason)
            if asking is not None:
                self._clients.answer(asking, {"error": reason, "code": "failed", "exit": 1})
            return
        self._watch(new)
        self._upgrade = _Upgrade(new, self._worker, [asking] if asking is not None else [], since_s=now_s + 1e9)
        new.channel.send("start", {**self._facts(), "standby": True})

    def _new_is_prepared(self, worker: Worker) -> None:
        upgrade = self._upgrade
        if upgrade is None or worker is not upgrade.new:
            return
        upgrade.since_s = self._clock()
        if upgrade.old is not None:
            upgrade.old.channel.send("release")
        else:
            self._hand_over(upgrade)

    def _old_has_released(self, worker: Worker) -> None:
        if self._upgrade is None:  # a restart by systemd
            worker.channel.send("end")
            return
        if worker is self._upgrade.old and not self._upgrade.released:
            self._hand_over(self._upgrade)

    def _hand_over(self, upgrade: _Upgrade) -> None:
        upgrade.released = True
        self._paused_since_s = upgrade.since_s
        new = self._worker = upgrade.new
        new.standby, new.began_s = False, self._clock()
        new.channel.send("start", self._facts(), self._device_fds)

    def _finish_upgrade(self, upgrade: _Upgrade, worker: Worker) -> None:
        self._upgrade = None
        self._upgrades += 1
        worker.channel.send("facts", self._facts())
        if upgrade.old is not None:
            upgrade.old.channel.send("end")
            self._retire(upgrade.old)
        paused_s = self._clock() - upgrade.since_s
        result = {"said": f"a new worker serves (process {worker.pid}); readers waited {paused_s:.2f} s at most",
                  "worker_pid": worker.pid, "paused_s": round(paused_s, 3)}  # fmt: skip
        for asking in upgrade.asking:
            self._clients.answer(asking, {"result": result})

    def _retire(self, worker: Worker) -> None:
        """It has nothing left to do but to exit; reaped when it does."""
        self._selector.modify(worker.pidfd, selectors.EVENT_READ, lambda: self._reap_retired(worker))
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(worker.channel)

    def _reap_retired(self, worker: Worker) -> int:
        self._selector.unregister(worker.pidfd)
        code = worker.reap()
        worker.close()
        return code

    def _old_is_gone(self, upgrade: _Upgrade, code: int) -> None:
        """The old worker died before or after it let go; the new one takes what it left."""
        upgrade.old = None
        if self._stopping and self._worker is not upgrade.new:
            self._worker = None
            self._end_without_worker()
            return
        if upgrade.released:
            return
        self._last_end = how_it_ended(code)
        if self._worker is not upgrade.new:
            self._worker = None
            self._paused_since_s = self._clock()
        if upgrade.new.prepared:
            self._hand_over(upgrade)

    def _new_has_failed(self, upgrade: _Upgrade, worker: Worker, code: int) -> None:
        reason = worker.failure or how_it_ended(code)
        old = upgrade.old
        if self._stopping:
            self._upgrade = None
            if self._worker is worker:
                self._worker = None
                self._end_without_worker()
            return
        if old is not None and not upgrade.released:
            self._answer_upgrade(f"the new worker cannot start: {reason}; the old one serves on")
            self._upgrade = None
            return
        if old is not None:
            self._answer_upgrade(f"the new worker cannot serve: {reason}; the old one took the mount back")
            self._upgrade = None
            self._worker = old
            old.served, old.began_s = False, self._clock()
            old.channel.send("take-back", self._facts(), self._device_fds)
            return
        self._answer_upgrade(f"the new worker cannot start: {reason}, and the old one is gone; starting another")
        self._upgrade = None
        self._worker = None
        self._last_failure = reason
        self._try_again(self._clock(), had_served=False)

    def _answer_upgrade(self, reason: str) -> None:
        if self._upgrade is None:
            return
        self._say("error", "no upgrade", reason=reason)
        for asking in self._upgrade.asking:
            self._clients.answer(asking, {"error": reason, "code": "failed", "exit": 1})
        self._upgrade.asking = []

    # --- what is asked of it -----------------------------------------------------------------------------

    def _on_request(self, client: socket.socket, command: str) -> None:
        match command:
            case "upgrade":
                self._begin_upgrade(client)
            case "state":
                self._clients.answer(client, {"result": self.state()})
            case "stop":
                self._clients.answer(client, {"result": {"stopping": True}})
                self._begin_stop()
            case _:
                self._clients.answer(client, refusal(f"unknown command {command!r}; known: state, stop, upgrade"))

    def state(self) -> dict[str, Any]:
        """Also while no worker serves."""
        worker = self._worker
        return {
            **self._facts(),
            "mountpoint": self._spec.mountpoint,
            "worker_pid": worker.pid if worker is not None else None,
            "serving": worker is not None and worker.served,
            "failed_starts": self._restarts.failed_starts,
            "last_failure": self._last_failure,
        }


def run(spec_fd: int) -> int:
    """The process's main. ``spec_fd``: the Spec as JSON."""
    with os.fdopen(spec_fd, "r") as file:
        spec = Spec(**json.load(file))
    for fd in (spec.ready_fd, spec.device_fd, spec.ledger_fd):
        if fd >= 0:
            os.set_inheritable(fd, False)
    return Supervisor(spec, Service(os.environ), make_say(spec.log_json)).run()
