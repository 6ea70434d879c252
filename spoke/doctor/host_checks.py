"""Judging this host: the mount, kernel and FUSE, memory, files, clock. Pure: facts in, findings out.

Speeds in the texts that are not of this host were measured on two cores of Linux 6.18 with everything in the page cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from common import limits
from common.terminal import printable
from common.units import format_size
from spoke.doctor.disk_checks import kind_of
from spoke.doctor.facts import Facts, FilesystemKind
from spoke.doctor.findings import Finding, Level
from spoke.doctor.path_checks import milliseconds
from spoke.fuse.kernel import MAX_READ_BYTES, PAGE_BYTES
from spoke.fuse.mountpoint import Answer

KERNEL_OLDEST, KERNEL_PASSTHROUGH = (5, 4), (6, 9)
"""FUSE 7.31; passthrough and re-send."""

READ_AHEAD_KB = 128
"""The mount's own choice: more makes random readers of mapped files move several times the bytes they use."""

PROCESS_BYTES = (
    limits.HEAP_KEPT_BYTES
    + limits.WRITE_BACKLOG_MAX_BYTES
    + limits.BYPASS_MEMORY_BYTES
    + limits.RECENT_MAX_BYTES
    + 96 * 1024 * 1024
)
"""What a spoke may take by its limits, 96 MiB of them the interpreter and its libraries; names come on top."""

NAME_BYTES = 700
"""Memory for one name, kernel and index caches included: 666 MB for a million after a walk of the mount."""

SPARE_FILES = 64
_SLOW_CLOCKS = frozenset({"acpi_pm", "hpet", "pit", "jiffies"})


# --- the mount -------------------------------------------------------------------------------------------


def check_mount(facts: Facts) -> Finding | None:
    """Is something served there, and does its spoke answer?"""
    mount = facts.mount
    if mount is None:
        return None
    pid = f" (process {mount.owner_pid})" if mount.owner_pid is not None else ""
    if not mount.is_mounted:
        return Finding("mount", Level.NOTE, f"nothing of Headrace is mounted on {mount.path}")
    if mount.answer is Answer.DISCONNECTED:
        return Finding(
            "mount",
            Level.PROBLEM,
            f"the spoke of {mount.path} has died",
            "every access there fails with 'Transport endpoint is not connected'",
            f"mount it again with the same command, or take it away: headrace-spoke umount {mount.path}",
        )
    if mount.answer is Answer.SILENT or (mount.control_error and mount.answer is not Answer.SERVED):
        return Finding(
            "mount",
            Level.PROBLEM,
            f"{mount.path} does not answer{pid}: {mount.control_error or 'no reply to statfs'}",
            "whoever touches it waits",
            f"look at the process and its log (stopped? out of memory?); end it: headrace-spoke umount --force {mount.path}",
        )
    if mount.control_error:
        return Finding(
            "mount",
            Level.WARNING,
            f"{mount.path} is served{pid}, its spoke gives no status: {mount.control_error}",
            "what the spoke itself has seen is missing below",
            "run this as the user who mounted it",
        )
    return Finding("mount", Level.OK, f"{mount.path} is served{pid}")


def check_spoke(facts: Facts) -> Iterator[Finding]:
    """What the spoke itself complains about."""
    status = facts.mount.status if facts.mount is not None else None
    if status is None:
        return
    hub, names = status["hub"], status["names"]
    if not hub["connected"]:
        yield Finding(
            "link",
            Level.PROBLEM,
            f"the spoke is not linked to {hub['address']}: {hub['error'] or 'no answer yet'}",
            "cached data, ls and stat are served; a read of anything else waits for the read timeout and fails",
            "see hub in this list",
        )
    held = names.get("held")
    if held:
        yield Finding(
            "names",
            Level.PROBLEM,
            f"the hub has held its names as they were for {held['for_s']:.0f} s: {printable(held['reason'])}",
            "what changed since is not shown, and what is not cached may not be readable",
            "mount the dataset's disk at the hub again; another directory put there on purpose is served once the hub is restarted",
        )
    if names["suspicious"]:
        yield Finding(
            "names",
            Level.PROBLEM,
            str(names["suspicious"]),
            "the names of before are shown until you decide",
            "look at the hub's directory; if the loss is real: headrace-spoke accept MOUNTPOINT",
        )
    for note in status["notes"]:
        yield Finding("spoke", Level.WARNING, str(note))
    corrupt = status["cache"]["corrupt_blocks"]
    if corrupt:
        yield Finding(
            "cache blocks",
            Level.WARNING,
            f"{corrupt} cached blocks did not match their digest since the start",
            "they were dropped and fetched again, never handed out",
            "if they grow, the cache disk or memory is failing: look at dmesg and smartctl",
            {"corrupt_blocks": corrupt},
        )


