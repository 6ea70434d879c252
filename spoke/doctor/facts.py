"""What the probes bring and the checks judge. None anywhere means: not known, could not be read, or was not asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from spoke.fuse.mountpoint import Answer


class Source(Enum):
    """Where a number of the path comes from."""

    GIVEN = "given"
    MEASURED = "measured"
    SPOKE = "seen by the spoke"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class PathFacts:
    """The way to the hub. ``rtt_s`` None: not known, then nothing that depends on it is judged."""

    rtt_s: float | None
    rtt_source: Source
    rate_bytes_per_s: float
    rate_source: Source
    bulk_links: int = 0
    """Set by the operator; 0: as the path wants."""


@dataclass(frozen=True, slots=True)
class TcpFacts:
    """This host's TCP: its sysctl values by their names, triples in bytes (``tcp_mem``: pages)."""

    rmem_bytes: tuple[int, int, int] | None = None
    wmem_bytes: tuple[int, int, int] | None = None
    mem_pages: tuple[int, int, int] | None = None
    moderate_rcvbuf: int | None = None
    window_scaling: int | None = None
    sack: int | None = None
    slow_start_after_idle: int | None = None
    mtu_probing: int | None = None
    congestion_control: str | None = None
    available: Sequence[str] = ()
    bbr_refused: str | None = None
    """What the kernel said when a socket asked for BBR; empty when it agreed."""
    default_qdisc: str | None = None
    page_bytes: int = 4096


class HubState(Enum):
    NOT_ASKED = "not asked"
    WELCOMED = "welcomed"
    NAMED_NO_DATASET = "answered"
    """It spoke the protocol; it does not have the dataset, or was asked for none."""
    NO_NAME = "name not found"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    SILENT = "silent"
    """It took the connection and did not answer HELLO."""
    OTHER_PROTOCOL = "other protocol"
    ASKS_WHO = "asks who"
    """The two do not believe each other: certificates or a token are missing, wrong or out of date at one of them."""
    NOTHING_TO_SHOW = "nothing to show"
    """Our own certificate or token cannot be read."""
    NOT_ALLOWED = "not allowed"
    """It knows who we are, and its table of identities gives us nothing, or not this dataset."""
    SENT_AWAY = "sent away"
    """It answered HELLO with an error of its own."""


@dataclass(frozen=True, slots=True)
class HubFacts:
    """``pings_s``: round trips of PINGs, in order. ``said``: the hub's or the kernel's own words about a failure."""

    address: str = ""
    dataset: str = ""
    state: HubState = HubState.NOT_ASKED
    said: str = ""
    connect_s: float | None = None
    pings_s: Sequence[float] = ()
    wire_version: int | None = None
    head_revision: int | None = None
    send_buffer_bytes: int = 0
    mtu_bytes: int | None = None
    """Of the route, or less if TCP has learnt so."""
    is_ipv6: bool = False
    is_loopback: bool = False
    shown: str = ""
    """What was shown to it, for people: certificate, token; empty: nothing."""
    certificate_left_s: float | None = None
    """Of the certificate that was shown, until it expires; below 0 once it has."""


class FilesystemKind(Enum):
    LOCAL = "local"
    MEMORY = "memory"
    STACKED = "stacked"
    NETWORK = "network"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """``directory``: what was looked at, the cache directory or, while it does not exist, its nearest parent."""

    wanted: str
    directory: str
    hung: bool = False
    exists: bool = True
    error: str = ""
    """Why no file could be made or written."""
    fs_type: str | None = None
    total_bytes: int = 0
    free_bytes: int = 0
    free_inodes: int | None = None
    """None where the file system has no fixed number."""
    write_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None
    punches_holes: bool | None = None
    floor_bytes: int = 1 << 30
    capacity_bytes: int | None = None
    """What the cache may hold, from a running spoke."""
    used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FuseFacts:
    """``device_error``: why /dev/fuse cannot be opened, empty when it can. ``helper``: path of fusermount3."""

    device_error: str = ""
    helper: str | None = None
    helper_is_setuid: bool = False
    is_root: bool = False
    has_admin: bool = False
    in_initial_user_namespace: bool | None = None
    max_pages_limit: int | None = None
    passthrough_built_in: bool | None = None
    """CONFIG_FUSE_PASSTHROUGH of this kernel, where its configuration can be read."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """``open_files_max``, ``memory_limit_bytes``: of the running spoke, else of this process."""

    kernel: tuple[int, int] | None
    kernel_release: str
    open_files_max: int | None = None
    memory_limit_bytes: int | None = None
    memory_available_bytes: int | None = None
    in_kubernetes: bool = False
    monotonic_went_back: bool = False
    clocksource: str | None = None
    clock_synchronised: bool | None = None


@dataclass(frozen=True, slots=True)
class MountFacts:
    """``answer``: to statfs. ``control_error``: why the spoke's control socket gave no status. ``status``: what it gave."""

    path: str
    is_mounted: bool
    answer: Answer | None = None
    owner_pid: int | None = None
    control_error: str = ""
    read_ahead_kb: int | None = None
    status: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    path: PathFacts
    tcp: TcpFacts
    hub: HubFacts
    fuse: FuseFacts
    host: HostFacts
    disk: DiskFacts | None = None
    mount: MountFacts | None = None
    unanswered: Sequence[str] = ()
    """Probes that were given up."""
