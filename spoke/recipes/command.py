"""A recipe from its options to the spoke that follows it: expands the first segment, has it loaded, makes the next ones in time.
The beginning of the first is loaded before the rest is computed.

All of this is the command's own process. What the daemon does is open a file.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common import limits
from common.errors import DiskError, HeadraceError, UsageError
from spoke import control
from spoke.fuse.mountpoint import locate
from spoke.orders.mapped import READER
from spoke.places import runtime_dir
from spoke.prefetch.orders import Reader
from spoke.recipes import NAMES
from spoke.recipes.options import Given, Options

_COMMON = ("job", "seen-as", "work-dir", "segment-steps", "epochs", "name", "dry-run")
Say = Callable[[str], object]


def run_recipe(
    name: str, options: Given, mountpoint: Path | str, *, say: Say = print, follow: bool = True
) -> Mapping[str, object]:
    """As :func:`spoke.recipes.run`."""
    if name not in NAMES:
        raise UsageError(f"there is no recipe {name}; there are {', '.join(NAMES)}")
    if importlib.util.find_spec("numpy") is None:
        raise UsageError("recipes need NumPy to draw the numbers that loaders draw: pip install 'headrace[recipes]'")
    return _Run(name, options, locate(Path(mountpoint)), say).run(follow=follow)


class _Run:
    def __init__(self, recipe_name: str, given: Given, mountpoint: str, say: Say) -> None:
        from spoke.recipes.expand import START, Expansion, Place
        from spoke.recipes.files import MountedFiles
        from spoke.recipes.scratch import Scratch

        self._socket = control.socket_path(runtime_dir(), mountpoint)
        self._say = say
        options = self._options = Options(recipe_name, given)
        self._directory = Path(control.ask_once(self._socket, {"command": "orders"})["directory"])
        work = Path(options.text("work-dir") or self._directory)
        self._max_steps = options.count("segment-steps", default=limits.RECIPE_SEGMENT_STEPS, least=1)
        last_epoch = options.integer("epochs", least=1)
        self._dry_run = options.flag("dry-run")
        wanted_name = options.text("name")
        seen_as = options.text("seen-as")
        job = options.integer("job", least=1)
        if job is not None:  # from here on: what is the command's own is never taken from the job
            from spoke.recipes.running_job import job_options

            options.add_layer(f"process {job}", job_options(job))
        self._files = MountedFiles(mountpoint, seen_as, Scratch(work))
        self._recipe = make(recipe_name, options, self._files)
        options.finish(_COMMON)
        self._name = wanted_name or self._recipe.name
        self._expansion = Expansion(self._recipe, last_epoch=last_epoch)
        self._place: Place | None = START
        self._made = 0

    def run(self, *, follow: bool) -> Mapping[str, object]:
        facts: dict[str, Any] = {
            "name": self._name,
            "lanes": list(self._recipe.lanes),
            "options": dict(self._options.notes),
        }
        for option, value in sorted(self._options.notes.items()):
            self._say(f"  {option} = {value}")
        first = self._first_segment()
        facts |= {
            "steps": first.steps,
            "step_bytes": first.step_bytes,
            "whole": first.resume is None,
            "path": str(first.path),
        }
        self._say(
            f"{self._name}: {len(self._recipe.lanes)} lanes, {first.steps} reads of {first.step_bytes} bytes"
            + ("" if first.resume is None else " in the first segment")
        )
        if self._dry_run:
            first.path.unlink(missing_ok=True)
            return facts
        self._load(first.path)
        if follow and first.resume is not None:
            self._keep_on(first.name)
        return facts

    def _first_segment(self) -> Any:
        from spoke.recipes.expand import START

        if self._dry_run:
            return self._next_segment()
        made = self._next_segment(limits.RECIPE_FIRST_STEPS, limits.RECIPE_FIRST_EPOCHS)
        if made.resume is None or made.steps >= self._max_steps:
            return made
        self._load(made.path)
        self._say(f"{self._name}: {made.steps} reads to begin with")
        self._place, self._made = START, 0
        return self._next_segment()  # of the same name: it takes the other's place

    def _next_segment(self, most_steps: int | None = None, max_epochs: int = limits.RECIPE_SEGMENT_EPOCHS) -> Any:
        """Write the segment at the place we are at; its file is named for the daemon to find."""
        assert self._place is not None
        max_steps = min(most_steps or self._max_steps, self._max_steps)
        name = self._name if self._made == 0 else f"{self._name}#{self._made + 1}"
        path = self._directory / f"recipe-{_as_file_name(name)}.order"
        facts = [self._files.facts(os.fsdecode(path)) for path in self._recipe.paths]
        meta = {f"option.{option}": value for option, value in self._options.notes.items()}
        meta |= {f"lane.{number}": lane for number, lane in enumerate(self._recipe.lanes[:256])}
        meta[READER] = (Reader.MAPPED if self._recipe.is_mapped else Reader.EXACT).value
        meta["begins"] = f"epoch {self._place.epoch}, sample {self._place.sample}"
        room_bytes = 40 * max_steps
        try:
            if shutil.disk_usage(self._directory).free < room_bytes:
                raise DiskError(
                    f"a segment of {max_steps} reads takes up to {room_bytes} bytes in {self._directory}, which has less "
                    "left; give fewer --segment-steps"
                )
            made = self._expansion.write(
                path, name, self._place, facts, meta, max_steps=max_steps, max_epochs=max_epochs
            )
        except OSError as error:
            raise DiskError(f"{path} cannot be written: {error.strerror}") from error
        self._place = made.resume
        self._made += 1
        return made

    def _load(self, path: Path) -> None:
        control.ask_once(
            self._socket, {"command": "order-load", "path": str(path)}, timeout_s=limits.ORDER_LOAD_TIMEOUT_S
        )

    def _keep_on(self, name: str) -> None:
        """Make the next segment once the one that is read is half through; drop those that are done."""
        loaded = [name]
        while True:
            time.sleep(limits.RECIPE_FOLLOW_INTERVAL_S)
            orders = {order["name"]: order for order in control.ask_once(self._socket, {"command": "orders"})["orders"]}
            if not any(name in orders for name in loaded):
                raise HeadraceError(
                    f"the spoke follows {self._name} no longer: it was dropped, or it was not what is read"
                )
            for old in loaded[:-1]:
                if old in orders and is_through(orders[old]):
                    control.ask_once(self._socket, {"command": "order-drop", "name": old})
                    loaded.remove(old)
            if self._place is not None and loaded[-1] in orders and progress(orders[loaded[-1]]) >= 0.5:
                made = self._next_segment()
                self._load(made.path)
                loaded.append(made.name)
                self._say(f"{made.name}: {made.steps} reads more")
            if self._place is None:
                return


def progress(order: Mapping[str, Any]) -> float:
    """How far the lane is that is furthest, 0 to 1; 0 while nobody was found in it."""
    return max(((lane["position"] or 0) / max(1, lane["length"]) for lane in order["lanes"]), default=0.0)


def is_through(order: Mapping[str, Any]) -> bool:
    """All lanes that were ever found in it are at its end."""
    lanes = [lane for lane in order["lanes"] if lane["position"] is not None]
    return order.get("state") == "done" or (bool(lanes) and all(lane["position"] >= lane["length"] for lane in lanes))


def make(name: str, options: Options, files: Any) -> Any:
    """The recipe of this name. Raises UsageError for options that cannot be."""
    if name == "megatron":
        from spoke.recipes.megatron import Megatron as Made
    elif name == "olmo-core":
        from spoke.recipes.olmo import OlmoCore as Made  # type: ignore[assignment]
    elif name == "mds":
        from spoke.recipes.mds import Mds as Made  # type: ignore[assignment]
    elif name == "litdata":
        from spoke.recipes.litdata import Litdata as Made  # type: ignore[assignment]
    elif name == "webdataset":
        from spoke.recipes.webdataset import Webdataset as Made  # type: ignore[assignment]
    else:
        from spoke.recipes.fixed_records import FixedRecords as Made  # type: ignore[assignment]
    return Made(options, files)


def _as_file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]", "_", name)[:120]