# --- kernel and FUSE -------------------------------------------------------------------------------------


def check_metrics(facts: Facts) -> Finding | None:
    """Are the mount's figures to be had somewhere?"""
    status = facts.mount.status if facts.mount is not None else None
    if status is None or "metrics" not in status:
        return None
    if status["metrics"] is None:
        return Finding(
            "metrics",
            Level.WARNING,
            "the metrics port is taken by something that is no spoke of this user",
            "Prometheus sees nothing of this mount, and no alert fires for it",
            "give another --metrics port, or end what has it (ss -ltnp); spokes of one user share a port by themselves",
        )
    by = status.get("metrics_served_by")
    return Finding(
        "metrics", Level.OK, f"at http://{status['metrics']}/metrics" + (f", by the spoke of {by}" if by else "")
    )


def check_kernel(facts: Facts) -> Finding | None:
    kernel, release = facts.host.kernel, facts.host.kernel_release
    if kernel is None:
        return None
    if kernel < KERNEL_OLDEST:
        return Finding(
            "kernel", Level.PROBLEM, f"Linux {release}", "mounting is refused", "Linux 5.4 or newer; best 6.9 or newer"
        )
    return Finding("kernel", Level.OK, f"Linux {release}")


def check_passthrough(facts: Facts) -> Finding | None:
    """Can the kernel read whole cached files by itself?"""
    cost = "whole cached files are read through the spoke: about 1 GB/s and 43,000 random reads/s; the kernel alone: 5 and 283,000"
    status = facts.mount.status if facts.mount is not None else None
    if status is not None:
        path = status["data_path"]
        if path["passthrough"]:
            return Finding("passthrough", Level.OK, f"live, {path['passthrough_opens']} opens so far")
        wanted = status["settings"].get("passthrough", {}).get("value") is not False
        return Finding(
            "passthrough",
            Level.WARNING if wanted else Level.NOTE,
            f"off: {path['reason']}",
            cost,
            _passthrough_mend(facts) if wanted else "mount without --no-passthrough",
        )
    kernel, fuse, disk = facts.host.kernel, facts.fuse, facts.disk
    if kernel is None:
        return None
    if kernel < KERNEL_PASSTHROUGH:
        reason = f"Linux {facts.host.kernel_release} does not have it"
    elif fuse.passthrough_built_in is False:
        reason = "this kernel is built without CONFIG_FUSE_PASSTHROUGH"
    elif not fuse.has_admin:
        reason = "it needs CAP_SYS_ADMIN"
    elif fuse.in_initial_user_namespace is False:
        reason = "it needs CAP_SYS_ADMIN in the initial user namespace"
    elif disk is not None and kind_of(disk.fs_type) is FilesystemKind.STACKED:
        reason = f"the cache directory is on {disk.fs_type}, a stacked file system"
    else:
        return Finding("passthrough", Level.OK, "nothing here stands against it; a running mount says for certain")
    return Finding("passthrough", Level.WARNING, f"not to be had: {reason}", cost, _passthrough_mend(facts))


def _passthrough_mend(facts: Facts) -> str:
    if facts.host.kernel is not None and facts.host.kernel < KERNEL_PASSTHROUGH:
        return "Linux 6.9 or newer"
    if facts.fuse.passthrough_built_in is False:
        return "a kernel with CONFIG_FUSE_PASSTHROUGH=y"
    return (
        "run the spoke as root of the host (CAP_SYS_ADMIN), with its cache on a plain file system such as ext4 or xfs"
    )


