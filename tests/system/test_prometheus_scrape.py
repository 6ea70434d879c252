"""A real Prometheus scrapes a real pair: every rule and every query of the dashboard is answered, and the alert for a
hub that is away fires and clears."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pair import Pair, eventually

FILES = Path(__file__).parents[2] / "deploy/prometheus"
PROMETHEUS = shutil.which("prometheus")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.mount,
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (Debian: prometheus)"),
]

MAY_BE_EMPTY = ("refusals", "rate_limit_bytes_per_second", "ALERTS{", "rank_lost")
"""No refusal, no limit and no alert is how it should be."""


class Prometheus:
    """With the project's rules, but each looks every second, at the last seconds, and alerts do not wait."""

    def __init__(self, work_dir: Path, targets: dict[str, str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        rules = yaml.safe_load((FILES / "headrace.rules.yml").read_text())
        for group in rules["groups"]:
            for rule in group["rules"]:
                rule.pop("for", None)
                rule["expr"] = hurried(rule["expr"])
        (work_dir / "headrace.rules.yml").write_text(yaml.safe_dump(rules))
        config = yaml.safe_load((FILES / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
        (work_dir / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._log = (work_dir / "prometheus.log").open("wb")
        self.popen = subprocess.Popen(
            [str(PROMETHEUS), f"--config.file={work_dir / 'prometheus.yml'}", f"--web.listen-address={self.address}",
             f"--storage.tsdb.path={work_dir / 'tsdb'}"],
            stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def get(self, page: str, **words: str) -> Any:
        url = f"http://{self.address}/api/v1/{page}?{urllib.parse.urlencode(words)}"
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)["data"]

    def answers(self) -> bool:
        try:
            return all(target["health"] == "up" for target in self.get("targets")["activeTargets"])
        except (urllib.error.URLError, ConnectionError):
            return False

    def query(self, expression: str) -> list[Any]:
        return self.get("query", query=expression)["result"]

    def firing(self) -> set[str]:
        return {alert["labels"]["alertname"] for alert in self.get("alerts")["alerts"] if alert["state"] == "firing"}

    def close(self) -> None:
        self.popen.send_signal(signal.SIGTERM)
        try:
            self.popen.wait(10)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self._log.close()


def hurried(expression: str) -> str:
    for interval in ("[$__rate_interval]", "[5m]", "[15m]", "[1h]", "[24h]"):
        expression = expression.replace(interval, "[5s]")
    expression = expression.replace("[6h] offset 15m", "[1m] offset 1s")
    return expression.replace("$hub", ".*").replace("$spoke", ".*")


@pytest.fixture
def work_dir(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "prometheus").mkdir()
    yield tmp_path / "prometheus"
    shutil.rmtree(tmp_path / "prometheus", ignore_errors=True)


def test_rules_and_dashboard_against_a_living_pair(pair: Pair, work_dir: Path) -> None:
    (pair.data / "f").write_bytes(os.urandom(48 << 20))
    hub = pair.hub()
    spoke = pair.spoke(hub.address)
    prometheus = Prometheus(work_dir, {"headrace-hub": hub.metrics, "headrace-spoke": spoke.facts()["metrics"]})
    try:
        eventually(prometheus.answers, 30)
        dashboard = json.loads((FILES / "grafana-dashboard.json").read_text())
        queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
        queries += [note["expr"] for note in dashboard["annotations"]["list"]]
        assert len(queries) > 30
        open_questions = {query for query in queries if not any(words in query for words in MAY_BE_EMPTY)}
        end_s = time.monotonic() + 60
        with (spoke.mountpoint / "f").open("rb", buffering=0) as file:
            while open_questions:  # while something is read, all of them have an answer sooner or later
                file.seek((file.tell() + (1 << 20)) % (47 << 20))
                assert file.read(1 << 16)
                open_questions -= {query for query in open_questions if prometheus.query(hurried(query))}
                assert time.monotonic() < end_s, f"without an answer: {open_questions}"
                time.sleep(0.2)
        for query in queries:
            prometheus.query(hurried(query))  # an error is an HTTP error
        for group in prometheus.get("rules")["groups"]:
            assert [rule["lastError"] for rule in group["rules"] if rule.get("lastError")] == []
            assert all(rule["health"] == "ok" for rule in group["rules"])
        assert not {alert for alert in prometheus.firing() if "Hub" in alert or "Down" in alert}

        hub.kill()
        eventually(lambda: {"HeadraceHubUnreachable", "HeadraceHubDown"} <= prometheus.firing(), 30)
        pair.hub(hub.port, extra=("--metrics", hub.metrics))
        eventually(lambda: not {"HeadraceHubUnreachable", "HeadraceHubDown"} & prometheus.firing(), 30)
    finally:
        prometheus.close()
