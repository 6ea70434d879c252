"""The walk of docs/quickstart.md, command by command as it stands there, against a real Prometheus: the alert fires when the link is
cut, and clears when it is back. Other ports, and rules that wait no minutes: that is all that differs from the page."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pair import eventually, is_running

from tests.ports import free_ports

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/quickstart.md"
MOST_S = 150

pytestmark = [
    pytest.mark.slow,
    pytest.mark.mount,
    pytest.mark.timeout(MOST_S + 60),
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("promtool") is None,
        reason="prometheus and promtool are not installed (Debian: prometheus)",
    ),
]

HURRY = (
    r"sed -i 's/\(_interval: \).*/\11s/' monitoring/prometheus.yml; "
    r"sed -i '/^ *for: /d; s/\[5m\]/[20s]/g; s/\[1h\]/[20s]/g' monitoring/headrace.rules.yml; "
    r"sed -i 's/\[24h\]/[10s]/' monitoring/grafana-dashboard.json"
)
"""Scraped each second, and alerts that do not wait: for the 2 minutes of the rule the page's own output speaks."""


def steps() -> list[str]:
    """The page's commands, but for those that install: tests/system/test_packages.py does that."""
    return re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, module in (("headrace-hub", "hub.cli"), ("headrace-spoke", "spoke.cli")):
        (binaries / name).write_text(f'#!/bin/sh\nexec env PYTHONPATH={ROOT} {sys.executable} -m {module} "$@"\n')
        (binaries / name).chmod(0o755)
    (binaries / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')  # a link would lose its environment
    (binaries / "python").chmod(0o755)
    (tmp_path / "walk").mkdir()
    yield tmp_path / "walk"
    for file in (tmp_path / "walk").glob("*.pid"):
        pid = int(file.read_text() or 0)
        if pid and is_running(pid):
            os.kill(pid, signal.SIGTERM)
            eventually(lambda pid=pid: not is_running(pid))
    if os.path.ismount(tmp_path / "walk/mnt"):
        subprocess.run(["umount", "-l", str(tmp_path / "walk/mnt")], check=False)


def test_the_page_as_it_stands(directory: Path) -> None:
    script = "\n".join(f"echo '#### {number}'\n{step}" for number, step in enumerate(steps()))
    assert script.count("promtool check config") == 1
    script = script.replace("promtool check config", f"{HURRY}\npromtool check config")
    script = script.replace("sleep 16", "sleep 4").replace("32M", "8M")
    for known, port in zip((7420, 7520, 9420, 9421, 9090), free_ports(5), strict=True):
        script = script.replace(f"127.0.0.1:{known}", f"127.0.0.1:{port}")
    done = None
    with (directory / "said.txt").open("w") as said, contextlib.suppress(subprocess.TimeoutExpired):
        # A file, not a pipe: what the script starts in the background keeps it open.
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", script],
            cwd=directory,
            env={**os.environ, "SRC": str(ROOT), "PATH": f"{directory.parent / 'bin'}:{os.environ['PATH']}"},
            stdout=said,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=MOST_S,
            check=False,
        )
    text = (directory / "said.txt").read_text()
    assert done is not None, f"it waits for something that does not come:\n{text}"
    assert done.returncode == 0, text
    hub, link, spoke, prometheus, dashboard, cut, back, gone = re.split(r"^#### \d\n", text, flags=re.MULTILINE)[1:]
    assert "c4: " in hub
    assert "5 names" in hub
    assert link == ""
    assert "the same bytes" in spoke
    assert re.search(r"^\s+hub\s+linked", spoke, re.MULTILINE)
    assert "SUCCESS" in prometheus
    assert re.search(r"headrace_spoke_hub_connected\{.*\} => 1 @", prometheus)
    answered, asked = map(int, re.findall(r"(\d+) of (\d+) queries have a value", dashboard)[0])
    assert "refused" not in dashboard
    assert answered >= asked - 4, dashboard
    assert 'alertname="HeadraceHubUnreachable"' in cut
    assert "NOT LINKED" in cut
    assert "what is cached is served" in cut
    assert "the alert has cleared" in back
    assert re.search(r"hub\s+linked", back)
    assert gone.startswith("unmounted ")
