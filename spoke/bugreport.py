"""``headrace-spoke bugreport``: all that helps to find a fault, in one tar.gz, secrets left out.

Whatever cannot be had (a spoke that is dead or silent) is said in the file that would hold it; the rest is there.
"""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from common import __version__, limits, runtime
from common.errors import HeadraceError
from common.redact import is_secret_name, scrubbed, without_secrets
from spoke import control
from spoke.fuse import mountpoint as mountpoints
from spoke.places import runtime_dir

_SYSCTLS = (
    "net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem", "net/core/rmem_max", "net/core/wmem_max", "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_available_congestion_control", "net/core/default_qdisc", "net/ipv4/tcp_mtu_probing", "vm/dirty_ratio",
    "vm/swappiness", "kernel/pid_max", "fs/file-max",
)  # fmt: skip
_PROCESS_FILES = ("status", "limits", "stat", "io", "cgroup", "oom_score_adj")
_SECRET_FILE_MAX_BYTES = 64 * 1024
_ANSWER_TIMEOUT_S = 5.0
_JOURNAL_LINES = 5000
ABOUT = """A bug report of headrace-spoke. One file each:

status.json    what the spoke says of itself, its settings and where each came from
explain.json   reads that waited last, and why; who lost time
metrics.txt    its metrics
doctor.json    what headrace-spoke doctor finds on this host
host.json      kernel, memory, limits, mounts of Headrace, packages
log.txt        the end of its log (or of the journal)

Left out: values of settings, variables and fields whose names speak of tokens, keys, passwords or credentials; what the files
hold that such settings name, wherever it stands; keys, tokens and passwords by their looks. No environment is in it but the names
of HEADRACE_… variables; no file contents of the dataset. Paths and host names are: read it before you pass it on.
"""


