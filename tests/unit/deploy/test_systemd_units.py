"""The unit files: systemd's own checks of them, and the rules that it cannot know."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[3] / "deploy/systemd"
HUB, SPOKE = UNITS / "headrace-hub.service", UNITS / "headrace-spoke@.service"
PATH_MTU = UNITS / "headrace-path-mtu.service"
ANALYZE = shutil.which("systemd-analyze")
needs_analyze = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed (Debian: systemd)")


def section(unit: Path, name: str = "Service") -> list[tuple[str, str]]:
    """(key, value) in order; keys may come several times."""
    found, current = [], ""
    for line in unit.read_text().splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif line and not line.startswith("#") and current == name:
            key, _, value = line.partition("=")
            found.append((key, value))
    return found


def values(unit: Path, key: str, name: str = "Service") -> list[str]:
    return [value for found, value in section(unit, name) if found == key]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units as on a host, the commands they name being there."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name in ("headrace-hub", "headrace-spoke"):
        (binaries / name).symlink_to("/bin/true")
    for unit, name in ((HUB, HUB.name), (SPOKE, "headrace-spoke@c4.service"), (PATH_MTU, PATH_MTU.name)):
        (tmp_path / name).write_text(unit.read_text().replace("/opt/headrace/bin", str(binaries)))
    return tmp_path


@needs_analyze
@pytest.mark.parametrize("name", ["headrace-hub.service", "headrace-spoke@c4.service", "headrace-path-mtu.service"])
def test_systemd_finds_no_fault(installed: Path, name: str) -> None:
    done = subprocess.run(
        [str(ANALYZE), "verify", "--man=no", "--recursive-errors=no", str(installed / name)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "headrace" in line]
    assert ours == []
    assert done.returncode == 0


@needs_analyze
@pytest.mark.parametrize(("name", "exposure"), [("headrace-hub.service", 2.0), ("headrace-spoke@c4.service", 4.5)])
def test_exposure_stays_low(installed: Path, name: str, exposure: float) -> None:
    """The hub is sandboxed whole; the spoke mounts into the host's namespace and cannot be."""
    done = subprocess.run(
        [str(ANALYZE), "security", "--offline=true", f"--threshold={int(exposure * 10)}", "--no-pager",
         str(installed / name)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr


def test_a_stop_is_over_within_ten_seconds() -> None:
    for unit in (HUB, SPOKE):
        (stop,) = values(unit, "TimeoutStopSec")
        assert int(stop.removesuffix("s")) <= 9


def test_a_spoke_stays_in_the_host_s_mount_namespace() -> None:
    """Each of these makes one for the service (systemd.exec(5)), and its mount would be invisible outside."""
    private = """
        PrivateTmp ProtectSystem ProtectHome PrivateDevices PrivateMounts ProtectProc ProcSubset ProtectKernelTunables
        ProtectKernelModules ProtectKernelLogs ProtectControlGroups ReadOnlyPaths ReadWritePaths InaccessiblePaths
        ExecPaths NoExecPaths BindPaths BindReadOnlyPaths TemporaryFileSystem RootDirectory RootImage DynamicUser
        MountFlags MountAPIVFS PrivateNetwork PrivateUsers PrivateIPC LogNamespace
    """
    assert {key for key, _ in section(SPOKE)} & set(private.split()) == set()


def test_both_are_watched_and_told_apart_from_busy() -> None:
    for unit in (HUB, SPOKE):
        assert values(unit, "Type") == ["notify"]
        assert values(unit, "WatchdogSec")
        assert values(unit, "NotifyAccess") == ["main"]


def test_order_at_boot() -> None:
    for unit in (HUB, SPOKE):
        assert values(unit, "Wants", "Unit") == ["network-online.target"]
        assert "network-online.target" in values(unit, "After", "Unit")[0]
    assert "remote-fs.target" in values(HUB, "After", "Unit")[0]
    assert values(SPOKE, "Before", "Unit") == ["remote-fs.target"]


def test_each_hardening_line_has_its_reason() -> None:
    """A comment above it, or above the group of lines without a gap that it is in."""
    for unit in (HUB, SPOKE):
        text = unit.read_text()
        lines = text[text.index("# --- hardening") : text.index("[Install]")].splitlines()[1:]
        above = ""
        for line in lines:
            if "=" in line and not line.startswith("#"):
                assert above.startswith("#") or "=" in above, line
            above = line


@pytest.mark.parametrize("kind", ["sysusers", "tmpfiles"])
def test_users_and_directories(kind: str, tmp_path: Path) -> None:
    tool = shutil.which(f"systemd-{kind}")
    if tool is None:
        pytest.skip(f"systemd-{kind} is not installed (Debian: systemd)")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (tmp_path / "etc/group").write_text("root:x:0:\n")
    arguments = ["--create"] if kind == "tmpfiles" else []
    done = subprocess.run(
        [tool, f"--root={tmp_path}", *arguments, str(UNITS / f"{kind}.d/headrace.conf")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if kind == "sysusers":
        assert re.search(r"^headrace-hub:", (tmp_path / "etc/passwd").read_text(), re.MULTILINE)
    else:
        modes = {
            path: (tmp_path / path).stat().st_mode & 0o777
            for path in ("run/headrace", "var/cache/headrace", "mnt/headrace")
        }
        assert modes == {"run/headrace": 0o700, "var/cache/headrace": 0o700, "mnt/headrace": 0o755}
