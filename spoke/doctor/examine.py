"""Run the probes, side by side and each for a bounded time, and hand what they bring to the checks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from common import limits
from common.config import parse_dataset_name
from common.errors import UsageError
from common.units import parse_address
from spoke.doctor.disk_checks import disk_findings
from spoke.doctor.facts import (
    DiskFacts,
    Facts,
    FuseFacts,
    HostFacts,
    HubFacts,
    HubState,
    MountFacts,
    PathFacts,
    Source,
    TcpFacts,
)
from spoke.doctor.findings import Finding
from spoke.doctor.host_checks import host_findings
from spoke.doctor.path_checks import path_findings
from spoke.doctor.probe_disk import disk_facts
from spoke.doctor.probe_host import fuse_facts, host_facts, tcp_facts
from spoke.doctor.probe_hub import hub_facts, least_rtt_s
from spoke.doctor.probe_mount import ask_status, mount_facts, started_with
from spoke.doctor.showing import Showing, settings_of, showing
from spoke.fuse.mountpoint import Answer, ask_mount, locate, mounts_at
from spoke.hub_client.sizing import ASSUMED_RATE_BYTES_PER_S

DEFAULT_HUB_PORT = 7420

_RAN_OUT_S = 0.5
"""What a probe with limits of its own gets beyond them before it is given up."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command was given; None: not given. ``rtt_s`` and ``rate_bytes_per_s`` win over what is measured."""

    mountpoint: Path | None = None
    hub: str | None = None
    dataset: str | None = None
    cache_dir: Path | None = None
    rtt_s: float | None = None
    rate_bytes_per_s: float | None = None
    who: Mapping[str, Any] = field(default_factory=dict)
    """Flags that say what is shown to the hub: ``tls_cert``, ``token_file``, … (:data:`spoke.doctor.showing.NAMES`)."""
    environ: Mapping[str, str] = field(default_factory=dict)
    config: Path | None = None