def gather(mountpoint: Path, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(name, text) of each file of the report, scrubbed. Bounded in time: some 20 s with everything stuck."""
    path = mountpoints.locate(mountpoint)
    status = _attempt(lambda: _asked(path, "status"))
    settings = status.get("settings", {}) if isinstance(status, dict) else {}
    secrets = secrets_of(settings, environ)

    def shown(value: Any) -> str:
        return json.dumps(without_secrets(value, secrets), indent=1, default=str) + "\n"

    yield "README.txt", ABOUT
    yield "status.json", shown(status)
    yield "explain.json", shown(_attempt(lambda: _asked(path, "explain")))
    metrics = status.get("metrics") if isinstance(status, dict) else None
    if metrics:
        yield "metrics.txt", scrubbed(str(_attempt(lambda: _fetched(f"http://{metrics}/metrics"))), secrets)
    yield "doctor.json", shown(_attempt(lambda: _doctor(mountpoint)))
    pid = status.get("pid") if isinstance(status, dict) else None
    owner = mountpoints.read_owner(runtime_dir(), path)
    yield "host.json", shown(host_facts(path, pid or (owner.pid if owner is not None else None), settings, environ))
    yield "log.txt", scrubbed(_log(path, pid), secrets)


def secrets_of(settings: Mapping[str, Any], environ: Mapping[str, str]) -> set[str]:
    """Texts that must not be in the report: what secret settings and variables hold, and the files they name."""
    values = [
        entry.get("value") for name, entry in settings.items() if is_secret_name(name) and isinstance(entry, dict)
    ]
    values += [value for name, value in environ.items() if is_secret_name(name)]
    found: set[str] = set()
    for value in values:
        if not isinstance(value, str) or not value:
            continue
        file = Path(value)
        text = None
        with suppress(OSError, ValueError):
            if file.is_absolute() and file.is_file():
                with file.open(errors="replace") as lines:
                    text = lines.read(_SECRET_FILE_MAX_BYTES)
        if text is None:
            found.add(value)
        else:
            found.update(line.strip() for line in text.splitlines() if line.strip() and not line.startswith("-----"))
    return found


def pack(files: Iterator[tuple[str, str]], target: Path, now_s: float) -> None:
    """Write a tar.gz that its owner alone may read. Raises HeadraceError when it cannot be written, or is there already."""
    try:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise HeadraceError(f"cannot write {target}: {error.strerror}; give another --output") from None
    with os.fdopen(fd, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, text in files:
            data = text.encode("utf-8", "backslashreplace")
            entry = tarfile.TarInfo(f"{target.name.removesuffix('.tar.gz')}/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(now_s)
            archive.addfile(entry, io.BytesIO(data))


def host_facts(path: str, pid: int | None, settings: Mapping[str, Any], environ: Mapping[str, str]) -> Mapping[str, Any]:  # fmt: skip
    """Kernel, memory, limits, mounts, packages; of the spoke's process what /proc says but its environment and command line."""
    facts: dict[str, Any] = {
        "headrace": __version__,
        "python": platform.python_version(),
        "packages": {name: _attempt(lambda name=name: metadata.version(name)) for name in  # type: ignore[misc]
                     ("uvloop", "aiohttp", "msgpack", "xxhash", "zstandard", "pydantic", "structlog", "typer")},
        "uname": " ".join(platform.uname()),
        "os": _text("/etc/os-release"),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "memory": _text("/proc/meminfo"),
        "pressure": {name: _text(f"/proc/pressure/{name}") for name in ("cpu", "io", "memory")},
        "sysctl": {name.replace("/", "."): _text(f"/proc/sys/{name}").strip() for name in _SYSCTLS},
        "environment": sorted(name for name in environ if name.startswith("HEADRACE_")),
    }  # fmt: skip
    mounts = mountpoints.parse_mountinfo(_bytes("/proc/self/mountinfo"))
    cache_dir = (settings.get("cache_dir") or {}).get("value")
    facts["mounts"] = [
        entry._asdict() for entry in mounts if entry.is_ours or (cache_dir and _holds(entry.path, str(cache_dir)))
    ]
    here = [entry.minor for entry in mounts if entry.path == path and entry.is_ours]
    facts["fuse"] = {
        name: _text(f"/sys/fs/fuse/connections/{here[-1]}/{name}").strip()
        for name in ("waiting", "max_background", "congestion_threshold")
    } if here else None  # fmt: skip
    if cache_dir:
        facts["cache_disk"] = _attempt(lambda: shutil.disk_usage(str(cache_dir))._asdict())
    if pid:
        facts["process"] = {name: _text(f"/proc/{pid}/{name}") for name in _PROCESS_FILES}
        facts["process"]["descriptors"] = _attempt(lambda: len(os.listdir(f"/proc/{pid}/fd")))
    return facts


def _holds(mounted: str, path: str) -> bool:
    return path == mounted or path.startswith(mounted.rstrip("/") + "/")


def _asked(path: str, command: str) -> Any:
    return control.ask_once(control.socket_path(runtime_dir(), path), {"command": command}, timeout_s=_ANSWER_TIMEOUT_S)


def _fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=_ANSWER_TIMEOUT_S) as response:
        return str(response.read(limits.BUG_REPORT_LOG_BYTES).decode(errors="replace"))


def _doctor(mountpoint: Path) -> Any:
    from spoke.doctor import report
    from spoke.doctor.examine import Asked, examine

    began_s = runtime.now_s()
    facts, findings = examine(Asked(mountpoint), runtime_dir(), runtime.now_s)
    return report.as_json(facts, findings, runtime.now_s() - began_s)


def _log(path: str, pid: int | None) -> str:
    file = control.socket_path(runtime_dir(), path).with_suffix(".log")
    with suppress(OSError), file.open("rb") as log:
        log.seek(max(0, file.stat().st_size - limits.BUG_REPORT_LOG_BYTES))
        return log.read().decode(errors="backslashreplace")
    journalctl = shutil.which("journalctl")
    if journalctl is None or pid is None:
        return f"no log at {file}, and no journal to ask\n"
    command = [journalctl, f"_PID={pid}", "-n", str(_JOURNAL_LINES), "--no-pager", "-o", "short-iso"]
    answer = _attempt(
        lambda: subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False).stdout
    )
    return str(answer)[-limits.BUG_REPORT_LOG_BYTES :]


def _attempt(call: Callable[[], Any]) -> Any:
    """What it gives, or why it gave nothing: a report with a gap is better than none."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 whatever it is, it belongs in the report
        return f"could not be had: {str(error) or repr(error)}"


def _bytes(path: str) -> bytes:
    return Path(path).read_bytes()


def _text(path: str) -> str:
    return str(_attempt(lambda: _bytes(path).decode(errors="replace")))
