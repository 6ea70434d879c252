"""What the control socket's commands are answered: each handler reads its request, asks the room whose matter it is, and yields
what the command is told. It keeps nothing; the socket itself is :mod:`spoke.control`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from common import limits
from common.blocks import EXTENT_BYTES
from common.errors import HeadraceError
from spoke import purge
from spoke.ahead import Ahead
from spoke.asked_fields import checked
from spoke.cache.store import Store
from spoke.cache_files import CacheFiles
from spoke.control import Command
from spoke.fuse.device import Device
from spoke.fuse.operations import Operations
from spoke.hub_client.client import HubClient
from spoke.insight.watch import Insight
from spoke.last_job import LastJob
from spoke.namespace.follower import Follower
from spoke.namespace.replica import Replica
from spoke.namespace.suspicion import Losses, Suspicion
from spoke.namespace.tree import Tree
from spoke.orders.learner import Learner
from spoke.orders.shelf import OrderShelf
from spoke.pins import Pins
from spoke.plans import Plans
from spoke.reads import Handle
from spoke.verify import Verifying
from spoke.warming import Warming


class Asked(Protocol):
    """Whom the handlers ask; the spoke is this."""

    @property
    def ahead(self) -> Ahead: ...
    @property
    def cache_files(self) -> CacheFiles: ...
    @property
    def client(self) -> HubClient: ...
    @property
    def device(self) -> Device | None: ...
    @property
    def follower(self) -> Follower: ...
    @property
    def insight(self) -> Insight: ...
    @property
    def last_job(self) -> LastJob: ...
    @property
    def learner(self) -> Learner: ...
    @property
    def operations(self) -> Operations[Handle] | None: ...
    @property
    def order_shelf(self) -> OrderShelf: ...
    @property
    def pins(self) -> Pins: ...
    @property
    def plans(self) -> Plans: ...
    @property
    def replica(self) -> Replica: ...
    @property
    def store(self) -> Store: ...
    @property
    def suspicious(self) -> Suspicion | None: ...
    @property
    def tree(self) -> Tree: ...
    @property
    def verifying(self) -> Verifying: ...
    @property
    def warming(self) -> Warming: ...
    def status(self) -> Mapping[str, Any]: ...


class Answers:
    """``commands`` is what :class:`~spoke.control.ControlServer` serves."""

    def __init__(self, spoke: Asked, stop: Callable[[], None]) -> None:
        """``stop``: called when somebody asks the daemon to end."""
        self._spoke = spoke
        self._stop = stop

    def commands(self) -> Mapping[str, Command]:
        """What the commands may ask, by name."""
        answers: Mapping[str, Command] = {
            "status": self._answer_status,
            "stop": self._answer_stop,
            "explain": self._answer_explain,
            "cache-list": self._answer_cache_list,
            "cache-sizes": self._answer_cache_sizes,
            "cache-evict": self._answer_cache_evict,
            "warm": self._answer_warm,
            "verify": self._spoke.verifying.answer,
            "pin": self._answer_pin,
            "unpin": self._answer_unpin,
            "loss": self._answer_loss,
            "accept": self._answer_accept,
            "purge": self._answer_purge,
            "plan": self._answer_plan,
            "plans": self._answer_plans,
            "orders": self._answer_orders,
            "order-load": self._answer_order_load,
            "order-drop": self._answer_order_drop,
            "learned-reset": self._answer_learned_reset,
        }
        return {name: _with_sound_fields(name, answer) for name, answer in answers.items()}

    async def _answer_status(self, _request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield self._spoke.status()

    async def _answer_stop(self, _request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        self._stop()
        yield {"stopping": True}

    async def _answer_explain(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        path = request.get("path")
        if path is None:
            yield self._spoke.insight.recent()
            return
        facts = await self._spoke.insight.explain(path)
        version, offset_bytes = bytes.fromhex(facts["version"]), facts["offset_bytes"]
        extent = offset_bytes // EXTENT_BYTES if offset_bytes is not None else None
        yield {
            **facts,
            "orders": self._spoke.ahead.orders_of(version, extent),
            "last_job_bytes": self._spoke.last_job.touched_bytes(os.fsencode(facts["path"]), version),
        }

    async def _answer_cache_list(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield await self._spoke.cache_files.list(
            [bytes.fromhex(path) for path in request.get("paths", [""])],
            sort=request.get("sort", "path"),
            most=request.get("most", limits.CACHE_LIST_MAX),
            everything=request.get("everything", False),
        )

    async def _answer_cache_sizes(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield await self._spoke.cache_files.sizes(bytes.fromhex(request.get("path", "")))

    async def _answer_cache_evict(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield await self._spoke.cache_files.evict([bytes.fromhex(path) for path in request.get("paths", [])])

    async def _answer_warm(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        async with contextlib.aclosing(self._spoke.warming.answer(request)) as progress:
            async for facts in progress:
                yield facts

    async def _answer_pin(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        paths = [bytes.fromhex(path) for path in request.get("paths", [])]
        yield await self._spoke.pins.pin(paths) if paths else self._spoke.pins.facts()

    async def _answer_unpin(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        paths = request.get("paths")
        yield await self._spoke.pins.unpin(None if paths is None else [bytes.fromhex(path) for path in paths])

    async def _answer_plan(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield self._spoke.plans.request(bytes.fromhex(request["message"]))

    async def _answer_plans(self, _request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield self._spoke.plans.facts()

    async def _answer_orders(self, _request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield {"directory": str(self._spoke.order_shelf.directory), "orders": list(self._spoke.order_shelf.facts())}

    async def _answer_order_load(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield await self._spoke.order_shelf.load(Path(request["path"]))

    async def _answer_order_drop(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        yield {"dropped": await self._spoke.order_shelf.drop(request["name"])}

    async def _answer_purge(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        paths = [bytes.fromhex(path) for path in request.get("paths", [])]
        versions = purge.chosen(self._spoke.tree, self._spoke.store, paths, request.get("all", False))
        if request.get("dry_run"):
            yield {"files": len(versions), "bytes": sum(map(self._spoke.store.charged_bytes, versions))}
            return
        done = await purge.erase(self._spoke.store, versions)
        if self._spoke.operations is not None:
            self._spoke.operations.forget_bytes(versions)
        # Only then does whoever reads next not get it out of the kernel's memory.
        if self._spoke.device is not None:
            done["kernel_told"] = await self._spoke.device.told(limits.FUSE_TELL_TIMEOUT_S)
        yield done

    async def _answer_learned_reset(self, _request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        await self._spoke.last_job.forget()
        yield {"orders": await self._spoke.learner.reset()}

    async def _answer_loss(self, _request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        suspicion = self._spoke.suspicious
        if suspicion is None:
            yield {"suspicious": None}
            return
        self._check_at_hand()
        losses = Losses()
        for _ in self._spoke.replica.losses(losses, self._spoke.store.present_bytes):
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
        suspicion = self._spoke.suspicious
        if suspicion is None:
            yield {"said": "the hub is not suspicious; nothing to accept"}
            return
        self._check_at_hand()
        seen = request.get("revision"), request.get("catalog_id")
        if seen not in ((None, None), (suspicion.revision, suspicion.catalog_id.hex())):
            raise HeadraceError(f"the hub has said something else meanwhile: {suspicion}; look again")
        self._spoke.follower.accept()
        yield {"said": f"accepted: {suspicion}"}

    def _check_at_hand(self) -> None:
        if not self._spoke.replica.can_accept:
            raise HeadraceError(
                "the hub is suspicious, but since this spoke started it has not shown its names yet "
                f"({self._spoke.client.links.in_words()}); try again when it has"
            )

    def _check_still(self, suspicion: Suspicion) -> None:
        if self._spoke.suspicious is not suspicion:
            raise HeadraceError("the hub has said something else meanwhile; look again")


def _with_sound_fields(name: str, answer: Command) -> Command:
    async def answered(request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        async with contextlib.aclosing(answer(checked(name, request))) as answers:
            async for facts in answers:
                yield facts

    return answered
