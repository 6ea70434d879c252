"""One worker process: from what its supervisor hands it until the mount is taken away, or handed on to the next worker.

It makes one :class:`~spoke.daemon.Spoke`, and another if the mount comes back because the next worker could not take it.
"""

from __future__ import annotations

import asyncio
import os
import signal

from common import runtime
from common.config import Loaded
from common.errors import HeadraceError
from common.log import get_logger
from common.metrics import preload
from common.runtime import cancel_and_wait
from common.units import format_address
from spoke.config import SpokeSettings
from spoke.daemon import Spoke, credentials_of
from spoke.fuse import mountpoint as mountpoints
from spoke.places import runtime_dir
from spoke.privileges import drop_unneeded
from spoke.supervisor.channel import Channel
from spoke.worker import Handed, SupervisorLine

log = get_logger(__name__)


def run_spoke(mountpoint: str, loaded: Loaded[SpokeSettings], channel: Channel) -> None:
    """Serve one mount as its supervisor's worker, until SIGTERM, SIGINT, ``umount``, a lost mount, or the next worker."""
    # A terminal that hangs up is the supervisor's affair.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # nor does its background stop our log
    # Here and not in the supervisor, which must be able to start a worker that keeps more.
    # A mount that stands must not be asked for its owner: nobody would answer before us.
    where = os.path.dirname(mountpoint) if mountpoints.mounts_at(mountpoint) else mountpoint
    drop_unneeded([*loaded.settings.paths(where), runtime_dir()])
    if not runtime.run(_serve(mountpoint, loaded, channel)):
        runtime.leave_threads_behind()


async def _serve(mountpoint: str, loaded: Loaded[SpokeSettings], channel: Channel) -> bool:
    """False: the cache disk still holds a thread."""
    stop = asyncio.Event()
    runtime.stop_on_signals(stop)
    async with SupervisorLine(channel) as line:
        handed = await line.handed()
        if handed is not None and handed.facts.get("standby"):
            credentials_of(loaded.settings)
            await preload()
            line.say("prepared")  # all code is read and the settings are fit; the worker before serves on
            handed = await line.handed()
        while handed is not None:
            handed = await _serve_handed(mountpoint, loaded, line, handed, stop)
    return line.quiet


async def _serve_handed(
    mountpoint: str, loaded: Loaded[SpokeSettings], line: SupervisorLine, handed: Handed, stop: asyncio.Event
) -> Handed | None:
    """Serve until the end (None), or until another worker was to take over and could not."""
    starting = asyncio.create_task(Spoke.start(mountpoint, loaded, handed, line), name="start")
    stopped = asyncio.create_task(stop.wait(), name="stop signal")
    lost = asyncio.create_task(line.lost.wait(), name="supervisor lost")
    await asyncio.wait([starting, stopped, lost], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        await cancel_and_wait(starting)
        raise HeadraceError("stopped before the mount was ready")
    await cancel_and_wait(stopped, lost)
    spoke = starting.result()
    keep_mount = True  # an error of ours is the next worker's to mend
    try:
        address = spoke.pages.address
        line.say(
            "ready",
            line=f"mounted {loaded.settings.dataset} on {mountpoint}",
            metrics=format_address(*address) if address is not None else None,
        )
        event = "took the mount over" if handed.goes_on else "mounted"
        log.info(event, mountpoint=mountpoint, dataset=loaded.settings.dataset, hub=loaded.settings.hub)
        await spoke.wait(stop, line.release_asked, line.lost)
        keep_mount = line.release_asked.is_set() and not stop.is_set()
        if line.lost.is_set():
            keep_mount = bool(line.facts.get("stored"))
            log.error("the supervisor is gone", mount="left to the next" if keep_mount else "taken away")
    finally:
        if not keep_mount:
            line.say("stopping")
        await spoke.close(keep_mount)
        line.quiet = spoke.store.is_quiet
        log.info("handed the mount on" if keep_mount else "unmounted", mountpoint=mountpoint)
    if not keep_mount or line.lost.is_set():
        return None
    line.say("released")
    return await line.handed()
