"""What was recorded becomes an order: written in a thread, followed from then on and after a restart, and put away in time.

Owns the learned orders of one dataset in the directory of orders. Their files are named ``learned-<dataset>-<number>``, and
``…-proven`` once most of an epoch or a job was read in their order. Of those that were not, the newest two stay; of those that
were, the last three. A recording that an order explains anyway (whoever made it) is not kept: the one that there is does.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any, Protocol
from urllib.parse import quote

from common import limits
from common.errors import HeadraceError
from common.log import get_logger
from spoke.orders.shelf import OrderShelf
from spoke.orders.writer import OrderWriter
from spoke.prefetch.orders import Order, Reason
from spoke.prefetch.recording import Recording
from spoke.prefetch.succession import OrderRecorder

log = get_logger(__name__)

_PREFIX = "learned-"
FOREIGN_PREFIX = "foreign-"
PROVEN = "-proven"
ENDING = ".order"
_EXPLAINED_SHARE = 0.9
_FOLLOWED_SHARE = 0.5
_IDLE_SHARE = 0.05


class Knows(Protocol):
    """Who follows orders: how many reads each has foretold or placed so far."""

    def orders(self) -> Sequence[Mapping[str, Any]]: ...
    def drop_order(self, name: str) -> bool: ...
    def replace_order(self, former: str, order: Order) -> None: ...


class Others(Protocol):
    """Who has orders that other spokes learned, and tells of ours."""

    def names(self) -> Collection[str]: ...
    def learned(self, name: str, path: Path, *, shelved: bool) -> None: ...
    async def followed(self, name: str) -> None: ...
    async def outgrown(self, name: str) -> None: ...
    async def idle(self, names: Collection[str]) -> None: ...
    async def reset(self) -> None: ...


def is_learned_file(path: Path) -> bool:
    """Here, or by another spoke."""
    return path.name.startswith((_PREFIX, FOREIGN_PREFIX))


def is_foreign_file(path: Path) -> bool:
    """By another spoke."""
    return path.name.startswith(FOREIGN_PREFIX)


def own_name_prefix(dataset: str) -> str:
    return f"learned:{dataset}:"


class Learner:
    """Start it after the shelf. ``recorder`` None: nothing is learned, what lies on the shelf can still be reset."""

    def __init__(self, recorder: OrderRecorder | None, shelf: OrderShelf, knows: Knows, dataset: str) -> None:
        self._recorder = recorder
        self._shelf = shelf
        self._knows = knows
        self._dataset = dataset
        self._file_prefix = f"{_PREFIX}{quote(dataset, safe='')}-"
        self._name_prefix = own_name_prefix(dataset)
        self.others: Others | None = None
        self._over = asyncio.Event()
        self._closing = False
        self._hurry = Event()
        self._matched_before: dict[str, int] = {}
        self._last_number = 0
        self._busy = asyncio.Lock()
        self.task: asyncio.Task[None] | None = None
        self.outcomes: Counter[str] = Counter({"kept": 0, "known": 0, "failed": 0})

    # --- life --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        if self._recorder is None:
            return
        self._last_number = await asyncio.to_thread(self._highest_number)
        await self._trim()
        self._recorder.on_end = self._over.set
        self.task = asyncio.create_task(self._run(), name="learner")

    async def close(self) -> None:
        """Write down what was learned so far, if that is quickly done."""
        if self._recorder is None or self.task is None:
            return
        self._recorder.stop()
        self._closing = True
        self._over.set()
        _, late = await asyncio.wait([self.task], timeout=limits.LEARN_STOP_S)
        if late:
            self._hurry.set()
            await asyncio.wait([self.task])

    async def _run(self) -> None:
        while not self._closing:
            await self._over.wait()
            self._over.clear()
            await self._keep_finished()
        await self._keep_finished()  # what ended while the one before it was written

    # --- learning ----------------------------------------------------------------------------------------

    async def _keep_finished(self) -> None:
        recording = self._recorder.take() if self._recorder is not None else None
        if recording is None:
            return
        async with self._busy:
            try:
                await self._judge(recording)
            except (HeadraceError, OSError) as error:
                self._knows.drop_order(recording.name)
                self.outcomes["failed"] += 1
                log.warning("an order that was read is not kept", error=str(error))

    async def _judge(self, recording: Recording) -> None:
        shares = self._shares_since_last(recording)
        followed = [name for name, share in shares.items() if share >= _FOLLOWED_SHARE]
        if recording.explained_share >= _EXPLAINED_SHARE:
            self.outcomes["known"] += 1
            self._knows.drop_order(recording.name)
            for name in followed:
                if name in self._foreign():
                    await self.others.followed(name)  # type: ignore[union-attr]
                else:
                    await self._prove(name)
            return
        number = self._last_number = self._last_number + 1
        # One that was followed and does not fit any more makes way for what it has become.
        proven = bool(followed)
        name, path = f"{self._name_prefix}{number}", self._path(number, proven=proven)
        await asyncio.to_thread(self._write, path, name, recording)
        if self._closing:
            if self.others is not None:
                self.others.learned(name, path, shelved=False)
            return  # it lies there for the next start
        # Whoever follows the recording already goes on along the file.
        await self._shelf.load(path, lambda order: self._knows.replace_order(recording.name, order))
        for former in followed:
            if former in self._foreign():
                await self.others.outgrown(former)  # type: ignore[union-attr]
            else:
                await self._shelf.drop(former)
        self.outcomes["kept"] += 1
        log.info(
            "an order was learned",
            order=name,
            steps=len(recording.steps),
            files=len(recording.files),
            ended=recording.ended,
        )
        await self._trim()
        if self.others is not None:
            await self.others.idle([name for name in self._foreign() if shares.get(name, 1.0) <= _IDLE_SHARE])
            self.others.learned(name, path, shelved=True)

    def _shares_since_last(self, recording: Recording) -> dict[str, float]:
        """Of the recording's reads, those that each learned order of this dataset had foretold or placed."""
        shares: dict[str, float] = {}
        mine = {*self._mine(), *self._foreign()}
        for facts in self._knows.orders():
            name, matched = facts["name"], facts["matched_reads"]
            if name in mine:
                shares[name] = (matched - self._matched_before.get(name, 0)) / max(1, recording.reads)
                self._matched_before[name] = matched
        return shares

    def _write(self, path: Path, name: str, recording: Recording) -> None:
        """In a thread. Leaves nothing when the daemon cannot wait for it."""
        path.parent.mkdir(mode=0o700, exist_ok=True)
        steps = recording.steps
        meta = {
            "dataset": self._dataset,
            "ended": recording.ended,
            "reads": str(recording.reads),
            "read_bytes": str(recording.read_bytes),
        }
        with OrderWriter(
            path,
            name=name,
            reason=Reason.LEARNED,
            files=recording.files,
            lane_count=1,
            meta=meta,
            segment_steps=limits.LEARN_SEGMENT_STEPS,
            gently=True,
        ) as writer:
            for start in range(0, len(steps), limits.LEARN_SLICE_STEPS):
                if self._hurry.is_set():
                    return
                part = slice(start, start + limits.LEARN_SLICE_STEPS)
                writer.extend(0, steps.files[part], steps.offsets[part], steps.lengths[part])
            writer.finish()

    # --- what is kept ------------------------------------------------------------------------------------

    def _foreign(self) -> Collection[str]:
        return self.others.names() if self.others is not None else ()

    def _mine(self) -> dict[str, Path]:
        return {name: path for name, path in self._shelf.paths.items() if name.startswith(self._name_prefix)}

    def _path(self, number: int, *, proven: bool) -> Path:
        return self._shelf.directory / f"{self._file_prefix}{number}{PROVEN if proven else ''}{ENDING}"

    async def _prove(self, name: str) -> None:
        await self._shelf.move(name, self._path(int(name.rpartition(":")[2]), proven=True))

    async def _trim(self) -> None:
        mine = sorted(self._mine().items(), key=lambda entry: age_of(entry[1]))
        proven = [name for name, path in mine if is_proven(path)]
        unproven = [name for name, path in mine if not is_proven(path)]
        for name in (*proven[: -limits.LEARNED_PROVEN_KEPT], *unproven[: -limits.LEARNED_UNPROVEN_KEPT]):
            await self._shelf.drop(name)
            self._matched_before.pop(name, None)

    def _highest_number(self) -> int:
        pattern = re.compile(re.escape(self._file_prefix) + rf"(\d+)(?:{PROVEN})?{re.escape(ENDING)}")
        try:
            names = [path.name for path in self._shelf.directory.iterdir()]
        except OSError:
            return 0
        return max((int(found[1]) for name in names if (found := pattern.fullmatch(name))), default=0)

    # --- the commands ------------------------------------------------------------------------------------

    async def reset(self) -> int:
        """Forget everything learned, of this dataset and others whose orders lie here. Returns how many orders that were."""
        async with self._busy:
            if self._recorder is not None:
                self._recorder.reset()
            self._matched_before.clear()
            dropped = await self._shelf.drop_where(is_learned_file)
            if self.others is not None:
                await self.others.reset()
            return dropped

    @property
    def own_count(self) -> int:
        """Orders that are followed and were learned here."""
        return len(self._mine())

    def facts(self) -> Mapping[str, Any]:
        """For ``status``."""
        mine = self._mine()
        return {
            "enabled": self._recorder is not None,
            "recorded_steps": self._recorder.steps if self._recorder is not None else 0,
            "max_steps": self._recorder.max_steps if self._recorder is not None else 0,
            "epochs_seen": self._recorder.epochs_total if self._recorder is not None else 0,
            "orders": len(mine),
            "proven_orders": sum(is_proven(path) for path in mine.values()),
            **self.outcomes,
        }


def is_proven(path: Path) -> bool:
    return path.name.removesuffix(ENDING).endswith(PROVEN)


def age_of(path: Path) -> int:
    """When it was made, or followed last: the newest has the highest number."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