class Probe(Generic[T]):
    """A call in a daemon thread: started now, asked for later, given up when it hangs."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._result: list[T] = []
        self._error: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="doctor-probe", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:  # noqa: BLE001 handed to the caller
            self._error.append(error)

    def result(self, end_s: float, now_s: Callable[[], float]) -> T | None:
        """None when it has not come by then. Raises what the call raised."""
        self._thread.join(max(0.0, end_s - now_s()))
        if self._error:
            raise self._error[0]
        return self._result[0] if self._result else None


def examine(asked: Asked, runtime_dir: Path, now_s: Callable[[], float]) -> tuple[Facts, list[Finding]]:
    """All facts, and the findings, worst first. Takes less than nine seconds. Raises UsageError for what cannot be asked."""
    if asked.rate_bytes_per_s == 0:
        raise UsageError("a link of rate 0 carries nothing; write --rate like 10gbit")
    flags = {"hub": asked.hub, "dataset": asked.dataset, "cache_dir": asked.cache_dir, **asked.who}
    before = settings_of(flags, None, {}, asked.environ, asked.config)
    if "hub" in before:
        parse_address(str(before["hub"]), DEFAULT_HUB_PORT)
    mount = _mount(asked, before, runtime_dir, now_s) if asked.mountpoint is not None else None
    status = mount.status if mount is not None else None
    started = started_with(mount.owner_pid) if mount is not None and mount.owner_pid and status is None else {}
    settings = settings_of(flags, status, started, asked.environ, asked.config)
    given = settings.get("dataset")
    dataset = asked.dataset or (status["dataset"] if status is not None else None) or _dataset_of(mount) or given
    if dataset is not None:
        parse_dataset_name(str(dataset))
    address = asked.hub or (status["hub"]["address"] if status is not None else settings.get("hub"))
    hub = parse_address(str(address), DEFAULT_HUB_PORT) if address is not None else None
    cache_dir = asked.cache_dir or _cache_dir(status, settings)
    show = showing({**settings, "hub": address}) if address is not None else Showing()

    pid = mount.owner_pid if mount is not None else None
    began_s = now_s()
    hub_probe = Probe(lambda: hub_facts(*hub, dataset, now_s, show)) if hub is not None else None
    disk_probe = Probe(lambda: disk_facts(cache_dir, now_s)) if cache_dir is not None else None
    host_probe = Probe(lambda: (host_facts(now_s, pid), tcp_facts(), fuse_facts()))

    unanswered: list[str] = []
    host = host_probe.result(began_s + limits.DOCTOR_HOST_TIMEOUT_S, now_s)
    if host is None:
        unanswered.append("the look at /proc and /sys")
        host = (HostFacts(None, ""), TcpFacts(), FuseFacts())
    disk = None
    if disk_probe is not None:
        found = disk_probe.result(began_s + limits.DOCTOR_DISK_TIMEOUT_S, now_s)
        disk = found or DiskFacts(str(cache_dir), str(cache_dir), hung=True)
        disk = _with_settings(disk, status, asked.cache_dir)
    heard = HubFacts()
    if hub_probe is not None:
        came = hub_probe.result(began_s + limits.DOCTOR_HUB_TIMEOUT_S + _RAN_OUT_S, now_s)
        heard = came or HubFacts(
            str(address or ""), dataset or "", HubState.NO_NAME, "name service did not answer in time"
        )
    facts = Facts(
        path=path_of(asked, heard, status),
        tcp=host[1],
        hub=heard,
        fuse=host[2],
        host=host[0],
        disk=disk,
        mount=mount,
        unanswered=unanswered,
    )
    return facts, judged(facts)


def judged(facts: Facts) -> list[Finding]:
    """Worst first; among equals the mount, the host and the disk before the path."""
    return sorted(
        [*host_findings(facts), *disk_findings(facts), *path_findings(facts)], key=lambda finding: -finding.level
    )


def path_of(asked: Asked, hub: HubFacts, status: Mapping[str, Any] | None) -> PathFacts:
    """Round trip and rate: given, else the least that was measured, else what the spoke has seen, else assumed."""
    seen: Mapping[str, Any] = status["hub"] if status is not None else {"rtt_s": None, "rate_bytes_per_s": 0.0}
    measured_s = least_rtt_s(hub)
    rtt_s, rtt_source = measured_s, Source.MEASURED
    if seen["rtt_s"] is not None and (measured_s is None or seen["rtt_s"] < measured_s):
        rtt_s, rtt_source = seen["rtt_s"], Source.SPOKE
    if asked.rtt_s is not None:
        rtt_s, rtt_source = asked.rtt_s, Source.GIVEN
    rate: float = ASSUMED_RATE_BYTES_PER_S
    rate_source = Source.ASSUMED
    if seen["rate_bytes_per_s"] > rate:  # less may just mean that nobody has read yet
        rate, rate_source = seen["rate_bytes_per_s"], Source.SPOKE
    if asked.rate_bytes_per_s is not None:
        rate, rate_source = asked.rate_bytes_per_s, Source.GIVEN
    links = status["settings"]["links"]["value"] if status is not None else 0
    return PathFacts(rtt_s, rtt_source, rate, rate_source, links)


def _mount(asked: Asked, before: Mapping[str, Any], runtime_dir: Path, now_s: Callable[[], float]) -> MountFacts:
    assert asked.mountpoint is not None
    path = locate(asked.mountpoint)
    mounts = mounts_at(path)
    if not mounts or not mounts[-1].is_ours:
        if "hub" not in before and "cache_dir" not in before:
            raise UsageError(
                f"{path} is not a mount of Headrace; mount it, or give --hub and --cache-dir, or --config, to look at what it would use"
            )
        return MountFacts(path, is_mounted=False)
    end_s = now_s() + limits.DOCTOR_ASK_TIMEOUT_S + _RAN_OUT_S
    statfs, asking = Probe(lambda: ask_mount(path)), Probe(lambda: ask_status(runtime_dir, path))
    status, said = asking.result(end_s, now_s) or (None, "its control socket does not answer")
    return mount_facts(path, runtime_dir, statfs.result(end_s, now_s) or Answer.SILENT, status, said)


def _dataset_of(mount: MountFacts | None) -> str | None:
    """A mount's source names its dataset, whatever became of its spoke."""
    if mount is None or not mount.is_mounted:
        return None
    mounts = mounts_at(mount.path)
    return (mounts[-1].source.partition(":")[2] or None) if mounts else None


def _cache_dir(status: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> Path | None:
    if status is not None:
        return Path(status["cache"]["directory"])
    given = settings.get("cache_dir")  # a mount may have been started elsewhere: only a whole path says which it is
    return Path(str(given)) if given is not None and str(given).startswith("/") else None


def _with_settings(disk: DiskFacts, status: Mapping[str, Any] | None, given: Path | None) -> DiskFacts:
    """What the running spoke may use of the disk, unless another one was asked about."""
    if status is None or given is not None:
        return disk
    return replace(
        disk,
        floor_bytes=status["settings"]["cache_free_floor"]["value"],
        capacity_bytes=status["cache"]["capacity_bytes"],
        used_bytes=status["cache"]["used_bytes"],
    )