def check_resend(facts: Facts) -> Finding | None:
    kernel = facts.host.kernel
    if kernel is None:
        return None
    if kernel >= KERNEL_PASSTHROUGH:
        return Finding("re-send", Level.OK, "the kernel can send unanswered requests again to a spoke's successor")
    return Finding(
        "re-send",
        Level.NOTE,
        f"Linux {facts.host.kernel_release} cannot send unanswered requests again",
        "reads that are under way when a spoke's process is replaced are lost to it",
        "Linux 6.9 or newer",
    )


def check_max_pages(facts: Facts) -> Finding | None:
    """fs.fuse.max_pages_limit, since Linux 6.13: the size of one request."""
    pages = facts.fuse.max_pages_limit
    if pages is None:
        return None
    wanted = MAX_READ_BYTES // PAGE_BYTES
    if pages >= wanted:
        return Finding("request size", Level.OK, f"fs.fuse.max_pages_limit is {pages}")
    requests = -(-wanted // pages)
    return Finding(
        "request size",
        Level.WARNING,
        f"fs.fuse.max_pages_limit is {pages}: a request to the spoke holds {format_size(pages * PAGE_BYTES)}",
        f"a read of 1 MiB takes {requests} requests instead of 1",
        f"sysctl -w fs.fuse.max_pages_limit={wanted}, then mount again",
        {"requests_per_mib": requests},
    )


def check_read_ahead(facts: Facts) -> Finding | None:
    """The mount's read_ahead_kb is also what one random touch of a mapped file moves."""
    mount, path = facts.mount, facts.path
    if mount is None or mount.read_ahead_kb is None:
        return None
    kb = mount.read_ahead_kb
    seen = f"read_ahead_kb of the mount is {kb}"
    mend = f"echo {READ_AHEAD_KB} into /sys/class/bdi/0:N/read_ahead_kb, N the mount's minor; it holds for files opened later"
    choice = mount.status["data_path"].get("read_ahead", {}) if mount.status is not None else {}
    if kb in (READ_AHEAD_KB, choice.get("wished_kib")):  # its spoke's choice, by what is read or as it was told
        return Finding("read-ahead", Level.OK, seen)
    if kb > READ_AHEAD_KB:
        factor = kb / READ_AHEAD_KB
        cost = f"each random touch of a mapped file moves {kb} KiB, {factor:.3g} times what {READ_AHEAD_KB} does"
        more_s = (kb - READ_AHEAD_KB) * 1024 / path.rate_bytes_per_s
        cost += f": {milliseconds(more_s)} more of the link for one that is not cached"
        return Finding("read-ahead", Level.WARNING, seen, cost, mend, {"factor": factor, "more_s": more_s})
    requests = MAX_READ_BYTES // (kb * 1024) if kb else MAX_READ_BYTES // PAGE_BYTES
    level = Level.WARNING if kb == 0 else Level.NOTE
    cost = f"buffered reads arrive as {requests} requests a MiB instead of {MAX_READ_BYTES // (READ_AHEAD_KB * 1024)}"
    return Finding("read-ahead", level, seen, cost, mend, {"requests_per_mib": requests})


def check_fuse_device(facts: Facts) -> Finding | None:
    """May this user mount?"""
    fuse = facts.fuse
    if facts.mount is not None and facts.mount.is_mounted:
        return None
    if fuse.device_error:
        return Finding(
            "/dev/fuse",
            Level.PROBLEM,
            fuse.device_error,
            "nothing can be mounted",
            "modprobe fuse; a container needs the device and the right to use it (privileged, or a device plugin)",
        )
    if fuse.is_root and fuse.has_admin:
        return Finding("/dev/fuse", Level.OK, "can be opened, and this user may mount")
    if fuse.helper is None:
        return Finding(
            "/dev/fuse",
            Level.PROBLEM,
            "this user may not mount (no CAP_SYS_ADMIN), and fusermount3 is not installed",
            "nothing can be mounted",
            "install the package fuse3, or run as root",
        )
    if not fuse.helper_is_setuid:
        return Finding(
            "/dev/fuse",
            Level.PROBLEM,
            f"this user may not mount (no CAP_SYS_ADMIN), and {fuse.helper} is not set-uid root",
            "nothing can be mounted",
            f"chmod u+s {fuse.helper} as root, or run as root",
        )
    return Finding("/dev/fuse", Level.OK, f"can be opened; {fuse.helper} mounts for this user")


# --- the process -----------------------------------------------------------------------------------------


def check_open_files(facts: Facts) -> Finding | None:
    most = facts.host.open_files_max
    if most is None:
        return None
    status = facts.mount.status if facts.mount is not None else None
    held = max(limits.CACHE_OPEN_FILES_MAX, status["data_path"]["open_files"] if status is not None else 0)
    wanted = 2 * held + limits.BULK_LINKS_MAX + 1 + SPARE_FILES
    figures = {"open_files_max": most, "wanted": wanted}
    seen = f"{most:,} open files allowed, up to {wanted:,} used"
    if most >= wanted:
        return Finding("open files", Level.OK, seen, figures=figures)
    return Finding(
        "open files",
        Level.PROBLEM if most < limits.BULK_LINKS_MAX + SPARE_FILES else Level.WARNING,
        seen,
        "opens and links fail with 'Too many open files' when many files are read at once",
        f"ulimit -n {max(1024, 2 * wanted)}, or LimitNOFILE= in its unit",
        figures,
    )


def check_memory(facts: Facts) -> Finding | None:
    """The limit of its cgroup (or what the host has left) against what a spoke may take."""
    host = facts.host
    bounds = [bound for bound in (host.memory_limit_bytes, host.memory_available_bytes) if bound is not None]
    if not bounds:
        return None
    status = facts.mount.status if facts.mount is not None else None
    names = status["names"]["entries"] if status is not None else 0
    wanted = PROCESS_BYTES + names * NAME_BYTES
    limit = host.memory_limit_bytes
    if limit is not None and limit <= min(bounds):
        seen, have = f"its cgroup may use {format_size(limit)}", limit
        mend = f"raise the memory limit to {format_size(2 * wanted)}; page cache of cached files counts against it too"
    elif status is not None:  # it has its memory already
        return Finding("memory", Level.OK, f"{format_size(min(bounds))} available on the host")
    else:
        seen, have = f"{format_size(min(bounds))} available on the host", min(bounds)
        mend = "free memory, or a larger host"
    figures = {"have_bytes": have, "wanted_bytes": wanted}
    if have >= wanted:
        return Finding("memory", Level.OK, f"{seen}; a spoke takes up to {format_size(wanted)}", figures=figures)
    return Finding(
        "memory",
        Level.PROBLEM if have < wanted / 2 else Level.WARNING,
        seen,
        f"a spoke of {names:,} names takes up to {format_size(wanted)}: it may be killed under load",
        mend,
        figures,
    )


def check_clock(facts: Facts) -> Finding | None:
    host = facts.host
    if host.monotonic_went_back:
        return Finding(
            "clock",
            Level.PROBLEM,
            "the monotonic clock went back",
            "timeouts and rates are wrong",
            "use another clock source: /sys/devices/system/clocksource/clocksource0/available_clocksource",
        )
    if host.clocksource in _SLOW_CLOCKS:
        return Finding(
            "clock",
            Level.NOTE,
            f"the clock source is {host.clocksource}",
            "reading the time is a system call and slow; a spoke does it for every read",
            "use tsc or the hypervisor's clock where this host offers it",
        )
    source = f"source {host.clocksource}" if host.clocksource else "monotonic"
    if host.clock_synchronised is False:
        return Finding(
            "clock",
            Level.NOTE,
            f"{source}; the kernel says it is not synchronised",
            "nothing in Headrace compares clocks across the wire; only log lines of two hosts do not line up",
            "run chrony or systemd-timesyncd",
        )
    return Finding("clock", Level.OK, f"{source}; clocks never cross the wire, so none is compared with the hub's")


_CHECKS: tuple[Callable[[Facts], Finding | None], ...] = (
    check_mount,
    check_metrics,
    check_kernel,
    check_passthrough,
    check_resend,
    check_max_pages,
    check_read_ahead,
    check_fuse_device,
    check_open_files,
    check_memory,
    check_clock,
)


def host_findings(facts: Facts) -> Iterator[Finding]:
    """All that is to say about this host, in a fixed order."""
    for check in _CHECKS:
        finding = check(facts)
        if finding is not None:
            yield finding
    yield from check_spoke(facts)
    for name in facts.unanswered:
        yield Finding("probe", Level.WARNING, f"{name} did not answer in time and was given up", "it is not judged")
