"""One metrics port for all spokes of a host: whoever gets it serves everybody's figures, told apart by the label ``mount``.

A spoke whose port is taken leaves a note in the runtime directory and tries again; the one that has the port asks those named in
notes over their control sockets, side by side and each for a bounded time. So there is no process more to run, any of them may
end, and a mount that hangs is a figure on the page (``headrace_spoke_answering`` 0) and not a page that hangs. A spoke alone on
its port shows no ``mount``; once it had company the label stays for as long as its process lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from common import limits
from common.errors import HeadraceError, UsageError
from common.log import get_logger
from common.metrics import HttpPages
from common.runtime import cancel_and_wait
from common.units import format_address
from spoke import control
from spoke.fuse.mountpoint import mounts_at

log = get_logger(__name__)

_ANSWERING = "headrace_spoke_answering"
"""Each spoke says 1 of itself (spoke/metrics); of one that says nothing it is said here."""

_COMMAND = "figures"


@dataclass(frozen=True, slots=True)
class Note:
    """That the figures of a mount are to be had at a port of this host. ``serves``: it has the port itself."""

    mountpoint: str
    port: int
    serves: bool


class SharedPort:
    """``start``, then ``close``. Serves ``pages`` where the port is free, and waits for it where it is not.

    ``registry``: this mount's families; ``status``, ``live``: what the pages of that name show of it.
    """

    def __init__(
        self,
        runtime_dir: Path,
        mountpoint: str,
        registry: CollectorRegistry,
        status: Callable[[], Mapping[str, Any]],
        live: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._runtime_dir = runtime_dir
        self._mountpoint = mountpoint
        self._registry = registry
        self._pages_of = {"status": status, "live": live}
        self._pages: HttpPages | None = None
        self._labelled = False
        self._wanted: tuple[str, int] | None = None
        self._waiting: asyncio.Task[None] | None = None

    async def start(self, pages: HttpPages, host: str, port: int) -> None:
        """Raises nothing: a spoke without its page serves its mount all the same."""
        self._pages = pages
        self._wanted = (host, port)
        if await self._took_it():
            return
        _, by = self.where()
        if by is not None:
            log.info("metrics are served by another spoke of this host", address=format_address(host, port), by=by)
        else:
            log.error(
                "metrics port not available, going on without it and trying again",
                address=format_address(host, port),
                error="something that is no spoke of this user has it, or no interface has that address",
            )
        self._waiting = asyncio.create_task(self._wait_for_it(), name="metrics port")

    async def close(self) -> None:
        await cancel_and_wait(self._waiting)
        with contextlib.suppress(OSError):
            _note_path(self._runtime_dir, self._mountpoint).unlink(missing_ok=True)

    def where(self) -> tuple[tuple[str, int] | None, str | None]:
        """The address at which the figures of this mount are to be had (None: nowhere), and the mountpoint of the other spoke that
        gives them (None: this one does, or nobody). Reads notes while another has the port."""
        if self._pages is None or self._wanted is None or self._pages.address is not None:
            return (self._pages.address if self._pages is not None else None), None
        by = next((note.mountpoint for note in self._others(self._wanted[1]) if note.serves), None)
        return (self._wanted if by is not None else None), by

    async def _took_it(self) -> bool:
        assert self._pages is not None
        assert self._wanted is not None
        took = await self._pages.start(*self._wanted, complain=False)
        port = self._pages.address[1] if self._pages.address is not None else self._wanted[1]
        note = Note(self._mountpoint, port, serves=took)
        path = _note_path(self._runtime_dir, self._mountpoint)
        with contextlib.suppress(OSError):  # it is shown by itself then
            draft = path.with_suffix(".port.new")
            draft.write_text(json.dumps(asdict(note)))
            draft.replace(path)
        return took

    async def _wait_for_it(self) -> None:
        while True:
            await asyncio.sleep(limits.METRICS_PORT_RETRY_S)
            if await self._took_it():
                return

    # --- answers -----------------------------------------------------------------------------------------

    async def figures(self, _request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        """The control command by which another spoke asks for this one's."""
        yield {
            "serves": self._pages is not None and self._pages.address is not None,
            "families": [
                [
                    family.name,
                    family.documentation,
                    family.type,
                    [[one.name, one.labels, one.value] for one in family.samples],
                ]
                for family in self._registry.collect()
            ],
        }

    async def live(self, _request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        """The control command for the page of this mount, shown at another's port."""
        yield self._pages_of["live"]()

    async def exposition(self) -> bytes:
        """What is scraped: this mount and those that share its port."""
        asked = self._sharing()
        answers = await asyncio.gather(*(self._figures_of(note.mountpoint) for note in asked))
        families: dict[str, Family] = {}
        others = [(note, answer) for note, answer in zip(asked, answers, strict=True) if not answer.get("serves")]
        self._labelled = self._labelled or bool(others)
        label = {"mount": shown(self._mountpoint)} if self._labelled else {}
        for family in self._registry.collect():
            _take(families, family.name, family.documentation, family.type, family.samples, label)
        for note, answer in others:
            label = {"mount": shown(note.mountpoint)}
            for name, documentation, kind, samples in answer.get("families", ()):
                _take(families, name, documentation, kind, samples, label)
            if not answer:
                families[_ANSWERING].add_sample(_ANSWERING, label, 0.0)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Made(families.values()))
        return generate_latest(registry)

    async def page(self, what: str, mount: str | None) -> Mapping[str, Any]:
        """``status`` or ``live`` of this mount, or of another at this port. Raises UsageError for one that is not here."""
        here = shown(self._mountpoint)
        sharing = {shown(note.mountpoint): note.mountpoint for note in self._sharing()}
        if mount is None or mount == here:
            facts = self._pages_of[what]()
        elif mount in sharing:
            facts = await _ask(self._runtime_dir, sharing[mount], what)
        else:
            raise UsageError(f"no mount {mount!r} at this port; here are {', '.join([here, *sharing])}")
        return {**facts, "mounts": [here, *sharing]} if what == "live" else facts

    async def _figures_of(self, mountpoint: str) -> Mapping[str, Any]:
        try:
            return await _ask(self._runtime_dir, mountpoint, _COMMAND)
        except HeadraceError as error:
            log.debug("a mount at this metrics port gives no figures", mountpoint=mountpoint, error=str(error))
            return {}

    def _sharing(self) -> list[Note]:
        if self._pages is None or self._pages.address is None:
            return []
        notes = sorted(self._others(self._pages.address[1]), key=lambda note: note.mountpoint)
        return notes[: limits.METRICS_MOUNTS_MAX - 1]

    def _others(self, port: int) -> Iterator[Note]:
        """Notes that speak of this port, but for those whose mount is gone."""
        for path in self._runtime_dir.glob("*.port"):
            with contextlib.suppress(OSError, ValueError, TypeError):
                note = Note(**json.loads(path.read_text()))
                if note.port == port and note.mountpoint != self._mountpoint and _stands(note.mountpoint):
                    yield note


