"""One metrics port for all mounts of a host: shared, handed on, and not held up by a mount that hangs."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from pair import Pair, Spoke, ask, eventually, run
from prometheus_client.parser import text_string_to_metric_families

from tests.ports import free_ports

pytestmark = pytest.mark.mount


def scraped(address: str) -> dict[tuple[str, str | None], float]:
    """Samples without labels of their own, by name and mount."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "one family in two places is no exposition"
    return {
        (sample.name, sample.labels.get("mount")): sample.value
        for family in families
        for sample in family.samples
        if not set(sample.labels) - {"mount"}
    }


def page(address: str, name: str, mount: Path | None = None) -> Any:
    query = "?" + urllib.parse.urlencode({"mount": str(mount)}) if mount is not None else ""
    with urllib.request.urlopen(f"http://{address}/{name}{query}", timeout=10) as response:
        return json.load(response)


def two_at_one_port(pair: Pair, address: str) -> tuple[Spoke, Spoke]:
    hub = pair.hub()
    first = pair.spoke(hub.address, "a", "cache-a", extra=("--metrics", address))
    return first, pair.spoke(hub.address, "b", "cache-b", extra=("--metrics", address))


def test_the_first_serves_all_and_another_takes_over(pair: Pair) -> None:
    (pair.data / "f").write_bytes(os.urandom(1 << 20))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    hub = pair.hub()
    first = pair.spoke(hub.address, "a", "cache-a", extra=("--metrics", address))
    assert {mount for _, mount in scraped(address)} == {None}, "alone nothing needs to be told apart"
    second = pair.spoke(hub.address, "b", "cache-b", extra=("--metrics", address))
    assert (second.mountpoint / "f").read_bytes() == (pair.data / "f").read_bytes()
    a, b = str(first.mountpoint), str(second.mountpoint)
    seen = scraped(address)
    assert {mount for _, mount in seen} == {a, b}
    assert seen["headrace_spoke_answering", a] == seen["headrace_spoke_answering", b] == 1
    assert (seen["headrace_spoke_opens_total", a], seen["headrace_spoke_opens_total", b]) == (0, 1)
    assert (second.facts()["metrics"], second.facts()["metrics_served_by"]) == (address, a)
    assert first.facts()["metrics_served_by"] is None
    assert f"http://{address}/metrics, at the port of {a}" in ask("status", b).stdout
    assert page(address, "status")["mountpoint"] == a
    assert page(address, "status", second.mountpoint)["mountpoint"] == b
    live = page(address, "live", second.mountpoint)
    assert (live["mountpoint"], live["mounts"]) == (b, [a, b])
    with pytest.raises(urllib.error.HTTPError, match="404"):
        page(address, "status", Path("/elsewhere"))

    first.terminate()
    eventually(lambda: second.facts()["metrics_served_by"] is None and second.facts()["metrics"] == address)
    seen = scraped(address)
    assert {mount for _, mount in seen} == {None}
    assert seen["headrace_spoke_opens_total", None] == 1, "its own counters went on"


def test_a_mount_that_hangs_or_died_is_a_figure_and_holds_up_no_scrape(pair: Pair) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    first, second = two_at_one_port(pair, address)
    a, b = str(first.mountpoint), str(second.mountpoint)
    worker = second.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        seen = scraped(address)
        assert time.monotonic() - began_s < 4
        assert (seen["headrace_spoke_answering", a], seen["headrace_spoke_answering", b]) == (1, 0)
        assert ("headrace_spoke_opens_total", b) not in seen
        assert ("headrace_spoke_opens_total", a) in seen
        with pytest.raises(urllib.error.HTTPError, match="503"):
            page(address, "live", second.mountpoint)
    finally:
        os.kill(worker, signal.SIGCONT)
    eventually(lambda: scraped(address)["headrace_spoke_answering", b] == 1)

    second.kill()  # and its supervisor: the mount is left without anybody
    assert scraped(address)["headrace_spoke_answering", b] == 0
    assert run("spoke.cli", "umount", b).returncode == 0
    assert {mount for _, mount in scraped(address)} == {a}, (
        "what is no mount is not missed; the label stays for this process"
    )


def test_a_port_that_something_else_has_is_no_reason_not_to_mount(pair: Pair) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        spoke = pair.spoke(pair.hub().address, extra=("--metrics", address))
        assert (spoke.facts()["metrics"], spoke.facts()["metrics_served_by"]) == (None, None)
        assert "metrics port not available" in spoke.log()
    eventually(lambda: spoke.facts()["metrics"] == address)
    assert scraped(address)["headrace_spoke_answering", None] == 1