class _Made(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Family]:
        return iter(self._families)


def _take(
    families: dict[str, Family],
    name: str,
    documentation: str,
    kind: str,
    samples: Iterable[Any],
    label: Mapping[str, str],
) -> None:
    """Another version of Headrace may know families that this one does not, and the other way round."""
    family = families.setdefault(name, Family(name, documentation, kind))
    for sample in samples:
        family.add_sample(sample[0], {**sample[1], **label}, sample[2])


def shown(mountpoint: str) -> str:
    """As a label, and in JSON: whatever its bytes."""
    return os.fsencode(mountpoint).decode("utf-8", "backslashreplace")


def _note_path(runtime_dir: Path, mountpoint: str) -> Path:
    return control.socket_path(runtime_dir, mountpoint).with_suffix(".port")


def _stands(mountpoint: str) -> bool:
    return any(mount.is_ours for mount in mounts_at(mountpoint))


async def _ask(runtime_dir: Path, mountpoint: str, command: str) -> Mapping[str, Any]:
    """Raises HeadraceError: nobody listens, or there was no answer in METRICS_ASK_TIMEOUT_S."""
    path = control.socket_path(runtime_dir, mountpoint)
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(limits.METRICS_ASK_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(os.fspath(path), limit=limits.METRICS_ANSWER_MAX_BYTES)
            writer.write(json.dumps({"command": command}).encode() + b"\n")
            answer = json.loads(await reader.readline())
    except TimeoutError:
        raise HeadraceError(
            f"the spoke of {mountpoint} did not answer within {limits.METRICS_ASK_TIMEOUT_S:g} s"
        ) from None
    except (OSError, ValueError) as error:
        code = getattr(error, "errno", None)
        gone = code in {errno.ENOENT, errno.ECONNREFUSED}
        raise HeadraceError(f"the spoke of {mountpoint}: {'nobody serves it' if gone else error}") from None
    finally:
        if writer is not None:
            writer.close()
    if not isinstance(answer, dict) or not isinstance(answer.get("result"), dict):
        raise HeadraceError(f"the spoke of {mountpoint} is of another version: {answer}")
    result: Mapping[str, Any] = answer["result"]
    return result
